//! `fork`: running copies of a sandbox, on its node.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    api::{SandboxForkOptions, labels},
    apiserver::{Context, Invoke, Invoked, Status, StatusCause},
    fleet::Sandbox,
    gateway::{ForkOrder, Forked, ForkedSandbox},
    meta::is_dns1123_subdomain,
    resources::Sandboxes,
    store::Stored,
};

/// Longest prefix: an id of a few dozen characters must fit behind it.
const MAX_PREFIX: usize = 200;

pub(in crate::resources) async fn fork(
    sandboxes: &Sandboxes,
    context: &Context,
    invoke: Invoke<Sandbox>,
) -> Result<Invoked<Sandbox>, Status> {
    let options: SandboxForkOptions = serde_json::from_value(invoke.options.clone())
        .map_err(|error| Status::bad_request(format!("invalid SandboxForkOptions: {error}")))?;
    let parent = &invoke.object.value;
    let prefix = options
        .name_prefix
        .unwrap_or_else(|| format!("{}-", parent.name));
    let prefix = match &options.id {
        Some(id) => format!("{prefix}{id}-"),
        None => prefix,
    };
    if prefix.len() > MAX_PREFIX || !is_dns1123_subdomain(&[&prefix, "x"].concat()) {
        return Err(invalid_prefix(sandboxes, parent, &prefix));
    }
    if invoke.dry_run {
        return Ok(Invoked::Json(
            StatusCode::CREATED,
            list(sandboxes, Vec::new()),
        ));
    }
    let order = ForkOrder {
        parent: invoke.object.clone(),
        count: options.count,
        ttl: options.ttl_seconds.map(Duration::from_secs),
        name_prefix: prefix,
        once: options.id.is_some(),
    };
    let forked = sandboxes.gateway.fork(order).await;
    match forked.map_err(|error| sandboxes.refused(parent, &error))? {
        Forked::Now(children) => Ok(made(sandboxes, context, &children)),
        Forked::Before(children) => Ok(made_before(sandboxes, context, &children)),
    }
}

fn made(sandboxes: &Sandboxes, context: &Context, children: &[ForkedSandbox]) -> Invoked<Sandbox> {
    if let Some(deadline) = children
        .iter()
        .filter_map(|child| child.record.value.deadline)
        .min()
    {
        context.warn(format!("the copies end with their lease, at {deadline}"));
    }
    let children = children.iter().map(|child| {
        let mut object = sandboxes.json(&child.record.value, child.record.version);
        object["metadata"]["annotations"][labels::TOKEN] = child.token.expose().into();
        object
    });
    Invoked::Json(StatusCode::CREATED, list(sandboxes, children.collect()))
}

/// 200 and not 201: what is shown was there, and its credentials were shown to who made it.
fn made_before(
    sandboxes: &Sandboxes,
    context: &Context,
    children: &[Arc<Stored<Sandbox>>],
) -> Invoked<Sandbox> {
    context.warn(
        "the copies of this id were made before: their credentials are at their subresource token",
    );
    let children = children
        .iter()
        .map(|child| sandboxes.json(&child.value, child.version));
    Invoked::Json(StatusCode::OK, list(sandboxes, children.collect()))
}

fn list(sandboxes: &Sandboxes, items: Vec<Value>) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "SandboxList",
        "metadata": {"resourceVersion": sandboxes.fleet.store().head().to_string()},
        "items": items,
    })
}

fn invalid_prefix(sandboxes: &Sandboxes, parent: &Sandbox, prefix: &str) -> Status {
    let shown: String = prefix.chars().take(MAX_PREFIX).collect();
    let cause = StatusCause {
        reason: "FieldValueInvalid".to_owned(),
        message: format!(
            "Invalid value: {shown:?}: must be at most {MAX_PREFIX} characters that can begin the name of a Sandbox"
        ),
        field: "namePrefix".to_owned(),
    };
    Status::invalid(
        sandboxes.definition.group,
        "SandboxForkOptions",
        &parent.name,
        vec![cause],
    )
}
