//! DELETE of one object.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{get::json_response, request::VerbRequest};
use crate::{
    apiserver::{
        Body, Definition, Deleted, Dependents, Resource, Status, StatusCause, body::value_response,
        negotiate::Offer, query::dry_run, resource::object_json,
    },
    store::{Stored, Value as _},
};

/// `metav1.DeleteOptions`, as far as they matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeleteOptions {
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
    pub(super) dry_run: bool,
    pub(super) dependents: Dependents,
}

pub(super) async fn delete<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let definition = resource.definition();
    let negotiated = request.negotiate(Offer::Plain)?;
    let options = DeleteOptions::parse(definition, request)?;
    let key = request.key();
    let found = resource.store().get(&key.namespace, &key.name);
    let object = found.ok_or_else(|| Status::not_found(definition, &key.name))?;
    options.check(resource.as_ref(), &object)?;
    if options.dry_run {
        let success = success(resource.as_ref(), &object);
        return Ok(value_response(
            StatusCode::OK,
            negotiated.media_type,
            &success,
        ));
    }
    match resource
        .delete(&request.context, object, options.dependents)
        .await?
    {
        Deleted::Gone(last) => Ok(value_response(
            StatusCode::OK,
            negotiated.media_type,
            &success(resource.as_ref(), &last),
        )),
        Deleted::Pending(object) => {
            let json = object_json(resource.as_ref(), &object, request.version);
            Ok(json_response(StatusCode::OK, negotiated.media_type, json))
        }
    }
}

/// The Status of a deletion that is done; clients wait on the uid in it.
fn success<R: Resource>(resource: &R, object: &Stored<R::Object>) -> Value {
    let definition = resource.definition();
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": object.value.name(),
            "group": definition.group,
            "kind": definition.plural,
            "uid": resource.uid(&object.value),
        },
    })
}

impl DeleteOptions {
    /// Reads the options from the body, or from the query when there is none.
    ///
    /// # Errors
    /// 400 for a body that is no DeleteOptions, 422 for values that are none.
    pub(super) fn parse(definition: &Definition, request: &VerbRequest) -> Result<Self, Status> {
        if request.body.is_empty() {
            let dry_run = dry_run(request.query.all("dryRun"))
                .map_err(|message| invalid("dryRun", message))?;
            let policy = request.query.get("propagationPolicy").unwrap_or_default();
            let orphan = request
                .query
                .get("orphanDependents")
                .map(|_| request.query.flag("orphanDependents"));
            let dependents = dependents(policy, orphan)?;
            return Ok(Self {
                dry_run,
                dependents,
                ..Self::default()
            });
        }
        let options = request.decode()?.value;
        if !options.is_object() {
            return Err(Status::bad_request(
                "the body of a delete must be DeleteOptions",
            ));
        }
        check_options_type(definition, &options)?;
        let dry_run_values = options["dryRun"].as_array().into_iter().flatten();
        let dry_run = dry_run(dry_run_values.map(|value| value.as_str().unwrap_or("?")));
        let policy = options["propagationPolicy"].as_str().unwrap_or_default();
        let dependents = dependents(policy, options["orphanDependents"].as_bool())?;
        let precondition = |field: &str| match &options["preconditions"][field] {
            Value::Null => Ok(None),
            Value::String(value) => Ok(Some(value.clone())),
            _ => Err(Status::bad_request(format!(
                "preconditions.{field} must be a string"
            ))),
        };
        Ok(Self {
            uid: precondition("uid")?,
            resource_version: precondition("resourceVersion")?,
            dry_run: dry_run.map_err(|message| invalid("dryRun", message))?,
            dependents,
        })
    }

    /// Refuses an object that is not the one the client means.
    ///
    /// # Errors
    /// 409 for another uid or another version.
    pub(super) fn check<R: Resource>(
        &self,
        resource: &R,
        object: &Stored<R::Object>,
    ) -> Result<(), Status> {
        let conflict = |field: &str, wanted: &str, found: String| {
            let reason = format!(
                "Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"
            );
            Err(Status::conflict(
                resource.definition(),
                object.value.name(),
                &reason,
            ))
        };
        let uid = resource.uid(&object.value);
        match (&self.uid, &self.resource_version) {
            (Some(wanted), _) if *wanted != uid => conflict("UID", wanted, uid),
            (_, Some(wanted)) if *wanted != object.version.to_string() => {
                conflict("ResourceVersion", wanted, object.version.to_string())
            }
            _ => Ok(()),
        }
    }
}

fn check_options_type(definition: &Definition, options: &Value) -> Result<(), Status> {
    let api_version = options["apiVersion"].as_str().unwrap_or_default();
    let own = (0..definition.versions.len())
        .any(|version| definition.api_version(version) == api_version);
    if !own && !matches!(api_version, "" | "v1" | "meta.k8s.io/v1") {
        return Err(Status::bad_request(format!(
            "no kind \"DeleteOptions\" is registered for version {api_version:?}"
        )));
    }
    match options["kind"].as_str() {
        None | Some("" | "DeleteOptions") => Ok(()),
        Some(kind) => Err(Status::bad_request(format!(
            "the body of a delete must be DeleteOptions, not {kind:?}"
        ))),
    }
}

/// What becomes of dependents, from the policy or its older form.
fn dependents(policy: &str, orphan: Option<bool>) -> Result<Dependents, Status> {
    match (policy, orphan) {
        ("", Some(true)) => Ok(Dependents::Orphan),
        ("" | "Background", None) | ("", Some(false)) => Ok(Dependents::Background),
        ("Foreground", None) => Ok(Dependents::Foreground),
        ("Orphan", None) => Ok(Dependents::Orphan),
        (_, Some(_)) => Err(invalid(
            "propagationPolicy",
            "Invalid value: orphanDependents and deletionPropagation cannot be both set".to_owned(),
        )),
        (other, None) => {
            let other: String = other.chars().take(64).collect();
            let message = format!(
                "Unsupported value: {other:?}: supported values: \"Background\", \"Foreground\", \"Orphan\""
            );
            Err(invalid("propagationPolicy", message))
        }
    }
}

fn invalid(field: &str, message: String) -> Status {
    let reason = if message.starts_with("Unsupported") {
        "FieldValueNotSupported"
    } else {
        "FieldValueInvalid"
    };
    let cause = StatusCause {
        reason: reason.to_owned(),
        message,
        field: field.to_owned(),
    };
    Status::invalid("meta.k8s.io", "DeleteOptions", "", vec![cause])
}
