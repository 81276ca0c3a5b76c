//! Writes that change nothing.

use serde_json::Value;

use super::{endpoint::managed_fields, managed_fields::ManagedFields};

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

/// Whether the same managers own the same fields. Owners that cannot be read are like no others.
fn is_same_but_times(old: &Value, new: &Value) -> bool {
    let untimed = |owners: &Value| {
        let mut managed = ManagedFields::decode(owners).ok()?;
        managed.edit(|entry| {
            entry.time = None;
            true
        });
        managed.encode()
    };
    untimed(old).is_some_and(|old| untimed(new) == Some(old))
}
