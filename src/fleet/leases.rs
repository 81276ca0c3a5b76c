//! Leases, to read: for whoever renews them.

use std::{sync::Arc, time::Duration};

use super::{Fleet, Sandbox};
use crate::{api::NodeName, meta::UnixTime, store::Stored};

/// A lease that is short of what its user wants by no more was asked for until then: the rest is what two clocks make of one
/// moment, and a renewal would end as short.
const CLOCKS_APART: Duration = Duration::from_secs(10);

impl Fleet {
    /// The sandboxes whose lease ends before `by` although their users want them for longer; node by node, in each the
    /// earliest end first. Looks at the sandboxes of nodes that have any lease which ends by then: for a round of work.
    pub fn leases_to_renew(&self, by: UnixTime) -> Vec<Vec<Arc<Stored<Sandbox>>>> {
        let names: Vec<_> = self.lock().nodes.keys().cloned().collect();
        let due = names.iter().map(|node| self.due_leases(node, by));
        due.filter(|due| !due.is_empty()).collect()
    }

    fn due_leases(&self, node: &NodeName, by: UnixTime) -> Vec<Arc<Stored<Sandbox>>> {
        let state = self.lock();
        let node = state.nodes.get(node);
        let Some(node) = node.filter(|node| node.next_deadline.is_some_and(|ends| ends <= by))
        else {
            return Vec::new();
        };
        let due = node
            .claims
            .iter()
            .filter(|record| is_due(&record.value, by));
        let mut due: Vec<_> = due.cloned().collect();
        drop(state);
        due.sort_by_key(|record| record.value.deadline);
        due
    }
}

fn is_due(sandbox: &Sandbox, by: UnixTime) -> bool {
    let wanted = sandbox.user.as_ref().and_then(|user| user.shutdown_time);
    let ends = sandbox.deadline.filter(|ends| *ends <= by);
    let falls_short =
        |ends: UnixTime| wanted.is_some_and(|wanted| wanted > ends.after(CLOCKS_APART));
    let is_short = ends.is_some_and(falls_short);
    is_short && !sandbox.is_over() && sandbox.deleted_at.is_none()
}
