//! Taking fields out of an object.

use serde_json::{Map, Value};

use super::{
    element::Element,
    field_set::FieldSet,
    place::{Place, Sharing},
};
use crate::schema::ListType;

/// `value` without what is in `set`. An object or list of which nothing is left is null.
pub(super) fn remove(place: Place<'_>, value: Value, set: &FieldSet) -> Value {
    match (place.sharing(), value) {
        (Sharing::Fields | Sharing::Deduced, Value::Object(fields)) => {
            remove_fields(place, fields, set)
        }
        (Sharing::Items(shared), Value::Array(items)) => remove_items(place, shared, items, set),
        // There is nothing below one value.
        (_, Value::Object(_) | Value::Array(_)) => Value::Null,
        (_, scalar) => scalar,
    }
}

fn remove_fields(place: Place<'_>, fields: Map<String, Value>, set: &FieldSet) -> Value {
    let left: Map<String, Value> = fields
        .into_iter()
        .filter_map(|(name, value)| {
            let element = Element::Field(name.as_str().into());
            let value = remove_step(place.field(&name), &element, value, set)?;
            Some((name, value))
        })
        .collect();
    if left.is_empty() {
        Value::Null
    } else {
        Value::Object(left)
    }
}

fn remove_items(
    place: Place<'_>,
    shared: ListType<'_>,
    items: Vec<Value>,
    set: &FieldSet,
) -> Value {
    let left: Vec<Value> = items
        .into_iter()
        .filter_map(|item| match place.element(shared, &item) {
            Ok(element) => remove_step(place.item(), &element, item, set),
            Err(_) => Some(item),
        })
        .collect();
    if left.is_empty() {
        Value::Null
    } else {
        Value::Array(left)
    }
}

fn remove_step(place: Place<'_>, element: &Element, value: Value, set: &FieldSet) -> Option<Value> {
    match set.get(element) {
        None => Some(value),
        Some(node) if node.owned => None,
        Some(node) => Some(remove(place, value, &node.below)),
    }
}
