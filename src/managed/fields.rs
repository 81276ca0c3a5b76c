//! Which fields a value has.

use serde_json::{Map, Value};

use super::{
    element::Element,
    field_set::FieldSet,
    place::{Place, Sharing},
};
use crate::schema::ListType;

/// Which of the paths that lead to values are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// Each: a write makes also the objects and lists that hold values.
    Each,
    /// Those that a configuration asks for: values, items of lists and maps, but not what only holds them.
    Asked,
}

/// The paths below `place` at which `value` has something.
pub(super) fn fields(place: Place<'_>, value: &Value, counted: Counted) -> FieldSet {
    match (place.sharing(), value) {
        (Sharing::Fields | Sharing::Deduced, Value::Object(map)) => of_map(place, map, counted),
        (Sharing::Items(shared), Value::Array(items)) => of_list(place, shared, items, counted),
        _ => FieldSet::default(),
    }
}

fn of_map(place: Place<'_>, map: &Map<String, Value>, counted: Counted) -> FieldSet {
    let mut set = FieldSet::default();
    for (name, value) in map {
        let below = place.field(name);
        let owned = counted == Counted::Each || is_leaf(below, value) || !place.declares(name);
        set.add(owned, fields(below, value, counted), || {
            Element::Field(name.into())
        });
    }
    set
}

/// Whether a field itself is asked for, and not what is in it. An empty list with shared items asks for nothing.
fn is_leaf(place: Place<'_>, value: &Value) -> bool {
    match place.sharing() {
        Sharing::Whole => true,
        Sharing::Fields | Sharing::Deduced => value.as_object().is_none_or(Map::is_empty),
        Sharing::Items(_) => !value.is_array(),
    }
}

/// Of items that cannot be told apart, only that they are there.
fn of_list(place: Place<'_>, shared: ListType<'_>, items: &[Value], counted: Counted) -> FieldSet {
    let mut set = FieldSet::default();
    let items = place.by_element(shared, items);
    for equal in items.chunk_by(|(left, _), (right, _)| left == right) {
        let below = match equal {
            [(_, only)] => fields(place.item(), only, counted),
            _ => FieldSet::default(),
        };
        set.push(equal[0].0.clone(), true, below);
    }
    set
}

/// Adds to `set` the declared fields on the way to what is in it: what goes when a configuration no longer asks for any
/// value in them.
pub(super) fn add_declared(place: Place<'_>, set: &mut FieldSet) {
    set.edit(|node| {
        let below = place.below(&node.element);
        if let Element::Field(name) = &node.element {
            node.owned |= place.declares(name);
        }
        add_declared(below, &mut node.below);
    });
}

/// Makes a set that was written under an older schema one of this: what is one value now is owned as a whole.
pub(super) fn conform(place: Place<'_>, set: &mut FieldSet) {
    set.edit(|node| {
        let below = place.below(&node.element);
        match below.sharing() {
            Sharing::Whole if below.is_container() => {
                node.owned = true;
                node.below = FieldSet::default();
            }
            Sharing::Whole | Sharing::Deduced => {}
            Sharing::Fields | Sharing::Items(_) => conform(below, &mut node.below),
        }
    });
}
