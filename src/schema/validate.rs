//! Checking an object against its type, with the answers that the Kubernetes API gives for custom resources.

use serde_json::{Map, Value};

use super::{
    cause::Causes,
    decode::MAX_EXACT_FLOAT,
    formats, list_keys,
    path::Path,
    structural::{Array, Kind, NodeRef, Number, Object, Text, TextFormat},
};

/// Adds to `causes` what is wrong with the object `value`.
pub(super) fn validate(node: NodeRef<'_>, value: &Value, causes: &mut Causes) {
    Validator {
        causes,
        unique_lists: true,
    }
    .node(node, value, &Path::Root);
}

struct Validator<'a> {
    causes: &'a mut Causes,
    /// Off inside the object's own metadata: the API merges equal owner references and takes a finalizer twice.
    unique_lists: bool,
}

impl Validator<'_> {
    fn node(&mut self, node: NodeRef<'_>, value: &Value, path: &Path<'_>) {
        if self.causes.is_full() || (value.is_null() && node.node.nullable) {
            return;
        }
        match (&node.node.kind, value) {
            (Kind::Object(object), Value::Object(fields)) => {
                self.object(node, object, fields, path)
            }
            (Kind::Array(array), Value::Array(items)) => self.array(node, array, items, path),
            (Kind::Text(rules), Value::String(text)) => self.text(rules, text, value, path),
            (Kind::IntOrText(pattern), Value::String(text)) => {
                if let Some(pattern) = pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
                    self.mismatch(pattern.as_str(), value, path);
                }
            }
            (Kind::Integer(rules), Value::Number(_)) if is_integer(value) => {
                self.integer(rules, value, path)
            }
            (Kind::Float(rules), Value::Number(_)) => self.range(rules, value, path),
            (Kind::IntOrText(_), Value::Number(_)) if is_integer(value) => {}
            (Kind::Boolean, Value::Bool(_)) | (Kind::Any, _) => {}
            (kind, value) => self.wrong_type(kind, value, path),
        }
        let allowed = &node.node.allowed;
        if !allowed.is_empty() && !allowed.contains(value) {
            self.causes.not_supported(path, value, allowed);
        }
    }

    fn object(
        &mut self,
        node: NodeRef<'_>,
        object: &Object,
        fields: &Map<String, Value>,
        path: &Path<'_>,
    ) {
        for name in &object.required {
            if !fields.contains_key(&**name) {
                self.causes.required(&path.field(name), "");
            }
        }
        self.size(fields.len(), object.min, object.max, "properties", path);
        for (name, value) in fields {
            let Some(edge) = object.edge(name) else {
                continue;
            };
            let is_metadata = matches!(path, Path::Root) && name == "metadata";
            let outside = self.unique_lists;
            self.unique_lists &= !is_metadata;
            self.node(node.follow(edge), value, &path.field(name));
            self.unique_lists = outside;
        }
    }

    fn array(&mut self, node: NodeRef<'_>, array: &Array, items: &[Value], path: &Path<'_>) {
        self.size(items.len(), array.min, array.max, "items", path);
        if self.unique_lists {
            list_keys::check(&array.list, items, path, self.causes);
        }
        let below = node.follow(&array.items);
        for (index, item) in items.iter().enumerate() {
            self.node(below, item, &path.item(index));
        }
    }

    fn size(
        &mut self,
        size: usize,
        min: Option<u64>,
        max: Option<u64>,
        noun: &str,
        path: &Path<'_>,
    ) {
        let count = size as u64;
        if let Some(min) = min.filter(|min| count < *min) {
            self.causes.violates(
                path,
                &count.into(),
                &format!("should have at least {min} {noun}"),
            );
        }
        if let Some(max) = max.filter(|max| count > *max) {
            self.causes.too_many(path, size, max);
        }
    }

    fn text(&mut self, rules: &Text, text: &str, value: &Value, path: &Path<'_>) {
        if rules.min.is_some() || rules.max.is_some() {
            let length = text.chars().count() as u64;
            if let Some(max) = rules.max.filter(|max| length > *max) {
                self.causes.too_long(path, max);
            }
            if let Some(min) = rules.min.filter(|min| length < *min) {
                self.causes
                    .violates(path, value, &format!("should be at least {min} chars long"));
            }
        }
        if let Some(pattern) = rules
            .pattern
            .as_ref()
            .filter(|pattern| !pattern.is_match(text))
        {
            self.mismatch(pattern.as_str(), value, path);
        }
        match rules.format {
            Some(TextFormat::DateTime) if !formats::is_date_time(text) => {
                self.causes.type_invalid(path, "date-time", text);
            }
            Some(TextFormat::Byte) if !formats::is_base64(text) => {
                self.causes.type_invalid(path, "byte", text)
            }
            _ => {}
        }
    }

    fn mismatch(&mut self, pattern: &str, value: &Value, path: &Path<'_>) {
        self.causes
            .violates(path, value, &format!("should match '{pattern}'"));
    }

    fn integer(&mut self, rules: &Number, value: &Value, path: &Path<'_>) {
        let narrow = rules.format.as_deref() == Some("int32");
        if narrow
            && value
                .as_f64()
                .is_some_and(|value| f64::from(value as i32) != value)
        {
            let detail =
                format!("Checked value must be of type integer with format int32 in {path}");
            self.causes.invalid(path, value, &detail);
        }
        self.range(rules, value, path);
    }

    fn range(&mut self, rules: &Number, value: &Value, path: &Path<'_>) {
        let Some(number) = value.as_f64() else { return };
        if let Some(min) = rules.min.filter(|min| number < *min) {
            self.causes.violates(
                path,
                value,
                &format!("should be greater than or equal to {min}"),
            );
        }
        if let Some(max) = rules.max.filter(|max| number > *max) {
            self.causes.violates(
                path,
                value,
                &format!("should be less than or equal to {max}"),
            );
        }
    }

    fn wrong_type(&mut self, kind: &Kind, value: &Value, path: &Path<'_>) {
        let (expected, format) = expected(kind);
        match (format, value) {
            // The API names the format, except to texts, lists and nulls, which have none of their own.
            (Some(format), Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
                self.causes.type_invalid(path, format, own_format(value));
            }
            _ => self.causes.type_invalid(path, expected, json_type(value)),
        }
    }
}

/// The type that a field of this kind asks for, and its format.
fn expected(kind: &Kind) -> (&'static str, Option<&str>) {
    match kind {
        Kind::Any => ("", None),
        Kind::Object(_) => ("object", None),
        Kind::Array(_) => ("array", None),
        Kind::Boolean => ("boolean", None),
        Kind::IntOrText(_) => ("integer,string", None),
        Kind::Integer(rules) => ("integer", rules.format.as_deref()),
        Kind::Float(rules) => ("number", rules.format.as_deref()),
        Kind::Text(rules) => {
            let format = rules.format.map(|format| match format {
                TextFormat::DateTime => "date-time",
                TextFormat::Byte => "byte",
            });
            ("string", format)
        }
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The format that the API infers from a value.
fn own_format(value: &Value) -> &'static str {
    match value {
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        _ => "",
    }
}

/// Whether a number is an integer, written as one or as a float without fraction.
fn is_integer(value: &Value) -> bool {
    value.is_i64()
        || value
            .as_f64()
            .is_some_and(|float| float.trunc() == float && float.abs() <= MAX_EXACT_FLOAT)
}
