//! The options of lists, watches and writes, as the query has them.

mod list;
mod selection;
mod version;
mod watch;
mod write;

pub(super) use list::ListOptions;
pub(super) use selection::Selection;
pub(super) use version::Version;
pub(super) use watch::{WatchFrom, WatchOptions};
pub(super) use write::{FieldValidation, WriteOptions, dry_run};

use super::{Status, StatusCause};

/// 422 for an option of a list or a watch, its reason told by the first words of `message`.
fn invalid(field: &str, message: &str) -> Status {
    let reason = match message.split_once(':') {
        Some(("Forbidden", _)) => "FieldValueForbidden",
        Some(("Unsupported value", _)) => "FieldValueNotSupported",
        _ => "FieldValueInvalid",
    };
    let cause = StatusCause {
        reason: reason.to_owned(),
        message: message.to_owned(),
        field: field.to_owned(),
    };
    Status::invalid("meta.k8s.io", "ListOptions", "", vec![cause])
}
