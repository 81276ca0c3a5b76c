//! From a type's schema to its compiled tree.

use std::collections::{BTreeMap, HashMap};

use regex::Regex;
use serde_json::{Map, Value};

use super::{
    Error, Result, constraints,
    structural::{
        Array, Edge, Kind, List, Node, NodeId, Number, Object, Property, Text, TextFormat,
    },
};

/// The nodes of `root` and of the `definitions` that it reaches, and the root's index.
pub(super) fn compile(
    root: &Value,
    definitions: &BTreeMap<String, Value>,
) -> Result<(Vec<Node>, NodeId)> {
    let mut compiler = Compiler {
        definitions,
        nodes: Vec::new(),
        by_name: HashMap::new(),
    };
    let root = compiler.node(root)?;
    Ok((compiler.nodes, root))
}

struct Compiler<'a> {
    definitions: &'a BTreeMap<String, Value>,
    nodes: Vec<Node>,
    /// A type's name and what its field adds to it.
    by_name: HashMap<(String, Value), NodeId>,
}

impl Compiler<'_> {
    fn node(&mut self, schema: &Value) -> Result<NodeId> {
        match schema.get("$ref").and_then(Value::as_str) {
            Some(name) => self.named(name, schema),
            None => {
                let id = self.reserve();
                self.fill(id, schema)
            }
        }
    }

    /// The one node of a named type, or a node of its own where the field says more than the type.
    fn named(&mut self, name: &str, at: &Value) -> Result<NodeId> {
        let extra = extensions(at);
        let key = (name.to_owned(), Value::Object(extra.clone()));
        if let Some(&id) = self.by_name.get(&key) {
            return Ok(id);
        }
        let definition = self.definitions.get(name);
        let mut definition = definition
            .cloned()
            .ok_or_else(|| Error::UnknownType(name.to_owned()))?;
        constraints::constrain(name, &mut definition);
        if let Some(definition) = definition.as_object_mut() {
            definition.extend(extra);
        }
        let id = self.reserve();
        // Known before it is filled: a type may contain itself.
        self.by_name.insert(key, id);
        self.fill(id, &definition)
    }

    fn reserve(&mut self) -> NodeId {
        self.nodes.push(Node {
            kind: Kind::Any,
            nullable: false,
            allowed: Box::default(),
        });
        self.nodes.len() - 1
    }

    fn fill(&mut self, id: NodeId, schema: &Value) -> Result<NodeId> {
        self.nodes[id] = Node {
            kind: self.kind(schema)?,
            nullable: flag(schema, "nullable"),
            allowed: schema
                .get("enum")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
                .into(),
        };
        Ok(id)
    }

    fn kind(&mut self, schema: &Value) -> Result<Kind> {
        if flag(schema, "x-kubernetes-int-or-string") {
            return Ok(Kind::IntOrText(pattern(schema)?));
        }
        Ok(match schema.get("type").and_then(Value::as_str) {
            None => Kind::Any,
            Some("object") => Kind::Object(self.object(schema)?),
            Some("array") => Kind::Array(self.array(schema)?),
            Some("string") => Kind::Text(text(schema)?),
            Some("integer") => Kind::Integer(number(schema)),
            Some("number") => Kind::Float(number(schema)),
            Some("boolean") => Kind::Boolean,
            Some(other) => return Err(Error::Unsupported(format!("type {other}"))),
        })
    }

    fn object(&mut self, schema: &Value) -> Result<Object> {
        let fields = schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        let mut properties = fields
            .map(|(name, schema)| {
                Ok(Property {
                    name: name.as_str().into(),
                    edge: self.edge(schema)?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        properties.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(Object {
            properties: properties.into(),
            additional: schema
                .get("additionalProperties")
                .map(|schema| self.edge(schema))
                .transpose()?,
            preserve: flag(schema, "x-kubernetes-preserve-unknown-fields"),
            required: texts(schema, "required"),
            atomic: schema
                .get("x-kubernetes-map-type")
                .is_some_and(|kind| kind == "atomic"),
            min: count(schema, "minProperties"),
            max: count(schema, "maxProperties"),
        })
    }

    fn array(&mut self, schema: &Value) -> Result<Array> {
        let items = schema
            .get("items")
            .ok_or_else(|| Error::Unsupported("a list without items".to_owned()))?;
        Ok(Array {
            items: self.edge(items)?,
            list: match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
                Some("set") => List::Set,
                Some("map") => List::Map(texts(schema, "x-kubernetes-list-map-keys")),
                _ => List::Atomic,
            },
            min: count(schema, "minItems"),
            max: count(schema, "maxItems"),
        })
    }

    fn edge(&mut self, schema: &Value) -> Result<Edge> {
        Ok(Edge {
            node: self.node(schema)?,
            default: schema.get("default").cloned(),
        })
    }
}

/// What a field says beside the name of its type that changes how it is treated.
fn extensions(schema: &Value) -> Map<String, Value> {
    let keywords = schema.as_object().into_iter().flatten();
    keywords
        .filter(|(keyword, _)| !matches!(keyword.as_str(), "$ref" | "description" | "default"))
        .map(|(keyword, value)| (keyword.clone(), value.clone()))
        .collect()
}

fn text(schema: &Value) -> Result<Text> {
    Ok(Text {
        format: match schema.get("format").and_then(Value::as_str) {
            Some("date-time") => Some(TextFormat::DateTime),
            Some("byte") => Some(TextFormat::Byte),
            _ => None,
        },
        min: count(schema, "minLength"),
        max: count(schema, "maxLength"),
        pattern: pattern(schema)?,
    })
}

fn number(schema: &Value) -> Number {
    Number {
        format: schema.get("format").and_then(Value::as_str).map(Box::from),
        min: schema.get("minimum").and_then(Value::as_f64),
        max: schema.get("maximum").and_then(Value::as_f64),
    }
}

fn pattern(schema: &Value) -> Result<Option<Regex>> {
    let pattern = schema.get("pattern").and_then(Value::as_str);
    Ok(pattern.map(Regex::new).transpose()?)
}

fn flag(schema: &Value, keyword: &str) -> bool {
    schema
        .get(keyword)
        .and_then(Value::as_bool)
        .unwrap_or(false)
}

fn count(schema: &Value, keyword: &str) -> Option<u64> {
    schema.get(keyword).and_then(Value::as_u64)
}

fn texts(schema: &Value, keyword: &str) -> Box<[Box<str>]> {
    let list = schema
        .get(keyword)
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    list.filter_map(Value::as_str).map(Box::from).collect()
}
