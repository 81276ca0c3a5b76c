//! The nodes: which were asked, which have answered, and what that says of the whole.

use std::collections::HashSet;

use super::Snapshots;
use crate::api::{NodeName, SnapshotId};

/// What is known of one node.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Whether it was asked at all, and whether it ever answered.
    pub(super) asked: bool,
    pub(super) heard: bool,
    /// Whether it is to be asked before its time.
    pub(super) due: bool,
    /// What was done here, by which an answer is known to be from before.
    pub(super) n_writes: u64,
    /// The snapshots that it holds.
    pub(super) ids: HashSet<SnapshotId>,
    /// Checkpoints that are nobody's.
    pub(super) n_unattributed: usize,
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

/// A question to a node, and what had been done here when it was asked.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) node: NodeName,
    pub(super) n_writes: u64,
}

impl Snapshots {
    /// Whether the nodes have told all there is. One whose address is not known has not.
    pub fn whole(&self) -> Whole {
        let nodes = self.fleet.node_names();
        let mut state = self.state.lock();
        if !state.started {
            let reachable = self.fleet.addresses();
            let asked = |node: &NodeName| state.nodes.get(node).is_some_and(|node| node.asked);
            if !reachable.iter().all(|(node, _)| asked(node)) {
                return Whole::NotYet;
            }
            state.started = true;
        }
        let heard = |node: &NodeName| state.nodes.get(node).is_some_and(|node| node.heard);
        let mut unheard: Vec<_> = nodes.into_iter().filter(|node| !heard(node)).collect();
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

    /// Has a node asked soon, as after an answer of it that was lost.
    pub fn ask_soon(&self, node: &NodeName) {
        self.state.lock().node(node).due = true;
        self.asked_for.notify_one();
    }

    /// Whether the node is to be asked before its time.
    pub(super) fn is_due(&self, node: &NodeName) -> bool {
        let state = self.state.lock();
        let known = state.nodes.get(node);
        known.is_none_or(|node| node.due || !node.asked)
    }

    /// Notes that a node is about to be asked.
    pub(super) fn question(&self, node: &NodeName) -> Question {
        let mut state = self.state.lock();
        let asked = state.node(node);
        asked.due = false;
        Question {
            node: node.clone(),
            n_writes: asked.n_writes,
        }
    }

    /// The node did not answer: what it has is what it had.
    pub(super) fn unanswered(&self, question: &Question) {
        self.state.lock().node(&question.node).asked = true;
    }

    /// Whether the node is known to hold something.
    pub(super) fn holds_any(&self, node: &NodeName) -> bool {
        let state = self.state.lock();
        let known = state.nodes.get(node);
        known.is_some_and(|node| !node.ids.is_empty())
    }

    /// Forgets the nodes that are none any more, with what only they had.
    pub(super) fn forget_others(&self, nodes: &HashSet<NodeName>) {
        let mut state = self.state.lock();
        let gone = state.nodes.keys().filter(|node| !nodes.contains(*node));
        let gone: Vec<_> = gone.cloned().collect();
        for node in gone {
            let ids = std::mem::take(&mut state.node(&node).ids);
            for id in ids {
                self.lose(&mut state, &node, &id);
            }
            state.nodes.remove(&node);
        }
    }
}
