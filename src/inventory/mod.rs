//! What the nodes publish and say, merged into the index.
//!
//! One task takes in the watches of `NodeInventory` and `Node`, the daemons' answers and the clock, in order. The merge rule is
//! the index's; decided here:
//!
//! - An inventory is read leniently and in one pass: a bad entry costs itself and the meaning of absence, a bad field of the
//!   object costs that field. Nothing a publisher writes stops the watch or empties the list, and all of it is counted.
//! - No copy: an inventory is merged and dropped. Rows that wait for a node's answer are bounded by taking no more in.
//! - A node whose feed is live is neither read nor believed in its inventory but for its address: the feed is later than both.
//! - A node is read once when its address becomes known, and when its inventory leaves something open; until the first list is
//!   in and read the server is not ready. A node that does not answer keeps what it has.
//! - A list that names a node no more is confirmed by a read of that object before its sandboxes go, for a list may be older
//!   than what was told before.
//! - Only the publisher's own write counts as a sign of life: `observedAt` moved, or, without that field, anything but the
//!   server's own `releases`.
//! - Times are moved from the node's clock to ours where they come in, by what the daemon's answers show of its clock. So a
//!   daemon is asked what its clock shows before its node's first publication is taken over. When its clock turns out to be off
//!   by another time, the node is read again, and its feed begun again.
//! - Our token goes only to an address in a configured network or one that the Node of that name has itself. One that is
//!   neither any more is forgotten, since the next who has it may be anybody.
//! - A feed's first snapshot and a direct read exclude each other. The snapshot has two seconds and then gives way, whatever an
//!   agent says or keeps to itself; one that came too late is asked for again after a pause in which the read can begin.

mod address;
mod answers;
mod ask;
mod clocks;
mod cluster_node;
mod complaints;
mod daemons;
mod entries;
mod error;
mod feed_task;
mod feeds;
mod fields;
mod follow;
mod handle;
mod lenient;
mod live;
mod metrics;
mod options;
mod publication;
mod reads;
mod rejection;
mod roster;
mod take_in;
mod update;
mod watch;

pub use cluster_node::ClusterNode;
pub use error::{Error, Result};
pub use handle::Inventory;
pub use live::NotKept;
pub use metrics::InventoryMetrics;
pub use options::Options;
pub use publication::Publication;
pub use update::{Source, Update};
