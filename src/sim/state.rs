//! What one node holds, and how it changes by the mere passing of time.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde::Serialize;

use super::{
    claim::{Claim, Millis, Number, OnExpire, Phase},
    files::Files,
    journal::{Journal, JournalEvent},
};
use crate::api::PoolKey;

/// A daemon looks for ended leases this often, so a sandbox may outlive its deadline by as much.
const REAP_EVERY_MS: i64 = 5_000;

/// What a node did, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counters {
    /// Claims granted from a warm VM.
    pub claims_warm: u64,
    /// Claims granted by cloning.
    pub claims_clone: u64,
    /// Claims granted by a cold boot.
    pub claims_cold: u64,
    /// Claims answered with the addresses of peers.
    pub redirects: u64,
    /// Sandboxes released.
    pub releases: u64,
    /// Sandboxes destroyed at their deadline.
    pub reaps: u64,
    /// Sandboxes hibernated.
    pub hibernates: u64,
    /// Sandboxes woken.
    pub wakes: u64,
    /// Calls to fork.
    pub forks: u64,
    /// Checkpoints taken.
    pub checkpoints: u64,
    /// Templates promoted.
    pub promotes: u64,
    /// Sandboxes archived at their deadline.
    pub archives: u64,
    /// Archived sandboxes woken.
    pub unarchives: u64,
    /// Seconds that granted claims took.
    pub claim_seconds: f64,
    /// Seconds that wakes took.
    pub wake_seconds: f64,
}

impl Counters {
    /// Claims granted, however.
    pub fn claims(&self) -> u64 {
        self.claims_warm + self.claims_clone + self.claims_cold
    }
}

/// Everything on one node. Lives behind the node's lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) claims: BTreeMap<Number, Claim>,
    pub(super) pools: BTreeMap<Arc<PoolKey>, Pool>,
    pub(super) templates: BTreeMap<PoolKey, Template>,
    pub(super) checkpoints: BTreeMap<Number, Checkpoint>,
    pub(super) draining: bool,
    pub(super) counters: Counters,
    pub(super) journal: Journal,
    /// In the order that they fall due, since every refill takes the same time.
    refills: VecDeque<Refill>,
    /// No lease ends before this; saves the search.
    earliest_deadline: Millis,
    reaped_at: Millis,
}

#[derive(Debug, Default)]
pub(super) struct Pool {
    pub(super) warm: u32,
    pub(super) refilling: u32,
    pub(super) target: u32,
    pub(super) warm_max: u32,
}

#[derive(Debug)]
struct Refill {
    due: Millis,
    key: Arc<PoolKey>,
    count: u32,
}

#[derive(Debug)]
pub(super) struct Template {
    pub(super) digest: String,
    pub(super) tenant: Option<String>,
    pub(super) created_at: Timestamp,
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) name: Option<String>,
    pub(super) sandbox: Number,
    pub(super) key: Arc<PoolKey>,
    pub(super) tenant: Option<String>,
    pub(super) created_at: Millis,
    pub(super) files: Files,
}

impl State {
    pub(super) fn new(now: Millis, journal: usize) -> Self {
        Self {
            claims: BTreeMap::new(),
            pools: BTreeMap::new(),
            templates: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            draining: false,
            counters: Counters::default(),
            journal: Journal::new(journal),
            refills: VecDeque::new(),
            earliest_deadline: Millis::FOREVER,
            reaped_at: now,
        }
    }

    /// Brings the node to `now`: refills that fell due, leases that ended before the last tick. Called at every entry, so
    /// that hundreds of nodes need no timer.
    pub(super) fn settle(&mut self, now: Millis) {
        self.refill_due(now);
        let tick = Millis(now.0 - now.0.rem_euclid(REAP_EVERY_MS));
        if tick > self.reaped_at {
            self.reaped_at = tick;
            if self.earliest_deadline <= tick {
                self.reap(tick);
            }
        }
    }

    /// Takes in that the clock shows `now` and was set forward by so much. What is being made takes no longer for it.
    pub(super) fn clock_was_set(&mut self, now: Millis, by_ms: i64) {
        for refill in &mut self.refills {
            refill.due.0 += by_ms;
        }
        self.reaped_at = self.reaped_at.min(now);
    }

    fn refill_due(&mut self, now: Millis) {
        while self.refills.front().is_some_and(|refill| refill.due <= now) {
            let Some(refill) = self.refills.pop_front() else {
                return;
            };
            if let Some(pool) = self.pools.get_mut(&refill.key) {
                // A drain or a smaller target may have taken the place of what was being made.
                let made = refill.count.min(pool.refilling);
                pool.refilling -= made;
                pool.warm += made;
            }
        }
    }

    fn reap(&mut self, tick: Millis) {
        let (mut earliest, counters) = (Millis::FOREVER, &mut self.counters);
        let journal = &mut self.journal;
        self.claims.retain(|number, claim| {
            if claim.deadline > tick {
                earliest = earliest.min(claim.deadline);
                return true;
            }
            if claim.on_expire == OnExpire::Archive {
                claim.phase = Phase::Archived;
                claim.deadline = Millis::FOREVER;
                counters.archives += 1;
                return true;
            }
            counters.reaps += 1;
            journal.note(JournalEvent::Reaped, *number, claim);
            false
        });
        self.earliest_deadline = earliest;
    }

