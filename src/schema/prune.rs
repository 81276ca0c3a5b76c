//! Dropping the fields that a type does not have.

use serde_json::{Map, Value};

use super::{
    path::Path,
    structural::{Kind, NodeRef, Object},
};

/// Unknown fields whose paths are reported; the others are dropped all the same.
pub const MAX_UNKNOWN: usize = 100;

/// Drops the fields of `value` that `node` does not know and adds their paths to `unknown`.
pub(super) fn prune(
    node: NodeRef<'_>,
    value: &mut Value,
    path: &Path<'_>,
    unknown: &mut Vec<String>,
) {
    match (value, &node.node.kind) {
        (Value::Object(fields), Kind::Object(object)) => {
            prune_object(node, object, fields, path, unknown)
        }
        (Value::Array(items), Kind::Array(array)) => {
            let below = node.follow(&array.items);
            for (index, item) in items.iter_mut().enumerate() {
                prune(below, item, &path.item(index), unknown);
            }
        }
        // What holds anything is kept.
        (_, Kind::Any) => {}
        // Validation refuses the value; whatever fields it has belong to no type.
        (value, _) => strip(value, path, unknown),
    }
}

fn prune_object(
    node: NodeRef<'_>,
    object: &Object,
    fields: &mut Map<String, Value>,
    path: &Path<'_>,
    unknown: &mut Vec<String>,
) {
    let mut strangers = false;
    for (name, value) in fields.iter_mut() {
        match object.edge(name) {
            Some(edge) => prune(node.follow(edge), value, &path.field(name), unknown),
            None => strangers = true,
        }
    }
    if strangers && !object.preserve {
        fields.retain(|name, _| {
            let known = object.edge(name).is_some();
            if !known {
                note(name, path, unknown);
            }
            known
        });
    }
}

/// Drops every field at any depth of a value of the wrong type.
fn strip(value: &mut Value, path: &Path<'_>, unknown: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.keys().for_each(|name| note(name, path, unknown));
            fields.clear();
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                strip(item, &path.item(index), unknown);
            }
        }
        _ => {}
    }
}

fn note(name: &str, path: &Path<'_>, unknown: &mut Vec<String>) {
    if unknown.len() < MAX_UNKNOWN {
        unknown.push(path.field(name).to_string());
    }
}
