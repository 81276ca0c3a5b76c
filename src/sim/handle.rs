//! One node in the hands of a test.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Counters, Fault, FaultKind, Request,
    claim::{Claim, Number, OnExpire, Owner, Phase, lease},
    inventory,
    journal::{JournalEntry, JournalEvent},
    state::Pool,
    world::{Gate, World},
};
use crate::api::{ClaimId, NodeAddress, NodeInventory, NodeName, PoolKey, Token};

/// One simulated node. A clone is the same node. Outlives the fleet only as something to look at.
#[derive(Clone)]
pub struct Handle {
    pub(super) world: Arc<World>,
    pub(super) index: usize,
}

/// A sandbox to make behind everybody's back.
#[derive(Clone, Debug)]
pub struct Planted {
    /// Its reference, `<namespace>/<name>`; empty for none.
    pub claim_ref: String,
    /// Its pool key. No warm VM is taken.
    pub key: PoolKey,
    /// Its lease in seconds; 0 for the default.
    pub ttl_seconds: i64,
    /// Its metadata, shown from generation B on.
    pub metadata: BTreeMap<String, String>,
}

impl Handle {
    fn node(&self) -> &super::world::Node {
        &self.world.nodes[self.index]
    }

    /// Its name, which is also that of its inventory.
    pub fn name(&self) -> &NodeName {
        &self.node().name
    }

    /// Where others reach it.
    pub fn address(&self) -> &NodeAddress {
        &self.node().address
    }

    /// The latest requests, oldest first, as far as the log reaches.
    pub fn log(&self) -> Vec<Request> {
        self.node().log.snapshot()
    }

    /// What became of its VMs since the entry with this place, oldest first, as far as the journal reaches.
    pub fn journal(&self, since: u64) -> Vec<JournalEntry> {
        self.world.daemon(self.index).state.journal.since(since)
    }

    /// What it did since it started.
    pub fn counters(&self) -> Counters {
        self.world.daemon(self.index).state.counters
    }

    /// Number of sandboxes.
    pub fn claimed(&self) -> usize {
        self.world.daemon(self.index).state.claims.len()
    }

    /// The ids that were claimed with this reference.
    pub fn claims_of(&self, claim_ref: &str) -> Vec<ClaimId> {
        let daemon = self.world.daemon(self.index);
        let mine = daemon
            .state
            .claims
            .iter()
            .filter(|(_, claim)| claim.claim_ref == claim_ref);
        mine.map(|(number, _)| number.to_string().into()).collect()
    }

    /// Misbehaves from now on. False if the fault is impossible, or one too many.
    #[must_use = "a fault that was not taken makes a test prove nothing"]
    pub async fn inject(&self, fault: Fault) -> bool {
        let refuses = fault.kind == FaultKind::Refuse;
        let taken = self.node().faults.add(fault);
        if taken && refuses {
            self.stop().await;
        }
        taken
    }

    /// The faults in force.
    pub fn faults(&self) -> Vec<Fault> {
        self.node().faults.list()
    }

    /// Behaves again; a refused port listens again.
    pub async fn clear_faults(&self) {
        let refused = self.node().faults.refuses();
        self.node().faults.clear();
        if refused {
            self.start().await;
        }
    }

    /// As if the daemon were stopped: connections are cut and refused, what it holds stays. The port stays its own.
    pub async fn stop(&self) {
        self.turn(Gate::Down).await;
    }

    /// Listens again.
    pub async fn start(&self) {
        self.turn(Gate::Up).await;
    }

    /// Whether it listens, or is about to.
    pub fn is_up(&self) -> bool {
        self.world.is_up(self.index)
    }

    /// Turns the gate and waits until the port has followed; a fleet that is gone stays closed.
    async fn turn(&self, wanted: Gate) {
        let mut listening = self.node().listening.subscribe();
        let mut gate = self.node().gate.subscribe();
        self.node().gate.send_if_modified(|gate| {
            let changes = *gate != wanted && *gate != Gate::Closed;
            if changes {
                *gate = wanted;
            }
            changes
        });
        tokio::select! {
            _ = listening.wait_for(|listening| *listening == (wanted == Gate::Up)) => {}
            _ = gate.wait_for(|gate| *gate == Gate::Closed) => {}
        }
    }

    /// Sets its clock: so many seconds ahead of the machine's, or behind it below zero. Its leases keep the ends that they have
    /// by that clock, as after a step of NTP.
    pub fn set_clock(&self, ahead_seconds: i64) {
        let ahead_ms = ahead_seconds.saturating_mul(1_000);
        self.world.set_clock(self.index, ahead_ms);
    }

    /// Makes a sandbox that nobody asked for.
    pub fn plant(&self, planted: Planted) -> ClaimId {
        let mut daemon = self.world.daemon(self.index);
        let number = self.world.issue();
        let extra = super::claim::Extra {
            metadata: planted.metadata,
            ..Default::default()
        };
        let mut claim = Claim {
            claim_ref: planted.claim_ref.into(),
            key: daemon.state.shared_key(&planted.key),
            claimed_at: daemon.now,
            deadline: daemon.now,
            lease_seconds: 0,
            owner: Owner::ROOT,
            phase: Phase::Running,
            on_expire: OnExpire::default(),
            extra: extra.boxed(),
        };
        claim.set_lease(daemon.now, lease(planted.ttl_seconds));
        daemon.state.insert(number, claim, JournalEvent::Planted);
        number.to_string().into()
    }

    /// Loses a sandbox without a word. False if there is none.
    pub fn lose(&self, id: &ClaimId) -> bool {
        let number = id.as_str().parse::<Number>();
        let mut daemon = self.world.daemon(self.index);
        number.is_ok_and(|number| daemon.state.remove(number, JournalEvent::Lost))
    }

    /// Lets a sandbox's VM die, for `reason`. Shown from generation C on. False if there is no such sandbox.
    pub fn fail(&self, id: &ClaimId, reason: &str) -> bool {
        let mut daemon = self.world.daemon(self.index);
        let claim = daemon
            .find(id.as_str())
            .and_then(|number| daemon.claim_of(number));
        claim.is_ok_and(|claim| {
            claim.phase = Phase::Failed;
            claim.extra_mut().failed = Some(reason.to_owned());
            true
        })
    }

    /// The sandbox's own credential, if there is such a sandbox.
    pub fn token_of(&self, id: &ClaimId) -> Option<Token> {
        let number = self.world.daemon(self.index).find(id.as_str()).ok()?;
        Some(self.world.sandbox_token(number).into())
    }

    /// Sets a pool's warm VMs and target at once; makes the pool if need be.
    pub fn set_pool(&self, key: &PoolKey, warm: u32, target: u32) {
        let mut daemon = self.world.daemon(self.index);
        let shared = daemon.state.shared_key(key);
        let pool = Pool {
            warm,
            target,
            ..Pool::default()
        };
        daemon.state.pools.insert(shared, pool);
    }

    /// Warm VMs of a pool; 0 without that pool.
    pub fn warm(&self, key: &PoolKey) -> u32 {
        let daemon = self.world.daemon(self.index);
        daemon.state.pools.get(key).map_or(0, |pool| pool.warm)
    }

    /// What this node would publish of itself.
    pub fn inventory(&self) -> NodeInventory {
        inventory::of(&self.world.daemon(self.index))
    }
}

impl Planted {
    /// A sandbox with this reference and key, and the daemon's defaults.
    pub fn new(claim_ref: &str, key: PoolKey) -> Self {
        Self {
            claim_ref: claim_ref.to_owned(),
            key,
            ttl_seconds: 0,
            metadata: BTreeMap::new(),
        }
    }
}
