//! CREATE: everything that can refuse runs before the resource's own hook, which spends something.

use std::{collections::BTreeMap, sync::Arc};

use http::{Response, StatusCode};
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};

use super::{
    faults::{check_metadata, check_size, faults_of, judge},
    owners::track,
    request::VerbRequest,
    reserved,
};
use crate::{
    admission::{Denied, QuotaReservation, Wanted},
    apiserver::{
        Body, Create, Created, Definition, Resource, Status, StatusCause,
        body::{json_response, value_response},
        error::json_type,
        negotiate::{Negotiated, Offer},
        options::{FieldValidation, WriteOptions},
        resource::{PREFERRED, object_json},
    },
    meta::generate_name,
    schema::{Decoded, Verb, merge_equal_owners},
    store::Key,
};

/// Tries for a generated name that nobody has.
const NAME_TRIES: usize = 8;
/// Metadata that is the server's to set: what a client sends in it is dropped at a create, and gives way to what is stored at an
/// update.
pub(super) const SERVER_METADATA: [&str; 6] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "selfLink",
    "uid",
];

pub(super) async fn create<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let definition = resource.definition();
    let negotiated = request.negotiate(Offer::Plain)?;
    let options = WriteOptions::parse(&request.query, "CreateOptions")?;
    request.checked_namespace(definition)?;
    create_of(resource, request, request.decode()?, &options, negotiated).await
}

/// Creates the object that was sent, or that a configuration for one that is not there makes.
pub(super) async fn create_of<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
    sent: Decoded,
    options: &WriteOptions,
    negotiated: Negotiated,
) -> Result<Response<Body>, Status> {
    let definition = resource.definition();
    let namespace = request.checked_namespace(definition)?;
    let mut object = admit(definition, request, options.field_validation, sent)?;
    set_names(definition, request, &mut object)?;
    request
        .namespaces
        .check(namespace)
        .await
        .map_err(|denied| refuse(definition, name(&object), denied))?;
    let generated = name(&object).is_empty() && !generate_base(&object).is_empty();
    for tries in 1.. {
        if generated {
            object["metadata"]["name"] = generate_name(generate_base(&object)).into();
        }
        let create = validated(resource.as_ref(), request, &object)?;
        let taken = match attempt(resource.as_ref(), request, create, options.dry_run).await {
            Err(status) if generated && status.reason() == "AlreadyExists" => status,
            Err(status) => return Err(status),
            Ok(Answer::Would(object)) => {
                return Ok(value_response(
                    StatusCode::CREATED,
                    negotiated.media_type,
                    &object,
                ));
            }
            Ok(Answer::Did(created)) => {
                let json = created_json(resource.as_ref(), &created, request.version);
                return Ok(json_response(
                    StatusCode::CREATED,
                    negotiated.media_type,
                    json,
                ));
            }
        };
        if tries == NAME_TRIES {
            return Err(taken.retry_after(1));
        }
    }
    unreachable!("the last try returned")
}

enum Answer<O> {
    Would(Value),
    Did(Created<O>),
}

async fn attempt<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    create: Create,
    dry_run: bool,
) -> Result<Answer<R::Object>, Status> {
    let (definition, store) = (resource.definition(), resource.store());
    // Before the name is looked at, as in kube-apiserver.
    let context = &request.context;
    let quota = context
        .admit(definition.counted(), &create.key, Wanted::New, store)
        .map_err(|exceeded| {
            Status::over_quota(definition.counted(), &create.key.name, &exceeded)
        })?;
    if let Some(holder) = store.get(&create.key.namespace, &create.key.name) {
        return Err(match resource.is_deleted(&holder.value) {
            true => Status::being_deleted(definition, &create.key.name),
            false => Status::already_exists(definition, &create.key.name),
        });
    }
    if dry_run {
        let mut object = resource.preview(&create);
        resource.convert(&mut object, PREFERRED, request.version);
        return Ok(Answer::Would(object));
    }
    let create = Create { quota, ..create };
    resource.create(context, create).await.map(Answer::Did)
}

/// The body as an object of the request's version, unknown and duplicate fields dealt with as asked.
fn admit(
    definition: &Definition,
    request: &VerbRequest,
    validation: FieldValidation,
    sent: Decoded,
) -> Result<Value, Status> {
    let Decoded {
        value: mut object,
        duplicates,
    } = sent;
    check_type(definition, request, &object)?;
    let unknown = definition.versions[request.version]
        .schema
        .prune(&mut object);
    judge(request, definition.kind, validation, &duplicates, &unknown)?;
    Ok(object)
}

/// The object's own idea of what it is must be the path's.
pub(super) fn check_type(
    definition: &Definition,
    request: &VerbRequest,
    object: &Value,
) -> Result<(), Status> {
    let Value::Object(fields) = object else {
        return Err(Status::bad_request(format!(
            "the object provided is no JSON object but {}",
            json_type(object)
        )));
    };
    let expected = definition.api_version(request.version);
    for (field, name, expected) in [
        ("apiVersion", "API version", expected.as_str()),
        ("kind", "kind", definition.kind),
    ] {
        match fields.get(field) {
            None | Some(Value::Null) => {}
            Some(Value::String(found)) if found.is_empty() || found == expected => {}
            Some(found) => {
                let found = found
                    .as_str()
                    .map_or_else(|| found.to_string(), str::to_owned);
                return Err(Status::bad_request(format!(
                    "the {name} in the data ({found}) does not match the expected {name} ({expected})"
                )));
            }
        }
    }
    match fields.get("metadata") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(metadata)) => check_metadata(definition, request, metadata),
        Some(other) => Err(Status::bad_request(format!(
            "metadata must be an object, not {}",
            json_type(other)
        ))),
    }
}

