//! A Sandbox that a client sent, made into what the gateway can claim.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;

use super::Sandboxes;
use crate::{
    api::{PoolKey, PoolKeySource, SandboxKey, ShutdownPolicy, UserPart, labels, pool_key_for},
    apiserver::{Context, Create, Definition, Status, StatusCause},
    fleet::Sandbox,
    gateway::{ClaimOrder, Kept},
    meta::UnixTime,
    snapshots::{Snapshot, Whole},
    store::Stored,
};

/// The longest lease that can be asked for, in seconds; a daemon that counts in 32 bits would overflow beyond it.
const MAX_TTL_SECONDS: u64 = i32::MAX as u64;
/// How far a node's clock may be behind before a lease is taken for shorter than it was asked for.
const CLOCKS_APART: Duration = Duration::from_secs(60);

/// The order that `create` is, as of `now`.
///
/// # Errors
/// 422 with the field at fault: no pool can be told, the end lies in the past, a lease that is no number, no such snapshot.
pub(super) fn order(
    sandboxes: &Sandboxes,
    create: &Create,
    now: UnixTime,
) -> Result<ClaimOrder, Status> {
    let object = &create.object;
    let annotations = texts(&object["metadata"]["annotations"]);
    let source = PoolKeySource {
        annotations: &annotations,
        pod_template: &object["spec"]["podTemplate"],
    };
    let mut causes = Vec::new();
    let snapshot = snapshot(sandboxes, create, &annotations)?;
    let pool = match &snapshot {
        Some(snapshot) => Some(PoolKey::clone(&snapshot.pool)),
        None => pool_key_for(source)
            .map_err(|error| causes.push(invalid(&error.field, &error.reason)))
            .ok(),
    };
    let shutdown_time = shutdown_time(object);
    if shutdown_time.is_some_and(|time| time <= now) {
        causes.push(invalid("spec.shutdownTime", "must be in the future"));
    }
    let ttl = match shutdown_time {
        Some(time) => Some(time.since(now)),
        None => lease(&annotations).unwrap_or_else(|cause| {
            causes.push(cause);
            None
        }),
    };
    causes.extend(unsupported(object));
    match pool {
        Some(pool) if causes.is_empty() => Ok(ClaimOrder {
            key: SandboxKey::new(create.key.namespace.clone(), create.key.name.clone()),
            pool,
            snapshot,
            ttl,
            user: Arc::new(user_part(object)),
        }),
        _ => Err(Status::invalid(
            sandboxes.definition.group,
            sandboxes.definition.kind,
            &create.key.name,
            causes,
        )),
    }
}

/// Tells the client that what it says of a sandbox may be forgotten, if the object would be another one then.
pub(super) fn warn_of_loss(
    sandboxes: &Sandboxes,
    context: &Context,
    stored: &Stored<Sandbox>,
    kept: Kept,
) {
    let reason = match kept {
        Kept::Durably => return,
        Kept::InMemory => "the node runs no agent",
        Kept::Unconfirmed => "the node's agent did not confirm",
        Kept::Remnant => {
            return context.warn("the sandbox is gone from its node: this object does not survive a restart of this server");
        }
    };
    let user = stored.value.user.as_deref();
    let forgotten = || Sandbox {
        user: None,
        ..stored.value.clone()
    };
    let shown = |sandbox| sandboxes.text(sandbox, stored.version);
    // Owners show, and nearly all objects have some.
    let has_owners = user.is_some_and(|user| !user.managed_fields.is_empty());
    if !has_owners && shown(&stored.value) == shown(&forgotten()) {
        return;
    }
    context.warn(format!("{reason}: what this object says beside its node's facts may not survive a restart of this server"));
}

/// Tells the client when a sandbox without a shutdown time ends, if it did not say so itself or gets less than it asked for.
pub(super) fn warn_of_end(context: &Context, asked: Option<Duration>, deadline: UnixTime) {
    match asked {
        None => context.warn(format!(
            "spec.shutdownTime is not set: the sandbox ends with its lease, at {deadline}"
        )),
        Some(asked) if deadline.after(CLOCKS_APART) < UnixTime::now().after(asked) => {
            let key = labels::TTL_SECONDS;
            context.warn(format!(
                "metadata.annotations[{key}]: the node grants no such lease: the sandbox ends at {deadline}; spec.shutdownTime may be later"
            ));
        }
        Some(_) => {}
    }
}

