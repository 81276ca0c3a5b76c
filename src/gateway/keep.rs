//! The user's part of a sandbox, kept by the agent on its node so that it survives this server.

use super::Gateway;
use crate::{
    api::{ClaimId, NodeName},
    inventory::NotKept,
};

/// Whether what the user said of a sandbox survives a restart of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is on the node's disk.
    Durably,
    /// The node has no agent.
    InMemory,
    /// The node's agent did not confirm.
    Unconfirmed,
    /// Only the object is left, here: its VM is gone.
    Remnant,
}

impl Gateway {
    /// Has the node's agent keep what the index says of the sandbox's user, and says how that went.
    pub async fn keep_user(&self, node: &NodeName, claim: &ClaimId) -> Kept {
        let record = self.inner.fleet.by_claim(node, claim);
        if record.is_some_and(|record| record.value.gone) {
            return Kept::Remnant;
        }
        match self.inner.inventory.keep_newest(node, claim).await {
            Ok(()) => Kept::Durably,
            Err(NotKept::NoAgent) => Kept::InMemory,
            Err(error) => {
                tracing::warn!(%node, %claim, error = &error as &dyn std::error::Error, "a node's agent did not keep what a user sent");
                Kept::Unconfirmed
            }
        }
    }

    /// Has the node's agent forget a sandbox that is gone. Left undone, the agent does it by itself.
    pub(super) fn forget_user(&self, node: &NodeName, claim: &ClaimId) {
        let (inventory, node, claim) = (self.inner.inventory.clone(), node.clone(), claim.clone());
        if inventory.is_live(&node) {
            self.inner.tasks.spawn(async move {
                let _ = inventory.forget_user(&node, &claim).await;
            });
        }
    }
}
