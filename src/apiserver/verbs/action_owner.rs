//! Who changed an object by an action on it.

use std::sync::Arc;

use serde_json::Value;

use super::{owners::track, request::VerbRequest, reserved, update::TRIES};
use crate::{
    apiserver::{
        NotUpdated, Resource, Status, Update,
        resource::{PREFERRED, object_json},
    },
    managed::keep_times,
    store::Stored,
};

/// Notes the request's manager as the owner of what an action changed in the spec, as an update that says the same would, and
/// gives the object with that.
///
/// The action is done by then, so others may change the object in between: what they say stays.
pub(super) async fn note<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    before: &Stored<R::Object>,
    after: Arc<Stored<R::Object>>,
) -> Result<Arc<Stored<R::Object>>, Status> {
    let spec = parsed(resource, before)["spec"].take();
    let done = parsed(resource, &after)["spec"].take();
    let (key, mut latest) = (request.key(), after);
    for _ in 0..TRIES {
        let old_json = parsed(resource, &latest);
        // Turned back by somebody else: it is theirs.
        if spec == done || old_json["spec"] != done {
            break;
        }
        let new_json = owned(resource, request, &old_json, &spec);
        if new_json == old_json {
            break;
        }
        let update = Update {
            old: latest.clone(),
            old_json,
            new_json,
        };
        match resource.update(&request.context, update).await {
            Ok(noted) => return Ok(noted),
            Err(NotUpdated::Refused(status)) => return Err(status),
            Err(NotUpdated::Overtaken) => {}
        }
        let found = resource.store().get(&key.namespace, &key.name);
        match found.filter(|found| resource.uid(&found.value) == resource.uid(&latest.value)) {
            Some(found) => latest = found,
            None => break,
        }
    }
    Ok(latest)
}

/// `object` with the owner of what its spec has and `spec` had not.
fn owned<R: Resource>(resource: &R, request: &VerbRequest, object: &Value, spec: &Value) -> Value {
    let (mut before, mut after) = (object.clone(), object.clone());
    before["spec"] = spec.clone();
    reserved::strip(resource, &mut before);
    reserved::strip(resource, &mut after);
    track(resource, request, Some(&before), &mut after);
    reserved::restore(resource, object, &mut after);
    keep_times(object, &mut after);
    after
}

fn parsed<R: Resource>(resource: &R, object: &Stored<R::Object>) -> Value {
    // Actions are of the preferred version alone.
    serde_json::from_slice(&object_json(resource, object, PREFERRED))
        .expect("the machinery writes valid JSON")
}
