//! A place in an object, and how the schema lets writers share it.

use compact_str::CompactString;
use serde_json::Value;

use super::element::Element;
use crate::schema::{ListType, MapType, NodeRef, Schema, ValueKind};

/// A place in an object.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// A place of which the schema says nothing: objects are owned field by field, all else as a whole.
    Any,
    /// A place that the schema knows.
    Of(NodeRef<'a>),
}

/// How what is at a place is shared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing<'a> {
    /// It is one value.
    Whole,
    /// Each field on its own.
    Fields,
    /// Each item on its own.
    Items(ListType<'a>),
    /// An object field by field, all else as a whole.
    Deduced,
}

/// Why an item of a list cannot be told from the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unkeyed {
    #[error("associative list with keys may not have a null element")]
    NullObject,
    #[error("associative list with keys may not have non-map elements")]
    NoObject,
    #[error(
        "associative list with keys has an element that omits all key fields [{0}] (and doesn't have default values for any key fields)"
    )]
    NoKey(String),
    #[error("associative list without keys has an element that's a map type")]
    Object,
    #[error("not supported: associative list with lists as elements")]
    List,
    #[error("associative list without keys has an element that's an explicit null")]
    Null,
}

impl<'a> Place<'a> {
    pub(super) fn root(schema: &'a Schema) -> Self {
        Self::Of(schema.root())
    }

    pub(super) fn sharing(self) -> Sharing<'a> {
        let Self::Of(node) = self else {
            return Sharing::Deduced;
        };
        match node.value_kind() {
            ValueKind::Any => Sharing::Deduced,
            ValueKind::Object if node.map_type() == Some(MapType::Granular) => Sharing::Fields,
            ValueKind::List => match node.list_type() {
                None | Some(ListType::Atomic) => Sharing::Whole,
                Some(shared) => Sharing::Items(shared),
            },
            ValueKind::Object
            | ValueKind::Text
            | ValueKind::Time
            | ValueKind::Number
            | ValueKind::Boolean => Sharing::Whole,
        }
    }

    /// Whether the schema has a list or an object here.
    pub(super) fn is_container(self) -> bool {
        let is_container = |kind| matches!(kind, ValueKind::List | ValueKind::Object);
        matches!(self, Self::Of(node) if is_container(node.value_kind()))
    }

    /// What the field `name` holds.
    pub(super) fn field(self, name: &str) -> Self {
        match self {
            Self::Of(node) => node.field(name).map_or(Self::Any, Self::Of),
            Self::Any => Self::Any,
        }
    }

    /// Whether `name` is a declared field, and not a key of a map.
    pub(super) fn declares(self, name: &str) -> bool {
        matches!(self, Self::Of(node) if node.property(name).is_some())
    }

    /// What the items of a list are.
    pub(super) fn item(self) -> Self {
        match self {
            Self::Of(node) => node.items().map_or(Self::Any, Self::Of),
            Self::Any => Self::Any,
        }
    }

    /// The place behind a step.
    pub(super) fn below(self, element: &Element) -> Self {
        match element {
            Element::Field(name) => self.field(name),
            Element::Key(_) | Element::Value(_) | Element::Index(_) => self.item(),
        }
    }

    /// The step to an item of a list that is shared item by item.
    pub(super) fn element(self, shared: ListType<'_>, item: &Value) -> Result<Element, Unkeyed> {
        match (shared, item) {
            (ListType::Map(keys), Value::Object(_)) => self.key(keys, item),
            (ListType::Map(_), Value::Null) => Err(Unkeyed::NullObject),
            (ListType::Map(_), _) => Err(Unkeyed::NoObject),
            (_, Value::Object(_)) => Err(Unkeyed::Object),
            (_, Value::Array(_)) => Err(Unkeyed::List),
            (_, Value::Null) => Err(Unkeyed::Null),
            (_, scalar) => Ok(Element::Value(scalar.clone())),
        }
    }

    /// An absent key field counts with its default; without one the item is known by the others.
    fn key(self, keys: &[Box<str>], item: &Value) -> Result<Element, Unkeyed> {
        let default = |key: &str| match self.item() {
            Self::Of(node) => node.default_of(key),
            Self::Any => None,
        };
        let fields = keys.iter().filter_map(|key| {
            let value = item.get(&**key).or_else(|| default(key))?;
            Some((CompactString::from(&**key), value.clone()))
        });
        let mut fields: Box<[_]> = fields.collect();
        if fields.is_empty() {
            let quoted: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
            return Err(Unkeyed::NoKey(quoted.join(" ")));
        }
        fields.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
        Ok(Element::Key(fields))
    }

    /// The items of a list, sorted by their steps, equal ones in their order; those that have none are left out.
    pub(super) fn by_element<'v>(
        self,
        shared: ListType<'_>,
        items: &'v [Value],
    ) -> Vec<(Element, &'v Value)> {
        let mut by_element: Vec<_> = items
            .iter()
            .filter_map(|item| Some((self.element(shared, item).ok()?, item)))
            .collect();
        by_element.sort_by(|(left, _), (right, _)| left.cmp(right));
        by_element
    }
}
