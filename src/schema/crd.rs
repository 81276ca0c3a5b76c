//! CustomResourceDefinitions from the same types: structural, so with every reference resolved.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Error, Result, TypeSchema, constraints};

/// A custom resource.
#[derive(Clone, Debug)]
pub struct CustomResource {
    /// API group.
    pub group: String,
    /// Kind, in CamelCase.
    pub kind: String,
    /// Name in paths.
    pub plural: String,
    /// Name of one object on the command line.
    pub singular: String,
    /// Abbreviations on the command line.
    pub short_names: Vec<String>,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Its versions; exactly one is stored.
    pub versions: Vec<CustomResourceVersion>,
}

/// One version of a custom resource.
#[derive(Clone, Debug)]
pub struct CustomResourceVersion {
    /// Name of the version.
    pub name: String,
    /// What its objects look like.
    pub schema: TypeSchema,
    /// What `kubectl get` shows beside the name.
    pub columns: Vec<PrinterColumn>,
    /// Whether `status` is written apart from the rest.
    pub status: bool,
    /// How the object is scaled.
    pub scale: Option<Scale>,
    /// Whether this is the version that is stored.
    pub stored: bool,
    /// A warning that clients of this version get; it is deprecated.
    pub deprecation_warning: Option<String>,
}

/// A column of a table.
#[derive(Clone, Debug)]
pub struct PrinterColumn {
    /// Header.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub kind: String,
    /// JSON path of the value from the object's root, beginning with a dot. It can name a value and not count.
    pub json_path: String,
    /// 0: always shown; above: with `-o wide`.
    pub priority: i32,
}

/// JSON paths of what the `scale` subresource reads and writes.
#[derive(Clone, Debug)]
pub struct Scale {
    /// The wanted number.
    pub spec_replicas: String,
    /// The number that there are.
    pub status_replicas: String,
    /// The label selector.
    pub label_selector: String,
}

impl CustomResource {
    /// The definition as an object of `apiextensions.k8s.io/v1`.
    ///
    /// # Errors
    /// When a version's type contains itself, which a structural schema cannot express.
    pub fn to_value(&self) -> Result<Value> {
        let versions = self
            .versions
            .iter()
            .map(CustomResourceVersion::to_value)
            .collect::<Result<Vec<_>>>()?;
        let mut names = json!({
            "kind": self.kind,
            "listKind": format!("{}List", self.kind),
            "plural": self.plural,
            "singular": self.singular,
        });
        if !self.short_names.is_empty() {
            names["shortNames"] = json!(self.short_names);
        }
        Ok(json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{}.{}", self.plural, self.group) },
            "spec": {
                "group": self.group,
                "names": names,
                "scope": if self.namespaced { "Namespaced" } else { "Cluster" },
                "versions": versions,
            },
        }))
    }

    /// The definition as a YAML document.
    ///
    /// # Errors
    /// As [`Self::to_value`].
    pub fn to_yaml(&self) -> Result<String> {
        Ok(serde_saphyr::to_string(&self.to_value()?)?)
    }
}

impl CustomResourceVersion {
    fn to_value(&self) -> Result<Value> {
        let columns: Vec<Value> = self.columns.iter().map(PrinterColumn::to_value).collect();
        let mut version = json!({
            "name": self.name,
            "served": true,
            "storage": self.stored,
            "schema": { "openAPIV3Schema": root(&self.schema)? },
        });
        if !columns.is_empty() {
            version["additionalPrinterColumns"] = columns.into();
        }
        if self.status {
            version["subresources"]["status"] = json!({});
        }
        if let Some(scale) = &self.scale {
            version["subresources"]["scale"] = json!({
                "specReplicasPath": scale.spec_replicas,
                "statusReplicasPath": scale.status_replicas,
                "labelSelectorPath": scale.label_selector,
            });
        }
        if let Some(warning) = &self.deprecation_warning {
            version["deprecated"] = json!(true);
            version["deprecationWarning"] = json!(warning);
        }
        Ok(version)
    }
}

impl PrinterColumn {
    fn to_value(&self) -> Value {
        let mut column =
            json!({ "name": self.name, "type": self.kind, "jsonPath": self.json_path });
        if self.priority != 0 {
            column["priority"] = json!(self.priority);
        }
        column
    }
}

/// The schema of whole objects. Their own metadata is the API server's, so a CRD says nothing of it.
fn root(schema: &TypeSchema) -> Result<Value> {
    let mut root = schema.root().clone();
    root["properties"]["metadata"] = json!({ "type": "object" });
    Inliner {
        definitions: schema.definitions(),
        open: Vec::new(),
    }
    .inline(&root)
}

struct Inliner<'a> {
    definitions: &'a BTreeMap<String, Value>,
    open: Vec<&'a str>,
}

impl Inliner<'_> {
    fn inline(&mut self, schema: &Value) -> Result<Value> {
        let Some(schema) = schema.as_object() else {
            return Ok(schema.clone());
        };
        let mut inlined = match schema.get("$ref").and_then(Value::as_str) {
            Some(name) => self.definition(name)?,
            None => Map::new(),
        };
        for (keyword, value) in schema.iter().filter(|(keyword, _)| is_structural(keyword)) {
            let value = match (keyword.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    let properties = properties.iter();
                    properties
                        .map(|(name, schema)| Ok((name.clone(), self.inline(schema)?)))
                        .collect::<Result<Value>>()?
                }
                ("items" | "additionalProperties", schema) => self.inline(schema)?,
                _ => value.clone(),
            };
            inlined.insert(keyword.clone(), value);
        }
        if inlined.contains_key("x-kubernetes-int-or-string") {
            inlined.insert(
                "anyOf".to_owned(),
                json!([{ "type": "integer" }, { "type": "string" }]),
            );
        }
        Ok(Value::Object(inlined))
    }

    fn definition(&mut self, name: &str) -> Result<Map<String, Value>> {
        let Some((name, definition)) = self.definitions.get_key_value(name) else {
            return Err(Error::UnknownType(name.to_owned()));
        };
        if self.open.contains(&name.as_str()) {
            return Err(Error::Recursive(name.clone()));
        }
        let mut definition = definition.clone();
        constraints::constrain(name, &mut definition);
        self.open.push(name);
        let inlined = self.inline(&definition)?;
        self.open.pop();
        Ok(inlined.as_object().cloned().unwrap_or_default())
    }
}

/// Whether a CRD may have the keyword: references are resolved, and strategic patches and unions are not for CRDs.
fn is_structural(keyword: &str) -> bool {
    !matches!(
        keyword,
        "$ref"
            | "x-kubernetes-patch-strategy"
            | "x-kubernetes-patch-merge-key"
            | "x-kubernetes-unions"
    )
}
