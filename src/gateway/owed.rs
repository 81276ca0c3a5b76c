//! Releases that are owed to a node: tried until it confirms, and told to whoever writes them down.

use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::StreamExt;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{Gateway, lease, route::is_silence};
use crate::{
    api::{ClaimId, NodeName},
    fleet::{Now, REAP_GRACE},
    meta::UnixTime,
    sandboxd::{self, Ended},
};

/// Time between two looks at what is owed, and the bounds of the pause between two tries of one release that its node refuses.
const ROUND: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Time between two tries of a node that is silent. It does not grow: one release is tried for all that the node owes, and a
/// namespace may be waiting for its return.
const SILENCE_PAUSE: Duration = Duration::from_secs(1);
/// Nodes asked at once in one round, releases tried at once of one node, and how long new ones are begun there.
const AT_ONCE: usize = 64;
const NODE_AT_ONCE: usize = 4;
const NODE_WITHIN: Duration = Duration::from_secs(5);
/// How long the answer to a delete waits until the debt is written down.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

/// Releases that nodes have not confirmed. Bounded by the sandboxes there are.
#[derive(Debug)]
pub(super) struct Owed {
    // Held to look up or change one entry, never over an await.
    accounts: Mutex<HashMap<NodeName, Account>>,
    /// Number of changes so far.
    changed_tx: watch::Sender<u64>,
    /// How many changes are written down; `None`: nobody writes.
    written_tx: watch::Sender<Option<u64>>,
}

/// What one node owes; never nothing.
#[derive(Debug, Default)]
struct Account {
    debts: HashMap<ClaimId, Debt>,
    /// When the node, which did not answer, is tried again.
    silent_until: Option<Instant>,
}

#[derive(Debug)]
struct Debt {
    next_try: Instant,
    pause: Duration,
    /// When the daemon reaps the sandbox by itself.
    lease_ends: Option<UnixTime>,
    /// Whether the index knew the node. If not, it says nothing that it does not know it: it may be about to.
    known: bool,
}

/// How it stands with a debt.
#[derive(Clone, Copy)]
enum Standing {
    /// The lease is over for so long that the daemon must have reaped the sandbox itself.
    Over,
    /// The index knows the node, or did.
    Known,
    /// The index has not heard of the node yet.
    Unknown,
}

/// What is owed at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debts {
    /// The claims whose release is owed, by node.
    pub by_node: HashMap<NodeName, BTreeSet<ClaimId>>,
    /// How many changes led here.
    pub n_changes: u64,
}

impl Default for Owed {
    fn default() -> Self {
        Self {
            accounts: Mutex::default(),
            changed_tx: watch::Sender::new(0),
            written_tx: watch::Sender::new(None),
        }
    }
}

impl Gateway {
    /// Takes over what an earlier life of this server owed to a node.
    ///
    /// To be called before the nodes are followed: such a sandbox is deleted from when it is listed.
    pub fn owe_still(&self, node: NodeName, claims: impl IntoIterator<Item = ClaimId>) {
        let now = Instant::now();
        let lease_ends = Some(UnixTime::now().after(lease::LONGEST));
        let debts = claims.into_iter().map(|claim| {
            let debt = Debt {
                next_try: now,
                pause: FIRST_PAUSE,
                lease_ends,
                known: false,
            };
            (claim, debt)
        });
        self.inner.owed.add(node, debts);
        self.owed_changed();
    }

    /// What is owed now.
    pub fn owed(&self) -> Debts {
        let owed = &self.inner.owed;
        // Read first: what changes in between is then counted as not seen.
        let n_changes = *owed.changed_tx.borrow();
        let accounts = owed.accounts.lock();
        let claims = |account: &Account| account.debts.keys().cloned().collect();
        let by_node = accounts
            .iter()
            .map(|(node, account)| (node.clone(), claims(account)));
        Debts {
            by_node: by_node.collect(),
            n_changes,
        }
    }

    /// Is woken when what is owed changes.
    pub fn owed_changes(&self) -> watch::Receiver<u64> {
        self.inner.owed.changed_tx.subscribe()
    }

