//! The nodes whose feed is live, and what is stored over the same connections.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    api::{ClaimId, NodeName, UserPart},
    feed::{self, RemoteObjects},
    fleet::Fleet,
};

/// How long an agent may take to store a user part.
const STORE_WITHIN: Duration = Duration::from_secs(1);
/// How often it is looked again whether something newer is to be kept.
const MAX_LOOKS: usize = 16;
/// After so many failures in a row an agent is told no more of what it missed, until it is followed anew.
const MAX_FAILURES: usize = 4;

/// Why a user part is not kept on the node.
#[derive(Debug, thiserror::Error)]
pub enum NotKept {
    /// The node has no agent, or its feed is not live.
    #[error("the node has no agent that could keep it")]
    NoAgent,
    /// The agent was asked; it may have stored it or not.
    #[error("the node's agent did not keep it")]
    Failed(#[source] feed::Error),
}

/// The nodes whose feed is live: what else is said of them is older.
#[derive(Default)]
pub(super) struct LiveFeeds {
    // Held for a look-up or for one merge into the index, whose lock is taken inside; never over an await.
    by_node: Mutex<HashMap<NodeName, Arc<RemoteObjects>>>,
}

impl LiveFeeds {
    pub(super) fn is_live(&self, node: &NodeName) -> bool {
        self.by_node.lock().contains_key(node)
    }

    pub(super) fn len(&self) -> usize {
        self.by_node.lock().len()
    }

    /// Does `merge` unless the node's feed is live, which it does not become meanwhile.
    pub(super) fn unless_live<T>(&self, node: &NodeName, merge: impl FnOnce() -> T) -> Option<T> {
        let by_node = self.by_node.lock();
        (!by_node.contains_key(node)).then(merge)
    }

    /// Stores a user part on the node.
    pub(super) async fn keep_user(
        &self,
        node: &NodeName,
        claim: &ClaimId,
        user: &UserPart,
    ) -> Result<(), NotKept> {
        let objects = self.objects(node).ok_or(NotKept::NoAgent)?;
        let stored = objects.put(claim, user, STORE_WITHIN).await;
        stored.map_err(NotKept::Failed)
    }

    /// Stores on the node what the index says of a sandbox's user, if it says anything.
    ///
    /// Two writes may overtake each other on the way to the agent. Each looks again afterwards whether the index still says what it
    /// sent, so that the last one to finish leaves the agent with the newest.
    pub(super) async fn keep_newest(
        &self,
        fleet: &Fleet,
        node: &NodeName,
        claim: &ClaimId,
    ) -> Result<(), NotKept> {
        let newest = || {
            let record = fleet.by_claim(node, claim);
            record.and_then(|record| record.value.user.clone())
        };
        let Some(mut user) = newest() else {
            return Ok(());
        };
        let mut looks = 0..MAX_LOOKS;
        loop {
            let kept = self.keep_user(node, claim, &user).await;
            match newest() {
                // Also behind one that was not confirmed: it may be stored yet, over what came after it.
                Some(newer) if !Arc::ptr_eq(&newer, &user) && looks.next().is_some() => {
                    user = newer;
                }
                _ => return kept,
            }
        }
    }

    /// Stores on the node what the index says of these of its sandboxes, one after the other, as long as `may_write`: a server whose
    /// time is over knows less than its successor.
    pub(super) async fn keep_missed(
        &self,
        fleet: &Fleet,
        node: &NodeName,
        claims: &[ClaimId],
        may_write: impl Fn() -> bool,
    ) {
        let mut n_failures = 0;
        for claim in claims.iter().take_while(|_| may_write()) {
            match self.keep_newest(fleet, node, claim).await {
                Ok(()) => n_failures = 0,
                Err(error) => {
                    n_failures += 1;
                    tracing::warn!(%node, %claim, error = &error as &dyn std::error::Error, "a node's agent did not keep what it missed");
                }
            }
            if n_failures >= MAX_FAILURES {
                return;
            }
        }
    }

    /// Deletes a user part on the node.
    pub(super) async fn forget_user(
        &self,
        node: &NodeName,
        claim: &ClaimId,
    ) -> Result<(), NotKept> {
        let objects = self.objects(node).ok_or(NotKept::NoAgent)?;
        let deleted = objects.delete(claim, STORE_WITHIN).await;
        deleted.map_err(NotKept::Failed)
    }

    fn objects(&self, node: &NodeName) -> Option<Arc<RemoteObjects>> {
        self.by_node.lock().get(node).cloned()
    }

    /// Notes that the node's feed is live until the guard is dropped.
    pub(super) fn enter(&self, node: &NodeName, objects: RemoteObjects) -> LiveGuard<'_> {
        let objects = Arc::new(objects);
        let mut by_node = self.by_node.lock();
        by_node.insert(node.clone(), objects.clone());
        LiveGuard {
            feeds: self,
            node: node.clone(),
            objects,
        }
    }
}

/// Keeps a node among the live ones.
pub(super) struct LiveGuard<'a> {
    feeds: &'a LiveFeeds,
    node: NodeName,
    objects: Arc<RemoteObjects>,
}

impl Drop for LiveGuard<'_> {
    fn drop(&mut self) {
        let mut by_node = self.feeds.by_node.lock();
        // A feed that was replaced may end after its successor began.
        let is_own = |objects: &Arc<RemoteObjects>| Arc::ptr_eq(objects, &self.objects);
        if by_node.get(&self.node).is_some_and(is_own) {
            by_node.remove(&self.node);
        }
    }
}
