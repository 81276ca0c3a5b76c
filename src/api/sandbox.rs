//! `Sandbox`: the object users see. No object of this kind is stored; its parts come from the nodes.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaimSpec, PodSpec},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::UnixTime;

/// What the user wants of a sandbox.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    /// Describes the pod that a sandbox stands for. The first container's image and resources choose the warm pool.
    pub pod_template: PodTemplate,
    /// Whether the sandbox runs or is suspended.
    #[serde(default)]
    #[schemars(extend("default" = "Running"))]
    pub operating_mode: OperatingMode,
    /// Persistent volume claims of the sandbox. Immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub volume_claim_templates: Vec<VolumeClaimTemplate>,
    /// Whether a headless Service named as the sandbox is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    /// When the sandbox expires. Unset: with its lease on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<UnixTime>,
    /// What becomes of the object when the sandbox expires.
    #[serde(default)]
    #[schemars(extend("default" = "Retain"))]
    pub shutdown_policy: ShutdownPolicy,
}

/// Whether a sandbox runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum OperatingMode {
    /// The sandbox runs.
    #[default]
    Running,
    /// The sandbox's memory is kept, its VM is stopped.
    Suspended,
}

/// What becomes of an expired sandbox's object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ShutdownPolicy {
    /// The object is deleted.
    Delete,
    /// The object is kept for a while, as expired.
    #[default]
    Retain,
}

/// The pod that a sandbox stands for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct PodTemplate {
    /// Labels and annotations of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<EmbeddedMetadata>,
    /// The pod's specification.
    pub spec: PodSpec,
}

/// Labels and annotations of an object that another one describes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct EmbeddedMetadata {
    /// Annotations of the object.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels of the object.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Name, labels and annotations of a persistent volume claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct VolumeClaimMetadata {
    /// Annotations of the claim.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels of the claim.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Name of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A persistent volume claim of a sandbox.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct VolumeClaimTemplate {
    /// Name, labels and annotations of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<VolumeClaimMetadata>,
    /// The claim's specification.
    pub spec: PersistentVolumeClaimSpec,
}

/// What the server knows of a sandbox.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// The sandbox's conditions: Ready, Suspended, Finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The node that holds the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Addresses of the sandbox.
    #[serde(default, rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub pod_ips: Vec<String>,
    /// Label selector of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Name of the sandbox's Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// DNS name of the sandbox's Service.
    #[serde(
        default,
        rename = "serviceFQDN",
        skip_serializing_if = "Option::is_none"
    )]
    pub service_fqdn: Option<String>,
}

/// The deprecated version: `replicas` in place of `operatingMode`.
pub mod v1alpha1 {
    use super::{
        Condition, Deserialize, JsonSchema, PodTemplate, Serialize, ShutdownPolicy, UnixTime,
        VolumeClaimTemplate,
    };

    /// What the user wants of a sandbox.
    #[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase")]
    #[schemars(rename = "v1alpha1.SandboxSpec")]
    pub struct SandboxSpec {
        /// Describes the pod that a sandbox stands for. The first container's image and resources choose the warm pool.
        pub pod_template: PodTemplate,
        /// 1: the sandbox runs. 0: it is suspended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 0, max = 1), extend("default" = 1))]
        pub replicas: Option<i32>,
        /// Persistent volume claims of the sandbox.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        pub volume_claim_templates: Vec<VolumeClaimTemplate>,
        /// Whether a headless Service named as the sandbox is wanted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub service: Option<bool>,
        /// When the sandbox expires. Unset: with its lease on the node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub shutdown_time: Option<UnixTime>,
        /// What becomes of the object when the sandbox expires.
        #[serde(default)]
        #[schemars(extend("default" = "Retain"))]
        pub shutdown_policy: ShutdownPolicy,
    }

    /// What the server knows of a sandbox.
    #[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase")]
    #[schemars(rename = "v1alpha1.SandboxStatus")]
    pub struct SandboxStatus {
        /// The sandbox's conditions: Ready, Suspended, Finished.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
        pub conditions: Vec<Condition>,
        /// Addresses of the sandbox.
        #[serde(default, rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        pub pod_ips: Vec<String>,
        /// 1 while the sandbox runs, else 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 0))]
        pub replicas: Option<i32>,
        /// Label selector of the sandbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub selector: Option<String>,
        /// Name of the sandbox's Service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub service: Option<String>,
        /// DNS name of the sandbox's Service.
        #[serde(
            default,
            rename = "serviceFQDN",
            skip_serializing_if = "Option::is_none"
        )]
        pub service_fqdn: Option<String>,
    }
}
