//! The user's part of a sandbox, kept by the agent on its node so that it survives this server.

use std::sync::Arc;

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

/// How often it is looked again whether something newer is to be kept.
const MAX_LOOKS: usize = 16;

impl Gateway {
    /// Has the node's agent keep what the index says of the sandbox's user, and says how that went.
    ///
    /// Two writes may overtake each other on the way to the agent. Each looks again afterwards whether the index still says
    /// what it sent, so that the last one to finish leaves the agent with the newest.
    pub async fn keep_user(&self, node: &NodeName, claim: &ClaimId) -> Kept {
        let record = || self.inner.fleet.by_claim(node, claim);
        let newest = || record().and_then(|record| record.value.user.clone());
        if record().is_some_and(|record| record.value.gone) {
            return Kept::Remnant;
        }
        let Some(mut user) = newest() else {
            return Kept::Durably;
        };
        let mut looks = 0..MAX_LOOKS;
        loop {
            let kept = match self.inner.inventory.keep_user(node, claim, &user).await {
                Ok(()) => Kept::Durably,
                Err(NotKept::NoAgent) => return Kept::InMemory,
                Err(error) => {
                    tracing::warn!(%node, %claim, error = &error as &dyn std::error::Error, "a node's agent did not keep what a user sent");
                    Kept::Unconfirmed
                }
            };
            match newest() {
                // Also behind one that was not confirmed: it may be stored yet, over what came after it.
                Some(newer) if !Arc::ptr_eq(&newer, &user) && looks.next().is_some() => {
                    user = newer;
                }
                _ => return kept,
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
