//! Bodies of the subresources of a Sandbox, and their answers where those are kinds of their own.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Preconditions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::UnixTime;

/// Asks for a sandbox to be paused: its memory is kept, its VM is stopped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxPauseOptions {
    /// Which object is meant; another one is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
}

/// Asks for a paused sandbox to run again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxResumeOptions {
    /// Which object is meant; another one is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
}

/// Asks for running copies of a sandbox, on its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxForkOptions {
    /// Number of copies, 1 to 16.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16), extend("default" = 1))]
    pub count: u32,
    /// Lease of each copy in seconds. Unset: the daemon's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub ttl_seconds: Option<u64>,
    /// What the names of the copies begin with; their ids follow. Unset: the sandbox's name and a dash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<String>,
    /// With an id the request can be repeated: there is one fork of an id and a name prefix of a sandbox, and who asks again is
    /// shown its copies, without their credentials. It stands in their names, behind the prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"))]
    pub id: Option<String>,
    /// Which object is meant; another one is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
}

/// Asks for a snapshot of a sandbox, on its node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSnapshotOptions {
    /// Name of the snapshot, 62 characters together with the namespace's. With one the request can be repeated: there is one
    /// snapshot of a name. Unset: the sandbox's name and some letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
        length(max = 61)
    )]
    pub name: Option<String>,
    /// Which object is meant; another one is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
}

/// Asks for a sandbox's state to become a template of its node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxPromoteOptions {
    /// Name of the template. One of that name is replaced.
    #[schemars(regex(pattern = "^[a-zA-Z0-9][a-zA-Z0-9._:/-]{0,62}$"))]
    pub template: String,
    /// Which object is meant; another one is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
}

/// A template that was made of a sandbox: what claims ask for to start from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxPromotion {
    /// Name of the template.
    pub template: String,
    /// Network lane: `none` or `egress`.
    pub net: String,
    /// Size class.
    pub size: String,
    /// The node that has it.
    pub node: String,
}

/// Asks for a sandbox's credential.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxTokenOptions {
    /// Which object is meant; another one is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
}

/// A sandbox's credential, and where it is presented.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxToken {
    /// The credential. Whoever has it may do everything in the sandbox, as long as that lives.
    pub token: String,
    /// Address of the daemon that takes it. Unset: the node tells none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// What a sandbox uses, measured by its node when it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStats {
    /// Number of CPUs.
    pub cpu_count: u32,
    /// Memory that the guest may use, in bytes.
    pub mem_total_bytes: u64,
    /// Resident memory of the VM, in bytes. Unset: the node has no reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_used_bytes: Option<u64>,
    /// Whether the sandbox is paused.
    pub paused: bool,
    /// When it was measured, by the node's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_at: Option<UnixTime>,
}

fn one() -> u32 {
    1
}
