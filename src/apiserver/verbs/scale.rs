//! The scale of an object: `autoscaling/v1` Scale, as autoscalers and `kubectl scale` ask for it.
//!
//! It shows `spec.replicas`, `status.replicas` and `status.selector`. A write to it is a write of the object with nothing else
//! changed, so that all checks of an update hold; who writes so owns the field at the subresource.
//!
//! Source: the scale subresource of custom resources.

use std::sync::{Arc, LazyLock};

use http::{Response, StatusCode};
use k8s_openapi::api::autoscaling::v1::Scale;
use serde_json::{Map, Value, json};

use super::{
    faults::{judge, unreadable},
    get::find,
    patch::{Change, refuse_force},
    request::VerbRequest,
    update::{Revised, store},
};
use crate::{
    apiserver::{
        Body, Definition, Resource, Status,
        body::value_response,
        negotiate::{Offer, is_apply},
        options::{FieldValidation, WriteOptions},
        resource::object_json,
    },
    schema::{Decoded, Schema, TypeSchema},
};

const API_VERSION: &str = "autoscaling/v1";
const KIND: &str = "Scale";
/// What a scale shows of the object's metadata.
const METADATA: [&str; 5] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
];
/// What a client may say of the object that it means. Absent: whatever it is.
const PRECONDITIONS: [&str; 3] = ["namespace", "uid", "resourceVersion"];

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let documented = TypeSchema::of::<Scale>();
    let compiled = documented.and_then(|documented| documented.compile());
    compiled.expect("Kubernetes' own type has a schema")
});

pub(super) async fn get<R: Resource>(
    resource: &R,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let negotiated = request.negotiate(Offer::Plain)?;
    let object = find(resource, request).await?;
    let json = object_json(resource, &object, request.version);
    let object = serde_json::from_slice(&json).expect("the machinery writes valid JSON");
    let scale = of(&object);
    Ok(value_response(
        StatusCode::OK,
        negotiated.media_type,
        &scale,
    ))
}

pub(super) async fn update<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let negotiated = request.negotiate(Offer::Plain)?;
    let options = WriteOptions::parse(&request.query, "UpdateOptions")?;
    let decoded = request.decode()?;
    let revise = |old: &Value| scaled(request, options.field_validation, old, decoded.clone());
    store(resource.as_ref(), request, &options, negotiated, revise).await
}

/// A patch of the scale. A configuration to apply is one of the object, see [`configuration`].
pub(super) async fn patch<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    if is_apply(&request.headers) {
        return super::apply::apply(resource, request).await;
    }
    let negotiated = request.negotiate(Offer::Plain)?;
    let change = Change::read(request)?;
    let options = WriteOptions::parse(&request.query, "PatchOptions")?;
    refuse_force(request)?;
    let revise = |old: &Value| {
        let Revised {
            object: value,
            duplicates,
            ..
        } = change.apply(&of(old))?;
        let decoded = Decoded { value, duplicates };
        scaled(request, options.field_validation, old, decoded)
    };
    store(resource.as_ref(), request, &options, negotiated, revise).await
}

/// The scale of an object.
pub(super) fn of(object: &Value) -> Value {
    let metadata: Map<_, _> = METADATA
        .into_iter()
        .filter_map(|field| Some((field.to_owned(), object["metadata"].get(field)?.clone())))
        .collect();
    let replicas = |part: &str| object[part]["replicas"].as_i64().unwrap_or(0);
    let mut status = json!({"replicas": replicas("status")});
    if let Some(selector) = object["status"].get("selector") {
        status["selector"] = selector.clone();
    }
    json!({
        "kind": KIND,
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "spec": {"replicas": replicas("spec")},
        "status": status,
    })
}

/// The object as it becomes with the scale that a client wants.
fn scaled(
    request: &VerbRequest,
    validation: FieldValidation,
    old: &Value,
    scale: Decoded,
) -> Result<Revised, Status> {
    let Decoded {
        value: mut scale,
        duplicates,
    } = scale;
    let unknown = admitted(request, &mut scale)?;
    judge(request, KIND, validation, &duplicates, &unknown)?;
    let mut object = old.clone();
    // In Go's JSON none is the same as absent.
    object["spec"]["replicas"] = scale["spec"]["replicas"].as_i64().unwrap_or(0).into();
    object["metadata"]["name"] = scale["metadata"]["name"].clone();
    for field in PRECONDITIONS {
        if let Some(said) = scale["metadata"][field]
            .as_str()
            .filter(|said| !said.is_empty())
        {
            object["metadata"][field] = said.into();
        }
    }
    Ok(Revised {
        object,
        duplicates: Vec::new(),
        applied: false,
    })
}

/// The configuration of an object that one of its scale stands for.
///
/// # Errors
/// 400 for what is no scale.
pub(super) fn configuration(
    definition: &Definition,
    request: &VerbRequest,
    validation: FieldValidation,
    mut scale: Value,
) -> Result<Value, Status> {
    let unknown = admitted(request, &mut scale)?;
    judge(request, KIND, validation, &[], &unknown)?;
    let mut config = json!({"metadata": scale["metadata"]});
    // A configuration without a type is none of an object either.
    if scale["apiVersion"].is_string() && scale["kind"].is_string() {
        config["apiVersion"] = definition.api_version(request.version).into();
        config["kind"] = definition.kind.into();
    }
    if let Some(replicas) = scale["spec"].get("replicas") {
        config["spec"] = json!({"replicas": replicas});
    }
    Ok(config)
}

/// Checks that a body is a scale, and gives the fields that it has beside.
fn admitted(request: &VerbRequest, scale: &mut Value) -> Result<Vec<String>, Status> {
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = scale[field].as_str().unwrap_or_default();
        if !found.is_empty() && found != expected {
            let found: String = found.chars().take(128).collect();
            return Err(Status::bad_request(format!(
                "the {field} in the data ({found}) does not match the expected {field} ({expected})"
            )));
        }
    }
    let report = SCHEMA.admit(scale);
    match report.causes.first() {
        Some(cause) => Err(unreadable(request, KIND, &cause.to_string())),
        None => Ok(report.unknown),
    }
}
