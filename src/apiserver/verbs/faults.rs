//! What is wrong with an object that a client sends: fields that the schema does not know or that stand twice, and values.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::VerbRequest;
use crate::{
    apiserver::{
        Definition, Status, StatusCause,
        negotiate::is_apply,
        options::{FieldValidation, MAX_FIELD_MANAGER},
    },
    schema::{Reason, Verb, validate_object_meta},
};

/// Texts of metadata that are read before the schema is asked, or never come to it because the server sets them.
const TEXTS: [&str; 8] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "selfLink",
    "creationTimestamp",
    "deletionTimestamp",
];
/// Version of the kind that every resource's scale is.
const SCALE_VERSION: &str = "v1";
/// Largest object, in bytes of JSON: what a node's agent keeps of it has to fit there, and every list carries it.
const MAX_OBJECT: usize = 512 << 10;
/// Bytes of a patch that a message repeats.
const MAX_SHOWN: usize = 1_024;

/// Deals with fields that are unknown or stand twice as the client asked: refuses the object, tells the client, or passes
/// them over. `kind` is what the object was read as.
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
            Err(unreadable(request, kind, &fault))
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
        && (request.target.verb != Verb::Patch || is_apply(&request.headers))
    {
        return Err(unreadable(request, definition.kind, &untyped.to_string()));
    }
    let of_metadata = validate_object_meta(object, definition.namespaced);
    let faults = of_metadata.into_iter().chain(of_schema);
    Ok(faults.map(StatusCause::from).collect())
}

/// Refuses metadata whose parts are not of their types.
///
/// # Errors
/// 400, or 422 for a patch.
pub(super) fn check_metadata(
    definition: &Definition,
    request: &VerbRequest,
    metadata: &Map<String, Value>,
) -> Result<(), Status> {
    let kind = definition.kind;
    let is_text =
        |value: Option<&Value>| matches!(value, None | Some(Value::Null | Value::String(_)));
    if let Some(field) = TEXTS
        .into_iter()
        .find(|field| !is_text(metadata.get(*field)))
    {
        let fault = format!("metadata.{field} is no string");
        return Err(unreadable(request, kind, &fault));
    }
    let Some(owners) = metadata.get("managedFields") else {
        return Ok(());
    };
    let owners: Option<Vec<ManagedFieldsEntry>> = Deserialize::deserialize(owners)
        .map_err(|error| unreadable(request, kind, &format!("metadata.managedFields: {error}")))?;
    for (index, owner) in owners.iter().flatten().enumerate() {
        if owner
            .manager
            .as_ref()
            .is_some_and(|manager| manager.len() > MAX_FIELD_MANAGER)
        {
            let field = format!("metadata.managedFields[{index}].manager");
            let message = format!("Too long: may not be more than {MAX_FIELD_MANAGER} bytes");
            let cause = StatusCause::of_field(field, message);
            let name = &request.target.name;
            return Err(Status::invalid(definition.group, kind, name, vec![cause]));
        }
    }
    Ok(())
}

/// Refuses an object that is too large to keep.
///
/// # Errors
/// 413.
pub(super) fn check_size(object: &Value) -> Result<(), Status> {
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, object) {
        Ok(()) if counter.0 <= MAX_OBJECT => Ok(()),
        _ => Err(Status::too_large(MAX_OBJECT)),
    }
}

/// Counts bytes, up to the bound.
struct Counter(usize);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        match self.0 > MAX_OBJECT {
            true => Err(std::io::ErrorKind::FileTooLarge.into()),
            false => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What is sent is no object of that kind: 400, or 422 for a patch that makes it so.
pub(super) fn unreadable(request: &VerbRequest, kind: &str, fault: &str) -> Status {
    if request.target.verb == Verb::Patch && !is_apply(&request.headers) {
        return unfit_patch(request, fault);
    }
    let version = match request.target.is_of_scale() {
        true => SCALE_VERSION,
        false => request.target.version.as_str(),
    };
    Status::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {kind}: {fault}"
    ))
}

/// 422 for a patch that makes no object of that kind.
fn unfit_patch(request: &VerbRequest, fault: &str) -> Status {
    let shown = &request.body[..request.body.len().min(MAX_SHOWN)];
    let message = format!(
        "Invalid value: {:?}: {fault}",
        String::from_utf8_lossy(shown)
    );
    let cause = StatusCause::of_field("patch", message);
    Status::invalid("", "", "", vec![cause])
}
