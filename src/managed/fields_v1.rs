//! Sets of paths as JSON: the format FieldsV1.
//!
//! Each key names a step: `f:<name>`, `k:{<key fields>}`, `v:<value>`, `i:<index>`. A step without steps below is in the
//! set, one with steps below only if they contain `.`.

use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Value};

use super::{
    element::{Element, InvalidElement},
    field_set::{FieldSet, Node},
};

/// Why a value is not FieldsV1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFields {
    /// A value that is no object.
    #[error("fields must be an object")]
    NoObject,
    /// A key that names no step.
    #[error(transparent)]
    Element(#[from] InvalidElement),
}

impl FieldSet {
    /// Reads FieldsV1. Keys of an unknown kind are passed over, as Kubernetes does.
    ///
    /// # Errors
    /// When a value is neither an object nor null, or a key names no step.
    pub fn from_value(fields: &Value) -> Result<Self, InvalidFields> {
        match fields {
            Value::Object(fields) => Self::from_map(fields),
            Value::Null => Ok(Self::default()),
            _ => Err(InvalidFields::NoObject),
        }
    }

    /// The set as FieldsV1, its keys in the order of their texts, as a custom resource shows it.
    pub fn to_value(&self) -> Value {
        let mut fields = Map::new();
        for node in self.nodes() {
            let mut below = node.below.to_value();
            if let Value::Object(below) = &mut below
                && node.owned
                && !node.below.is_empty()
            {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            fields.insert(key(&node.element), below);
        }
        Value::Object(fields)
    }

    fn from_map(fields: &Map<String, Value>) -> Result<Self, InvalidFields> {
        let mut nodes = Vec::with_capacity(fields.len());
        for (key, value) in fields.iter().filter(|(key, _)| *key != ".") {
            if let Some(element) = Element::parse(key)? {
                let below = Self::from_value(value)?;
                nodes.push(Node {
                    element,
                    owned: below.is_empty() || value.get(".").is_some(),
                    below,
                });
            }
        }
        // Texts of keys with numbers come in another order than the keys.
        Ok(Self::from_nodes(nodes))
    }
}

fn key(element: &Element) -> String {
    let mut key = String::with_capacity(24);
    // A String takes whatever is written to it.
    let _ = element.write_key(&mut key);
    key
}

/// The keys come in the canonical order, that of [`Element`]: by name, then by key, numbers by value.
impl Serialize for FieldSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Members {
            set: self,
            own: false,
        }
        .serialize(serializer)
    }
}

struct Members<'a> {
    set: &'a FieldSet,
    /// Whether the step above is itself in the set.
    own: bool,
}

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = self.own && !self.set.is_empty();
        let nodes = self.set.nodes();
        let mut fields = serializer.serialize_map(Some(nodes.len() + usize::from(own)))?;
        if own {
            fields.serialize_entry(".", &Map::new())?;
        }
        for node in nodes {
            let below = Members {
                set: &node.below,
                own: node.owned,
            };
            fields.serialize_entry(&key(&node.element), &below)?;
        }
        fields.end()
    }
}
