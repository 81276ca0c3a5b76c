//! The warm-pool driver: what SandboxWarmPool and SandboxTemplate objects want, divided over the nodes and told to their daemons.
//!
//! One loop in the server that holds the Lease. Decisions that bind this room:
//!
//! - The division is a pure function of pools and nodes (`plan`), what to do next a state machine without I/O (`members`), and
//!   only the outermost layer speaks to nodes and to kube-apiserver. So every rule is tested without a cluster.
//! - A node's set is written whole (`PUT /v1/pools`), and only when it differs from what the node itself answered last: a
//!   publication may be older than our own write. There is no merge with pools of others: a node that shows pools the driver
//!   never wrote is left alone, or taken over as a whole (`--warm-pool-takeover`).
//! - What the driver wrote is on record in one ConfigMap before the node is told, so that a restarted driver knows its own
//!   pools again, also those whose object was deleted meanwhile. One object and not an annotation a node: written once for a
//!   change of pools, whatever the number of nodes, and safe from publishers that replace their inventory.
//! - What nodes may have never adds up to more than is wanted: VMs that move are taken away first. A node that is not heard of
//!   counts for nothing, for nobody can claim there, and its share goes to the others.
//! - A changed template replaces the pool, whatever its update strategy says: a daemon has no way to keep VMs of a pool that
//!   it is no longer to fill.

mod driver;
mod engine;
mod error;
mod members;
mod metrics;
mod objects;
mod plan;
mod record;
mod status;
mod statuses;
#[cfg(test)]
mod tests;

pub use driver::{Driver, DriverOptions};
pub use error::{Error, Result};
pub use metrics::WarmPoolMetrics;
pub use plan::{Candidate, Demand, Plan, Targets, plan};
