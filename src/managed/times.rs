//! Writes that change nothing.

use serde_json::Value;

use super::{endpoint::take_managed_fields, managed_fields::ManagedFields};

/// Gives `after` the times that the owners had in `before` if nothing else differs, so that a write that changes nothing
/// is none.
///
/// To be called last, when both have the same resourceVersion and generation.
pub fn keep_times(before: &Value, after: &mut Value) {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        (take_managed_fields(&mut object), object)
    };
    let ((old_owners, old), (new_owners, new)) = (stripped(before), stripped(after));
    let untimed = |owners: &Value| {
        ManagedFields::decode(owners).map(|mut managed| {
            managed.edit(|entry| {
                entry.time = None;
                true
            });
            managed.encode()
        })
    };
    if old_owners != new_owners
        && old == new
        && let (Ok(old), Ok(new)) = (untimed(&old_owners), untimed(&new_owners))
        && old == new
        && let Some(metadata) = after.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.insert("managedFields".to_owned(), old_owners);
    }
}
