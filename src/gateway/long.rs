//! Calls that write a machine's memory, and hold one of a node's connections for as long.

use std::sync::Arc;

use dashmap::DashMap;

use super::{Error, Result};
use crate::api::NodeName;

/// Copies of memory under way on one node. Far fewer than the connections that the daemon client keeps to it, which claims and
/// releases need as well; more at once would only share the node's disk.
const COPIES_OF_A_NODE: usize = 16;
/// Pauses and resumes: more, since a whole namespace may be paused at once, and half of the connections at most.
const TURNS_OF_A_NODE: usize = 128;

/// The calls of one kind that are under way, by node.
#[derive(Clone)]
pub(super) struct LongCalls {
    under_way: Arc<DashMap<NodeName, usize>>,
    of_a_node: usize,
}

/// One of them, over when dropped.
pub(super) struct LongCall {
    calls: LongCalls,
    node: NodeName,
}

impl LongCalls {
    /// Snapshots and promotions.
    pub(super) fn copies() -> Self {
        Self::at_most(COPIES_OF_A_NODE)
    }

    /// Pauses and resumes.
    pub(super) fn turns() -> Self {
        Self::at_most(TURNS_OF_A_NODE)
    }

    fn at_most(of_a_node: usize) -> Self {
        Self {
            under_way: Arc::default(),
            of_a_node,
        }
    }

    /// Begins one.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub(super) fn begin(&self, node: &NodeName) -> Result<LongCall> {
        let mut n_calls = self.under_way.entry(node.clone()).or_default();
        if *n_calls >= self.of_a_node {
            return Err(Error::Busy { node: node.clone() });
        }
        *n_calls += 1;
        Ok(LongCall {
            calls: self.clone(),
            node: node.clone(),
        })
    }
}

impl Drop for LongCall {
    fn drop(&mut self) {
        let calls = &self.calls.under_way;
        calls.alter(&self.node, |_, n_calls| n_calls.saturating_sub(1));
        calls.remove_if(&self.node, |_, n_calls| *n_calls == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_so_many_at_once_and_is_forgotten_afterwards() {
        let (calls, node) = (LongCalls::at_most(3), NodeName::from("n1"));
        let mut held: Vec<_> = (0..3).map(|_| calls.begin(&node).unwrap()).collect();
        assert!(matches!(calls.begin(&node), Err(Error::Busy { .. })));
        assert!(calls.begin(&"n2".into()).is_ok(), "of another node");
        held.pop();
        assert!(calls.begin(&node).is_ok());
        drop(held);
        assert!(calls.under_way.is_empty());
    }
}
