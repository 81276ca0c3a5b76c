//! From the schemas that Rust types derive to Kubernetes' dialect of them.
//!
//! JSON Schema says one thing in many ways; a structural schema in one. Here `Option`, documented enums, integer widths
//! and sets take their one form, references to types outside `io.k8s.` are resolved in place (only Kubernetes' own types
//! have names that every server shares), and whatever has no form in the dialect is an error instead of a loss.

use serde_json::{Map, Value, json};

use super::{Error, Result};

/// Prefix of the types whose definitions are shared under their names.
const SHARED: &str = "io.k8s.";

/// Opens the list of an enum's values in a description.
const VALUES_NOTE: &str = "\n\nPossible enum values:";

/// Keywords that mean the same on both sides.
const KEPT: [&str; 11] = [
    "description",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
    "pattern",
    "required",
];

/// Keywords that tell the API nothing, or that the shape has told.
const DROPPED: [&str; 13] = [
    "$schema",
    "$defs",
    "title",
    "examples",
    "readOnly",
    "writeOnly",
    "deprecated",
    "type",
    "format",
    "$ref",
    "oneOf",
    "anyOf",
    "const",
];

/// Rewrites schemas; `definitions` are those that the generator collected, by type name.
pub(super) struct Dialect<'a> {
    definitions: &'a Map<String, Value>,
    inlining: Vec<&'a str>,
}

impl<'a> Dialect<'a> {
    pub(super) fn new(definitions: &'a Map<String, Value>) -> Self {
        Self {
            definitions,
            inlining: Vec::new(),
        }
    }

    /// `schema` in Kubernetes' dialect. References in the result are type names without a prefix.
    pub(super) fn rewrite(&mut self, schema: &'a Value) -> Result<Value> {
        let schema = match schema {
            Value::Object(schema) => schema,
            Value::Bool(true) => {
                return Ok(json!({ "x-kubernetes-preserve-unknown-fields": true }));
            }
            other => return Err(Error::Unsupported(other.to_string())),
        };
        let mut rewritten = self.shape(schema)?;
        for (keyword, value) in schema {
            self.keyword(keyword, value, &mut rewritten)?;
        }
        Ok(Value::Object(rewritten))
    }

    /// What kind of value it is: a type, a reference, or one of several of which all but one are null.
    fn shape(&mut self, schema: &'a Map<String, Value>) -> Result<Map<String, Value>> {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return self.reference(reference);
        }
        if let Some(choices) = schema
            .get("oneOf")
            .or_else(|| schema.get("anyOf"))
            .and_then(Value::as_array)
        {
            return self.choice(choices);
        }
        scalar_type(schema)
    }

    fn reference(&mut self, reference: &'a str) -> Result<Map<String, Value>> {
        let name = reference.strip_prefix("#/$defs/").unwrap_or(reference);
        if name.starts_with(SHARED) {
            return Ok(Map::from_iter([("$ref".to_owned(), json!(name))]));
        }
        if self.inlining.contains(&name) {
            return Err(Error::Recursive(name.to_owned()));
        }
        let definition = self
            .definitions
            .get(name)
            .ok_or_else(|| Error::UnknownType(name.to_owned()))?;
        self.inlining.push(name);
        let rewritten = self.rewrite(definition)?;
        self.inlining.pop();
        into_object(rewritten)
    }

    /// `Option<T>` is T; variants of an enum are its values, with what is said of them.
    fn choice(&mut self, choices: &'a [Value]) -> Result<Map<String, Value>> {
        let mut some = choices
            .iter()
            .filter(|choice| choice.get("type") != Some(&json!("null")));
        match (some.next(), some.next()) {
            (Some(only), None) => self.rewrite(only).and_then(into_object),
            (Some(_), Some(_)) => variants(choices),
            _ => Err(Error::Unsupported("a field that is always null".to_owned())),
        }
    }

    fn keyword(
        &mut self,
        keyword: &str,
        value: &'a Value,
        rewritten: &mut Map<String, Value>,
    ) -> Result<()> {
        let value = match keyword {
            "description" => described(value, rewritten),
            "properties" => self.properties(value)?,
            "items" => self.rewrite(value)?,
            "additionalProperties" if value == false => return Ok(()),
            "additionalProperties" => self.rewrite(value)?,
            "default" if is_zero(value) => return Ok(()),
            "enum" => value
                .as_array()
                .into_iter()
                .flatten()
                .filter(|value| !value.is_null())
                .cloned()
                .collect(),
            "uniqueItems" => {
                rewritten.insert("x-kubernetes-list-type".to_owned(), json!("set"));
                return Ok(());
            }
            "default" => value.clone(),
            _ if KEPT.contains(&keyword) || keyword.starts_with("x-kubernetes-") => value.clone(),
            _ if DROPPED.contains(&keyword) => return Ok(()),
            _ => return Err(Error::Unsupported(format!("{keyword}: {value}"))),
        };
        rewritten.insert(keyword.to_owned(), value);
        Ok(())
    }

    fn properties(&mut self, properties: &'a Value) -> Result<Value> {
        let properties = properties.as_object().into_iter().flatten();
        properties
            .map(|(name, schema)| Ok((name.clone(), self.rewrite(schema)?)))
            .collect()
    }
}

