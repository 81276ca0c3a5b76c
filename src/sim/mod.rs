//! `sandboxd` for tests and demos: many nodes in one process, each a real HTTP server on a port of its own.
//!
//! A node speaks the daemon's API as its wire contract describes it, in one of four generations, with the daemon's classes of
//! credentials, statuses and bodies; what stands behind it is bookkeeping. It misbehaves on request ([`Fault`]), remembers
//! what it was asked ([`Request`]) and what became of its VMs ([`JournalEntry`]), and publishes its `NodeInventory` ([`Publisher`]).
//!
//! A guest is a tree of files in memory, with a toy shell for `exec` and an agent for `agent` that writes and reads them. Forks
//! and sandboxes that start from a checkpoint have the files of what they are copies of.
//!
//! What is not simulated: programs, so that nothing is ever run and nothing listens, and `ports` ends in the daemon's 502;
//! `preview`, which ends in its 501; nodes have no volumes; `idle_hibernate_seconds` and the archive times of a pool are checked but
//! nothing happens after them. The routes for tenants, for attaching volumes and for the transfer of checkpoints between
//! nodes are missing, as on a daemon that does not have them.
//!
//! Time passes by look: a node settles refills and ended leases whenever it is touched, so that 400 idle nodes cost nothing.

mod admin;
mod auth;
mod body;
mod claim;
mod daemon;
mod endpoints;
mod error;
mod faults;
mod files;
mod fleet;
mod guest;
mod handle;
mod inventory;
mod journal;
mod lifecycle;
mod log;
mod options;
mod pools;
mod publish;
mod reads;
mod reply;
mod routes;
mod server;
mod settings;
mod shell;
mod silkd;
mod size;
mod state;
mod world;

#[cfg(test)]
mod guest_wire_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wire_tests;

use reply::Refusal;

pub use error::{Error, Result};
pub use faults::{Fault, FaultKind};
pub use fleet::Fleet;
pub use handle::{Handle, Planted};
pub use journal::{JournalEntry, JournalEvent};
pub use log::Request;
pub use options::{Generation, Latency, Options, Tenant};
pub use publish::{FIELD_MANAGER, Publisher};
pub use state::Counters;
