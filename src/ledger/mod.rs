//! Releases that nodes owe, kept where they outlast this process: in `releases` of each node's `NodeInventory`.
//!
//! A delete whose node cannot be reached is answered, and the node is asked until it confirms. Were that known to this
//! process alone, a restart would forget the delete and show the sandbox as running again. Decided here:
//!
//! - The list is server-side applied under a field manager of its own, so that neither the node's publisher nor this server
//!   takes away what the other writes. A publisher that replaces the whole object takes the list with it.
//! - What is paid at once is not written: a change waits for a moment before it is.
//! - At the start the metadata of all inventories tells which of them this server has an entry in; only those are read. The
//!   entries of thousands of nodes, which the inventory room reads anyway, do not pass twice.
//! - No inventory is ever created here.

mod error;
mod keep;
mod record;

pub use error::{Error, Result};
pub use keep::{Keeping, Ledger, Recorded};
