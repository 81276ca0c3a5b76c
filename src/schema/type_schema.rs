//! A type of the API in Kubernetes' dialect: what OpenAPI documents, CRDs and compiled schemas are all made of.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{Result, Schema, dialect::Dialect, markers};

/// One type as a schema, with every shared type that it refers to.
///
/// References in it are plain type names; each document adds its own prefix.
#[derive(Clone, Debug)]
pub struct TypeSchema {
    root: Value,
    definitions: BTreeMap<String, Value>,
}

impl TypeSchema {
    /// The type `T` as it is.
    ///
    /// # Errors
    /// When `T` has no form in Kubernetes' dialect: an enum with fields, a type that contains itself.
    pub fn of<T: JsonSchema>() -> Result<Self> {
        let mut generator = generator();
        let root = generator.subschema_for::<T>();
        Self::rewrite(root, generator, None)
    }

    /// An object of the API whose fields beside `apiVersion`, `kind` and `metadata` are those of `T`.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn object<T: JsonSchema>() -> Result<Self> {
        let mut generator = generator();
        let root = generator.root_schema_for::<T>();
        let metadata = generator.subschema_for::<ObjectMeta>();
        Self::rewrite(
            root,
            generator,
            Some(described(metadata, "Standard object metadata.")),
        )
    }

    /// An object of the API with a required `spec` and a `status`.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn spec_and_status<Spec: JsonSchema, Status: JsonSchema>(
        description: &str,
    ) -> Result<Self> {
        let mut generator = generator();
        let spec = generator.subschema_for::<Spec>();
        let status = generator.subschema_for::<Status>();
        let metadata = generator.subschema_for::<ObjectMeta>();
        let root = schemars::json_schema!({
            "type": "object",
            "description": description,
            "properties": { "spec": spec, "status": status },
            "required": ["spec"],
        });
        Self::rewrite(
            root,
            generator,
            Some(described(metadata, "Standard object metadata.")),
        )
    }

    /// A list of objects whose type is defined under `item`.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn list(item: &str, description: &str) -> Result<Self> {
        let mut generator = generator();
        let metadata = generator.subschema_for::<ListMeta>();
        let root = schemars::json_schema!({
            "type": "object",
            "description": description,
            "properties": { "items": { "type": "array" } },
            "required": ["items"],
        });
        let mut schema = Self::rewrite(
            root,
            generator,
            Some(described(metadata, "Standard list metadata.")),
        )?;
        schema.root["properties"]["items"] = json!({
            "type": "array",
            "description": "The objects.",
            "items": { "$ref": item },
        });
        Ok(schema)
    }

    /// The schema as a tree that prunes, defaults and validates.
    ///
    /// # Errors
    /// A pattern that is no regular expression, or a reference to a type that is not defined.
    pub fn compile(&self) -> Result<Schema> {
        Schema::compile(&self.root, &self.definitions)
    }

    /// The type itself.
    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    /// Every shared type that it refers to, by name.
    pub(super) fn definitions(&self) -> &BTreeMap<String, Value> {
        &self.definitions
    }

    /// The type in Kubernetes' dialect, with all that it refers to. `metadata` makes it an object of the API.
    fn rewrite(
        root: schemars::Schema,
        mut generator: SchemaGenerator,
        metadata: Option<Value>,
    ) -> Result<Self> {
        let root = root.to_value();
        let raw = generator.take_definitions(true);
        let mut schema = Self {
            root: Dialect::new(&raw).rewrite(&root)?,
            definitions: BTreeMap::new(),
        };
        if let Some(metadata) = metadata {
            schema.identify(metadata);
        }
        define(&schema.root, &raw, &mut schema.definitions)?;
        Ok(schema)
    }

    /// Adds the fields by which an object says what it is.
    fn identify(&mut self, metadata: Value) {
        let fields = [
            (
                "apiVersion",
                text("Group and version of this representation of the object."),
            ),
            ("kind", text("The object's kind, in CamelCase.")),
            ("metadata", metadata),
        ];
        let properties = self
            .root
            .as_object_mut()
            .map(|root| root.entry("properties").or_insert(json!({})));
        if let Some(properties) = properties.and_then(Value::as_object_mut) {
            properties.extend(fields.map(|(name, schema)| (name.to_owned(), schema)));
        }
    }
}

fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12().into_generator()
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn described(metadata: schemars::Schema, description: &str) -> Value {
    let name = metadata
        .get("$ref")
        .and_then(Value::as_str)
        .unwrap_or_default();
    json!({ "$ref": name.trim_start_matches("#/$defs/"), "description": description })
}

/// Puts the types that `schema` refers to, and those that they refer to, into `definitions`.
fn define(
    schema: &Value,
    raw: &Map<String, Value>,
    definitions: &mut BTreeMap<String, Value>,
) -> Result<()> {
    for name in references(schema) {
        if definitions.contains_key(name) {
            continue;
        }
        let Some(definition) = raw.get(name) else {
            continue;
        };
        let mut rewritten = Dialect::new(raw).rewrite(definition)?;
        markers::mark(name, &mut rewritten);
        definitions.insert(name.to_owned(), rewritten.clone());
        define(&rewritten, raw, definitions)?;
    }
    Ok(())
}

/// Names of the types that a schema refers to.
fn references(schema: &Value) -> Vec<&str> {
    let own = schema.get("$ref").and_then(Value::as_str);
    let properties = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::values);
    let inner = [schema.get("items"), schema.get("additionalProperties")]
        .into_iter()
        .flatten();
    own.into_iter()
        .chain(properties.chain(inner).flat_map(references))
        .collect()
}
