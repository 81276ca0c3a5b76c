//! What a write changed.

use serde_json::{Map, Value};

use super::{
    element::Element,
    field_set::FieldSet,
    fields::{Counted, fields},
    order::same,
    place::{Place, Sharing},
};
use crate::schema::ListType;

/// The difference between two states of an object.
#[derive(Default)]
pub(super) struct Change {
    /// What is new or has another value.
    pub(super) written: FieldSet,
    /// What is gone.
    pub(super) removed: FieldSet,
}

impl Change {
    pub(super) fn between(place: Place<'_>, before: &Value, after: &Value) -> Self {
        let mut change = Self::default();
        change.compare(place, before, after);
        change
    }

    /// Notes what differs below `place`; returns whether what is at `place` itself does.
    fn compare(&mut self, place: Place<'_>, before: &Value, after: &Value) -> bool {
        match place.sharing() {
            Sharing::Whole => !same(before, after),
            Sharing::Fields => self.compare_maps(place, before, after),
            Sharing::Items(shared) => self.compare_lists(place, shared, before, after),
            Sharing::Deduced => {
                let both_objects = before.is_object() && after.is_object();
                let whole = |value: &Value| !value.is_object() && !value.is_null();
                self.compare_maps(place, before, after)
                    || (!both_objects && (whole(before) || whole(after)) && !same(before, after))
            }
        }
    }

    /// Two maps without fields are compared as values, which keeps an empty one apart from null.
    fn compare_maps(&mut self, place: Place<'_>, before: &Value, after: &Value) -> bool {
        let empty = Map::new();
        let old = before.as_object().unwrap_or(&empty);
        let new = after.as_object().unwrap_or(&empty);
        if old.is_empty() && new.is_empty() {
            return !same(before, after);
        }
        let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
        while let Some(name) = first(
            old.peek().map(|(name, _)| *name),
            new.peek().map(|(name, _)| *name),
        ) {
            let of = |field: &(&String, &Value)| field.0 == name;
            let (old, new) = (old.next_if(of), new.next_if(of));
            self.step(
                place.field(name),
                || Element::Field(name.into()),
                value(old),
                value(new),
            );
        }
        false
    }

    fn compare_lists(
        &mut self,
        place: Place<'_>,
        shared: ListType<'_>,
        before: &Value,
        after: &Value,
    ) -> bool {
        let items = |value: &'_ Value| value.as_array().is_some_and(|items| !items.is_empty());
        if !items(before) && !items(after) {
            return !same(before, after);
        }
        let sorted = |value| by_element(place, shared, value);
        let (old, new) = (sorted(before), sorted(after));
        let mut old = old
            .chunk_by(|(left, _), (right, _)| left == right)
            .peekable();
        let mut new = new
            .chunk_by(|(left, _), (right, _)| left == right)
            .peekable();
        let element = |equal: &&[(Element, &Value)]| equal[0].0.clone();
        while let Some(element) = first(old.peek().map(element), new.peek().map(element)) {
            let of = |equal: &&[(Element, &Value)]| equal[0].0 == element;
            let (old, new) = (old.next_if(of), new.next_if(of));
            self.compare_items(
                place.item(),
                element,
                old.unwrap_or_default(),
                new.unwrap_or_default(),
            );
        }
        false
    }

    /// Items that cannot be told apart are owned together: the step and nothing below it.
    fn compare_items(
        &mut self,
        place: Place<'_>,
        element: Element,
        old: &[(Element, &Value)],
        new: &[(Element, &Value)],
    ) {
        match (old, new) {
            ([_, _, ..], [_, _, ..]) => {
                let equal = old.len() == new.len()
                    && old
                        .iter()
                        .zip(new)
                        .all(|((_, old), (_, new))| same(old, new));
                self.written.push(element, !equal, FieldSet::default());
            }
            ([_, _, ..], _) => {
                self.step(place, || element.clone(), None, one(new));
                self.removed.push(element, true, FieldSet::default());
            }
            (_, [_, _, ..]) => {
                self.step(place, || element.clone(), one(old), None);
                self.written.push(element, true, FieldSet::default());
            }
            _ => self.step(place, || element, one(old), one(new)),
        }
    }

    fn step(
        &mut self,
        place: Place<'_>,
        element: impl FnOnce() -> Element,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        match (old, new) {
            (Some(old), Some(new)) => {
                let mut below = Self::default();
                let written = below.compare(place, old, new);
                let Self {
                    written: new,
                    removed,
                } = below;
                if removed.is_empty() {
                    self.written.add(written, new, element);
                } else {
                    let element = element();
                    self.written.add(written, new, || element.clone());
                    self.removed.push(element, false, removed);
                }
            }
            (None, Some(new)) => {
                self.written
                    .push(element(), true, fields(place, new, Counted::Each))
            }
            (Some(old), None) => {
                self.removed
                    .push(element(), true, fields(place, old, Counted::Each))
            }
            (None, None) => {}
        }
    }
}

fn one<'v>(items: &[(Element, &'v Value)]) -> Option<&'v Value> {
    items.first().map(|(_, item)| *item)
}

fn by_element<'v>(
    place: Place<'_>,
    shared: ListType<'_>,
    list: &'v Value,
) -> Vec<(Element, &'v Value)> {
    let items = list.as_array().map_or(&[][..], Vec::as_slice);
    place.by_element(shared, items)
}

fn value<'v>(field: Option<(&String, &'v Value)>) -> Option<&'v Value> {
    field.map(|(_, value)| value)
}

/// The one that comes first in the order of both.
fn first<T: Ord>(old: Option<T>, new: Option<T>) -> Option<T> {
    match (old, new) {
        (Some(old), Some(new)) => Some(old.min(new)),
        (old, new) => old.or(new),
    }
}
