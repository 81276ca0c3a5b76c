//! The index as a whole: its state, its reads, and the few moves that every change is made of.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{
    HealthLimits, Now, Phase, Sandbox,
    contest::{outdoes, precedes},
    health::REAP_GRACE,
    naming::{distinct_id_name, id_name},
    node::{End, Node},
    placement::Candidates,
};
use crate::{
    api::{ClaimId, NodeAddress, NodeName, SandboxKey},
    meta::{ResourceVersion, UnixTime},
    store::{Change, Key, Limits, Store, Stored},
};

/// The index. Shared by reference; readers go to [`Fleet::store`].
#[derive(Debug)]
pub struct Fleet {
    store: Arc<Store<Sandbox>>,
    // Held for one merge or one write, never over an await. Whoever holds it may lock the store, not the reverse.
    state: Mutex<State>,
}

/// Numbers for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nodes by health: fresh, stale, lost.
    pub nodes: [usize; 3],
    /// Sandboxes listed.
    pub sandboxes: usize,
    /// Sandboxes listed under their id because another one has their name.
    pub name_conflicts: usize,
    /// Warm VMs that could be claimed.
    pub warm: u64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) store: Arc<Store<Sandbox>>,
    pub(super) nodes: HashMap<NodeName, Node>,
    pub(super) candidates: Candidates,
    pub(super) limits: HealthLimits,
    /// Claims that are listed under their id because the name they ask for is another one's.
    pub(super) losers: HashMap<SandboxKey, Vec<(NodeName, ClaimId)>>,
    /// Direct reads begun so far.
    pub(super) n_reads: u64,
    /// Names that a create is under way for, each with what was listed under it meanwhile and is released: the create may yet hear
    /// that it was granted that.
    pub(super) reserved: HashMap<SandboxKey, Vec<Arc<Stored<Sandbox>>>>,
    /// Names that their holders keep whoever comes, each with the number of reasons.
    pub(super) kept: HashMap<SandboxKey, usize>,
    /// Expired sandboxes that are kept although their VM is gone, oldest first, each with the time it goes.
    pub(super) retained: VecDeque<(UnixTime, NodeName, ClaimId)>,
    /// Deleted sandboxes that a finalizer keeps although their VM is gone, oldest first.
    pub(super) finalizing: VecDeque<(NodeName, ClaimId)>,
}

impl Fleet {
    /// An empty index whose first change gets the version after `start`.
    pub fn new(start: ResourceVersion, history: Limits, health: HealthLimits) -> Self {
        let store = Arc::new(Store::new(start, history));
        let state = State {
            store: store.clone(),
            nodes: HashMap::new(),
            candidates: Candidates::default(),
            limits: health,
            losers: HashMap::new(),
            n_reads: 0,
            reserved: HashMap::new(),
            kept: HashMap::new(),
            retained: VecDeque::new(),
            finalizing: VecDeque::new(),
        };
        Self {
            store,
            state: Mutex::new(state),
        }
    }

    /// The sandboxes, to read.
    pub fn store(&self) -> &Arc<Store<Sandbox>> {
        &self.store
    }

    /// The sandbox with that claim id on that node.
    pub fn by_claim(&self, node: &NodeName, claim: &ClaimId) -> Option<Arc<Stored<Sandbox>>> {
        self.lock().nodes.get(node)?.claims.get(claim).cloned()
    }

    /// How many sandboxes of a node are such. Looks at all of them.
    pub fn count_on(&self, node: &NodeName, is_such: impl Fn(&Sandbox) -> bool) -> usize {
        let state = self.lock();
        let claims = state
            .nodes
            .get(node)
            .into_iter()
            .flat_map(|node| node.claims.iter());
        claims.filter(|record| is_such(&record.value)).count()
    }

    /// Where a node's daemon is reached.
    pub fn address(&self, node: &NodeName) -> Option<NodeAddress> {
        self.lock().nodes.get(node)?.address.clone()
    }

    /// Where a node's daemon is reached, if it takes new sandboxes.
    pub fn open_address(&self, node: &NodeName) -> Option<NodeAddress> {
        let state = self.lock();
        let node = state.nodes.get(node).filter(|node| node.takes_claims())?;
        node.address.clone()
    }

