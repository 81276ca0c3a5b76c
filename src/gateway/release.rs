//! Releases, and those that are still owed to a node.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{Error, Gateway, Result, route::key_of};
use crate::{
    api::{ClaimId, NodeAddress, NodeName},
    fleet::{Now, Sandbox},
    meta::UnixTime,
    sandboxd,
    store::Stored,
};

/// Time between two looks at what is owed, and the bounds of the pause between two tries of one release.
const ROUND: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// How long after the end of its lease a sandbox may outlive it on the node.
const REAP_GRACE: Duration = Duration::from_secs(30);
/// Releases tried at once in one round.
const AT_ONCE: usize = 64;

/// What became of a release.
#[derive(Debug)]
pub enum Released {
    /// The node confirmed it; the sandbox's last state.
    Gone(Arc<Stored<Sandbox>>),
    /// It is owed: the sandbox is still listed, as deleted.
    Pending(Arc<Stored<Sandbox>>),
}

/// Releases that nodes have not confirmed. Bounded by the sandboxes there are.
#[derive(Debug)]
pub(super) struct Owed {
    // Held to look up or change one entry, never over an await.
    debts: Mutex<HashMap<(NodeName, ClaimId), Debt>>,
    changed_tx: watch::Sender<u64>,
}

#[derive(Debug)]
struct Debt {
    next_try: Instant,
    pause: Duration,
    /// When the daemon reaps the sandbox by itself.
    lease_ends: Option<UnixTime>,
}

impl Default for Owed {
    fn default() -> Self {
        Self {
            debts: Mutex::default(),
            changed_tx: watch::Sender::new(0),
        }
    }
}

/// What a node said to a release.
enum Answer {
    Gone,
    Open(sandboxd::Error),
}

