//! A versioned store: the current objects in order, and the recent past as a log of changes.
//!
//! Every change gets the next resource version. A read names the version it wants: the newest is the ordered map itself;
//! an older one is the map with the changes after it taken back, as long as the log still holds them. So a list that is
//! paged or streamed over seconds, a watch's initial events and an exact read all see one instant, and nothing is pinned
//! for them: a reader that outlives the log is told so. Rejected: a chain of versions at each key, which costs every
//! quiet object two words for a history it does not have.
//!
//! Invariant: the store reads no clock, waits for nothing and knows nothing of what it stores. The lock is held for
//! lookups and bounded pages only. Several readers may hold the version they read for as long as they like.

mod log;
mod ordered;
mod state;
#[cfg(test)]
mod tests;

pub use log::{Event, EventKind};
pub use ordered::{Key, Scope};
pub use state::{Change, Expired, Limits, Page, Store, Stored, Value};