/// What is kept of the object as its user's part.
pub(super) fn user_part(object: &Value) -> UserPart {
    let metadata = &object["metadata"];
    let mut spec = object["spec"].clone();
    let policy = match spec["shutdownPolicy"].as_str() {
        Some("Delete") => ShutdownPolicy::Delete,
        _ => ShutdownPolicy::Retain,
    };
    if let Value::Object(fields) = &mut spec {
        fields.remove("operatingMode");
    }
    let own = |pairs: BTreeMap<String, String>| {
        pairs
            .into_iter()
            .filter(|(key, _)| !labels::is_reserved(key))
    };
    let is_deleted = metadata["deletionTimestamp"].is_string();
    UserPart {
        labels: own(texts(&metadata["labels"]))
            .map(|(key, value)| (key.into(), value.into()))
            .collect(),
        annotations: own(texts(&metadata["annotations"]))
            .map(|(key, value)| (key.into(), value.into()))
            .collect(),
        owner_references: json_list(&metadata["ownerReferences"]),
        finalizers: metadata["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .filter(|finalizer| !labels::is_reserved(finalizer))
            .map(Into::into)
            .collect(),
        managed_fields: json_list(&metadata["managedFields"]),
        generate_name: metadata["generateName"].as_str().unwrap_or_default().into(),
        generation: metadata["generation"].as_i64().unwrap_or(1) - i64::from(is_deleted),
        shutdown_time: shutdown_time(object),
        shutdown_policy: policy,
        spec: json(&spec),
    }
}

fn lease(annotations: &BTreeMap<String, String>) -> Result<Option<Duration>, StatusCause> {
    let Some(text) = annotations.get(labels::TTL_SECONDS) else {
        return Ok(None);
    };
    match text.parse::<u64>() {
        Ok(seconds) if (1..=MAX_TTL_SECONDS).contains(&seconds) => {
            Ok(Some(Duration::from_secs(seconds)))
        }
        _ => Err(invalid(
            &format!("metadata.annotations[{}]", labels::TTL_SECONDS),
            &format!("must be a number of seconds from 1 to {MAX_TTL_SECONDS}"),
        )),
    }
}

/// What is refused because it would be promised and not kept.
fn unsupported(object: &Value) -> Vec<StatusCause> {
    let mut causes = Vec::new();
    let mut forbid = |field: &str, reason: &str| {
        causes.push(StatusCause {
            reason: "FieldValueForbidden".to_owned(),
            message: format!("Forbidden: {reason}"),
            field: field.to_owned(),
        });
    };
    if object["spec"]["operatingMode"] == "Suspended" {
        forbid(
            "spec.operatingMode",
            "a sandbox starts running; pause it afterwards",
        );
    }
    causes
}

/// The snapshot that the object is to start from, if it names one.
fn snapshot(
    sandboxes: &Sandboxes,
    create: &Create,
    annotations: &BTreeMap<String, String>,
) -> Result<Option<Snapshot>, Status> {
    let Some(name) = annotations.get(labels::SNAPSHOT) else {
        return Ok(None);
    };
    let snapshots = sandboxes.gateway.snapshots();
    if let Some(found) = snapshots.store().get(&create.key.namespace, name) {
        return Ok(Some(found.value.clone()));
    }
    if snapshots.whole() != Whole::Yes {
        let text = "some nodes have not told their snapshots yet";
        return Err(Status::unavailable(text).retry_after(1));
    }
    let shown: String = name.chars().take(256).collect();
    let cause = StatusCause {
        reason: "FieldValueNotFound".to_owned(),
        message: format!("Not found: {shown:?}"),
        field: format!("metadata.annotations[{}]", labels::SNAPSHOT),
    };
    let Definition { group, kind, .. } = sandboxes.definition;
    Err(Status::invalid(group, kind, &create.key.name, vec![cause]))
}

/// A list as JSON; empty when there is none.
fn json_list(list: &Value) -> Box<str> {
    match list {
        Value::Array(items) if !items.is_empty() => json(list),
        _ => "".into(),
    }
}

/// The value as text.
fn json(value: &Value) -> Box<str> {
    let text = serde_json::to_string(value);
    text.expect("a JSON value serializes").into()
}

/// `spec.shutdownTime`.
pub(super) fn shutdown_time(object: &Value) -> Option<UnixTime> {
    object["spec"]["shutdownTime"].as_str()?.parse().ok()
}

fn texts(map: &Value) -> BTreeMap<String, String> {
    let pairs = map.as_object().into_iter().flatten();
    pairs
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn invalid(field: &str, reason: &str) -> StatusCause {
    StatusCause::of_field(field, format!("Invalid value: {reason}"))
}
