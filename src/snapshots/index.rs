//! The index: what the nodes said, and what was done here.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use compact_str::{CompactString, format_compact};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Snapshot,
    name::key_of,
    node::{Node, Question},
};
use crate::{
    api::{NodeName, SnapshotId},
    fleet::{Fleet, id_name},
    meta::UnixTime,
    sandboxd::CheckpointRecord,
    store::{Change, Key, Limits, Store, Stored},
};

/// Checkpoints of one node that are listed; a daemon keeps them on its disk, each with a machine's memory.
const MAX_OF_A_NODE: usize = 10_000;

/// The index. Readers go to [`Snapshots::store`].
#[derive(Debug)]
pub struct Snapshots {
    pub(super) fleet: Arc<Fleet>,
    store: Store<Snapshot>,
    // Held for one merge or one write, never over an await. Whoever holds it may lock the store and the fleet, not the reverse.
    pub(super) state: Mutex<State>,
    /// Told when a node is to be asked before its time.
    pub(super) asked_for: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) nodes: HashMap<NodeName, Node>,
    known: HashMap<SnapshotId, Known>,
    /// Names that a snapshot is being taken for.
    reserved: HashSet<Key>,
    /// Whether every node was asked once.
    pub(super) started: bool,
}

/// A snapshot and who has it.
#[derive(Debug)]
struct Known {
    key: Key,
    nodes: BTreeSet<NodeName>,
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
        state.node(node).n_writes += 1;
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
        state.node(node).n_writes += 1;
        self.lose(&mut state, node, id)
    }

    /// The nodes that hold a snapshot.
    pub fn holders(&self, id: &SnapshotId) -> Vec<NodeName> {
        let state = self.state.lock();
        let known = state.known.get(id);
        known.map_or_else(Vec::new, |known| known.nodes.iter().cloned().collect())
    }

    /// Takes a node's answer over: all that it has, and nothing else. `false`: something was done there since it was asked.
    pub(super) fn answered(
        &self,
        question: &Question,
        records: &[CheckpointRecord],
        now: UnixTime,
    ) -> bool {
        let mut state = self.state.lock();
        let node = state.node(&question.node);
        if node.n_writes != question.n_writes {
            return false;
        }
        (node.asked, node.heard) = (true, true);
        let present: HashSet<&SnapshotId> = records.iter().map(|record| &record.id).collect();
        let lost = node.ids.iter().filter(|id| !present.contains(id));
        let lost: Vec<_> = lost.cloned().collect();
        for id in lost {
            self.lose(&mut state, &question.node, &id);
        }
        if records.len() > MAX_OF_A_NODE {
            tracing::warn!(node = %question.node, n_checkpoints = records.len(), "only {MAX_OF_A_NODE} checkpoints of a node are listed");
        }
        let mut n_unattributed = 0;
        for record in records.iter().take(MAX_OF_A_NODE) {
            if !self.merge(&mut state, &question.node, record, now) {
                n_unattributed += 1;
            }
        }
        state.node(&question.node).n_unattributed = n_unattributed;
        true
    }

    /// Takes over that a node has a checkpoint. `false`: it is nobody's.
    fn merge(
        &self,
        state: &mut State,
        node: &NodeName,
        record: &CheckpointRecord,
        now: UnixTime,
    ) -> bool {
        let Some(known) = state.known.get_mut(&record.id) else {
            let Some(key) = self.key_of(node, record) else {
                return false;
            };
            self.list(state, node, record, key, now);
            return true;
        };
        let listed = self.store.get(&known.key.namespace, &known.key.name);
        let Some(listed) = listed.filter(|listed| listed.value.claim == record.sandbox_id) else {
            return false;
        };
        known.nodes.insert(node.clone());
        state.node(node).ids.insert(record.id.clone());
        // Its sandbox may not have been known yet.
        let sandbox = self.sandbox_name(node, record);
        if sandbox != listed.value.sandbox && listed.value.sandbox == id_name(&record.sandbox_id) {
            let named = Snapshot {
                sandbox,
                ..listed.value.clone()
            };
            self.store.commit([Change::Put(named)]);
        }
        true
    }

    /// Where a checkpoint belongs.
    fn key_of(&self, node: &NodeName, record: &CheckpointRecord) -> Option<Key> {
        let said = record.name.as_deref().and_then(key_of);
        let Some(sandbox) = self.fleet.by_claim(node, &record.sandbox_id) else {
            return said;
        };
        let namespace = sandbox.value.namespace.clone();
        let said = said.filter(|key| key.namespace == namespace);
        Some(said.unwrap_or_else(|| Key::new(namespace, name_of(&record.id))))
    }

    fn sandbox_name(&self, node: &NodeName, record: &CheckpointRecord) -> CompactString {
        let sandbox = self.fleet.by_claim(node, &record.sandbox_id);
        sandbox.map_or_else(
            || id_name(&record.sandbox_id),
            |sandbox| sandbox.value.name.clone(),
        )
    }

    fn list(
        &self,
        state: &mut State,
        node: &NodeName,
        record: &CheckpointRecord,
        mut key: Key,
        now: UnixTime,
    ) {
        let mut snapshot = Snapshot {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            id: record.id.clone(),
            node: node.clone(),
            claim: record.sandbox_id.clone(),
            sandbox: self.sandbox_name(node, record),
            pool: Arc::new(record.key.clone()),
            created: record.created_at.unwrap_or(now),
        };
        if let Some(holder) = self.store.get(&key.namespace, &key.name) {
            let age = |snapshot: &Snapshot| (snapshot.created, snapshot.id.clone());
            if age(&snapshot) < age(&holder.value) {
                self.rename(state, &holder.value);
            } else {
                key = self.free_key(&snapshot);
                snapshot.name = key.name.clone();
            }
        }
        let nodes = BTreeSet::from([node.clone()]);
        state.known.insert(record.id.clone(), Known { key, nodes });
        state.node(node).ids.insert(record.id.clone());
        self.store.commit([Change::Put(snapshot)]);
    }

    /// Takes its name from a snapshot, for one that has the better right to it.
    fn rename(&self, state: &mut State, holder: &Snapshot) {
        let key = self.free_key(holder);
        let renamed = Snapshot {
            name: key.name.clone(),
            ..holder.clone()
        };
        if let Some(known) = state.known.get_mut(&holder.id) {
            let old = std::mem::replace(&mut known.key, key);
            self.store
                .commit([Change::Delete(old), Change::Put(renamed)]);
        }
    }

    /// A name that is made of the id, and nobody's.
    fn free_key(&self, snapshot: &Snapshot) -> Key {
        let plain = name_of(&snapshot.id);
        let namespace = snapshot.namespace.clone();
        if self.store.get(&namespace, &plain).is_none() {
            return Key::new(namespace, plain);
        }
        // As good as unique: a part of a hash of the id itself.
        let uid = snapshot.uid().simple().to_string();
        let base: CompactString = plain.chars().take(50).collect();
        Key::new(namespace, format_compact!("{base}-{}", &uid[..12]))
    }

    pub(super) fn lose(
        &self,
        state: &mut State,
        node: &NodeName,
        id: &SnapshotId,
    ) -> Option<Arc<Stored<Snapshot>>> {
        if let Some(node) = state.nodes.get_mut(node) {
            node.ids.remove(id);
        }
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

impl State {
    pub(super) fn node(&mut self, name: &NodeName) -> &mut Node {
        self.nodes.entry(name.clone()).or_default()
    }
}

/// A name made of an id: `ck_ab12` is `ck-ab12`.
fn name_of(id: &SnapshotId) -> CompactString {
    id_name(&id.as_str().into())
}
