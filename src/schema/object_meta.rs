//! Rules of an object's metadata beyond its schema: names, labels, owners, finalizers.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::cause::{Cause, Causes};
use super::path::Path;
use crate::meta;

/// Keys and values of all annotations together, in bytes.
pub const MAX_ANNOTATIONS_BYTES: usize = 256 * 1_024;

/// Finalizers that the garbage collector acts on; an object cannot ask for both.
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// What is wrong with the `metadata` of `object`, whose name, if it was to be generated, has been.
///
/// Fields of the wrong type are left to the schema.
pub fn validate_object_meta(object: &Value, namespaced: bool) -> Vec<Cause> {
    let empty = Map::new();
    let metadata = object
        .get("metadata")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let mut causes = Causes::default();
    let path = Path::Root.field("metadata");
    names(metadata, namespaced, &path, &mut causes);
    labels(metadata, &path.field("labels"), &mut causes);
    annotations(metadata, &path.field("annotations"), &mut causes);
    owners(metadata, &path.field("ownerReferences"), &mut causes);
    finalizers(metadata, &path.field("finalizers"), &mut causes);
    causes.into_vec()
}

/// Drops owner references that are equal to an earlier one and returns the uids of those dropped, of which a client is
/// warned.
pub fn merge_equal_owners(object: &mut Value) -> Vec<String> {
    let references = object
        .pointer_mut("/metadata/ownerReferences")
        .and_then(Value::as_array_mut);
    let Some(references) = references.filter(|references| references.len() > 1) else {
        return Vec::new();
    };
    let mut seen = std::collections::HashSet::with_capacity(references.len());
    let mut dropped = Vec::new();
    references.retain(|reference| {
        let new = seen.insert(reference.clone());
        if !new {
            dropped.push(text(reference.get("uid")).to_owned());
        }
        new
    });
    dropped
}

/// A base as kube-apiserver judges it: more characters follow, so the dash that it ends with may stand there. It takes the place
/// of that and of the character before.
fn without_dash(base: &str) -> Cow<'_, str> {
    let before = base.strip_suffix('-').unwrap_or_default();
    match before.as_bytes().split_last() {
        Some((_, kept)) if before.is_ascii() => format!("{}a", &before[..kept.len()]).into(),
        _ => base.into(),
    }
}

fn names(metadata: &Map<String, Value>, namespaced: bool, path: &Path<'_>, causes: &mut Causes) {
    let field = |name| (path.field(name), text(metadata.get(name)));
    let (at, base) = field("generateName");
    if !base.is_empty()
        && let Err(rule) = meta::validate_dns1123_subdomain(&without_dash(base))
    {
        causes.invalid(&at, &base.into(), &rule);
    }
    match field("name") {
        (at, "") => causes.required(&at, "name or generateName is required"),
        (at, name) => check(name, &at, meta::validate_dns1123_subdomain, causes),
    }
    match (field("namespace"), namespaced) {
        ((at, ""), true) => causes.required(&at, ""),
        ((at, namespace), true) => check(namespace, &at, meta::validate_dns1123_label, causes),
        ((_, ""), false) => {}
        ((at, _), false) => causes.forbidden(&at, "not allowed on this type"),
    }
}

fn labels(metadata: &Map<String, Value>, path: &Path<'_>, causes: &mut Causes) {
    for (key, value) in map(metadata, "labels") {
        check(key, path, meta::validate_qualified_name, causes);
        check(text(Some(value)), path, meta::validate_label_value, causes);
    }
}

fn annotations(metadata: &Map<String, Value>, path: &Path<'_>, causes: &mut Causes) {
    let mut bytes = 0;
    for (key, value) in map(metadata, "annotations") {
        bytes += key.len() + text(Some(value)).len();
        // Annotation keys may have capitals in their domain.
        check(
            key,
            path,
            |key| meta::validate_qualified_name(&key.to_ascii_lowercase()),
            causes,
        );
    }
    if bytes > MAX_ANNOTATIONS_BYTES {
        causes.too_long(path, MAX_ANNOTATIONS_BYTES as u64);
    }
}

fn owners(metadata: &Map<String, Value>, path: &Path<'_>, causes: &mut Causes) {
    let mut controller: Option<String> = None;
    for (index, reference) in list(metadata, "ownerReferences").enumerate() {
        let at = path.item(index);
        owner(reference, &at, causes);
        if reference.get("controller") == Some(&Value::Bool(true)) {
            let named = |field| text(reference.get(field));
            let this = format!("{}/{}", named("kind"), named("name"));
            match &controller {
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    causes.invalid(
                        path,
                        metadata.get("ownerReferences").unwrap_or(&Value::Null),
                        &detail,
                    );
                }
                None => controller = Some(this),
            }
        }
    }
}

fn owner(reference: &Value, path: &Path<'_>, causes: &mut Causes) {
    for name in ["apiVersion", "kind", "name", "uid"] {
        // An absent one the schema finds.
        if reference.get(name).and_then(Value::as_str) == Some("") {
            causes.required(&path.field(name), "must not be empty");
        }
    }
    let version = text(reference.get("apiVersion"));
    if version.ends_with('/') || version.matches('/').count() > 1 {
        let detail = "must be <group>/<version> or <version>";
        causes.invalid(&path.field("apiVersion"), &version.into(), detail);
    }
    if version == "v1" && text(reference.get("kind")) == "Event" {
        causes.invalid(
            path,
            reference,
            "/v1, Kind=Event is disallowed from being an owner",
        );
    }
}

fn finalizers(metadata: &Map<String, Value>, path: &Path<'_>, causes: &mut Causes) {
    let names = || list(metadata, "finalizers").map(|name| text(Some(name)));
    for name in names() {
        check(name, path, meta::validate_qualified_name, causes);
    }
    if names().any(|name| name == ORPHAN) && names().any(|name| name == FOREGROUND) {
        let detail = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        causes.invalid(
            path,
            metadata.get("finalizers").unwrap_or(&Value::Null),
            &detail,
        );
    }
}

fn check(
    value: &str,
    path: &Path<'_>,
    rule: impl Fn(&str) -> Result<(), String>,
    causes: &mut Causes,
) {
    if let Err(reason) = rule(value) {
        causes.invalid(path, &value.into(), &reason);
    }
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

fn map<'a>(
    metadata: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    metadata
        .get(name)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

fn list<'a>(metadata: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = &'a Value> {
    metadata
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}
