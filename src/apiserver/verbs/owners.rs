//! Who owns which fields, noted with every write.

use serde_json::Value;

use super::VerbRequest;
use crate::{
    apiserver::Definition,
    managed::{Endpoint, Version},
    meta::UnixTime,
};

/// What the object itself leaves as it is, whatever a client sends.
const RESET_AT_OBJECT: [&str; 1] = ["status"];
/// What its status leaves as it is.
const RESET_AT_STATUS: [&str; 2] = ["metadata", "spec"];

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

/// Notes in `new` what the request's manager owns now. `old`: the object before; none: a create. Neither has keys that are
/// the server's.
pub(super) fn track(
    definition: &Definition,
    request: &VerbRequest,
    old: Option<&Value>,
    new: &mut Value,
) {
    let manager = &request.context.field_manager;
    at_endpoint(definition, request, |endpoint| {
        endpoint.track_update(old, new, manager, UnixTime::now());
    });
}
