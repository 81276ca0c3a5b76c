//! The index: what the nodes said, and what was done here.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Snapshot, name::key_of};
use crate::{
    api::{NodeName, SnapshotId},
    fleet::{Fleet, id_name},
    meta::UnixTime,
    sandboxd::CheckpointRecord,
    store::{Change, Key, Limits, Store, Stored},
};

/// Checkpoints of one node that are looked at; a daemon keeps them on its disk, each with a machine's memory.
const MAX_OF_A_NODE: usize = 10_000;

/// The index. Readers go to [`Snapshots::store`].
#[derive(Debug)]
pub struct Snapshots {
    pub(super) fleet: Arc<Fleet>,
    store: Store<Snapshot>,
    // Held for one merge or one write, never over an await. Whoever holds it may lock the store and the fleet, not the reverse.
    state: Mutex<State>,
    /// Told when a node is to be asked before its time.
    pub(super) asked_for: Notify,
}

#[derive(Debug, Default)]
struct State {
    nodes: HashMap<NodeName, Node>,
    known: HashMap<SnapshotId, Known>,
    /// Names that a snapshot is being taken for.
    reserved: HashSet<Key>,
    /// Whether every node was asked once.
    started: bool,
}

#[derive(Debug, Default)]
struct Node {
    /// Whether it was asked at all, and whether it ever answered.
    asked: bool,
    heard: bool,
    /// Whether it is to be asked before its time.
    due: bool,
    /// What was done here, by which an answer is known to be from before.
    n_writes: u64,
    /// Checkpoints that are nobody's.
    n_unattributed: usize,
}

/// A snapshot and who has it.
#[derive(Debug)]
struct Known {
    key: Key,
    nodes: BTreeSet<NodeName>,
}

/// Whether what is listed is all there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whole {
    /// It is.
    Yes,
    /// Some nodes have not answered since the start.
    Without(Vec<NodeName>),
    /// The nodes are still being asked for the first time.
    NotYet,
}

/// The name is another snapshot's, or one is being taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name is taken")]
pub struct Taken;

/// The right to take the snapshot of one name. While it lives nobody else gets it.
#[derive(Debug)]
pub struct Reservation {
    snapshots: Arc<Snapshots>,
    key: Key,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.snapshots.state.lock().reserved.remove(&self.key);
    }
}

/// A question to a node, and what had been done here when it was asked.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) node: NodeName,
    n_writes: u64,
}

impl Snapshots {
    /// The snapshots of a fleet's nodes, none yet. Versions begin where the fleet's do.
    pub fn new(fleet: Arc<Fleet>) -> Self {
        Self {
            store: Store::new(fleet.store().oldest(), Limits::default()),
            fleet,
            state: Mutex::default(),
            asked_for: Notify::new(),
        }
    }

    /// The snapshots, to read.
    pub fn store(&self) -> &Store<Snapshot> {
        &self.store
    }

    /// Whether the nodes have told all there is.
    pub fn whole(&self) -> Whole {
        let nodes = self.fleet.addresses();
        let mut state = self.state.lock();
        let asked = |node: &NodeName| state.nodes.get(node).is_some_and(|node| node.asked);
        if !state.started && !nodes.iter().all(|(node, _)| asked(node)) {
            return Whole::NotYet;
        }
        state.started = true;
        let heard = |node: &NodeName| state.nodes.get(node).is_some_and(|node| node.heard);
        let unheard = nodes.into_iter().map(|(node, _)| node);
        let mut unheard: Vec<_> = unheard.filter(|node| !heard(node)).collect();
        unheard.sort();
        match unheard.is_empty() {
            true => Whole::Yes,
            false => Whole::Without(unheard),
        }
    }

    /// Number of checkpoints that no namespace can claim.
    pub fn n_unattributed(&self) -> usize {
        let state = self.state.lock();
        state.nodes.values().map(|node| node.n_unattributed).sum()
    }

    /// Reserves a name.
    ///
    /// # Errors
    /// [`Taken`].
    pub fn reserve(self: &Arc<Self>, key: Key) -> Result<Reservation, Taken> {
        let mut state = self.state.lock();
        let exists = self.store.get(&key.namespace, &key.name).is_some();
        if exists || !state.reserved.insert(key.clone()) {
            return Err(Taken);
        }
        Ok(Reservation {
            snapshots: self.clone(),
            key,
        })
    }

    /// Lists a snapshot that a node took for us, under its reserved name.
    pub fn taken(
        &self,
        reservation: &Reservation,
        node: &NodeName,
        record: &CheckpointRecord,
        now: UnixTime,
    ) -> Arc<Stored<Snapshot>> {
        let mut state = self.state.lock();
        state.nodes.entry(node.clone()).or_default().n_writes += 1;
        // An answer of the node may have listed it before its own answer came.
        if !state.known.contains_key(&record.id) {
            self.list(&mut state, node, record, reservation.key.clone(), now);
        }
        let key = &state.known[&record.id].key;
        let listed = self.store.get(&key.namespace, &key.name);
        listed.expect("what is known is listed")
    }

    /// A node said that it does not have the snapshot any more. Gives the last state if nobody else has it.
    pub fn deleted(&self, node: &NodeName, id: &SnapshotId) -> Option<Arc<Stored<Snapshot>>> {
        let mut state = self.state.lock();
        state.nodes.entry(node.clone()).or_default().n_writes += 1;
        self.lose(&mut state, node, id)
    }

    /// The nodes that hold a snapshot.
    pub fn holders(&self, id: &SnapshotId) -> Vec<NodeName> {
        let state = self.state.lock();
        let known = state.known.get(id);
        known.map_or_else(Vec::new, |known| known.nodes.iter().cloned().collect())
    }

