//! The node agent: it lives beside one daemon and speaks for it.
//!
//! It reads the daemon, which has no watch, as often as somebody listens and as the reading is cheap; tells changes over the
//! [`feed`](crate::feed); publishes the `NodeInventory`; keeps what users sent of their sandboxes; and hands warm VMs over to whom
//! kube-apiserver lets have them (`gateway`). Decided here:
//!
//! - One reader. Feed and inventory are made of the same look at the daemon, and neither can be ahead of the other.
//! - User parts are lines of one log, synced once for all that wait, and rewritten when most of it is dead. A file for each was
//!   rejected: it costs two syncs and a rename an object, and a hundred creates at once would pay for each of them.
//! - A user part outlives its sandbox's absence by ten minutes: a daemon that restarts may list late what it still has.
//! - The inventory is written on change, never faster than its period, and with an unchanged `observedAt` when nothing else
//!   changed, so that asserting it again costs etcd nothing.
//! - What sandboxes use is asked of the daemon slowly, and told beside the changes: see `usage`.
//! - What callers may is RBAC on subresources of the node's own inventory, as a kubelet asks about its node: `get
//!   nodeinventories/feed`, `get|update|delete nodeinventories/objects`.

mod agent;
mod daemon;
mod error;
mod gateway;
mod identity;
mod log;
mod metrics;
mod objects;
mod options;
mod orphan;
mod publish;
mod server;
mod usage;

pub use agent::Agent;
pub use error::{Error, Result};
pub use gateway::{ClaimAccess, GatewayOptions};
pub use identity::Identity;
pub use metrics::NodeMetrics;
pub use objects::Objects;
pub use options::Options;
pub use publish::{FIELD_MANAGER, Inventories};
