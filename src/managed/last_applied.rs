//! The annotation in which `kubectl apply` keeps a configuration on the client's side, and the way from there to
//! server-side apply.

use serde_json::{Map, Value};

use super::{
    change::Change,
    check::check,
    conflict::Conflicts,
    endpoint::Version,
    fields::{Counted, fields},
    go::Json,
    place::Place,
};
use crate::schema::MAX_ANNOTATIONS_BYTES;

/// The manager for which the annotation counts.
pub(super) const KUBECTL: &str = "kubectl";

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The conflicts that are left when kubectl may change what the annotation shows to be its own; none: all may be forced.
pub(super) fn remaining(
    version: Version<'_>,
    live: &Value,
    conflicts: Conflicts,
) -> Option<Conflicts> {
    let Some(last) = last_applied(version, live) else {
        return Some(conflicts);
    };
    let root = Place::root(version.schema);
    let change = Change::between(root, &last, live);
    let mut own = fields(root, &last, Counted::Asked);
    own.subtract(&change.written);
    own.subtract(&change.removed);
    let Conflicts(mut left) = conflicts;
    left.retain(|conflict| !own.contains(&conflict.path));
    (!left.is_empty()).then_some(Conflicts(left))
}

/// The configuration in the annotation, if it is one of this version and can be compared with the object.
fn last_applied(version: Version<'_>, live: &Value) -> Option<Value> {
    let last: Value = serde_json::from_str(annotation(live)?).ok()?;
    let comparable = last.get("apiVersion")?.as_str()? == version.api_version
        && check(version.schema.root(), &last).is_ok()
        && check(version.schema.root(), live).is_ok();
    comparable.then_some(last)
}

/// Keeps the annotation of an object that has one up to date, so that a client may go back to applying on its side.
pub(super) fn update(object: &mut Value, config: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = annotations_mut(&mut config) {
        annotations.remove(ANNOTATION);
    } else if let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("annotations");
    }
    let text = format!("{}\n", Json(&config));
    if let Some(annotations) = annotations_mut(object) {
        annotations.insert(ANNOTATION.to_owned(), text.into());
        if size(annotations) > MAX_ANNOTATIONS_BYTES {
            annotations.remove(ANNOTATION);
        }
    }
}

fn annotation(object: &Value) -> Option<&str> {
    let text = object
        .get("metadata")?
        .get("annotations")?
        .get(ANNOTATION)?
        .as_str()?;
    (!text.is_empty()).then_some(text)
}

fn annotations_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object
        .get_mut("metadata")?
        .get_mut("annotations")?
        .as_object_mut()
}

fn size(annotations: &Map<String, Value>) -> usize {
    annotations
        .iter()
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum()
}
