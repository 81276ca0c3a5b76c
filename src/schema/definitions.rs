//! Types as the definitions of OpenAPI documents.

use serde_json::{Map, Value, json};

use super::{constraints, enums};

/// Version of the document that a definition is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Swagger 2.0, without defaults and limits of Kubernetes' own types, as the API server writes it.
    V2,
    /// OpenAPI 3.0, with them.
    V3,
}

impl Form {
    /// A reference to the definition `name`.
    pub(super) fn reference(self, name: &str) -> Value {
        let prefix = match self {
            Self::V2 => "#/definitions/",
            Self::V3 => "#/components/schemas/",
        };
        json!({ "$ref": format!("{prefix}{name}") })
    }
}

/// The definition of the type `name`.
pub(super) fn definition(name: &str, schema: &Value, form: Form) -> Value {
    if name == constraints::QUANTITY {
        return quantity(schema, form);
    }
    let mut schema = schema.clone();
    if form == Form::V3 {
        constraints::constrain(name, &mut schema);
    }
    enums::list_values(name, &mut schema);
    write(&schema, form)
}

fn quantity(schema: &Value, form: Form) -> Value {
    let mut written = json!({ "description": schema["description"] });
    match form {
        Form::V2 => written["type"] = json!("string"),
        Form::V3 => written["oneOf"] = json!([{ "type": "string" }, { "type": "number" }]),
    }
    written
}

fn write(schema: &Value, form: Form) -> Value {
    let Some(schema) = schema.as_object() else {
        return schema.clone();
    };
    let keywords = schema
        .iter()
        .filter(|(keyword, _)| form == Form::V3 || *keyword != "default");
    let mut written: Map<String, Value> = keywords
        .map(|(keyword, value)| (keyword.clone(), below(keyword, value, form)))
        .collect();
    if written.remove("x-kubernetes-int-or-string").is_some() {
        int_or_string(&mut written, form);
    }
    if let Some(Value::String(name)) = schema.get("$ref") {
        return reference(name, written, form);
    }
    Value::Object(written)
}

/// The value of `keyword`, in which schemas are written, too.
fn below(keyword: &str, value: &Value, form: Form) -> Value {
    match (keyword, value) {
        ("properties", Value::Object(properties)) => {
            let properties = properties.iter();
            properties
                .map(|(name, schema)| (name.clone(), write(schema, form)))
                .collect()
        }
        ("items" | "additionalProperties", schema) => write(schema, form),
        _ => value.clone(),
    }
}

fn int_or_string(written: &mut Map<String, Value>, form: Form) {
    written.insert("format".to_owned(), json!("int-or-string"));
    match form {
        Form::V2 => written.insert("type".to_owned(), json!("string")),
        Form::V3 => written.insert(
            "oneOf".to_owned(),
            json!([{ "type": "integer" }, { "type": "string" }]),
        ),
    };
}

/// A reference with what the field says of it. OpenAPI 3.0 ignores what stands beside a reference, so it goes into an
/// `allOf`.
fn reference(name: &str, mut written: Map<String, Value>, form: Form) -> Value {
    let reference = form.reference(name);
    written.remove("$ref");
    if written.is_empty() {
        return reference;
    }
    match form {
        Form::V2 => written.insert("$ref".to_owned(), reference["$ref"].clone()),
        Form::V3 => written.insert("allOf".to_owned(), json!([reference])),
    };
    Value::Object(written)
}
