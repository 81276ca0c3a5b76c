//! `NodeInventory`: what one node says it holds, published by its agent or by anything else that writes this schema.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What one node holds: its sandboxes and its warm pools. Cluster-scoped; the name is the node's.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeInventory {
    /// Standard object metadata.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// Name of the node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Where the node's daemon is reached: host:port, or an http or https
    /// origin. No path, no user information.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// When the publisher read its daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: Option<String>,
    /// Number of sandboxes on the node, also when the entries were cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    /// Sandboxes ready to be claimed, over all pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<i64>,
    /// True when the entries are not all of them, so that absence means nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The node agent's live feed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentEndpoint>,
    /// The sandboxes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub entries: Vec<InventoryEntry>,
    /// The warm pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub pools: Vec<InventoryPool>,
    /// Claim ids whose release is owed to this node, written by the API server under its own field manager.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub releases: Vec<String>,
}

/// One sandbox on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InventoryEntry {
    /// Namespace and name, joined by a slash.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The daemon's claim id.
    #[serde(default)]
    pub id: String,
    /// Running, Hibernated (or Paused), Archived or Failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The claim reference that the claim was made with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim_ref: String,
    /// Where the sandbox is reached.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub addr: String,
    /// End of the lease, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub deadline: Option<String>,
    /// Image or promoted template.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub template: String,
    /// Network lane.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub net: String,
    /// Size class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub size: String,
    /// When the claim was made, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub claimed_at: Option<String>,
    /// The checkpoint that the sandbox was started from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from_checkpoint: String,
}

/// One warm pool on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InventoryPool {
    /// Image or promoted template.
    pub template: String,
    /// Network lane.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub net: String,
    /// Size class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub size: String,
    /// VMs ready to be claimed.
    #[serde(default)]
    pub warm: i64,
    /// VMs that the node keeps ready.
    #[serde(default)]
    pub target: i64,
}

/// Where a node agent serves its live feed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentEndpoint {
    /// host:port of the feed, TLS.
    pub address: String,
    /// SHA-256 of the agent's self-made certificate, hexadecimal.
    #[serde(rename = "certificateSHA256")]
    pub certificate_sha256: String,
}

impl k8s_openapi::Resource for NodeInventory {
    const API_VERSION: &'static str = "extensions.agents.x-k8s.io/v1beta1";
    const GROUP: &'static str = super::EXTENSIONS_GROUP;
    const KIND: &'static str = "NodeInventory";
    const VERSION: &'static str = super::V1BETA1;
    const URL_PATH_SEGMENT: &'static str = "nodeinventories";
    type Scope = k8s_openapi::ClusterResourceScope;
}

impl k8s_openapi::Metadata for NodeInventory {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
