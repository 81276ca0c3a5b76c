//! No two items of a set are equal, no two items of a list of objects have the same key.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
};

use serde_json::{Map, Value};

use super::{cause::Causes, path::Path, structural::List};

/// Adds to `causes` the items of a list that are there twice.
pub(super) fn check(list: &List, items: &[Value], path: &Path<'_>, causes: &mut Causes) {
    match list {
        List::Atomic => {}
        List::Set => {
            for index in repeated(items.iter()) {
                causes.duplicate(&path.item(index), &items[index]);
            }
        }
        List::Map(keys) => check_map(keys, items, path, causes),
    }
}

fn check_map(keys: &[Box<str>], items: &[Value], path: &Path<'_>, causes: &mut Causes) {
    let stranger = items
        .iter()
        .position(|item| !item.is_object() && !item.is_null());
    if let Some(index) = stranger {
        let detail = "must be an object for an array of list-type map";
        return causes.invalid(&path.item(index), &items[index], detail);
    }
    let repeated = match keys {
        [key] => repeated(items.iter().map(|item| item.get(&**key))),
        keys => repeated(
            items
                .iter()
                .map(|item| keys.iter().map(|key| item.get(&**key)).collect::<Vec<_>>()),
        ),
    };
    for index in repeated {
        causes.duplicate(&path.item(index), &key_of(keys, &items[index]));
    }
}

/// Indices of the items that are equal to exactly one before them, so that a value is reported once however often it comes.
///
/// Hashed with the standard library's keyed hash: what is counted here is a client's to choose.
fn repeated<K: Hash + Eq>(items: impl ExactSizeIterator<Item = K>) -> Vec<usize> {
    if items.len() < 2 {
        return Vec::new();
    }
    let mut seen: HashMap<K, bool> = HashMap::with_capacity(items.len());
    let mut repeated = Vec::new();
    for (index, item) in items.enumerate() {
        match seen.entry(item) {
            Entry::Vacant(entry) => {
                entry.insert(false);
            }
            Entry::Occupied(mut entry) => {
                if !entry.insert(true) {
                    repeated.push(index);
                }
            }
        }
    }
    repeated
}

fn key_of(keys: &[Box<str>], item: &Value) -> Value {
    let fields = keys
        .iter()
        .filter_map(|key| Some((key.to_string(), item.get(&**key)?.clone())));
    Value::Object(fields.collect::<Map<_, _>>())
}
