//! Snapshots: checkpoints of a running sandbox, on its node.

use std::sync::Arc;

use super::{Gateway, Progress, Result, lifecycle::conflict};
use crate::{
    api::{ClaimId, NodeAddress, NodeName, PoolKey, SnapshotId},
    fleet::{Phase, Sandbox},
    meta::UnixTime,
    sandboxd::CheckpointRecord,
    store::Stored,
};

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The daemon's id.
    pub id: SnapshotId,
    /// The name the client gave it.
    pub name: Option<String>,
    /// The sandbox that it is of.
    pub claim: ClaimId,
    /// What that was made from.
    pub pool: PoolKey,
    /// The node that holds it.
    pub node: NodeName,
    /// When it was taken, by the node's clock.
    pub created_at: Option<UnixTime>,
}

impl Snapshot {
    fn of(node: &NodeName, record: CheckpointRecord) -> Self {
        Self {
            id: record.id,
            name: record.name,
            claim: record.sandbox_id,
            pool: record.key,
            node: node.clone(),
            created_at: record.created_at,
        }
    }
}

impl Gateway {
    /// Takes a snapshot. The sandbox keeps running. A client that asks again for the same name while one is taken joins it; one that asks again
    /// afterwards for the same name gets the snapshot that has it.
    ///
    /// # Errors
    /// See [`super::Error`].
    pub async fn snapshot(
        &self,
        record: Arc<Stored<Sandbox>>,
        name: Option<String>,
    ) -> Result<Progress<Snapshot>> {
        let sandbox = &record.value;
        match sandbox.phase {
            Phase::Running | Phase::Paused | Phase::Unknown => {}
            Phase::Archived => {
                return Err(conflict(
                    "an archived sandbox must be resumed before a snapshot",
                ));
            }
            Phase::Failed => return Err(conflict("no snapshot can be taken of a failed sandbox")),
            Phase::Expired => return Err(conflict("the sandbox has expired")),
        }
        let address = self.address_of(sandbox)?;
        let (gateway, key) = (self.clone(), (sandbox.claim.clone(), name.clone()));
        let snapshots = &self.inner.snapshots;
        let work = snapshots.join(&self.inner.tasks, key, "snapshot", || {
            gateway.call_snapshot(record, address, name)
        });
        let work = work.map_err(|other| conflict(&format!("a {other} is under way")))?;
        self.wait_for(work).await
    }

    async fn call_snapshot(
        self,
        record: Arc<Stored<Sandbox>>,
        address: NodeAddress,
        name: Option<String>,
    ) -> Result<Snapshot> {
        let sandbox = &record.value;
        if let Some(name) = &name
            && let Ok(checkpoints) = self.daemon(&address).checkpoints().await
            && let Some(taken) = checkpoints.into_iter().find(|known| {
                known.sandbox_id == sandbox.claim && known.name.as_ref() == Some(name)
            })
        {
            return Ok(Snapshot::of(&sandbox.node, taken));
        }
        let daemon = self
            .inner
            .daemons
            .node(&address, self.inner.options.long_call_timeout);
        let answer = daemon.checkpoint(&sandbox.claim, name.as_deref()).await;
        self.inner.metrics.called("snapshot", answer.is_ok());
        match answer {
            Ok(taken) => Ok(Snapshot::of(&sandbox.node, taken)),
            Err(error) => Err(self.refused(sandbox, &address, error).await),
        }
    }
}
