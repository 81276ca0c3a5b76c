//! What is served with the API machinery: `sandboxes` and their subresources, and `sandboxsnapshots`.
//!
//! A Sandbox is written straight from its record in the index: what the user sent as it came, the rest from what the node
//! says. Nothing is kept that is not in the record.

mod crds;
mod definition;
mod encode;
mod error;
mod order;
mod sandbox;
mod snapshots;
mod subresource;
mod update;
mod versions;

pub use crds::stored_kinds;
pub use definition::{KUBERNETES_VERSION, sandbox_definition, snapshot_definition};
pub use sandbox::Sandboxes;
pub use snapshots::SandboxSnapshots;
