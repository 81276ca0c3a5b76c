//! The room's one object: it follows the nodes, and asks one when somebody needs to know now.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{InventoryMetrics, NotKept, Options, Source, daemons::Daemons, follow::Follower};
use crate::{
    api::{ClaimId, NodeName, UserPart},
    fleet::Fleet,
    sandboxd,
    telemetry::Check,
};

/// Keeps the index in agreement with the nodes. A clone is the same one.
#[derive(Clone)]
pub struct Inventory {
    daemons: Arc<Daemons>,
}

impl Inventory {
    /// Does nothing yet; [`Inventory::run`] does.
    pub fn new(
        fleet: Arc<Fleet>,
        daemons: sandboxd::Client,
        options: Options,
        metrics: InventoryMetrics,
    ) -> Self {
        Self {
            daemons: Arc::new(Daemons::new(fleet, daemons, options, metrics)),
        }
    }

    /// Follows `source` and the nodes until `shutdown`.
    ///
    /// `ready` passes once the first list is in and every node with a usable address was read or did not answer; the index's
    /// history begins there. From then on it stays: what cannot be watched or reached keeps its last state.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn run(self, source: Source, ready: Check, shutdown: CancellationToken) {
        Follower::new(self.daemons, ready)
            .run(source, shutdown)
            .await;
    }

    /// Keeps a sandbox's user part on its node, so that it survives this server. Takes a second at most; on success it is on the
    /// node's disk.
    ///
    /// # Errors
    /// [`NotKept::NoAgent`] for a node without a live feed: the part lives in memory, and its user is to be warned.
    /// [`NotKept::Failed`] when the agent did not confirm.
    pub async fn keep_user(
        &self,
        node: &NodeName,
        claim: &ClaimId,
        user: &UserPart,
    ) -> Result<(), NotKept> {
        self.daemons.feeds.keep_user(node, claim, user).await
    }

    /// The same for what the index says of the sandbox's user, if it says anything, until that is what the node has.
    ///
    /// # Errors
    /// As [`Inventory::keep_user`].
    pub async fn keep_newest(&self, node: &NodeName, claim: &ClaimId) -> Result<(), NotKept> {
        let daemons = &self.daemons;
        daemons.feeds.keep_newest(&daemons.fleet, node, claim).await
    }

    /// Forgets a released sandbox's user part on its node; left undone, the agent does so some minutes later.
    ///
    /// # Errors
    /// As [`Inventory::keep_user`].
    pub async fn forget_user(&self, node: &NodeName, claim: &ClaimId) -> Result<(), NotKept> {
        self.daemons.feeds.forget_user(node, claim).await
    }

    /// Whether changes on the node are told as they happen.
    pub fn is_live(&self, node: &NodeName) -> bool {
        self.daemons.feeds.is_live(node)
    }

    /// Asks a node what is warm and whether it is draining, and takes the answer over. Whether it answered.
    ///
    /// Callers at the same time share one question, and one asked in the last [`Options::infos_apart`] is not asked again.
    /// Takes at most [`Options::info_within`].
    pub async fn refresh(&self, node: &NodeName) -> bool {
        self.daemons.ask(node).await
    }
}
