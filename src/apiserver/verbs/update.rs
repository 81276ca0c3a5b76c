//! UPDATE and PATCH: a new object made from the one that is there, checked, and stored if it differs.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::Value;

use super::{
    create::{SERVER_METADATA, check_type, namespace_mismatch},
    faults::{check_size, faults_of, judge},
    owners::track,
    request::VerbRequest,
    reserved, scale,
};
use crate::{
    apiserver::{
        Body, Definition, NotUpdated, Resource, Status, StatusCause, Update,
        body::{json_response, value_response},
        negotiate::{Negotiated, Offer},
        options::WriteOptions,
        resource::{PREFERRED, object_json},
    },
    managed::keep_times,
    schema::{Decoded, Verb, merge_equal_owners},
    store::Stored,
};

/// Tries at an update that others overtake. Each overtaking is somebody's success, so this is never reached in peace.
pub(super) const TRIES: usize = 5;

/// A new object, as its client wants it, and what was wrong with its text.
pub(super) struct Revised {
    pub(super) object: Value,
    pub(super) duplicates: Vec<String>,
    /// Whether it is the outcome of an apply, which has noted its owners already.
    pub(super) applied: bool,
}

pub(super) async fn update<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let definition = resource.definition();
    let negotiated = request.negotiate(Offer::Plain)?;
    let options = WriteOptions::parse(&request.query, "UpdateOptions")?;
    let Decoded { value, duplicates } = request.decode()?;
    check_type(definition, request, &value)?;
    if version_of(&value).is_empty() {
        let message = "Invalid value: 0: must be specified for an update";
        let cause = StatusCause::of_field("metadata.resourceVersion", message);
        return Err(Status::invalid(
            definition.group,
            definition.kind,
            &request.target.name,
            vec![cause],
        ));
    }
    let revise = |_: &Value| {
        Ok(Revised {
            object: value.clone(),
            duplicates: duplicates.clone(),
            applied: false,
        })
    };
    store(resource.as_ref(), request, &options, negotiated, revise).await
}

/// Stores what `revise` makes of the object, again if another write comes between, unless the client named the version that
/// it means.
pub(super) async fn store<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    options: &WriteOptions,
    negotiated: Negotiated,
    revise: impl Fn(&Value) -> Result<Revised, Status>,
) -> Result<Response<Body>, Status> {
    let definition = resource.definition();
    let key = request.key();
    for _ in 0..TRIES {
        let found = resource.store().get(&key.namespace, &key.name);
        let old = found.ok_or_else(|| Status::not_found(definition, &key.name))?;
        let (old_json, new_json) = revised(resource, request, options, &old, &revise)?;
        if old_json == new_json {
            return Ok(stored(resource, request, negotiated, &old));
        }
        let answer = options.dry_run.then(|| new_json.clone());
        let preferred = |mut object: Value| {
            resource.convert(&mut object, request.version, PREFERRED);
            object
        };
        let update = Update {
            old,
            old_json: preferred(old_json),
            new_json: preferred(new_json),
        };
        resource.validate_update(&update)?;
        if let Some(answer) = answer {
            return Ok(shown(request, negotiated, answer));
        }
        match resource.update(&request.context, update).await {
            Ok(object) => return Ok(stored(resource, request, negotiated, &object)),
            Err(NotUpdated::Overtaken) => {}
            Err(NotUpdated::Refused(status)) => return Err(status),
        }
    }
    Err(modified(definition, &key.name))
}

fn stored<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    negotiated: Negotiated,
    object: &Stored<R::Object>,
) -> Response<Body> {
    let json = object_json(resource, object, request.version);
    if request.target.is_of_scale() {
        let object = serde_json::from_slice(&json).expect("the machinery writes valid JSON");
        return shown(request, negotiated, object);
    }
    json_response(StatusCode::OK, negotiated.media_type, json)
}

/// An object, or what the request is about of it.
fn shown(request: &VerbRequest, negotiated: Negotiated, object: Value) -> Response<Body> {
    let shown = match request.target.is_of_scale() {
        true => scale::of(&object),
        false => object,
    };
    value_response(StatusCode::OK, negotiated.media_type, &shown)
}

/// The object and what `revise` makes of it, in the request's version, with everything checked that is the same for all
/// resources.
fn revised<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    options: &WriteOptions,
    old: &Stored<R::Object>,
    revise: impl Fn(&Value) -> Result<Revised, Status>,
) -> Result<(Value, Value), Status> {
    let definition = resource.definition();
    let old_json = serde_json::from_slice(&object_json(resource, old, request.version))
        .expect("the machinery writes valid JSON");
    let Revised {
        object: mut new_json,
        duplicates,
        applied,
    } = revise(&old_json)?;
    check_type(definition, request, &new_json)?;
    check_identity(definition, request, &old_json, &new_json)?;
    let schema = &definition.versions[request.version].schema;
    let unknown = schema.prune(&mut new_json);
    let validation = options.field_validation;
    judge(request, definition.kind, validation, &duplicates, &unknown)?;
    if request.target.is_of_status() {
        if new_json["status"] != old_json["status"] {
            request
                .context
                .warn("status: dropped, the server alone knows it");
        }
        // What remains of the request is what it checks: the object, its version, its fields.
        new_json = old_json.clone();
    }
    let mut causes = immutable(request, &old_json, &new_json);
    keep(&old_json, &mut new_json);
    for uid in merge_equal_owners(&mut new_json) {
        request.context.warn(super::create::duplicate_owner(&uid));
    }
    reserved::refuse(resource, request, &old_json, &mut new_json);
    schema.default(&mut new_json);
    if !applied && !request.target.is_of_status() {
        let mut old_json = old_json.clone();
        reserved::strip(resource, &mut old_json);
        track(resource, request, Some(&old_json), &mut new_json);
    }
    causes.extend(faults_of(definition, request, &new_json)?);
    causes.extend(new_finalizers(&old_json, &new_json));
    reserved::restore(resource, &old_json, &mut new_json);
    keep_times(&old_json, &mut new_json);
    if new_json["spec"] != old_json["spec"] {
        let generation = old_json["metadata"]["generation"].as_i64().unwrap_or(0);
        new_json["metadata"]["generation"] = (generation + 1).into();
    }
    if !causes.is_empty() {
        return Err(Status::invalid(
            definition.group,
            definition.kind,
            &request.target.name,
            causes,
        ));
    }
    check_size(&new_json)?;
    Ok((old_json, new_json))
}

