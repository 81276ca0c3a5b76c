//! Becoming, staying and ceasing to be the writer.

use std::{error::Error as StdError, fs::File, path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};

use crate::{
    meta::{ResourceVersion, UnixTime},
    telemetry::Check,
};

use super::{
    Error, LeaseOptions, Result, file,
    lease::{Claim, Observed, claim, holder, released, renewed, stored_epoch},
};

/// Time for one round with kube-apiserver: a read and a write at most.
const DEADLINE: Duration = Duration::from_secs(5);

/// The term of who needs no renewal. Instants that are much later cannot be told apart on every system.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The right to write. Dropped without [`Self::release`], the Lease stays as it is: others wait until it runs out, and this
/// process's next life takes it back at once.
#[derive(Debug)]
pub struct Sequencer {
    first: ResourceVersion,
    tenure: Tenure,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Renewed by a task that ends when it is told to release, or has lost.
    Lease {
        release: CancellationToken,
        renewal: AbortOnDropHandle<()>,
    },
    /// Nobody else can take it while the file is open.
    File { _lock: File },
}

/// The right to write, to be looked at before every write that leaves the process. A clone is the same one.
#[derive(Clone, Debug)]
pub struct Tenure {
    // Held for one load or store.
    until: Arc<Mutex<Instant>>,
    lost: CancellationToken,
}

impl Sequencer {
    /// Waits for the Lease and takes it. `client` repeats nothing by itself. `check` passes while the Lease is held, and says
    /// who holds it until then.
    ///
    /// Whatever else goes wrong, missing permissions too, is logged and tried again: it heals without a restart.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when `shutdown` comes first; [`Error::UnreadableEpoch`] and [`Error::Exhausted`].
    pub async fn acquire(
        client: Client,
        options: LeaseOptions,
        check: Check,
        shutdown: &CancellationToken,
    ) -> Result<Self> {
        let api = Api::namespaced(client, &options.namespace);
        let candidate = Candidate {
            api,
            options,
            check,
        };
        shutdown
            .run_until_cancelled(candidate.acquire())
            .await
            .unwrap_or(Err(Error::Cancelled))
    }

    /// Takes `directory`, in whose file `epoch` the epoch is kept. For a server without a cluster.
    ///
    /// # Errors
    /// [`Error::InUse`] when another process has it, [`Error::File`], [`Error::UnreadableEpoch`] and [`Error::Exhausted`].
    pub fn in_directory(directory: &Path) -> Result<Self> {
        let (first, lock) = file::begin(directory)?;
        Ok(Self {
            first,
            tenure: Tenure::until(Instant::now() + FOREVER),
            kind: Kind::File { _lock: lock },
        })
    }

    /// The first resource version of this life. Every version given out before, by anybody, is lower.
    pub fn first_version(&self) -> ResourceVersion {
        self.first
    }

    /// The right to write, for those who write.
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Gives the right up, so that another process can have it at once. To be called when the last write is done; from here on
    /// [`Tenure::lost`] is cancelled. Takes at most 5 s.
    pub async fn release(self) {
        if let Kind::Lease { release, renewal } = self.kind {
            release.cancel();
            // The task sends one request with a deadline of its own.
            let _ = renewal.await;
        }
    }
}

impl Tenure {
    fn until(until: Instant) -> Self {
        Self {
            until: Arc::new(Mutex::new(until)),
            lost: CancellationToken::new(),
        }
    }

    /// Cancelled when the right is lost, for ever: the process has to stop writing, and is best restarted.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Whether this process may write at this moment. Cheap enough for every write; also true to a process that was stopped
    /// for a while and has not been told yet that it has lost.
    pub fn holds(&self) -> bool {
        Instant::now() < *self.until.lock() && !self.lost.is_cancelled()
    }
}

struct Candidate {
    api: Api<Lease>,
    options: LeaseOptions,
    check: Check,
}

impl Candidate {
    async fn acquire(self) -> Result<Sequencer> {
        let mut observed = Observed::default();
        loop {
            let asked = Instant::now();
            match timeout(DEADLINE, self.attempt(&mut observed)).await {
                Ok(Ok(claimed)) => return Ok(self.begin(claimed, asked)),
                Ok(Err(NotYet::Refused(error))) => return Err(error),
                Ok(Err(NotYet::Held(by))) => {
                    self.check.fail(format!("the lease is held by {by}"));
                    tracing::info!(by, "waiting for the lease");
                }
                // Somebody was faster: look again, after a pause as for everything else.
                Ok(Err(NotYet::Failed(error))) => {
                    self.check.fail("the lease cannot be taken");
                    tracing::warn!(error = &error as &dyn StdError, "lease");
                }
                Err(_) => {
                    self.check
                        .fail("kube-apiserver does not answer for the lease");
                    tracing::warn!("kube-apiserver does not answer for the lease");
                }
            }
            tokio::time::sleep(self.options.period).await;
        }
    }