    pub(super) fn insert(&mut self, number: Number, claim: Claim, event: JournalEvent) {
        self.journal.note(event, number, &claim);
        self.note_deadline(claim.deadline);
        self.claims.insert(number, claim);
    }

    /// Takes a claim away; whether there was one.
    pub(super) fn remove(&mut self, number: Number, event: JournalEvent) -> bool {
        let Some(claim) = self.claims.remove(&number) else {
            return false;
        };
        self.journal.note(event, number, &claim);
        true
    }

    pub(super) fn note_deadline(&mut self, deadline: Millis) {
        self.earliest_deadline = self.earliest_deadline.min(deadline);
    }

    /// The key as the pool or an earlier claim shares it.
    pub(super) fn shared_key(&self, key: &PoolKey) -> Arc<PoolKey> {
        match self.pools.get_key_value(key) {
            Some((shared, _)) => shared.clone(),
            None => Arc::new(key.clone()),
        }
    }

    /// Takes a warm VM, if there is one, and begins to make the next.
    pub(super) fn take_warm(&mut self, key: &PoolKey, now: Millis, refill: Duration) -> bool {
        let Some(pool) = self.pools.get_mut(key).filter(|pool| pool.warm > 0) else {
            return false;
        };
        pool.warm -= 1;
        self.top_up(key, now, refill);
        true
    }

    /// Begins to make what a pool lacks to its target.
    pub(super) fn top_up(&mut self, key: &PoolKey, now: Millis, refill: Duration) {
        let draining = self.draining;
        let shared = self.shared_key(key);
        let Some(pool) = self.pools.get_mut(key).filter(|_| !draining) else {
            return;
        };
        let lacking = pool.target.saturating_sub(pool.warm + pool.refilling);
        if lacking == 0 {
            return;
        }
        if refill.is_zero() {
            pool.warm += lacking;
            return;
        }
        pool.refilling += lacking;
        let due = now.after(refill);
        self.refills.push_back(Refill {
            due,
            key: shared,
            count: lacking,
        });
    }

    /// Destroys every warm VM and whatever is being made.
    pub(super) fn empty_pools(&mut self) {
        self.refills.clear();
        for pool in self.pools.values_mut() {
            (pool.warm, pool.refilling) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::claim::Owner;

    fn key() -> PoolKey {
        PoolKey {
            template: "t".into(),
            net: "none".into(),
            size: "small".into(),
        }
    }

    fn mk_state(warm: u32) -> State {
        let mut state = State::new(Millis(0), 0);
        let pool = Pool {
            warm,
            target: warm,
            ..Pool::default()
        };
        state.pools.insert(Arc::new(key()), pool);
        state
    }

    fn mk_claim(state: &mut State, number: u64, deadline: i64, on_expire: OnExpire) {
        let claim = Claim {
            claim_ref: "".into(),
            key: Arc::new(key()),
            claimed_at: Millis(0),
            deadline: Millis(deadline),
            lease_seconds: 1,
            owner: Owner::ROOT,
            phase: Phase::Running,
            on_expire,
            extra: None,
        };
        state.insert(Number(number), claim, JournalEvent::Planted);
    }

    #[test]
    fn a_taken_vm_is_made_again_after_the_delay() {
        let mut state = mk_state(2);
        let refill = Duration::from_millis(100);
        assert!(state.take_warm(&key(), Millis(0), refill));
        assert!(state.take_warm(&key(), Millis(50), refill));
        assert!(!state.take_warm(&key(), Millis(60), refill));
        state.settle(Millis(100));
        assert_eq!(
            (state.pools[&key()].warm, state.pools[&key()].refilling),
            (1, 1)
        );
        state.settle(Millis(150));
        assert_eq!(
            (state.pools[&key()].warm, state.pools[&key()].refilling),
            (2, 0)
        );
    }

    #[test]
    fn a_clock_that_is_set_moves_the_ends_of_leases_and_nothing_else() {
        let (mut state, hour) = (mk_state(1), 3_600_000);
        let now = Millis(10 * hour);
        state.settle(now);
        mk_claim(&mut state, 1, 9 * hour + 8_000, OnExpire::Destroy);
        assert!(state.take_warm(&key(), now, Duration::from_millis(100)));
        let back = Millis(now.0 - hour);
        state.clock_was_set(back, -hour);
        state.settle(Millis(back.0 + 100));
        assert_eq!(state.pools[&key()].warm, 1);
        assert_eq!(state.claims.len(), 1, "it is early again");
        state.settle(Millis(back.0 + 10_000));
        assert!(state.claims.is_empty());
    }

    #[test]
    fn leases_end_at_the_tick_after_their_deadline() {
        let mut state = mk_state(0);
        mk_claim(&mut state, 1, 4_000, OnExpire::Destroy);
        mk_claim(&mut state, 2, 4_000, OnExpire::Archive);
        mk_claim(&mut state, 3, 9_000, OnExpire::Destroy);
        state.settle(Millis(4_999));
        assert_eq!(state.claims.len(), 3);
        state.settle(Millis(5_000));
        assert_eq!(state.claims.len(), 2);
        assert_eq!(state.claims[&Number(2)].phase, Phase::Archived);
        state.settle(Millis(60_000));
        assert_eq!(state.claims.keys().collect::<Vec<_>>(), [&Number(2)]);
        assert_eq!((state.counters.reaps, state.counters.archives), (2, 1));
    }
}