/// The new object must be the old one: the same name, uid, and version if it names one.
fn check_identity(
    definition: &Definition,
    request: &VerbRequest,
    old: &Value,
    new: &Value,
) -> Result<(), Status> {
    let text = |field: &str| new["metadata"][field].as_str().unwrap_or_default();
    let name = request.target.name.as_str();
    check_name(new, name)?;
    let namespace = request.target.namespace.as_str();
    if !matches!(text("namespace"), "") && text("namespace") != namespace {
        return Err(namespace_mismatch());
    }
    let (uid, old_uid) = (
        text("uid"),
        old["metadata"]["uid"].as_str().unwrap_or_default(),
    );
    // A patch has no preconditions: there the uid is a field as others are, see `immutable`.
    if request.target.verb == Verb::Update && !uid.is_empty() && uid != old_uid {
        let reason = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {old_uid}"
        );
        return Err(Status::conflict(definition, name, &reason));
    }
    let version = version_of(new);
    if !version.is_empty() && version != version_of(old) {
        return Err(modified(definition, name));
    }
    Ok(())
}

/// Refuses an object of another name than the path's.
pub(super) fn check_name(object: &Value, expected: &str) -> Result<(), Status> {
    match object["metadata"]["name"].as_str().unwrap_or_default() {
        name if name == expected => Ok(()),
        "" => Err(Status::bad_request(format!(
            "the name of the object ({expected} based on URL) was undeterminable: name must be provided"
        ))),
        name => Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({expected})"
        ))),
    }
}

fn version_of(object: &Value) -> &str {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
}

fn modified(definition: &Definition, name: &str) -> Status {
    let reason = "the object has been modified; please apply your changes to the latest version and try again";
    Status::conflict(definition, name, reason)
}

/// What a client sends to change that cannot change, and is not just put back: it would be told that it had what it asked for.
fn immutable(request: &VerbRequest, old: &Value, new: &Value) -> Vec<StatusCause> {
    let (old, new) = (&old["metadata"], &new["metadata"]);
    let is_other = |field: &str| match &new[field] {
        Value::Null => false,
        Value::String(text) if text.is_empty() => false,
        value => *value != old[field],
    };
    let begins = |field: &str| old[field].is_null() && is_other(field);
    let faults = [
        ("uid", request.target.verb == Verb::Patch && is_other("uid")),
        ("deletionTimestamp", begins("deletionTimestamp")),
        (
            "deletionGracePeriodSeconds",
            begins("deletionGracePeriodSeconds"),
        ),
    ];
    let faults = faults.into_iter().filter(|(_, is_fault)| *is_fault);
    faults
        .map(|(field, _)| immutable_field(field, &new[field]))
        .collect()
}

/// The fault of a field of metadata that keeps its value for the object's life.
fn immutable_field(field: &str, sent: &Value) -> StatusCause {
    StatusCause::of_field(
        format!("metadata.{field}"),
        format!("Invalid value: {sent}: field is immutable"),
    )
}

/// Puts back what an update cannot change.
fn keep(old: &Value, new: &mut Value) {
    let Value::Object(fields) = new else { return };
    match old.get("status") {
        Some(status) => fields.insert("status".to_owned(), status.clone()),
        None => fields.remove("status"),
    };
    for field in ["apiVersion", "kind"] {
        fields.insert(field.to_owned(), old[field].clone());
    }
    let Some(Value::Object(metadata)) = fields.get_mut("metadata") else {
        return;
    };
    for field in SERVER_METADATA
        .into_iter()
        .chain(["resourceVersion", "namespace"])
    {
        match old["metadata"].get(field) {
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.remove(field),
        };
    }
}

/// An object that is being deleted takes no new finalizers: nobody would know to act on them.
fn new_finalizers(old: &Value, new: &Value) -> Option<StatusCause> {
    old["metadata"].get("deletionTimestamp")?;
    let listed = |object: &Value| {
        object["metadata"]["finalizers"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let known = listed(old);
    let added: Vec<_> = listed(new)
        .into_iter()
        .filter(|finalizer| !known.contains(finalizer))
        .collect();
    (!added.is_empty()).then(|| {
        let message = format!(
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {}",
            Value::from(added)
        );
        StatusCause::of_field("metadata.finalizers", message)
    })
}
