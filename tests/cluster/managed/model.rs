//! What the API server should answer to a write, with this crate's field ownership.

use sandbox_apiserver::{
    managed::{Endpoint, Error, Version, keep_times},
    meta::UnixTime,
    schema::Schema,
};
use serde_json::{Map, Value, json};

use super::specimen::{API_VERSION, KIND};

/// Fields of metadata that the server keeps.
pub(super) const KEPT: [&str; 5] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "namespace",
];

/// A write.
#[derive(Debug)]
pub(super) enum Write {
    Create(Value),
    Put(Value),
    /// The merge patch.
    Merge(Value),
    /// Operations `add`, `replace` and `remove` whose paths exist.
    Json(Value),
    Apply {
        config: Value,
        force: bool,
    },
}

/// What comes of it.
#[derive(Debug)]
pub(super) enum Outcome {
    Object(Value),
    /// The schema finds fault with the object.
    Invalid,
    Refused(Error),
}

/// Carries out a write to an object that is `live`, as kube-apiserver does around what this crate decides.
pub(super) fn write(
    schema: &Schema,
    live: Option<&Value>,
    write: &Write,
    subresource: &str,
    manager: &str,
    now: UnixTime,
) -> Outcome {
    let endpoint = Endpoint {
        version: Version {
            api_version: API_VERSION,
            schema,
        },
        other_versions: &[],
        convert: &|object, _| object.clone(),
        kind: KIND,
        subresource,
        reset: if subresource.is_empty() {
            &["status"]
        } else {
            &["metadata", "spec"]
        },
    };
    let mut object = match write {
        Write::Apply { config, force } => {
            match endpoint.apply(live, config, manager, *force, now) {
                Ok(object) => object,
                Err(error) => return Outcome::Refused(error),
            }
        }
        other => sent(live, other),
    };
    schema.prune(&mut object);
    schema.default(&mut object);
    drop_empty_metadata(&mut object);
    if !matches!(write, Write::Apply { .. }) {
        endpoint.track_update(live, &mut object, manager, now);
    }
    let object = prepare(live, object, subresource);
    // A subresource may be sent alone, so it is the whole that must be valid.
    match &schema.validate(&object)[..] {
        [] => Outcome::Object(object),
        _ => Outcome::Invalid,
    }
}

/// The object that a client sent or that its patch makes.
fn sent(live: Option<&Value>, write: &Write) -> Value {
    let mut object = live.cloned().unwrap_or_default();
    match write {
        Write::Create(body) | Write::Put(body) => object.clone_from(body),
        Write::Merge(patch) => merge(&mut object, patch),
        Write::Json(operations) => {
            for operation in operations.as_array().unwrap() {
                let path = operation["path"].as_str().unwrap();
                let (parent, name) = path.rsplit_once('/').unwrap();
                let parent = object.pointer_mut(parent).unwrap().as_object_mut().unwrap();
                match operation["op"].as_str().unwrap() {
                    "remove" => drop(parent.remove(name)),
                    _ => drop(parent.insert(name.to_owned(), operation["value"].clone())),
                }
            }
        }
        Write::Apply { .. } => unreachable!("an apply is merged by the crate"),
    }
    object
}

/// RFC 7386.
pub(super) fn merge(object: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        object.clone_from(patch);
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut object[name.as_str()], value);
        }
    }
}

/// Metadata goes through a Go type that leaves out what is empty.
fn drop_empty_metadata(object: &mut Value) {
    let is_empty = |value: &Value| {
        value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
    };
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|name, value| name == "managedFields" || !is_empty(value));
    }
}

/// Keeps what the write may not change.
fn prepare(live: Option<&Value>, mut object: Value, subresource: &str) -> Value {
    if let Some(live) = live {
        if subresource.is_empty() {
            take_over(&mut object, live, "status");
        } else {
            let mut whole = live.clone();
            take_over(&mut whole, &object, "status");
            let metadata = object["metadata"].clone();
            take_over(&mut whole["metadata"], &metadata, "managedFields");
            object = whole;
        }
        let metadata = &live["metadata"];
        for name in KEPT {
            take_over(&mut object["metadata"], metadata, name);
        }
        keep_times(live, &mut object);
    } else {
        object.as_object_mut().unwrap().remove("status");
    }
    object
}

fn take_over(object: &mut Value, from: &Value, name: &str) {
    match from.get(name) {
        Some(value) => object[name] = value.clone(),
        None => drop(object.as_object_mut().unwrap().remove(name)),
    }
}
