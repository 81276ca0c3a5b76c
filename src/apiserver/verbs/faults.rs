//! Fields that the schema does not know, or that stand twice.

use super::VerbRequest;
use crate::apiserver::{Status, options::FieldValidation};

/// Deals with such fields as the client asked: refuses the object, tells the client, or passes them over. `kind` is what the
/// object was read as.
///
/// # Errors
/// 400 with all of them, for `Strict`.
pub(super) fn judge(
    request: &VerbRequest,
    kind: &str,
    validation: FieldValidation,
    duplicates: &[String],
    unknown: &[String],
) -> Result<(), Status> {
    let duplicates = duplicates
        .iter()
        .map(|path| format!("duplicate field {path:?}"));
    let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
    let mut faults = duplicates.chain(unknown).peekable();
    match validation {
        FieldValidation::Strict if faults.peek().is_some() => {
            let version = &request.target.version;
            let faults: Vec<_> = faults.collect();
            Err(Status::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
                faults.join(", ")
            )))
        }
        FieldValidation::Warn => {
            faults.for_each(|fault| request.context.warn(fault));
            Ok(())
        }
        FieldValidation::Strict | FieldValidation::Ignore => Ok(()),
    }
}