    /// Says that what was owed after so many changes would survive the end of this process. From the first such word on,
    /// deletes that are owed wait a moment for it before they are answered.
    pub fn owed_written(&self, n_changes: u64) {
        self.inner.owed.written_tx.send_replace(Some(n_changes));
    }

    /// Whether the end of a claim is owed.
    pub(super) fn is_owed(&self, node: &NodeName, claim: &ClaimId) -> bool {
        let accounts = self.inner.owed.accounts.lock();
        let account = accounts.get(node);
        account.is_some_and(|account| account.debts.contains_key(claim))
    }

    /// Notes that a node owes the end of a claim.
    pub(super) fn owe(&self, node: NodeName, claim: ClaimId, lease_ends: Option<UnixTime>) {
        let debt = Debt {
            next_try: Instant::now() + FIRST_PAUSE,
            pause: FIRST_PAUSE,
            lease_ends,
            known: true,
        };
        self.inner.owed.add(node, [(claim, debt)]);
        self.owed_changed();
    }

    /// The node owes this no more.
    pub(super) fn settle_debt(&self, node: &NodeName, claim: &ClaimId) {
        if self.inner.owed.strike(node, claim) {
            self.owed_changed();
        }
    }

    /// Waits until what is owed now is written down, if somebody does that and is quick about it.
    pub(super) async fn until_written(&self) {
        let n_changes = *self.inner.owed.changed_tx.borrow();
        let mut written_rx = self.inner.owed.written_tx.subscribe();
        let written = written_rx.wait_for(|written| written.is_none_or(|n| n >= n_changes));
        if tokio::time::timeout(WRITTEN_WITHIN, written).await.is_err() {
            tracing::warn!("a release is owed and not written down yet");
        }
    }

    /// Tries what is owed, again and again.
    pub(super) async fn collect_debts(self) -> Infallible {
        loop {
            tokio::time::sleep(ROUND).await;
            let due = self.inner.owed.due().into_iter();
            let tries = due.map(|(node, claims)| self.pay_all(node, claims));
            futures::stream::iter(tries)
                .buffer_unordered(AT_ONCE)
                .collect::<()>()
                .await;
        }
    }

    /// Tries what one node owes, until it falls silent or others have waited for long. What is left is due again.
    async fn pay_all(&self, node: NodeName, claims: Vec<ClaimId>) {
        let (ends, silent) = (Instant::now() + NODE_WITHIN, AtomicBool::new(false));
        let (node, silent) = (&node, &silent);
        let mut tries = claims.into_iter().map(|claim| async move {
            if silent.load(Ordering::Relaxed) || Instant::now() >= ends {
                return;
            }
            self.inner.owed.put_off(node, &claim);
            let hindered = self.pay(node.clone(), claim).await;
            if hindered.is_some_and(|error| is_silence(&error)) {
                silent.store(true, Ordering::Relaxed);
                self.inner.owed.fell_silent(node);
            }
        });
        // Alone: it may be that the node is still down.
        if let Some(first) = tries.next() {
            first.await;
        }
        let rest = futures::stream::iter(tries).buffer_unordered(NODE_AT_ONCE);
        rest.collect::<()>().await;
    }

    /// Tries one debt once; what hindered it, if the node was asked.
    pub(super) async fn pay(&self, node: NodeName, claim: ClaimId) -> Option<sandboxd::Error> {
        let (fleet, owed) = (&self.inner.fleet, &self.inner.owed);
        let address = fleet.address(&node);
        let listed = fleet.by_claim(&node, &claim);
        let in_index = fleet.knows(&node);
        let ends = listed.as_ref().and_then(|record| record.value.deadline);
        let is_heard = |address| self.inner.daemons.clock_offset(address).is_some();
        let ends = match address.as_ref().is_none_or(is_heard) {
            true => Ends::ByOurClock(ends),
            false => Ends::ByAnyClock(ends),
        };
        let standing = owed.look(&node, &claim, in_index, ends)?;
        if listed.is_some_and(|record| record.value.deleted_at.is_none()) {
            fleet.set_deleted(&node, &claim, Now::read());
        }
        let answer = match (standing, address) {
            (Standing::Over, _) => Ok(Ended::Released),
            // The node's publication is gone, and every sandbox of it with it.
            (Standing::Known, None) if !in_index => Ok(Ended::Released),
            (_, None) => return None,
            (_, Some(address)) => {
                let answer = self.daemon(&address).release(&claim).await;
                if answer.is_ok() {
                    fleet.heard(&node, Now::read());
                }
                answer
            }
        };
        match answer {
            Ok(ended) => {
                fleet.released(&node, &claim, Now::read());
                self.settle_debt(&node, &claim);
                if ended == Ended::Absent {
                    self.release_again(node, claim);
                }
                None
            }
            Err(error) => {
                tracing::debug!(%node, %claim, error = &error as &dyn std::error::Error, "a release is still owed");
                Some(error)
            }
        }
    }

