//! Releases of sandboxes.

use std::{sync::Arc, time::Duration};

use super::{Error, Gateway, Result, route::key_of};
use crate::{
    api::{ClaimId, Delivery, NodeName, SandboxKey},
    fleet::{Now, Sandbox, key_of_claim_ref},
    meta::UnixTime,
    sandboxd::{self, Ended},
    store::Stored,
    telemetry::Attended,
};

/// Pauses before a node is asked again for what it denied.
const AGAIN: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(25),
    Duration::from_secs(60),
];
/// Sandboxes that nodes are asked again for at once.
pub(super) const DENIALS: usize = 1_024;

/// What became of a release.
#[derive(Debug)]
pub enum Released {
    /// The node confirmed it; the sandbox's last state.
    Gone(Arc<Stored<Sandbox>>),
    /// It is owed: the sandbox is still listed, as deleted.
    Pending(Arc<Stored<Sandbox>>),
}

impl Gateway {
    /// Releases a sandbox, also when the returned future is dropped. A node that does not answer now is asked again until it does
    /// or the lease is over; that it owes the release is written down before this returns, if somebody does that.
    ///
    /// # Errors
    /// [`Error::NoToken`] and [`Error::Ending`]: then nothing is changed.
    pub async fn release(&self, record: Arc<Stored<Sandbox>>) -> Result<Released> {
        if record.value.gone {
            let Sandbox { node, claim, .. } = &record.value;
            // Once: whoever waits for a finalizer asks for this again and again.
            let is_confirmed = self.inner.fleet.is_released(node, claim);
            let forgotten = self.forget(&record);
            let lease_ends = record.value.deadline;
            if !is_confirmed && lease_ends.is_none_or(|ends| ends > UnixTime::now()) {
                // A daemon that has just begun may not have found it yet. It would come back, although it was deleted.
                self.release_unlisted(node.clone(), claim.clone(), lease_ends);
            }
            return Ok(forgotten);
        }
        self.check_release(&record.value)?;
        let release = self.clone().release_kept(record);
        let released = Attended::new(&self.inner.tasks, release).await;
        released.unwrap_or(Err(Error::Ending))
    }

    /// Whether a release of the sandbox could be begun now.
    ///
    /// # Errors
    /// [`Error::NoToken`].
    pub fn check_release(&self, sandbox: &Sandbox) -> Result<()> {
        match self.inner.daemons.check_token() {
            Err(error) if !sandbox.gone => Err(Error::NoToken(Arc::new(error))),
            _ => Ok(()),
        }
    }

    async fn release_kept(self, record: Arc<Stored<Sandbox>>) -> Result<Released> {
        let Sandbox { node, claim, .. } = &record.value;
        if record.value.has_finalizers() {
            // Without them, a restart of this server before their owners' turn would leave it to chance whether those get one.
            self.keep_user(node, claim).await;
        }
        if self.is_owed(node, claim) {
            return Ok(self.pending(record).await);
        }
        if self.inner.fleet.is_suspected(node) {
            // It would be waited for in vain. It is asked as soon as it is heard of, or in a moment.
            self.owe(node.clone(), claim.clone(), record.value.deadline);
            return Ok(self.pending(record).await);
        }
        self.call_release(record).await
    }

    async fn call_release(&self, record: Arc<Stored<Sandbox>>) -> Result<Released> {
        let sandbox = &record.value;
        let answer = match self.address_of(sandbox) {
            Err(_) => None,
            Ok(address) => Some(self.daemon(&address).release(&sandbox.claim).await),
        };
        match answer {
            Some(Ok(ended)) => {
                self.inner.metrics.called("release", true);
                if ended == Ended::Absent {
                    self.release_again(sandbox.node.clone(), sandbox.claim.clone());
                }
                return Ok(self.forget(&record));
            }
            Some(Err(error @ (sandboxd::Error::NoToken { .. } | sandboxd::Error::Fenced))) => {
                if sandbox.deleted_at.is_some() {
                    // It is marked already, and would stay so for ever.
                    self.owe(
                        sandbox.node.clone(),
                        sandbox.claim.clone(),
                        sandbox.deadline,
                    );
                }
                return Err(Error::of_call(&sandbox.node, &key_of(sandbox), error));
            }
            Some(Err(error)) => {
                self.suspect_if_silent(&sandbox.node, &error);
                tracing::info!(node = %sandbox.node, claim = %sandbox.claim, error = &error as &dyn std::error::Error, "a release is owed");
            }
            None => {
                tracing::info!(node = %sandbox.node, claim = %sandbox.claim, "a release is owed: the node has no address")
            }
        }
        self.inner.metrics.called("release", false);
        self.owe(
            sandbox.node.clone(),
            sandbox.claim.clone(),
            sandbox.deadline,
        );
        Ok(self.pending(record).await)
    }

