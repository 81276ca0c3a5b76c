//! Server-side apply: an object made of what its manager wants of it, with what others own left alone.

use std::{sync::Arc, time::Duration};

use http::Response;
use serde_json::Value;

use super::{
    create::create_of,
    owners::at_endpoint,
    request::VerbRequest,
    reserved, scale,
    update::{self, Revised, TRIES, check_name},
};
use crate::{
    apiserver::{
        Body, Definition, Resource, Status, StatusCause, negotiate::Offer, options::WriteOptions,
    },
    managed::Error,
    meta::UnixTime,
    schema::{Decoded, decode_yaml},
    store::{self, Key, Store},
};

/// How long a create of somebody else is waited for at a time.
const CREATE_WAIT: Duration = Duration::from_secs(1);

pub(super) async fn apply<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let definition = resource.definition();
    let negotiated = request.negotiate(Offer::Plain)?;
    let options = WriteOptions::parse(&request.query, "PatchOptions")?;
    if request.query.get("fieldManager").is_none_or(str::is_empty) {
        let message = "Required value: is required for apply patch";
        return Err(Status::invalid_option(
            "PatchOptions",
            "fieldManager",
            message,
        ));
    }
    // JSON is YAML too.
    let mut config = decode_yaml(&request.body).map_err(|error| unreadable(&error))?;
    if !config.value.is_object() {
        return Err(unreadable(&"a configuration must be an object"));
    }
    if request.target.is_of_scale() {
        config.value =
            scale::configuration(definition, request, options.field_validation, config.value)?;
    }
    let applied = |live: Option<&Value>| {
        let force = request.query.flag("force");
        let manager = &request.context.field_manager;
        let mut config = config.value.clone();
        let known = live.unwrap_or(&Value::Null);
        reserved::refuse_applied(resource.as_ref(), request, known, &mut config);
        let live = live.map(|live| {
            let mut live = live.clone();
            reserved::strip(resource.as_ref(), &mut live);
            live
        });
        let applied = at_endpoint(resource.as_ref(), request, |endpoint| {
            endpoint.apply(live.as_ref(), &config, manager, force, UnixTime::now())
        });
        applied.map_err(|error| refused(&error))
    };
    let create = async || {
        check_new(definition, request, &config.value).await?;
        let decoded = Decoded {
            value: applied(None)?,
            duplicates: config.duplicates.clone(),
        };
        create_of(resource, request, decoded, &options, negotiated).await
    };
    let revise = |live: &Value| {
        Ok(Revised {
            object: applied(Some(live))?,
            duplicates: config.duplicates.clone(),
            applied: true,
        })
    };
    let key = request.key();
    // Whether it is there may change before the write; the next try then finds it so.
    for _ in 1..TRIES {
        let is_there = resource.store().get(&key.namespace, &key.name).is_some();
        let (answer, overtaken) = match is_there {
            false => (create().await, "AlreadyExists"),
            true => {
                let stored =
                    update::store(resource.as_ref(), request, &options, negotiated, revise);
                (stored.await, "NotFound")
            }
        };
        match answer {
            Err(status) if status.reason() == overtaken => {}
            answer => return answer,
        }
        if !is_there {
            appears(resource.store(), &key).await;
        }
    }
    create().await
}

/// Waits for the object that another request is creating, not for long: that create may fail.
async fn appears<V: store::Value>(store: &Store<V>, key: &Key) {
    let mut head_rx = store.subscribe();
    let appears = head_rx.wait_for(|_| store.get(&key.namespace, &key.name).is_some());
    let _ = tokio::time::timeout(CREATE_WAIT, appears).await;
}

fn unreadable(error: &dyn std::fmt::Display) -> Status {
    Status::bad_request(format!("error decoding patch: {error}"))
}

/// Whether the configuration may make an object that is not there.
async fn check_new(
    definition: &Definition,
    request: &VerbRequest,
    config: &Value,
) -> Result<(), Status> {
    let name = &request.target.name;
    if !request.target.subresource.is_empty() {
        return Err(Status::not_found(definition, name));
    }
    request.access.check_create(&request.target).await?;
    check_name(config, name)?;
    match config["metadata"]["uid"].as_str() {
        None | Some("") => Ok(()),
        Some(uid) => {
            let reason = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            Err(Status::conflict(definition, name, &reason))
        }
    }
}

fn refused(error: &Error) -> Status {
    match error {
        // kube-apiserver answers 500 to a configuration against the schema, though it is the client's mistake.
        Error::ObjectType(_) | Error::ManagedFields | Error::Untyped { .. } => {
            Status::bad_request(error.to_string())
        }
        Error::Owners(_) => Status::internal(error),
        Error::Conflicts(conflicts) => {
            let causes = conflicts.0.iter().map(|conflict| StatusCause {
                reason: "FieldManagerConflict".to_owned(),
                message: conflict.message(),
                field: conflict.field(),
            });
            Status::apply_conflict(conflicts, causes.collect())
        }
    }
}