    /// Whether the node is to be emptied: nothing is to start there.
    pub fn is_closed(&self, node: &NodeName) -> bool {
        let state = self.lock();
        let node = state.nodes.get(node);
        node.is_some_and(|node| node.cordoned || node.draining)
    }

    /// The node whose daemon is at `address`, if there is one.
    pub fn node_at(&self, address: &NodeAddress) -> Option<NodeName> {
        let state = self.lock();
        state.node_at(address).map(|node| node.name.clone())
    }

    /// The node whose daemon is at `address`, if there is one and it takes new sandboxes.
    pub fn open_node_at(&self, address: &NodeAddress) -> Option<NodeName> {
        let state = self.lock();
        let node = state.node_at(address).filter(|node| node.takes_claims())?;
        Some(node.name.clone())
    }

    /// Every node with an address.
    pub fn addresses(&self) -> Vec<(NodeName, NodeAddress)> {
        let state = self.lock();
        state
            .nodes
            .values()
            .filter_map(|node| Some((node.name.clone(), node.address.clone()?)))
            .collect()
    }

    /// Whether there is such a node.
    pub fn knows(&self, node: &NodeName) -> bool {
        self.lock().nodes.contains_key(node)
    }

    /// Whether the node confirmed that it has released this one.
    pub fn is_released(&self, node: &NodeName, claim: &ClaimId) -> bool {
        let state = self.lock();
        let node = state.nodes.get(node);
        node.is_some_and(|node| node.dead.get(claim) == Some(End::Released))
    }

    /// Whether the node has told all that it has since this server started.
    pub fn has_told(&self, node: &NodeName) -> bool {
        let state = self.lock();
        state
            .nodes
            .get(node)
            .is_some_and(|node| node.told.is_some())
    }

    /// Whether a create of the name is not settled: what a node lists under it may turn out to be nobody's, and be released.
    pub fn is_unsettled(&self, key: &SandboxKey) -> bool {
        self.lock().is_kept(key)
    }

    /// Every node, also one whose address is not known.
    pub fn node_names(&self) -> HashSet<NodeName> {
        self.lock().nodes.keys().cloned().collect()
    }

    /// Numbers for metrics.
    pub fn counts(&self) -> Counts {
        let state = self.lock();
        let mut counts = Counts {
            sandboxes: self.store.count(&crate::store::Scope::All),
            name_conflicts: state.losers.values().map(Vec::len).sum(),
            ..Counts::default()
        };
        for node in state.nodes.values() {
            counts.nodes[node.health as usize] += 1;
            counts.warm += node
                .pools
                .values()
                .map(|pool| u64::from(pool.warm))
                .sum::<u64>();
        }
        counts
    }