    /// Has a node asked soon, as after an answer of it that was lost.
    pub fn ask_soon(&self, node: &NodeName) {
        self.state.lock().nodes.entry(node.clone()).or_default().due = true;
        self.asked_for.notify_one();
    }

    /// Whether the node is to be asked before its time.
    pub(super) fn is_due(&self, node: &NodeName) -> bool {
        let state = self.state.lock();
        state
            .nodes
            .get(node)
            .is_none_or(|node| node.due || !node.asked)
    }

    /// Notes that a node is about to be asked.
    pub(super) fn question(&self, node: &NodeName) -> Question {
        let mut state = self.state.lock();
        let asked = state.nodes.entry(node.clone()).or_default();
        asked.due = false;
        Question {
            node: node.clone(),
            n_writes: asked.n_writes,
        }
    }

    /// The node did not answer: what it has is what it had.
    pub(super) fn unanswered(&self, question: &Question) {
        let mut state = self.state.lock();
        state.nodes.entry(question.node.clone()).or_default().asked = true;
    }

    /// Takes a node's answer over: all that it has, and nothing else. `false`: something was done there since it was asked.
    pub(super) fn answered(
        &self,
        question: &Question,
        records: &[CheckpointRecord],
        now: UnixTime,
    ) -> bool {
        let mut state = self.state.lock();
        let node = state.nodes.entry(question.node.clone()).or_default();
        if node.n_writes != question.n_writes {
            return false;
        }
        (node.asked, node.heard) = (true, true);
        if records.len() > MAX_OF_A_NODE {
            tracing::warn!(node = %question.node, n_checkpoints = records.len(), "only {MAX_OF_A_NODE} checkpoints of a node are listed");
        }
        let records = &records[..records.len().min(MAX_OF_A_NODE)];
        let present: HashSet<&SnapshotId> = records.iter().map(|record| &record.id).collect();
        let is_lost = |(id, known): &(&SnapshotId, &Known)| {
            known.nodes.contains(&question.node) && !present.contains(id)
        };
        let lost: Vec<_> = state
            .known
            .iter()
            .filter(is_lost)
            .map(|(id, _)| id.clone())
            .collect();
        for id in lost {
            self.lose(&mut state, &question.node, &id);
        }
        let mut n_unattributed = 0;
        for record in records {
            if let Some(known) = state.known.get_mut(&record.id) {
                known.nodes.insert(question.node.clone());
            } else if let Some(key) = self.key_of(&question.node, record) {
                self.list(&mut state, &question.node, record, key, now);
            } else {
                n_unattributed += 1;
            }
        }
        state
            .nodes
            .entry(question.node.clone())
            .or_default()
            .n_unattributed = n_unattributed;
        true
    }

    /// Forgets the nodes that are none any more, with what only they had.
    pub(super) fn forget_others(&self, nodes: &HashSet<NodeName>) {
        let mut state = self.state.lock();
        let gone = state.nodes.keys().filter(|node| !nodes.contains(*node));
        let gone: Vec<_> = gone.cloned().collect();
        for node in gone {
            state.nodes.remove(&node);
            let of_node = state
                .known
                .iter()
                .filter(|(_, known)| known.nodes.contains(&node));
            let of_node: Vec<_> = of_node.map(|(id, _)| id.clone()).collect();
            for id in of_node {
                self.lose(&mut state, &node, &id);
            }
        }
    }

    /// Where a checkpoint belongs.
    fn key_of(&self, node: &NodeName, record: &CheckpointRecord) -> Option<Key> {
        if let Some(key) = record.name.as_deref().and_then(key_of) {
            return Some(key);
        }
        let sandbox = self.fleet.by_claim(node, &record.sandbox_id)?;
        Some(Key::new(
            sandbox.value.namespace.clone(),
            name_of(&record.id),
        ))
    }

    fn list(
        &self,
        state: &mut State,
        node: &NodeName,
        record: &CheckpointRecord,
        mut key: Key,
        now: UnixTime,
    ) {
        // The first of a name keeps it.
        if self.store.get(&key.namespace, &key.name).is_some() {
            key.name = name_of(&record.id);
        }
        let sandbox = self.fleet.by_claim(node, &record.sandbox_id);
        let snapshot = Snapshot {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            id: record.id.clone(),
            node: node.clone(),
            claim: record.sandbox_id.clone(),
            sandbox: sandbox.map_or_else(
                || id_name(&record.sandbox_id),
                |sandbox| sandbox.value.name.clone(),
            ),
            pool: Arc::new(record.key.clone()),
            created: record.created_at.unwrap_or(now),
        };
        let nodes = BTreeSet::from([node.clone()]);
        state.known.insert(record.id.clone(), Known { key, nodes });
        self.store.commit([Change::Put(snapshot)]);
    }

    fn lose(
        &self,
        state: &mut State,
        node: &NodeName,
        id: &SnapshotId,
    ) -> Option<Arc<Stored<Snapshot>>> {
        let known = state.known.get_mut(id)?;
        if !known.nodes.remove(node) {
            return None;
        }
        let listed = self.store.get(&known.key.namespace, &known.key.name)?;
        match known.nodes.first() {
            Some(other) if listed.value.node == *node => {
                let moved = Snapshot {
                    node: other.clone(),
                    ..listed.value.clone()
                };
                self.store.commit([Change::Put(moved)]);
                None
            }
            Some(_) => None,
            None => {
                let key = state.known.remove(id)?.key;
                self.store.commit([Change::Delete(key)]);
                Some(listed)
            }
        }
    }
}

/// A name made of an id: `ck_ab12` is `ck-ab12`.
fn name_of(id: &SnapshotId) -> compact_str::CompactString {
    id_name(&id.as_str().into())
}
