//! Claims and lifecycle calls, routed to the node that can answer them, with nothing lost on the way.
//!
//! What a client asked for goes on without it: a client that leaves changes who is told, not what happens. The rules:
//!
//! - A claim goes to one node at a time. It goes elsewhere when the node did nothing, or did not say what it did; in the
//!   second case the node is asked afterwards, and what it granted beside the winner is released.
//!   A node that stays silent is asked until the lease that it may have granted is over; what turns up of it takes no name.
//! - A grant whose client has left is released: a create that failed for its client leaves nothing.
//! - A release is done when the node says so. Until then the sandbox stays, marked as deleted, and the node is asked again.
//! - Only addresses that a publication names are called. A daemon's redirect is a hint which of them to try.

mod attempt;
mod claim;
mod error;
mod fork;
mod guest;
mod joint;
mod keep;
mod lease;
mod lifecycle;
mod long;
mod metrics;
mod owed;
mod promote;
mod questions;
mod release;
mod renew;
mod route;
mod settle;
mod snapshot;

pub use claim::{ClaimOrder, ClaimedSandbox};
pub use error::{Error, Result};
pub use fork::{ForkOrder, Forked, ForkedSandbox};
pub use guest::Entry;
pub use keep::Kept;
pub use lease::LONGEST as LONGEST_LEASE;
pub use lifecycle::Progress;
pub use metrics::GatewayMetrics;
pub use owed::Debts;
pub use release::Released;
pub use route::{Gateway, GatewayOptions};