fn into_object(schema: Value) -> Result<Map<String, Value>> {
    match schema {
        Value::Object(schema) => Ok(schema),
        other => Err(Error::Unsupported(other.to_string())),
    }
}

/// `type` and `format`. A null beside the type is the binding's `Option`: in the API an absent field, and a null one is
/// dropped. Integers have two widths.
fn scalar_type(schema: &Map<String, Value>) -> Result<Map<String, Value>> {
    let mut rewritten = Map::new();
    let name = match schema.get("type") {
        None => return Ok(rewritten),
        Some(Value::Array(names)) => {
            let mut some = names.iter().filter(|name| *name != "null");
            match (some.next(), some.next()) {
                (Some(name), None) => name,
                _ => return Err(Error::Unsupported(format!("a field of types {names:?}"))),
            }
        }
        Some(name) => name,
    };
    rewritten.insert("type".to_owned(), name.clone());
    let format = match schema.get("format").and_then(Value::as_str) {
        Some("int8" | "int16" | "uint8" | "uint16") => Some("int32"),
        Some("uint" | "uint32" | "uint64" | "int") => Some("int64"),
        other => other,
    };
    if let Some(format) = format {
        rewritten.insert("format".to_owned(), json!(format));
    }
    if let Some(value) = schema.get("const") {
        rewritten.insert("enum".to_owned(), json!([value]));
    }
    Ok(rewritten)
}

/// The values of an enum without fields. What the variants say goes into the description, as in Kubernetes' documents.
fn variants(choices: &[Value]) -> Result<Map<String, Value>> {
    let mut values = Vec::new();
    let mut notes = String::new();
    for choice in choices
        .iter()
        .filter(|choice| choice.get("type") != Some(&json!("null")))
    {
        match (
            choice.get("const"),
            choice.get("enum").and_then(Value::as_array),
        ) {
            (Some(value), _) => {
                if let Some(note) = choice.get("description").and_then(Value::as_str) {
                    notes.push_str(&format!("\n - `{value}` {note}"));
                }
                values.push(value.clone());
            }
            (None, Some(several)) => values.extend(several.iter().cloned()),
            (None, None) => return Err(Error::Unsupported("one of several types".to_owned())),
        }
    }
    let mut rewritten = Map::new();
    rewritten.insert("type".to_owned(), json!("string"));
    rewritten.insert("enum".to_owned(), Value::Array(values));
    if !notes.is_empty() {
        rewritten.insert(
            "description".to_owned(),
            json!(format!("{VALUES_NOTE}{notes}")),
        );
    }
    Ok(rewritten)
}

/// The description of a field, followed by what its enum's values mean.
fn described(value: &Value, rewritten: &Map<String, Value>) -> Value {
    let notes = rewritten
        .get("description")
        .and_then(Value::as_str)
        .and_then(|text| text.find(VALUES_NOTE).map(|start| &text[start..]));
    match (value.as_str(), notes) {
        (Some(text), Some(notes)) => json!([text, notes].concat()),
        _ => value.clone(),
    }
}

/// Whether a default is only what decoding an absent field gives, which a structural schema leaves unsaid.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(value) => value.is_empty(),
        Value::Array(value) => value.is_empty(),
        Value::Object(value) => value.is_empty(),
    }
}
