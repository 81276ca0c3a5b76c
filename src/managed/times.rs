//! Writes that change nothing.

use serde_json::Value;

use super::endpoint::managed_fields;

/// Gives `after` the times that the owners had in `before` if nothing else differs, so that a write that changes nothing
/// is none.
///
/// To be called last, when both have the same resourceVersion and generation.
pub fn keep_times(before: &Value, after: &mut Value) {
    let (old, new) = (managed_fields(Some(before)), managed_fields(Some(after)));
    let is_kept = old != new && is_same_but_owners(before, after) && is_same_but_times(old, new);
    if is_kept && let Some(owners) = after.pointer_mut("/metadata/managedFields") {
        owners.clone_from(old);
    }
}

fn is_same_but_owners(before: &Value, after: &Value) -> bool {
    without(Some(before), "metadata").eq(without(Some(after), "metadata"))
        && without(before.get("metadata"), "managedFields")
            .eq(without(after.get("metadata"), "managedFields"))
}

/// The fields of an object but one.
fn without<'a>(
    object: Option<&'a Value>,
    without: &'a str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let fields = object.and_then(Value::as_object).into_iter().flatten();
    fields.filter(move |(name, _)| *name != without)
}

/// Whether the same managers own the same fields, listed in the same order.
///
/// kube-apiserver compares them as they are listed, so where a time moves an entry, the write has changed something.
fn is_same_but_times(old: &Value, new: &Value) -> bool {
    let (Some(old), Some(new)) = (old.as_array(), new.as_array()) else {
        return false;
    };
    let is_same = |(old, new): (&Value, &Value)| {
        old.is_object() && without(Some(old), "time").eq(without(Some(new), "time"))
    };
    old.len() == new.len() && old.iter().zip(new).all(is_same)
}