    fn owed_changed(&self) {
        let accounts = self.inner.owed.accounts.lock();
        let owed: usize = accounts.values().map(|account| account.debts.len()).sum();
        drop(accounts);
        self.inner
            .metrics
            .releases_owed
            .set(i64::try_from(owed).unwrap_or(i64::MAX));
        self.inner
            .owed
            .changed_tx
            .send_modify(|n_changes| *n_changes += 1);
    }
}

impl Owed {
    /// Notes debts that are not noted yet.
    fn add(&self, node: NodeName, debts: impl IntoIterator<Item = (ClaimId, Debt)>) {
        let mut debts = debts.into_iter().peekable();
        if debts.peek().is_none() {
            return;
        }
        let mut accounts = self.accounts.lock();
        let account = accounts.entry(node).or_default();
        for (claim, debt) in debts {
            account.debts.entry(claim).or_insert(debt);
        }
    }

    /// Takes a debt away; whether there was one.
    fn strike(&self, node: &NodeName, claim: &ClaimId) -> bool {
        let mut accounts = self.accounts.lock();
        let Some(account) = accounts.get_mut(node) else {
            return false;
        };
        let found = account.debts.remove(claim).is_some();
        if account.debts.is_empty() {
            accounts.remove(node);
        }
        found
    }

    /// The debts whose time has come, by node. They stay due until they are tried, those first that have waited longest: one
    /// whose release hangs holds up no other.
    fn due(&self) -> HashMap<NodeName, Vec<ClaimId>> {
        let now = Instant::now();
        let is_due = |debt: &Debt| debt.next_try <= now;
        let mut due = HashMap::new();
        for (node, account) in self.accounts.lock().iter() {
            if account.silent_until.is_some_and(|until| until > now) {
                continue;
            }
            let debts = account.debts.iter().filter(|(_, debt)| is_due(debt));
            let mut debts: Vec<_> = debts.collect();
            if debts.is_empty() {
                continue;
            }
            debts.sort_unstable_by_key(|(_, debt)| debt.next_try);
            let claims: Vec<_> = debts.into_iter().map(|(claim, _)| claim.clone()).collect();
            due.insert(node.clone(), claims);
        }
        due
    }

    /// Notes that a debt is tried now: it is due again after a longer pause, or at once as long as its node is unknown.
    fn put_off(&self, node: &NodeName, claim: &ClaimId) {
        let mut accounts = self.accounts.lock();
        let account = accounts.get_mut(node);
        let debt = account.and_then(|account| account.debts.get_mut(claim));
        if let Some(debt) = debt.filter(|debt| debt.known) {
            debt.pause = (debt.pause * 2).min(LONGEST_PAUSE);
            debt.next_try = Instant::now() + debt.pause;
        }
    }

    /// Notes that a node did not answer: nothing else of it is tried for a while, and then what this try was for, too.
    fn fell_silent(&self, node: &NodeName) {
        let until = Instant::now() + SILENCE_PAUSE;
        if let Some(account) = self.accounts.lock().get_mut(node) {
            account.silent_until = Some(until);
            for debt in account.debts.values_mut() {
                debt.next_try = debt.next_try.min(until);
            }
        }
    }

