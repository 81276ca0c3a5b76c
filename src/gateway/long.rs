//! Calls that write a machine's memory, and hold one of a node's connections for as long.

use std::sync::Arc;

use dashmap::DashMap;

use super::{Error, Result};
use crate::api::NodeName;

/// Such calls under way on one node. Far fewer than the connections that the daemon client keeps to it, which claims and releases
/// need as well; more at once would only share the node's disk.
const OF_A_NODE: usize = 16;

/// The calls under way, by node.
#[derive(Clone, Default)]
pub(super) struct LongCalls(Arc<DashMap<NodeName, usize>>);

/// One of them, over when dropped.
pub(super) struct LongCall {
    calls: LongCalls,
    node: NodeName,
}

impl LongCalls {
    /// Begins one.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub(super) fn begin(&self, node: &NodeName) -> Result<LongCall> {
        let mut n_calls = self.0.entry(node.clone()).or_default();
        if *n_calls >= OF_A_NODE {
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
        let calls = &self.calls.0;
        calls.alter(&self.node, |_, n_calls| n_calls.saturating_sub(1));
        calls.remove_if(&self.node, |_, n_calls| *n_calls == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_so_many_at_once_and_is_forgotten_afterwards() {
        let (calls, node) = (LongCalls::default(), NodeName::from("n1"));
        let mut held: Vec<_> = (0..OF_A_NODE)
            .map(|_| calls.begin(&node).unwrap())
            .collect();
        assert!(matches!(calls.begin(&node), Err(Error::Busy { .. })));
        assert!(calls.begin(&"n2".into()).is_ok(), "of another node");
        held.pop();
        assert!(calls.begin(&node).is_ok());
        drop(held);
        assert!(calls.0.is_empty());
    }
}
