//! The options of lists, watches and writes, as the query has them.

mod list;
mod selection;
mod version;
mod watch;
mod write;

pub(super) use list::ListOptions;
pub(super) use selection::{Selection, Selectors};
pub(super) use version::Version;
pub(super) use watch::{WatchFrom, WatchOptions};
pub(super) use write::{FieldValidation, MAX_FIELD_MANAGER, WriteOptions, dry_run};