    /// How it stands with a debt; `None` for what is not owed. A node whose clock was set meanwhile keeps it for longer, or for
    /// less long, than was known when it was noted.
    fn look(
        &self,
        node: &NodeName,
        claim: &ClaimId,
        in_index: bool,
        ends: Ends,
    ) -> Option<Standing> {
        let mut accounts = self.accounts.lock();
        let debt = accounts.get_mut(node)?.debts.get_mut(claim)?;
        debt.known |= in_index;
        debt.lease_ends = match ends {
            Ends::ByOurClock(ends) => ends.or(debt.lease_ends),
            Ends::ByAnyClock(ends) => ends.max(debt.lease_ends),
        };
        let now = UnixTime::now();
        let over = debt
            .lease_ends
            .is_some_and(|ends| ends.after(REAP_GRACE) <= now);
        Some(match (over, debt.known) {
            (true, _) => Standing::Over,
            (false, true) => Standing::Known,
            (false, false) => Standing::Unknown,
        })
    }
}

/// When a lease is over by what the index says, if it says so.
#[derive(Clone, Copy)]
enum Ends {
    ByOurClock(Option<UnixTime>),
    /// By the clock of a node that has not answered yet, which may be far behind ours: it can make a debt last for longer, and
    /// never be over, for then nobody would ask for the release any more.
    ByAnyClock(Option<UnixTime>),
}

#[cfg(test)]
mod tests {
    use super::{super::route::tests::mk_gateway, *};
    use crate::fleet::{Phase, Report, Row};

    #[tokio::test]
    async fn what_a_node_without_address_denies_is_owed_as_long_as_the_node_is_there() {
        let gateway = mk_gateway();
        let (fleet, node) = (&gateway.inner.fleet, NodeName::from("n1"));
        let claim = ClaimId::from("sb_1");
        let report = Report {
            address: None,
            rows: Vec::new(),
            pools: None,
            complete: true,
            published_since: UnixTime::from_secs(0),
        };
        fleet.publish(&node, &report, true, true, Now::read());
        gateway.owe(node.clone(), claim.clone(), None);
        // As a daemon that is just starting does, which may come to remember it.
        fleet.confirmed_absent(&node, &claim, Now::read());
        gateway.pay(node.clone(), claim.clone()).await;
        assert!(gateway.is_owed(&node, &claim));
        fleet.forget_node(&node);
        gateway.pay(node.clone(), claim.clone()).await;
        assert!(!gateway.is_owed(&node, &claim));
    }

    #[tokio::test]
    async fn what_a_node_keeps_for_longer_than_was_known_is_owed_for_longer() {
        let gateway = mk_gateway();
        let (fleet, node) = (&gateway.inner.fleet, NodeName::from("n1"));
        let (claim, now) = (ClaimId::from("sb_1"), UnixTime::now());
        let publish = |deadline: UnixTime| {
            let row = Row {
                claim: claim.clone(),
                claim_ref: "".into(),
                phase: Phase::Running,
                deadline: Some(deadline),
                claimed_at: Some(UnixTime::from_secs(0)),
                pool: None,
                address: "".into(),
                from_checkpoint: None,
                metadata: Default::default(),
            };
            let report = Report {
                address: None,
                rows: vec![row],
                pools: None,
                complete: true,
                published_since: UnixTime::from_secs(0),
            };
            fleet.publish(&node, &report, true, true, Now::read());
        };
        let ended = UnixTime::from_secs(now.as_secs() - 60);
        publish(ended);
        gateway.owe(node.clone(), claim.clone(), Some(ended));
        // Its clock was put back by an hour.
        publish(ended.after(Duration::from_secs(3_600)));
        gateway.pay(node.clone(), claim.clone()).await;
        assert!(gateway.is_owed(&node, &claim));
        publish(ended);
        gateway.pay(node.clone(), claim.clone()).await;
        assert!(!gateway.is_owed(&node, &claim));
        // Of a node that has not answered yet nobody knows by which clock that is.
        gateway.owe(
            node.clone(),
            claim.clone(),
            Some(now.after(Duration::from_secs(60))),
        );
        let report = Report {
            address: Some("127.0.0.1:1".parse().unwrap()),
            rows: Vec::new(),
            pools: None,
            complete: false,
            published_since: UnixTime::from_secs(0),
        };
        fleet.publish(&node, &report, true, true, Now::read());
        publish(ended);
        gateway.pay(node.clone(), claim.clone()).await;
        assert!(gateway.is_owed(&node, &claim));
    }
}
