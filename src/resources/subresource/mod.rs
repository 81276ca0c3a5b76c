//! Actions on a Sandbox, a file each.

mod fork;
mod pause;
mod snapshot;

pub(super) use fork::fork;
pub(super) use pause::{pause, resume};
pub(super) use snapshot::snapshot;
