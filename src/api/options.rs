//! Bodies of the subresources of a Sandbox, and their answers where those are kinds of their own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Asks for a sandbox to be paused: its memory is kept, its VM is stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxPauseOptions {}

/// Asks for a paused sandbox to run again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxResumeOptions {}

/// Asks for running copies of a sandbox, on its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
}

/// Asks for a snapshot of a sandbox, on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSnapshotOptions {
    /// Name of the snapshot. With one the request can be repeated: there is one snapshot of a name of a sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-zA-Z0-9][a-zA-Z0-9._:/-]{0,62}$"))]
    pub name: Option<String>,
}

fn one() -> u32 {
    1
}
