//! Who owns which fields, noted with every write.

use serde_json::Value;

use super::VerbRequest;
use crate::{
    apiserver::{Definition, Resource},
    managed::{Endpoint, Version},
    meta::UnixTime,
};

/// What the object itself leaves as it is, whatever a client sends.
const RESET_AT_OBJECT: [&str; 1] = ["status"];
/// What its status leaves as it is.
const RESET_AT_STATUS: [&str; 2] = ["metadata", "spec"];
/// Parts of metadata that are not there when they are empty.
const EMPTY_IS_ABSENT: [&str; 4] = ["annotations", "finalizers", "labels", "ownerReferences"];

/// Calls `write` with the endpoint at which the request arrives.
pub(super) fn at_endpoint<T>(
    definition: &Definition,
    request: &VerbRequest,
    write: impl FnOnce(Endpoint<'_>) -> T,
) -> T {
    let api_version = definition.api_version(request.version);
    let of_status = request.target.is_of_status();
    write(Endpoint {
        version: Version {
            api_version: &api_version,
            schema: &definition.versions[request.version].schema,
        },
        other_versions: &[],
        convert: &|object, _| object.clone(),
        kind: definition.kind,
        subresource: &request.target.subresource,
        reset: if of_status {
            &RESET_AT_STATUS
        } else {
            &RESET_AT_OBJECT
        },
    })
}

/// Notes in `new` what the request's manager owns now. `old`: the object before; none: a create.
pub(super) fn track<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    old: Option<&Value>,
    new: &mut Value,
) {
    if let Some(Value::Object(metadata)) = new.get_mut("metadata") {
        let is_empty = |value: &Value| {
            value.as_object().is_some_and(serde_json::Map::is_empty)
                || value.as_array().is_some_and(Vec::is_empty)
        };
        for field in EMPTY_IS_ABSENT {
            if metadata.get(field).is_some_and(is_empty) {
                metadata.remove(field);
            }
        }
    }
    let manager = &request.context.field_manager;
    at_endpoint(resource.definition(), request, |endpoint| {
        endpoint.track_update(old, new, manager, UnixTime::now());
    });
}