impl Gateway {
    /// Releases a sandbox. A node that does not answer now is asked again until it does or the lease is over.
    ///
    /// # Errors
    /// [`Error::NoToken`]: then nothing is changed.
    pub async fn release(&self, record: Arc<Stored<Sandbox>>) -> Result<Released> {
        let sandbox = &record.value;
        if sandbox.gone {
            return Ok(self.forget(&record));
        }
        let answer = match self.address_of(sandbox) {
            Err(_) => None,
            Ok(address) => Some(self.try_release(&address, &sandbox.claim).await),
        };
        match answer {
            Some(Answer::Gone) => {
                self.inner.metrics.called("release", true);
                return Ok(self.forget(&record));
            }
            Some(Answer::Open(error @ sandboxd::Error::NoToken { .. })) => {
                return Err(Error::of_call(&sandbox.node, &key_of(sandbox), error));
            }
            Some(Answer::Open(error)) => {
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
        let marked = self
            .inner
            .fleet
            .set_deleted(&sandbox.node, &sandbox.claim, Now::read());
        Ok(match marked {
            Some(marked) => Released::Pending(marked),
            None => Released::Gone(record),
        })
    }

    /// Releases a grant that is not listed, in the background.
    pub(super) fn release_unlisted(&self, node: NodeName, claim: ClaimId) {
        self.owe(node.clone(), claim.clone(), None);
        let gateway = self.clone();
        self.inner
            .tasks
            .spawn(async move { gateway.pay(node, claim).await });
    }

    /// Notes that a node owes the end of a claim, as after a restart that found it written down.
    pub fn owe(&self, node: NodeName, claim: ClaimId, lease_ends: Option<UnixTime>) {
        let debt = Debt {
            next_try: Instant::now() + FIRST_PAUSE,
            pause: FIRST_PAUSE,
            lease_ends,
        };
        self.inner
            .owed
            .debts
            .lock()
            .entry((node, claim))
            .or_insert(debt);
        self.owed_changed();
    }

    /// What is owed now, by node, and a receiver that is woken when it changes.
    pub fn owed(&self) -> (HashMap<NodeName, Vec<ClaimId>>, watch::Receiver<u64>) {
        let changed_rx = self.inner.owed.changed_tx.subscribe();
        let mut by_node: HashMap<NodeName, Vec<ClaimId>> = HashMap::new();
        for (node, claim) in self.inner.owed.debts.lock().keys() {
            by_node.entry(node.clone()).or_default().push(claim.clone());
        }
        (by_node, changed_rx)
    }

    /// Tries what is owed, again and again.
    pub(super) async fn collect_debts(self) {
        loop {
            tokio::time::sleep(ROUND).await;
            let due = self.inner.owed.due();
            let tries = due.into_iter().map(|(node, claim)| self.pay(node, claim));
            let mut tries =
                futures::StreamExt::buffer_unordered(futures::stream::iter(tries), AT_ONCE);
            while futures::StreamExt::next(&mut tries).await.is_some() {}
        }
    }

    /// Tries one debt once.
    async fn pay(&self, node: NodeName, claim: ClaimId) {
        let over = self
            .inner
            .owed
            .is_over(&(node.clone(), claim.clone()), UnixTime::now());
        let answer = match self.inner.fleet.address(&node) {
            _ if over => Answer::Gone,
            // The node's publication is gone, and every sandbox of it with it.
            None if self.inner.fleet.by_claim(&node, &claim).is_none() => Answer::Gone,
            None => return,
            Some(address) => self.try_release(&address, &claim).await,
        };
        match answer {
            Answer::Gone => {
                self.inner.fleet.released(&node, &claim, Now::read());
                self.inner.owed.debts.lock().remove(&(node, claim));
                self.owed_changed();
            }
            Answer::Open(error) => {
                tracing::debug!(%node, %claim, error = &error as &dyn std::error::Error, "a release is still owed");
            }
        }
    }

    /// Asks the node for the release. A "not found" counts only when the node, asked with the same token, does not list the
    /// claim either: to a wrong token it says the same.
    async fn try_release(&self, address: &NodeAddress, claim: &ClaimId) -> Answer {
        let daemon = self.daemon(address);
        match daemon.release(claim).await {
            Ok(()) => Answer::Gone,
            Err(error @ sandboxd::Error::NotFound { .. }) => match daemon.sandbox(claim).await {
                Err(sandboxd::Error::NotFound { .. }) => Answer::Gone,
                Ok(_) => Answer::Open(error),
                Err(error) => Answer::Open(error),
            },
            Err(error) => Answer::Open(error),
        }
    }

    fn forget(&self, record: &Arc<Stored<Sandbox>>) -> Released {
        let (node, claim) = (&record.value.node, &record.value.claim);
        let last = self.inner.fleet.released(node, claim, Now::read());
        if self
            .inner
            .owed
            .debts
            .lock()
            .remove(&(node.clone(), claim.clone()))
            .is_some()
        {
            self.owed_changed();
        }
        match last {
            Some(held) if held.value.gone && held.value.has_finalizers() => Released::Pending(held),
            last => Released::Gone(last.unwrap_or_else(|| record.clone())),
        }
    }

    fn owed_changed(&self) {
        let owed = self.inner.owed.debts.lock().len();
        self.inner
            .metrics
            .releases_owed
            .set(i64::try_from(owed).unwrap_or(i64::MAX));
        self.inner
            .owed
            .changed_tx
            .send_modify(|changes| *changes += 1);
    }
}

impl Owed {
    /// The debts whose time has come; each is due again after a longer pause.
    fn due(&self) -> Vec<(NodeName, ClaimId)> {
        let now = Instant::now();
        let mut debts = self.debts.lock();
        let due = debts.iter_mut().filter(|(_, debt)| debt.next_try <= now);
        due.map(|(key, debt)| {
            debt.pause = (debt.pause * 2).min(LONGEST_PAUSE);
            debt.next_try = now + debt.pause;
            key.clone()
        })
        .collect()
    }

    /// Whether the lease is over for so long that the daemon must have reaped the sandbox itself.
    fn is_over(&self, key: &(NodeName, ClaimId), now: UnixTime) -> bool {
        let debts = self.debts.lock();
        debts
            .get(key)
            .and_then(|debt| debt.lease_ends)
            .is_some_and(|ends| ends.after(REAP_GRACE) <= now)
    }
}
