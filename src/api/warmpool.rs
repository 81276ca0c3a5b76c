//! `SandboxTemplate`, `SandboxWarmPool` and `SandboxClaim`: the user's intent, kept in etcd. Field-compatible with upstream.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::networking::v1::{NetworkPolicyEgressRule, NetworkPolicyIngressRule},
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PodTemplate, VolumeClaimTemplate};
use crate::meta::UnixTime;

/// A reference to an object of a known kind in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct NamedReference {
    /// Name of the object.
    pub name: String,
}

/// What sandboxes of one kind look like.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SandboxTemplate {
    /// Standard object metadata.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// What the sandboxes look like.
    pub spec: SandboxTemplateSpec,
}

/// What sandboxes of one kind look like.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxTemplateSpec {
    /// Describes the pod that a sandbox stands for.
    pub pod_template: PodTemplate,
    /// Whether a claim may bring environment variables.
    #[serde(default)]
    #[schemars(extend("default" = "Disallowed"))]
    pub env_vars_injection_policy: InjectionPolicy,
    /// Traffic allowed to and from the sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicyRules>,
    /// Whether the network policy is managed for the user.
    #[serde(default)]
    #[schemars(extend("default" = "Managed"))]
    pub network_policy_management: ManagementPolicy,
    /// Whether a headless Service named as the sandbox is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    /// Persistent volume claims of the sandboxes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub volume_claim_templates: Vec<VolumeClaimTemplate>,
    /// Whether a claim may bring volume claim templates.
    #[serde(default)]
    #[schemars(extend("default" = "Disallowed"))]
    pub volume_claim_templates_policy: InjectionPolicy,
}

/// Traffic allowed to and from sandboxes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct NetworkPolicyRules {
    /// Traffic from the sandboxes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<NetworkPolicyEgressRule>,
    /// Traffic to the sandboxes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<NetworkPolicyIngressRule>,
}

/// Whether a claim may add to what its template says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum InjectionPolicy {
    /// A claim may add.
    Allowed,
    /// A claim may add and replace.
    Overrides,
    /// A claim may do neither.
    #[default]
    Disallowed,
}

/// Whether an object is managed for the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ManagementPolicy {
    /// It is.
    #[default]
    Managed,
    /// It is not.
    Unmanaged,
}

/// A number of sandboxes kept warm over the nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SandboxWarmPool {
    /// Standard object metadata.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// What is kept warm.
    pub spec: SandboxWarmPoolSpec,
    /// What is warm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SandboxWarmPoolStatus>,
}

/// What a pool keeps warm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolSpec {
    /// Number of unclaimed sandboxes kept ready over all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 1))]
    pub replicas: Option<i32>,
    /// The SandboxTemplate that the sandboxes are made from.
    pub sandbox_template_ref: NamedReference,
    /// What becomes of ready sandboxes when the template changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
}

/// What becomes of ready sandboxes when the template changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct UpdateStrategy {
    /// The strategy.
    #[serde(default, rename = "type")]
    #[schemars(extend("default" = "OnReplenish"))]
    pub kind: UpdateStrategyType,
}

/// What becomes of ready sandboxes when the template changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum UpdateStrategyType {
    /// They are replaced at once.
    Recreate,
    /// They stay until claimed.
    #[default]
    OnReplenish,
}

/// What a pool has warm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolStatus {
    /// The pool's conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Unclaimed sandboxes that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Unclaimed sandboxes, ready or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Label selector of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
}

/// A request for one sandbox out of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SandboxClaim {
    /// Standard object metadata.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// What is asked for.
    pub spec: SandboxClaimSpec,
    /// What was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SandboxClaimStatus>,
}

/// What a claim asks for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxClaimSpec {
    /// Labels and annotations for the sandbox's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub additional_pod_metadata: Option<ClaimMetadata>,
    /// Environment variables for the sandbox, where its template allows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub env: Vec<ClaimEnvVar>,
    /// When the claim ends and what becomes of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<ClaimLifecycle>,
    /// Volume claim templates for the sandbox, where its template allows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub volume_claim_templates: Vec<VolumeClaimTemplate>,
    /// The pool in the same namespace.
    pub warm_pool_ref: NamedReference,
}

/// Labels and annotations that a claim adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct ClaimMetadata {
    /// Annotations to add.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels to add.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// An environment variable that a claim brings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct ClaimEnvVar {
    /// The container it is for; unset: the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<String>,
    /// Name of the variable.
    pub name: String,
    /// Value of the variable.
    pub value: String,
}

/// When a claim ends and what becomes of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct ClaimLifecycle {
    /// What becomes of claim and sandbox at the end.
    #[serde(default)]
    #[schemars(extend("default" = "Retain"))]
    pub shutdown_policy: ClaimShutdownPolicy,
    /// When the claim ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<UnixTime>,
    /// Seconds from the Finished condition to the claim's end; the earlier of both ends wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// What becomes of claim and sandbox at the claim's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ClaimShutdownPolicy {
    /// Both are deleted.
    Delete,
    /// Both are deleted, the claim last.
    DeleteForeground,
    /// The sandbox is deleted, the claim is kept.
    #[default]
    Retain,
}

/// What a claim was given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxClaimStatus {
    /// The claim's conditions: Ready, Bound, Finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<ClaimSandboxRef>,
}

/// The sandbox that a claim was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct ClaimSandboxRef {
    /// Name of the sandbox, in the claim's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Addresses of the sandbox.
    #[serde(default, rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<String>,
}

/// The constants by which clients find a kind of the extensions group.
macro_rules! stored_kind {
    ($kind:ident, $plural:literal) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = "extensions.agents.x-k8s.io/v1beta1";
            const GROUP: &'static str = super::EXTENSIONS_GROUP;
            const KIND: &'static str = stringify!($kind);
            const VERSION: &'static str = super::V1BETA1;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = k8s_openapi::NamespaceResourceScope;
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

stored_kind!(SandboxTemplate, "sandboxtemplates");
stored_kind!(SandboxWarmPool, "sandboxwarmpools");
stored_kind!(SandboxClaim, "sandboxclaims");