/// Fills in what the path says and takes out what is the server's to say.
fn set_names(
    definition: &Definition,
    request: &VerbRequest,
    object: &mut Value,
) -> Result<(), Status> {
    let Value::Object(fields) = object else {
        return Ok(());
    };
    fields.insert(
        "apiVersion".to_owned(),
        definition.api_version(request.version).into(),
    );
    fields.insert("kind".to_owned(), definition.kind.into());
    fields.remove("status");
    if !fields.get("metadata").is_some_and(Value::is_object) {
        fields.insert("metadata".to_owned(), Value::Object(Map::new()));
    }
    let Some(Value::Object(metadata)) = fields.get_mut("metadata") else {
        return Ok(());
    };
    if metadata
        .get("resourceVersion")
        .and_then(Value::as_str)
        .is_some_and(|version| !version.is_empty())
    {
        return Err(Status::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    metadata.remove("resourceVersion");
    SERVER_METADATA
        .iter()
        .for_each(|field| drop(metadata.remove(*field)));
    if request.target.verb == Verb::Create {
        metadata.remove("managedFields");
    }
    if definition.namespaced {
        let namespace = request.target.namespace.as_str();
        match metadata
            .get("namespace")
            .and_then(Value::as_str)
            .unwrap_or_default()
        {
            found if found.is_empty() || found == namespace => {}
            _ => {
                return Err(namespace_mismatch());
            }
        }
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    for uid in merge_equal_owners(object) {
        request.context.warn(duplicate_owner(&uid));
    }
    Ok(())
}

/// The object with defaults, once nothing is wrong with it.
fn validated<R: Resource>(
    resource: &R,
    request: &VerbRequest,
    object: &Value,
) -> Result<Create, Status> {
    let definition = resource.definition();
    let mut object = object.clone();
    let schema = &definition.versions[request.version].schema;
    schema.default(&mut object);
    reserved::refuse(resource, request, &Value::Null, &mut object);
    // An apply has noted its owners already.
    if request.target.verb == Verb::Create {
        track(resource, request, None, &mut object);
    }
    let causes = faults_of(definition, request, &object)?;
    let name = name(&object).to_owned();
    if !causes.is_empty() {
        return Err(Status::invalid(
            definition.group,
            definition.kind,
            &name,
            causes,
        ));
    }
    let key = Key::new(request.target.namespace.as_str(), name);
    check_size(&object)?;
    resource.convert(&mut object, request.version, PREFERRED);
    let create = Create {
        key,
        object,
        quota: QuotaReservation::default(),
    };
    resource.validate_create(&create)?;
    Ok(create)
}

/// The created object, with what only this answer shows.
fn created_json<R: Resource>(
    resource: &R,
    created: &Created<R::Object>,
    version: usize,
) -> Vec<u8> {
    let json = object_json(resource, &created.object, version);
    if created.once.is_empty() {
        return json;
    }
    let with_once = || {
        let mut object: Fields<'_> = serde_json::from_slice(&json)?;
        let mut metadata = fields(&object, "metadata")?;
        let mut annotations = fields(&metadata, "annotations")?;
        let once = created.once.iter();
        let once = once.map(|(key, value)| Ok((key, to_raw_value(value)?)));
        let once: Vec<_> = once.collect::<serde_json::Result<_>>()?;
        annotations.extend(once.iter().map(|(key, value)| (key.to_string(), &**value)));
        let annotations = to_raw_value(&annotations)?;
        metadata.insert("annotations".into(), &annotations);
        let metadata = to_raw_value(&metadata)?;
        object.insert("metadata".into(), &metadata);
        serde_json::to_vec(&object)
    };
    with_once().expect("the machinery writes valid JSON")
}

/// An object whose values are left as they are written.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// The fields of the object in a field; none if it is absent.
fn fields<'a>(of: &Fields<'a>, name: &str) -> serde_json::Result<Fields<'a>> {
    let object = of.get(name).map_or("{}", |raw| raw.get());
    serde_json::from_str(object)
}

/// The Status for a namespace that takes no new objects.
pub(super) fn refuse(definition: &Definition, name: &str, denied: Denied) -> Status {
    match &denied {
        Denied::NotFound(namespace) => Status::other_not_found("namespaces", namespace),
        Denied::Terminating(namespace) => Status::forbidden(format!(
            "{} {name:?} is forbidden: {denied}",
            definition.qualified()
        ))
        .of(definition, name)
        .cause(StatusCause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        }),
        Denied::Unknown { .. } | Denied::Silent { .. } => {
            tracing::warn!(
                error = &denied as &dyn std::error::Error,
                "a create is refused"
            );
            Status::internal(&denied)
        }
    }
}

/// The warning for an owner reference that is there twice.
pub(super) fn duplicate_owner(uid: &str) -> String {
    format!(
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {uid}"
    )
}

pub(super) fn namespace_mismatch() -> Status {
    Status::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    )
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn generate_base(object: &Value) -> &str {
    object["metadata"]["generateName"]
        .as_str()
        .unwrap_or_default()
}