    /// Shows that a release is owed, and waits until that is written down.
    async fn pending(&self, record: Arc<Stored<Sandbox>>) -> Released {
        let Sandbox { node, claim, .. } = &record.value;
        let marked = self.inner.fleet.set_deleted(node, claim, Now::read());
        self.until_written().await;
        match marked {
            Some(marked) => Released::Pending(marked),
            None => Released::Gone(record),
        }
    }

    /// Releases once more, some time later, what its node did not know when it was to release it: a daemon that had just begun may
    /// have found it since, and nobody lists it any more. Not for too many at once.
    pub(super) fn release_again(&self, node: NodeName, claim: ClaimId) {
        let Ok(place) = self.inner.denials.clone().try_acquire_owned() else {
            return;
        };
        let gateway = self.clone();
        self.spawn_until_shutdown(async move {
            let _place = place;
            for pause in AGAIN {
                tokio::time::sleep(pause).await;
                let Some(address) = gateway.inner.fleet.address(&node) else {
                    return;
                };
                if let Ok(Ended::Released) = gateway.daemon(&address).release(&claim).await {
                    tracing::info!(%node, %claim, "released what its node had denied");
                    return;
                }
            }
        });
    }

    /// Releases a grant that is not listed, in the background. `lease_ends`: when its daemon reaps it, if that is known.
    pub(super) fn release_unlisted(
        &self,
        node: NodeName,
        claim: ClaimId,
        lease_ends: Option<UnixTime>,
    ) {
        self.owe(node.clone(), claim.clone(), lease_ends);
        // If its node has told of it meanwhile, nobody is to take it for one that stays.
        self.inner.fleet.set_deleted(&node, &claim, Now::read());
        let gateway = self.clone();
        self.inner
            .tasks
            .spawn(async move { gateway.pay(node, claim).await.is_none() });
    }

    /// Releases what a node handed over for `key` and does not report yet; whether it is known to be gone.
    ///
    /// The node itself is asked whom it is of: what `delivery` says may have been written by anybody.
    pub async fn release_unreported(&self, key: &SandboxKey, delivery: &Delivery) -> bool {
        let Delivery { node, claim } = delivery;
        let fleet = &self.inner.fleet;
        let Some(address) = fleet.address(node) else {
            return !fleet.knows(node);
        };
        let found = match self.daemon(&address).sandbox(claim).await {
            Ok(found) => found,
            Err(sandboxd::Error::NotFound { .. }) => return true,
            Err(error) => {
                tracing::info!(%node, %claim, error = &error as &dyn std::error::Error, "a node cannot say whether it has what it handed over");
                return false;
            }
        };
        if key_of_claim_ref(&found.row.claim_ref).as_ref() != Some(key) {
            return true;
        }
        let released = self.daemon(&address).release(claim).await.is_ok();
        if released {
            // It may have been listed meanwhile.
            fleet.released(node, claim, Now::read());
        }
        released
    }

    fn forget(&self, record: &Arc<Stored<Sandbox>>) -> Released {
        let (node, claim) = (&record.value.node, &record.value.claim);
        let last = self.inner.fleet.released(node, claim, Now::read());
        self.settle_debt(node, claim);
        self.forget_user(node, claim);
        match last {
            Some(held) if held.value.gone && held.value.has_finalizers() => Released::Pending(held),
            last => Released::Gone(last.unwrap_or_else(|| record.clone())),
        }
    }
}
