//! The snapshots that the nodes hold: checkpoints of sandboxes, as objects with namespace and name.
//!
//! A daemon keeps of a checkpoint an id, one name of 63 characters, and the sandbox that it is of. Decided here:
//!
//! - Namespace and name are in the daemon's name, `k8s/<namespace>/<name>`, so that every restart says the same; of two that have
//!   one name, the earlier keeps it. A checkpoint with another name belongs to the namespace of its sandbox, under a name made of
//!   its id. Where the sandbox is known, its namespace is believed and no name. Where neither is known, the snapshot is nobody's:
//!   it is counted, and shown to no namespace, since it holds somebody's memory.
//! - Nodes are asked one by one, when they appear and once a minute; daemons tell no changes. What this server does shows at
//!   once. An answer that was asked for before a write of ours is thrown away, and asked for again.
//! - Absence counts only in an answer. A node that has not answered since this server's start is known to be missing: its
//!   snapshots are not said to be absent, see [`Whole`].
//! - A checkpoint that several nodes hold, since daemons fetch them from each other, is one snapshot.

mod follow;
mod index;
mod name;
mod node;
mod record;

pub use index::{Reservation, Snapshots, Taken};
pub use name::{NameTooLong, daemon_name, name_room};
pub use node::Whole;
pub use record::Snapshot;
