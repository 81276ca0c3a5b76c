//! What answers and events show.

use serde_json::Value;

/// The resourceVersion of an object or a list: a positive decimal integer below 2^63, without leading zeros.
#[track_caller]
pub(super) fn version(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str();
    let text = text.unwrap_or_else(|| panic!("no resourceVersion: {object:#}"));
    let version = text.parse::<i64>().ok().filter(|version| *version > 0);
    let version = version.unwrap_or_else(|| panic!("no version: {text}"));
    assert_eq!(version.to_string(), text, "in its only spelling");
    version.cast_unsigned()
}

/// The name of an object.
pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The items of a list.
#[track_caller]
pub(super) fn items(list: &Value) -> &[Value] {
    let items = list["items"].as_array();
    items.unwrap_or_else(|| panic!("no list: {list:#}"))
}

/// The names of the items of a list.
#[track_caller]
pub(super) fn names(list: &Value) -> Vec<&str> {
    items(list).iter().map(name).collect()
}

/// `ADDED a`: the type of an event, and the name of its object.
pub(super) fn said(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap_or_default();
    format!("{kind} {}", name(&event["object"]))
}
