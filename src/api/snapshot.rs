//! `SandboxSnapshot`: a checkpoint on a node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::UnixTime;

/// What the user wants of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSnapshotSpec {
    /// The sandbox in the same namespace that the snapshot is taken of.
    pub sandbox_name: String,
}

/// What the server knows of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSnapshotStatus {
    /// The daemon's checkpoint id.
    pub id: String,
    /// Claim id of the sandbox that the snapshot was taken of.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// Pool key of the sandbox: template, net and size joined by `|`.
    pub pool: String,
    /// The node that holds the snapshot.
    pub node: String,
    /// When the snapshot was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<UnixTime>,
}
