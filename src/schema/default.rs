//! Filling in what a type says of absent fields.

use serde_json::{Map, Value};

use super::structural::{Edge, Kind, NodeRef, Object};

/// Fills absent fields that have a default, and takes a null for an absent field unless null is a value of it.
pub(super) fn default(node: NodeRef<'_>, value: &mut Value) {
    match (value, &node.node.kind) {
        (Value::Object(fields), Kind::Object(object)) => default_object(node, object, fields),
        (Value::Array(items), Kind::Array(array)) => {
            for item in items {
                replace_null(node, &array.items, item);
                default(node.follow(&array.items), item);
            }
        }
        _ => {}
    }
}

fn default_object(node: NodeRef<'_>, object: &Object, fields: &mut Map<String, Value>) {
    if fields.values().any(Value::is_null) {
        drop_nulls(node, object, fields);
    }
    for property in &object.properties {
        if let Some(default) = &property.edge.default
            && !fields.contains_key(&*property.name)
        {
            fields.insert(property.name.to_string(), default.clone());
        }
    }
    for (name, value) in fields {
        if let Some(edge) = object.edge(name) {
            default(node.follow(edge), value);
        }
    }
}

/// Nulls take their field's default, or leave with it.
fn drop_nulls(node: NodeRef<'_>, object: &Object, fields: &mut Map<String, Value>) {
    fields.retain(|name, value| {
        let Some(edge) = object.edge(name) else {
            return true;
        };
        replace_null(node, edge, value);
        !value.is_null() || node.follow(edge).node.nullable
    });
}

fn replace_null(node: NodeRef<'_>, edge: &Edge, value: &mut Value) {
    if value.is_null()
        && let Some(default) = &edge.default
        && !node.follow(edge).node.nullable
    {
        *value = default.clone();
    }
}
