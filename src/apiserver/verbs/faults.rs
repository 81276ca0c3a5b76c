//! What is wrong with an object that a client sends: fields that the schema does not know or that stand twice, and values.

use serde_json::Value;

use super::VerbRequest;
use crate::{
    apiserver::{Definition, Status, StatusCause, options::FieldValidation},
    schema::{Reason, Verb, validate_object_meta},
};

/// Bytes of a patch that a message repeats.
const MAX_SHOWN: usize = 1_024;

/// Deals with fields that are unknown or stand twice as the client asked: refuses the object, tells the client, or passes them over. `kind` is what the
/// object was read as.
///
/// # Errors
/// With all of them, for `Strict`: 400, or 422 for a patch.
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
            let faults: Vec<_> = faults.collect();
            let fault = format!("strict decoding error: {}", faults.join(", "));
            Err(match request.target.verb {
                Verb::Patch => unfit_patch(request, &fault),
                _ => unreadable(request, kind, &fault),
            })
        }
        FieldValidation::Warn => {
            faults.for_each(|fault| request.context.warn(fault));
            Ok(())
        }
        FieldValidation::Strict | FieldValidation::Ignore => Ok(()),
    }
}

/// What is wrong with an object's values.
///
/// # Errors
/// 400 for metadata whose types are wrong, which is then no object at all, unless a patch made it.
pub(super) fn faults_of(
    definition: &Definition,
    request: &VerbRequest,
    object: &Value,
) -> Result<Vec<StatusCause>, Status> {
    let of_schema = definition.versions[request.version].schema.validate(object);
    let untyped = of_schema
        .iter()
        .find(|cause| cause.reason == Reason::TypeInvalid && cause.field.starts_with("metadata."));
    if let Some(untyped) = untyped
        && request.target.verb != Verb::Patch
    {
        return Err(unreadable(request, definition.kind, &untyped.to_string()));
    }
    let of_metadata = validate_object_meta(object, definition.namespaced);
    let faults = of_metadata.into_iter().chain(of_schema);
    Ok(faults.map(StatusCause::from).collect())
}

fn unreadable(request: &VerbRequest, kind: &str, fault: &str) -> Status {
    let version = &request.target.version;
    Status::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {kind}: {fault}"
    ))
}

/// 422 for a patch that makes no object of that kind.
fn unfit_patch(request: &VerbRequest, fault: &str) -> Status {
    let patch = String::from_utf8_lossy(&request.body);
    let cut = patch.floor_char_boundary(MAX_SHOWN);
    let message = format!("Invalid value: {:?}: {fault}", &patch[..cut]);
    let cause = StatusCause::of_field("patch", message);
    Status::invalid("", "", "", vec![cause])
}
