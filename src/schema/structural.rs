//! The compiled schema: a compact tree of what a field may hold, shared by all requests.
//!
//! Nodes lie in one slice and refer to each other by index, so that a type used twice is one node, a type that contains
//! itself is a cycle of indices, and a clone is one reference count. Compiling is in `compile`; this file is what it makes
//! and how to walk it.

use std::{collections::BTreeMap, sync::Arc};

use regex::Regex;
use serde_json::Value;

use super::{Result, compile};

/// A type of the API, ready to prune, default and validate objects. Immutable; cheap to clone.
#[derive(Clone, Debug)]
pub struct Schema {
    nodes: Arc<[Node]>,
    root: NodeId,
}

/// How the values of two writers of a list come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType<'a> {
    /// The list is one value.
    Atomic,
    /// Items are unique scalars, each owned on its own.
    Set,
    /// Items are objects, known by these fields, each owned on its own.
    Map(&'a [Box<str>]),
}

/// How the values of two writers of a map or object come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapType {
    /// Each field is owned on its own.
    Granular,
    /// The map is one value.
    Atomic,
}

/// What kind of value a place holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Any value at all, or a number or a text.
    Any,
    /// A map or an object.
    Object,
    /// A list.
    List,
    /// A text, also one that encodes bytes.
    Text,
    /// A text that is a time.
    Time,
    /// An integer or a float.
    Number,
    /// A boolean.
    Boolean,
}

/// A place in a [`Schema`]: what server-side apply asks how a field merges.
#[derive(Clone, Copy)]
pub struct NodeRef<'a> {
    nodes: &'a [Node],
    pub(super) node: &'a Node,
}

/// Index of a node in its schema.
pub(super) type NodeId = usize;

/// What one field may hold.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// Whether null is a value and not a way to leave the field out.
    pub(super) nullable: bool,
    /// The only allowed values; empty: any.
    pub(super) allowed: Box<[Value]>,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// Anything, kept as it is.
    Any,
    Object(Object),
    Array(Array),
    Text(Text),
    Integer(Number),
    Float(Number),
    Boolean,
    /// A number or a text; the pattern is for the text.
    IntOrText(Option<Regex>),
}

#[derive(Clone, Debug)]
pub(super) struct Object {
    /// Sorted by name.
    pub(super) properties: Box<[Property]>,
    /// What fields without a property hold; none: there are no others.
    pub(super) additional: Option<Edge>,
    /// Whether unknown fields are kept.
    pub(super) preserve: bool,
    pub(super) required: Box<[Box<str>]>,
    pub(super) atomic: bool,
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Property {
    pub(super) name: Box<str>,
    pub(super) edge: Edge,
}

/// The way from a node to one below it.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) node: NodeId,
    pub(super) default: Option<Value>,
}

#[derive(Clone, Debug)]
pub(super) struct Array {
    pub(super) items: Edge,
    pub(super) list: List,
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum List {
    Atomic,
    Set,
    Map(Box<[Box<str>]>),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Text {
    pub(super) format: Option<TextFormat>,
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
    pub(super) pattern: Option<Regex>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextFormat {
    DateTime,
    Byte,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Number {
    /// `int32`, `int64`, `double` …
    pub(super) format: Option<Box<str>>,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
}

impl Schema {
    /// Compiles `root`, whose references are names in `definitions`.
    pub(super) fn compile(root: &Value, definitions: &BTreeMap<String, Value>) -> Result<Self> {
        let (nodes, root) = compile::compile(root, definitions)?;
        Ok(Self {
            nodes: nodes.into(),
            root,
        })
    }

    /// The object itself.
    pub fn root(&self) -> NodeRef<'_> {
        NodeRef {
            nodes: &self.nodes,
            node: &self.nodes[self.root],
        }
    }

    /// The place at `path`: names of fields, `[]` for the items of a list.
    pub fn at(&self, path: &[&str]) -> Option<NodeRef<'_>> {
        path.iter().try_fold(self.root(), |node, step| match *step {
            "[]" => node.items(),
            name => node.field(name),
        })
    }
}

impl<'a> NodeRef<'a> {
    /// What the field `name` of an object or the value at the key `name` of a map holds.
    pub fn field(self, name: &str) -> Option<NodeRef<'a>> {
        self.edge(name).map(|edge| self.follow(edge))
    }

    /// What the declared field `name` of an object holds; none: it is not declared, though a map may hold it.
    pub fn property(self, name: &str) -> Option<NodeRef<'a>> {
        match &self.node.kind {
            Kind::Object(object) => object.property(name).map(|edge| self.follow(edge)),
            _ => None,
        }
    }

    /// Whether fields that an object does not declare may hold anything.
    pub fn is_open(self) -> bool {
        match &self.node.kind {
            Kind::Object(object) => object.preserve || object.properties.is_empty(),
            kind => matches!(kind, Kind::Any),
        }
    }

    /// The kind of value.
    pub fn value_kind(self) -> ValueKind {
        match &self.node.kind {
            Kind::Any | Kind::IntOrText(_) => ValueKind::Any,
            Kind::Object(_) => ValueKind::Object,
            Kind::Array(_) => ValueKind::List,
            Kind::Text(Text {
                format: Some(TextFormat::DateTime),
                ..
            }) => ValueKind::Time,
            Kind::Text(_) => ValueKind::Text,
            Kind::Integer(_) | Kind::Float(_) => ValueKind::Number,
            Kind::Boolean => ValueKind::Boolean,
        }
    }

    /// What a list holds.
    pub fn items(self) -> Option<NodeRef<'a>> {
        match &self.node.kind {
            Kind::Array(array) => Some(self.follow(&array.items)),
            _ => None,
        }
    }

    /// The value that the field `name` has when it is absent: keys of a list of objects may have one.
    pub fn default_of(self, name: &str) -> Option<&'a Value> {
        self.edge(name)?.default.as_ref()
    }

    /// How this list merges; none: it is no list.
    pub fn list_type(self) -> Option<ListType<'a>> {
        match &self.node.kind {
            Kind::Array(array) => Some(match &array.list {
                List::Atomic => ListType::Atomic,
                List::Set => ListType::Set,
                List::Map(keys) => ListType::Map(keys),
            }),
            _ => None,
        }
    }

    /// How this map or object merges; none: it is neither.
    pub fn map_type(self) -> Option<MapType> {
        match &self.node.kind {
            Kind::Object(object) if object.atomic => Some(MapType::Atomic),
            Kind::Object(_) => Some(MapType::Granular),
            _ => None,
        }
    }

    /// The way to the field `name`, by property or, without one, by what other fields hold.
    pub(super) fn edge(self, name: &str) -> Option<&'a Edge> {
        match &self.node.kind {
            Kind::Object(object) => object.edge(name),
            _ => None,
        }
    }

    pub(super) fn follow(self, edge: &Edge) -> NodeRef<'a> {
        NodeRef {
            nodes: self.nodes,
            node: &self.nodes[edge.node],
        }
    }
}

impl Object {
    pub(super) fn edge(&self, name: &str) -> Option<&Edge> {
        self.property(name).or(self.additional.as_ref())
    }

    fn property(&self, name: &str) -> Option<&Edge> {
        self.properties
            .binary_search_by(|property| (*property.name).cmp(name))
            .map(|index| &self.properties[index].edge)
            .ok()
    }
}
