//! Labels, annotations and finalizers that are the server's to set. Clients read them, but do not own them: what they send is
//! compared with what is there without these.

use serde_json::{Map, Value};

use super::VerbRequest;
use crate::apiserver::Resource;

const MAPS: [&str; 2] = ["annotations", "labels"];
const FINALIZERS: &str = "finalizers";
/// Parts of metadata that are not there when they are empty.
const EMPTY_IS_ABSENT: [&str; 4] = ["annotations", "finalizers", "labels", "ownerReferences"];

/// Takes the server's part out of what a client sent as a successor of `old`, and tells it of those that it changed.
pub(super) fn refuse<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    old: &Value,
    new: &mut Value,
) {
    tell(resource, request, old, new);
    strip(resource, new);
}

/// Takes the server's part out of a configuration, and tells the client of those that the object has not got like that.
pub(super) fn refuse_applied<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    old: &Value,
    config: &mut Value,
) {
    tell(resource, request, old, config);
    let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    for map in MAPS {
        let Some(Value::Object(pairs)) = metadata.get_mut(map) else {
            continue;
        };
        // An empty map that the client sent is a field that it wants to own.
        let n_sent = pairs.len();
        pairs.retain(|key, _| !resource.is_reserved(key));
        if pairs.is_empty() && n_sent > 0 {
            metadata.remove(map);
        }
    }
    let Some(Value::Array(finalizers)) = metadata.get_mut(FINALIZERS) else {
        return;
    };
    let n_sent = finalizers.len();
    finalizers.retain(|finalizer| !is_own(resource, finalizer));
    if finalizers.is_empty() && n_sent > 0 {
        metadata.remove(FINALIZERS);
    }
}

fn tell<R: Resource>(resource: &R, request: &VerbRequest, old: &Value, new: &Value) {
    for map in MAPS {
        let known = &old["metadata"][map];
        let changed = |(key, value): &(&String, &Value)| {
            resource.is_reserved(key) && known.get(key.as_str()) != Some(*value)
        };
        let sent = new["metadata"][map].as_object();
        for (key, _) in sent.into_iter().flatten().filter(changed) {
            request.context.warn(format!(
                "metadata.{map}[{key}]: dropped, this key is set by the server"
            ));
        }
    }
    let known = finalizers(old);
    let sent = finalizers(new).iter();
    for finalizer in sent.filter(|it| is_own(resource, it) && !known.contains(it)) {
        request.context.warn(format!(
            "metadata.finalizers[{}]: dropped, this finalizer is set by the server",
            finalizer.as_str().unwrap_or_default()
        ));
    }
}

fn finalizers(object: &Value) -> &[Value] {
    let finalizers = object["metadata"][FINALIZERS].as_array();
    finalizers.map_or(&[], Vec::as_slice)
}

fn is_own<R: Resource>(resource: &R, finalizer: &Value) -> bool {
    finalizer
        .as_str()
        .is_some_and(|it| resource.is_reserved(it))
}

/// Takes the server's part out of an object, and the parts of its metadata that are empty then.
pub(super) fn strip<R: Resource>(resource: &R, object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    for map in MAPS {
        if let Some(pairs) = metadata.get_mut(map).and_then(Value::as_object_mut) {
            pairs.retain(|key, _| !resource.is_reserved(key));
        }
    }
    if let Some(Value::Array(finalizers)) = metadata.get_mut(FINALIZERS) {
        finalizers.retain(|finalizer| !is_own(resource, finalizer));
    }
    for field in EMPTY_IS_ABSENT {
        let is_empty = match metadata.get(field) {
            Some(Value::Object(pairs)) => pairs.is_empty(),
            Some(Value::Array(items)) => items.is_empty(),
            _ => false,
        };
        if is_empty {
            metadata.remove(field);
        }
    }
}

/// Puts the server's part of `old` back into an object that has none.
pub(super) fn restore<R: Resource>(resource: &R, old: &Value, new: &mut Value) {
    let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    for map in MAPS {
        let known = old["metadata"][map].as_object().into_iter().flatten();
        for (key, value) in known.filter(|(key, _)| resource.is_reserved(key)) {
            let pairs = metadata
                .entry(map)
                .or_insert_with(|| Value::Object(Map::new()));
            // What is no map is refused by the schema.
            if let Value::Object(pairs) = pairs {
                pairs.insert(key.clone(), value.clone());
            }
        }
    }
    let own = finalizers(old).iter().filter(|it| is_own(resource, it));
    for finalizer in own {
        let finalizers = metadata
            .entry(FINALIZERS)
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(finalizers) = finalizers {
            finalizers.push(finalizer.clone());
        }
    }
}