    pub(super) fn lock(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn node_at(&self, address: &NodeAddress) -> Option<&Node> {
        let mut nodes = self.nodes.values();
        nodes.find(|node| node.address.as_ref() == Some(address))
    }

    pub(super) fn node_mut(&mut self, name: &NodeName, now: Now) -> &mut Node {
        if !self.nodes.contains_key(name) {
            self.nodes
                .insert(name.clone(), Node::new(name.clone(), now.instant));
        }
        self.nodes
            .get_mut(name)
            .expect("it was inserted if it was missing")
    }

    /// Makes this the state of a sandbox whose name is settled. Its node must be known.
    ///
    /// What only this server can tell from what was known of it makes no version.
    pub(super) fn put(&mut self, mut sandbox: Sandbox) {
        let node = self.nodes.get(&sandbox.node);
        let known = node.and_then(|node| node.claims.get(&sandbox.claim));
        let (mut is_seen, mut is_told) = (true, true);
        if let Some(known) = known {
            if known.value.conditions().eq(sandbox.conditions()) {
                sandbox.changed = known.value.changed;
            }
            is_seen = !known.value.reads_as(&sandbox);
            // What else changes, as with its node's health or its name, says nothing of the machine.
            let machine = |it: &Sandbox| (it.phase, it.deadline, it.gone);
            is_told = machine(&known.value) != machine(&sandbox);
        }
        let record = match is_seen {
            true => self.store.put(sandbox),
            false => self.store.amend(sandbox),
        };
        let Some(node) = self.nodes.get_mut(&record.value.node) else {
            return;
        };
        if is_told {
            node.touch(&record.value.claim);
        }
        node.next_deadline = earlier(
            node.next_deadline,
            record.value.deadline.filter(|_| !record.value.is_over()),
        );
        if record.value.phase == Phase::Expired && !record.value.gone {
            let reaped_by = record.value.deadline.map(|ended| ended.after(REAP_GRACE));
            node.reaped_by = earlier(node.reaped_by, reaped_by);
        }
        node.claims.insert(record);
    }

    /// Lists a new sandbox under `wanted`, or under its id when it asks for no name or another one has it by right.
    pub(super) fn list(&mut self, mut sandbox: Sandbox, wanted: Option<SandboxKey>) {
        let Some(wanted) = wanted else {
            sandbox.name = id_name(&sandbox.claim);
            let key = SandboxKey::new(sandbox.namespace.clone(), sandbox.name.clone());
            return self.list(sandbox, Some(key));
        };
        let holder = self.store.get(&wanted.namespace, &wanted.name);
        let Some(holder) = holder else {
            (sandbox.namespace, sandbox.name) = (wanted.namespace, wanted.name);
            return self.put(sandbox);
        };
        let mut waiting = self.waiting(&wanted).into_iter();
        let is_outdone = waiting.any(|record| outdoes(&record.value, &sandbox));
        if self.is_kept(&wanted) || is_outdone || !precedes(&sandbox, &holder.value) {
            self.list_under_id(sandbox, wanted);
        } else if outdoes(&sandbox, &holder.value) {
            // It rules out who has the name, for whoever has the best right then.
            self.list_under_id(sandbox, wanted.clone());
            self.decide(wanted);
        } else {
            self.store.commit([Change::Delete(place_of(&holder.value))]);
            (sandbox.namespace, sandbox.name) = (wanted.namespace.clone(), wanted.name.clone());
            self.put(sandbox);
            self.list_under_id(holder.value.clone(), wanted);
        }
    }

    pub(super) fn list_under_id(&mut self, mut sandbox: Sandbox, wanted: SandboxKey) {
        sandbox.namespace = wanted.namespace.clone();
        sandbox.name = id_name(&sandbox.claim);
        if self.store.get(&sandbox.namespace, &sandbox.name).is_some() {
            sandbox.name = distinct_id_name(&sandbox.claim, sandbox.uid);
        }
        // A loser that is driven out of its id's name as well still waits for the name it asked for.
        if !std::mem::replace(&mut sandbox.name_taken, true) {
            let losers = self.losers.entry(wanted).or_default();
            losers.push((sandbox.node.clone(), sandbox.claim.clone()));
        }
        self.put(sandbox);
    }

    /// Takes a sandbox off the list, and gives its name to whoever waits for it.
    pub(super) fn unlist(
        &mut self,
        node: &NodeName,
        claim: &ClaimId,
        end: End,
    ) -> Option<Arc<Stored<Sandbox>>> {
        let holder = self.nodes.get_mut(node)?;
        holder.bury(claim, end);
        let record = holder.claims.remove(claim)?;
        let key = SandboxKey::new(record.value.namespace.clone(), record.value.name.clone());
        if let (End::Released, Some(released)) = (end, self.reserved.get_mut(&key)) {
            released.push(record.clone());
        }
        self.delete(&record.value);
        Some(record)
    }

    pub(super) fn delete(&mut self, sandbox: &Sandbox) {
        let key = SandboxKey::new(sandbox.namespace.clone(), sandbox.name.clone());
        self.store.commit([Change::Delete(place_of(sandbox))]);
        if sandbox.name_taken {
            self.waits_no_more(sandbox);
        }
        self.promote(key);
    }
}

/// Where a sandbox is listed.
pub(super) fn place_of(sandbox: &Sandbox) -> Key {
    Key::new(sandbox.namespace.clone(), sandbox.name.clone())
}

pub(super) fn earlier(one: Option<UnixTime>, other: Option<UnixTime>) -> Option<UnixTime> {
    one.into_iter().chain(other).min()
}
