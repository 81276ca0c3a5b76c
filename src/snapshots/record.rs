//! One snapshot.

use std::sync::Arc;

use compact_str::CompactString;
use uuid::Uuid;

use crate::{
    api::{ClaimId, NodeName, PoolKey, SnapshotId},
    meta::UnixTime,
    store::Value,
};

/// Namespace of the uids. Chosen once; changing it changes the uid of every snapshot there is.
const UID_NAMESPACE: Uuid = Uuid::from_u128(0x1f6b_2f0c_6c5d_5e0a_8d37_51c2_90ab_77e4);

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Namespace of the object.
    pub namespace: CompactString,
    /// Name of the object.
    pub name: CompactString,
    /// The daemon's id.
    pub id: SnapshotId,
    /// The node that is asked for it; others may have it too.
    pub node: NodeName,
    /// The claim that it is of.
    pub claim: ClaimId,
    /// Name of the sandbox that it is of, as it was when this server first saw the snapshot.
    pub sandbox: CompactString,
    /// What that was made from.
    pub pool: Arc<PoolKey>,
    /// When it was taken, by the node's clock; this server's, when it first saw the snapshot of a daemon that does not say.
    pub created: UnixTime,
}

impl Snapshot {
    /// The uid: the same from every node and at every start.
    pub fn uid(&self) -> Uuid {
        Uuid::new_v5(&UID_NAMESPACE, self.id.as_str().as_bytes())
    }
}

impl Value for Snapshot {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn weight(&self) -> usize {
        size_of::<Self>() + self.id.as_str().len() + self.claim.as_str().len()
    }
}