    async fn attempt(&self, observed: &mut Observed) -> Result<Claim, NotYet> {
        let current = self.api.get_opt(&self.options.name).await?;
        if let Some(lease) = &current
            && let Some(by) = holder(lease)
            && by != self.options.identity
            && observed.may_be_held(lease, Instant::now())
        {
            return Err(NotYet::Held(by.to_owned()));
        }
        let exists = current.is_some();
        let claimed = claim(current, &self.options, UnixTime::now()).map_err(NotYet::Refused)?;
        let params = PostParams::default();
        let lease = match exists {
            true => {
                self.api
                    .replace(&self.options.name, &params, &claimed.lease)
                    .await?
            }
            false => self.api.create(&params, &claimed.lease).await?,
        };
        Ok(Claim { lease, ..claimed })
    }

    /// The term counts from before the record was sent: others count from when they see it.
    fn begin(self, claimed: Claim, asked: Instant) -> Sequencer {
        let Claim {
            lease,
            epoch,
            first,
        } = claimed;
        let tenure = Tenure::until(asked + self.options.renew_deadline);
        let release = CancellationToken::new();
        let renewal = Renewal {
            api: self.api,
            options: self.options,
            check: self.check,
            tenure: tenure.clone(),
            epoch: epoch.to_string(),
            lease,
        };
        renewal.check.pass();
        tracing::info!(
            identity = renewal.options.identity,
            epoch,
            "holding the lease"
        );
        // Whatever ends the renewal, a panic as well, ends the right to write.
        let loss = tenure.lost.clone().drop_guard();
        let renewal = AbortOnDropHandle::new(tokio::spawn(renewal.run(release.clone(), loss)));
        Sequencer {
            first,
            tenure,
            kind: Kind::Lease { release, renewal },
        }
    }
}

/// Why an attempt did not succeed.
enum NotYet {
    Held(String),
    Failed(kube::Error),
    Refused(Error),
}

impl From<kube::Error> for NotYet {
    fn from(error: kube::Error) -> Self {
        Self::Failed(error)
    }
}

struct Renewal {
    api: Api<Lease>,
    options: LeaseOptions,
    check: Check,
    tenure: Tenure,
    epoch: String,
    lease: Lease,
}

impl Renewal {
    async fn run(mut self, release: CancellationToken, loss: DropGuard) {
        let lost = release.run_until_cancelled(self.keep()).await.is_some();
        // First of all, and before the record says so: nobody writes without a Lease.
        drop(loss);
        if lost {
            self.check.fail("the lease is lost");
            tracing::error!(
                identity = self.options.identity,
                "lost the lease: not writing any more"
            );
            return;
        }
        self.check.fail("the lease is released");
        self.give_up().await;
    }

    /// Renews until the Lease is lost.
    async fn keep(&mut self) {
        while self.tenure.holds() {
            tokio::time::sleep(self.options.period).await;
            let (asked, until) = (Instant::now(), *self.tenure.until.lock());
            // Not a moment longer than the term, and short enough that one lost request leaves time for others.
            let deadline = until.min(asked + self.options.renew_deadline / 3);
            match timeout_at(deadline, self.write(renewed)).await {
                Ok(Ok(())) => *self.tenure.until.lock() = asked + self.options.renew_deadline,
                Ok(Err(NotWritten::Lost)) => return,
                Ok(Err(NotWritten::Failed(error))) => {
                    tracing::warn!(error = &error as &dyn StdError, "renewing the lease");
                }
                Err(_) => tracing::warn!("renewing the lease: no answer"),
            }
        }
    }

    async fn give_up(&mut self) {
        match timeout(DEADLINE, self.write(released)).await {
            Ok(Ok(())) => tracing::info!("lease released"),
            Ok(Err(NotWritten::Lost)) => tracing::info!("the lease is another's already"),
            Ok(Err(NotWritten::Failed(error))) => {
                tracing::warn!(error = &error as &dyn StdError, "releasing the lease");
            }
            Err(_) => tracing::warn!("releasing the lease: no answer"),
        }
    }

    /// Writes the Lease as `change` leaves it, if it is still ours.
    async fn write(&mut self, change: fn(Lease) -> Lease) -> Result<(), NotWritten> {
        match self.replace(change(self.lease.clone())).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            written => return Ok(written?),
        }
        // Somebody has written it: perhaps this process, in a request whose answer was lost, or a person who labelled it.
        let current = self.api.get(&self.options.name).await?;
        let ours = holder(&current) == Some(&self.options.identity)
            && stored_epoch(&current) == Some(&self.epoch);
        match ours {
            true => Ok(self.replace(change(current)).await?),
            false => Err(NotWritten::Lost),
        }
    }

    async fn replace(&mut self, lease: Lease) -> Result<(), kube::Error> {
        let params = PostParams::default();
        self.lease = self
            .api
            .replace(&self.options.name, &params, &lease)
            .await?;
        Ok(())
    }
}

/// Why our own Lease was not written.
enum NotWritten {
    Lost,
    Failed(kube::Error),
}

impl From<kube::Error> for NotWritten {
    fn from(error: kube::Error) -> Self {
        Self::Failed(error)
    }
}
