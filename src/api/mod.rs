//! The types of our API groups and the keys that name their objects.
//!
//! Pure data: no I/O, no clock. What a client sends is read as JSON against the schemas that these types derive; the types
//! themselves are for the parts of an object that the server acts on.

mod delivery;
mod inventory;
mod keys;
pub mod labels;
mod options;
mod partial;
mod pool_key;
mod sandbox;
mod snapshot;
mod user_part;
mod warmpool;

pub use delivery::{BOUND, Binding, DELIVERED, Delivery, RELEASED};
pub use inventory::{AgentEndpoint, InventoryEntry, InventoryPool, NodeInventory};
pub use keys::{
    ClaimId, InvalidAddress, NodeAddress, NodeName, PoolKey, SandboxKey, SnapshotId, Token,
};
pub use options::{
    SandboxForkOptions, SandboxPauseOptions, SandboxPromoteOptions, SandboxPromotion,
    SandboxResumeOptions, SandboxSnapshotOptions, SandboxStats, SandboxToken, SandboxTokenOptions,
};
pub(crate) use partial::partial;
pub use pool_key::{
    InvalidPoolKey, PoolKeySource, pool_key_for, pool_key_of_pool, pool_key_of_template,
};
pub use sandbox::{
    EmbeddedMetadata, OperatingMode, PodTemplate, SandboxSpec, SandboxStatus, ShutdownPolicy,
    VolumeClaimMetadata, VolumeClaimTemplate, v1alpha1,
};
pub use snapshot::{SandboxSnapshotSpec, SandboxSnapshotStatus};
pub use user_part::UserPart;
pub use warmpool::{
    ClaimEnvVar, ClaimLifecycle, ClaimMetadata, ClaimSandboxRef, ClaimShutdownPolicy,
    InjectionPolicy, ManagementPolicy, NamedReference, NetworkPolicyRules, SandboxClaim,
    SandboxClaimSpec, SandboxClaimStatus, SandboxTemplate, SandboxTemplateSpec, SandboxWarmPool,
    SandboxWarmPoolSpec, SandboxWarmPoolStatus, UpdateStrategy, UpdateStrategyType,
};

/// Group of `sandboxes`, which this server serves.
pub const GROUP: &str = "agents.x-k8s.io";
/// Group of the objects in etcd: inventories, warm pools, templates, claims.
pub const EXTENSIONS_GROUP: &str = "extensions.agents.x-k8s.io";
/// The preferred version of both groups.
pub const V1BETA1: &str = "v1beta1";
/// The deprecated version of `agents.x-k8s.io`.
pub const V1ALPHA1: &str = "v1alpha1";
