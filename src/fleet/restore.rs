//! The user's part of a sandbox, kept elsewhere and brought back.

use std::sync::Arc;

use super::{Fleet, Sandbox};
use crate::api::{ClaimId, NodeName, UserPart};

impl Fleet {
    /// Fills in what a sandbox's user sent, as its node kept it. Whether anything changed.
    ///
    /// Only where the index knows less: nothing, an older generation, or of the same one no spec. What was written here is
    /// never overwritten by its own echo.
    pub fn restore_user(&self, node: &NodeName, claim: &ClaimId, kept: &Arc<UserPart>) -> bool {
        let mut state = self.lock();
        let record = state
            .nodes
            .get(node)
            .and_then(|node| node.claims.get(claim));
        let Some(record) = record.filter(|record| knows_less(&record.value, kept)) else {
            return false;
        };
        let restored = Sandbox {
            user: Some(kept.clone()),
            ..record.value.clone()
        };
        state.put(restored);
        true
    }
}

fn knows_less(sandbox: &Sandbox, kept: &UserPart) -> bool {
    let Some(user) = &sandbox.user else {
        return true;
    };
    let age = |part: &UserPart| (part.generation, !part.spec.is_empty());
    age(user) < age(kept)
}
