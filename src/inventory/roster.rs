//! The nodes that have an inventory.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::api::NodeName;

/// The nodes that have an inventory. An answer that a node gives after its inventory was deleted must not bring it back, so
/// whoever takes one over does it here.
#[derive(Debug, Default)]
pub(super) struct Roster {
    // Held for one merge into the index, whose lock is taken inside; never over an await.
    nodes: Mutex<HashSet<NodeName>>,
}

impl Roster {
    pub(super) fn enter(&self, node: &NodeName) {
        let mut nodes = self.nodes.lock();
        if !nodes.contains(node) {
            nodes.insert(node.clone());
        }
    }

    /// Strikes the node off and does `forget`, with no answer taken over in between.
    pub(super) fn strike(&self, node: &NodeName, forget: impl FnOnce()) {
        let mut nodes = self.nodes.lock();
        nodes.remove(node);
        forget();
    }

    /// Does `merge` if the node is still there.
    pub(super) fn if_present<T>(&self, node: &NodeName, merge: impl FnOnce() -> T) -> Option<T> {
        let nodes = self.nodes.lock();
        nodes.contains(node).then(merge)
    }
}
