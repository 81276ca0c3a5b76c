//! The index: what the nodes say and what this server did, merged into one list of sandboxes.
//!
//! Facts come in four ways: a node's publication (late, maybe replayed), a direct read of its daemon, this server's own
//! writes, and the passing of time. The merge rule, which everything here serves:
//!
//! - Clocks of different machines are never compared: every time that comes in is by this machine's. A claim id is never used
//!   twice, so a released one stays dead.
//! - What we wrote holds until the node agrees: a claim until it is listed, a phase until it is reported. What nobody confirms
//!   for a while the node is asked about; what its agent tells meanwhile it may have seen before.
//! - Absence in a publication is only a doubt. A direct read settles it; a node that cannot be asked keeps its sandboxes.
//! - A name belongs to the earlier claim, then to the smaller id; the other one is listed under its id.
//! - A report that repeats what is known is no change.
//!
//! Invariant: no clock, no I/O, no waiting. Time comes as [`Now`]; the questions that need a node are returned to the
//! caller as a [`Doubt`] or as an [`Attention`]. One lock guards the bookkeeping; readers do not take it, they read the [`Store`](crate::store::Store).

mod attempt;
mod claims;
mod conditions;
mod contest;
mod health;
mod index;
mod leases;
mod merge;
mod naming;
mod node;
mod nodes;
mod placement;
mod pool_keys;
mod remnants;
mod report;
mod reservation;
mod restore;
mod said;
mod sandbox;
#[cfg(test)]
mod tests;
mod usage;
mod writes;

pub use attempt::Attempt;
pub use conditions::Condition;
pub use health::{Attention, HealthLimits, REAP_GRACE};
pub use index::{Counts, Fleet};
pub use merge::Doubt;
pub use naming::{id_name, is_sandbox_name, key_of_claim_ref, uid_of};
pub use node::Health;
pub use nodes::NodeState;
pub use placement::Placement;
pub use report::{Now, Pool, Report, Row};
pub use reservation::{KeptName, NameReservation, NameTaken};
pub use said::Overtaken;
pub use sandbox::{Phase, Sandbox};
pub use usage::{Usage, Used};
pub use writes::{ClaimLost, Granted, ReadGuard};
