//! Who owns which fields, noted with every write.

use serde_json::Value;

use super::VerbRequest;
use crate::{
    apiserver::Resource,
    managed::{Endpoint, Version},
    meta::UnixTime,
};

/// What the object itself leaves as it is, whatever a client sends.
const RESET_AT_OBJECT: [&str; 1] = ["status"];
/// What its status leaves as it is.
const RESET_AT_STATUS: [&str; 2] = ["metadata", "spec"];

/// Calls `write` with the endpoint at which the request arrives.
pub(super) fn at_endpoint<T, R: Resource>(
    resource: &R,
    request: &VerbRequest,
    write: impl FnOnce(Endpoint<'_>) -> T,
) -> T {
    let definition = resource.definition();
    let of_status = request.target.is_of_status();
    let names: Vec<String> = (0..definition.versions.len())
        .map(|version| definition.api_version(version))
        .collect();
    let version = |place: usize| Version {
        api_version: &names[place],
        schema: &definition.versions[place].schema,
    };
    let others: Vec<Version<'_>> = (0..names.len())
        .filter(|place| *place != request.version)
        .map(version)
        .collect();
    let convert = |object: &Value, to: &str| {
        let place = |name: &str| names.iter().position(|known| known == name);
        let from = object["apiVersion"].as_str().and_then(place);
        let mut object = object.clone();
        if let Some(to) = place(to) {
            resource.convert(&mut object, from.unwrap_or(request.version), to);
        }
        object
    };
    write(Endpoint {
        version: version(request.version),
        other_versions: &others,
        convert: &convert,
        kind: definition.kind,
        subresource: &request.target.subresource,
        reset: if of_status {
            &RESET_AT_STATUS
        } else {
            &RESET_AT_OBJECT
        },
    })
}

/// Notes in `new` what the request's manager owns now. `old`: the object before; none: a create. Neither has keys that are
/// the server's.
pub(super) fn track<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    old: Option<&Value>,
    new: &mut Value,
) {
    let manager = &request.context.field_manager;
    at_endpoint(resource, request, |endpoint| {
        endpoint.track_update(old, new, manager, UnixTime::now());
    });
}
