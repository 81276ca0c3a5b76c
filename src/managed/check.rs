//! Whether a configuration has the types that merging needs. Its texts are those of Kubernetes.

use std::{collections::BTreeSet, fmt::Write as _};

use serde_json::{Map, Value};

use super::{
    element::Element,
    go::{Plain, Source},
    place::{Place, Sharing},
};
use crate::schema::{NodeRef, ValueKind};

/// Faults that are reported; more than a reader can use, and a bound on an answer's size.
const MAX_FAULTS: usize = 100;

/// Fields of a configuration that do not have their type, each with its path: `.spec.x: expected string, got …`.
///
/// At least one, at most 100.
#[derive(Debug, PartialEq, Eq)]
pub struct Faults(Vec<String>);

/// A walk through a configuration.
#[derive(Default)]
struct Check {
    faults: Vec<String>,
    /// Where it is.
    path: String,
}

impl std::fmt::Display for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0[..] {
            [only] => f.write_str(only),
            faults => {
                f.write_str("errors:")?;
                faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
            }
        }
    }
}

/// What is wrong with `config`; fields that a list's items are known by may not repeat.
pub(super) fn check(root: NodeRef<'_>, config: &Value) -> Result<(), Faults> {
    let mut check = Check::default();
    check.value(Place::Of(root), config);
    if check.faults.is_empty() {
        Ok(())
    } else {
        Err(Faults(check.faults))
    }
}

impl Check {
    fn value(&mut self, place: Place<'_>, value: &Value) {
        let Place::Of(node) = place else {
            return;
        };
        match (node.value_kind(), value) {
            (ValueKind::Any, _) | (_, Value::Null) => {}
            (ValueKind::Object, Value::Object(fields)) => self.map(node, fields),
            (ValueKind::List, Value::Array(items)) => self.list(place, items),
            (kind, value) => {
                if let Some(fault) = scalar_fault(kind, value) {
                    self.note(&fault);
                }
            }
        }
    }

    fn map(&mut self, node: NodeRef<'_>, fields: &Map<String, Value>) {
        for (name, value) in fields {
            let place = match node.field(name) {
                Some(field) => Place::Of(field),
                None if node.is_open() => Place::Any,
                None => {
                    self.below(&Element::Field(name.into()), |check| {
                        check.note("field not declared in schema");
                    });
                    continue;
                }
            };
            self.below(&Element::Field(name.into()), |check| {
                check.value(place, value)
            });
        }
    }

    fn list(&mut self, place: Place<'_>, items: &[Value]) {
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let element = match place.sharing() {
                Sharing::Items(shared) => match place.element(shared, item) {
                    Ok(element) => element,
                    // The items behind it are not looked at.
                    Err(unkeyed) => return self.note(&format!("element {index}: {unkeyed}")),
                },
                _ => Element::Index(i64::try_from(index).unwrap_or(i64::MAX)),
            };
            if seen.contains(&element) {
                self.note(&format!("duplicate entries for key {element}"));
            }
            self.below(&element, |check| check.value(place.item(), item));
            seen.insert(element);
        }
    }

    fn below(&mut self, element: &Element, check: impl FnOnce(&mut Self)) {
        let end = self.path.len();
        // A String takes whatever is written to it.
        let _ = write!(self.path, "{element}");
        check(self);
        self.path.truncate(end);
    }

    fn note(&mut self, fault: &str) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(match &*self.path {
                "" => fault.to_owned(),
                path => format!("{path}: {fault}"),
            });
        }
    }
}

/// What is wrong with a value where the schema wants no other object or list.
fn scalar_fault(kind: ValueKind, value: &Value) -> Option<String> {
    let scalar = !value.is_object() && !value.is_array();
    Some(match kind {
        ValueKind::Text if !value.is_string() => {
            format!(
                "expected string, got &value.valueUnstructured{{Value:{}}}",
                Source(value)
            )
        }
        ValueKind::Time if !scalar => format!("expected any scalar, got &{{{}}}", Plain(value)),
        ValueKind::Number if !value.is_number() => {
            format!("expected numeric (int or float), got {}", go_type(value))
        }
        ValueKind::Boolean if !value.is_boolean() => {
            format!("expected boolean, got &{{{}}}", Plain(value))
        }
        ValueKind::Object => format!("expected map, got &{{{}}}", Plain(value)),
        ValueKind::List => format!("expected list, got &{{{}}}", Plain(value)),
        _ => return None,
    })
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
