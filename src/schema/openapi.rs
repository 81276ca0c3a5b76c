//! OpenAPI documents of resources: version 3 for each group and version, version 2 for a whole server.
//!
//! Written once and served as bytes. A PodSpec with everything it refers to is most of a document, so building one takes
//! milliseconds: callers build at start or at the first request, never at each.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Patch, Status};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};

use super::{
    ObjectDoc, ResourceDoc, Result, TypeSchema,
    definitions::{Form, definition},
    operations::{self, PathItem},
    paths::{path_item_v2, path_item_v3},
};

/// A document ready to be served.
#[derive(Clone, Debug)]
pub struct Document {
    /// The document, JSON.
    pub body: Bytes,
    /// SHA-512 of the body in upper-case hexadecimal: entity tag, and the `hash` in a versioned URL.
    pub hash: Arc<str>,
}

/// Who serves the document.
#[derive(Clone, Copy, Debug)]
pub struct Info<'a> {
    /// Name of the server.
    pub title: &'a str,
    /// Its version.
    pub version: &'a str,
}

/// The OpenAPI 3 document of `resources`, which are those of one group and version.
///
/// # Errors
/// When a type of Kubernetes has no schema in its dialect, which no caller can cause.
pub fn openapi_v3(info: Info<'_>, resources: &[ResourceDoc]) -> Result<Document> {
    let document = json!({
        "openapi": "3.0.0",
        "info": { "title": info.title, "version": info.version },
        "paths": paths(resources, path_item_v3),
        "components": { "schemas": definitions(resources, Form::V3)? },
    });
    Ok(Document::new(&document))
}

/// The Swagger 2.0 document of `resources`: all of the server's, of every group and version.
///
/// Definitions carry no defaults, like those of the API server itself, with which they are merged by name.
///
/// # Errors
/// As [`openapi_v3`].
pub fn openapi_v2(info: Info<'_>, resources: &[ResourceDoc]) -> Result<Document> {
    let document = json!({
        "swagger": "2.0",
        "info": { "title": info.title, "version": info.version },
        "paths": paths(resources, path_item_v2),
        "definitions": definitions(resources, Form::V2)?,
    });
    Ok(Document::new(&document))
}

impl Document {
    fn new(document: &Value) -> Self {
        let body = Bytes::from(document.to_string());
        let mut hash = String::with_capacity(128);
        for byte in Sha512::digest(&body) {
            // Writing to a String cannot fail.
            let _ = write!(hash, "{byte:02X}");
        }
        Self {
            body,
            hash: hash.into(),
        }
    }
}

fn definitions(resources: &[ResourceDoc], form: Form) -> Result<Map<String, Value>> {
    let mut types = Types {
        form,
        written: BTreeMap::new(),
    };
    for resource in resources {
        types.add_resource(resource)?;
    }
    let object = |kind: &str, schema| ObjectDoc {
        group: String::new(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        schema: Arc::new(schema),
    };
    types.add_object(&object("Status", TypeSchema::of::<Status>()?));
    types.add_object(&object("DeleteOptions", TypeSchema::of::<DeleteOptions>()?));
    if resources
        .iter()
        .any(|resource| !resource.patch_types.is_empty())
    {
        types.add_definitions(&TypeSchema::of::<Patch>()?);
    }
    Ok(types.written.into_iter().collect())
}

/// The definitions of a document as far as they are written.
struct Types {
    form: Form,
    written: BTreeMap<String, Value>,
}

impl Types {
    fn add_resource(&mut self, resource: &ResourceDoc) -> Result<()> {
        self.add_object(&resource.object);
        self.add_object(&resource.object.list()?);
        for operation in resource
            .subresources
            .iter()
            .flat_map(|subresource| &subresource.operations)
        {
            operation
                .request
                .iter()
                .chain([&operation.response])
                .for_each(|object| self.add_object(object));
        }
        Ok(())
    }

    /// Writes a top-level type, which says what kinds it stands for, and what it refers to.
    fn add_object(&mut self, object: &ObjectDoc) {
        let name = object.definition_name();
        if !self.written.contains_key(&name) {
            self.add_definitions(&object.schema);
            let root = definition(&name, object.schema.root(), self.form);
            self.written.entry(name.clone()).or_insert(root);
        }
        let kinds = self
            .written
            .get_mut(&name)
            .map(|written| &mut written["x-kubernetes-group-version-kind"]);
        if let Some(kinds) = kinds {
            let kind = object.group_version_kind();
            match kinds {
                Value::Array(kinds) if kinds.contains(&kind) => {}
                Value::Array(kinds) => kinds.push(kind),
                other => *other = json!([kind]),
            }
        }
    }

    fn add_definitions(&mut self, schema: &TypeSchema) {
        for (name, written) in schema.definitions() {
            if !self.written.contains_key(name) {
                self.written
                    .insert(name.clone(), definition(name, written, self.form));
            }
        }
    }
}

fn paths(resources: &[ResourceDoc], write: fn(&PathItem) -> Value) -> Map<String, Value> {
    let items = resources.iter().flat_map(operations::path_items);
    items
        .map(|item| (item.path.clone(), write(&item)))
        .collect()
}
