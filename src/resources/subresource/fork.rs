//! `fork`: running copies of a sandbox, on its node.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    admission::Wanted,
    api::{SandboxForkOptions, labels},
    apiserver::{Context, Invoke, Invoked, Status, StatusCause},
    fleet::Sandbox,
    gateway::{ForkOrder, Forked, ForkedSandbox},
    meta::{fnv1a, is_dns1123_subdomain},
    resources::Sandboxes,
    store::{Key, Stored},
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
    // Of this parent and this id alone: others may have the same beginning, or the same text in another division.
    let behind = options.id.as_ref().map(|id| {
        let own = fnv1a(format!("{}/{id}", parent.claim).as_bytes());
        format!("{id}-{own:08x}-")
    });
    let behind = behind.unwrap_or_default();
    let prefix = options
        .name_prefix
        .unwrap_or_else(|| prefix_from(&parent.name, behind.len()));
    let prefix = prefix + &behind;
    if prefix.len() > MAX_PREFIX || !is_dns1123_subdomain(&[&prefix, "x"].concat()) {
        return Err(invalid_prefix(sandboxes, parent, &prefix));
    }
    let key = Key::new(parent.namespace.clone(), parent.name.clone());
    let admit = || {
        let wanted = Wanted::Copies(options.count);
        let counted = sandboxes.definition.counted();
        context.admit(counted, &key, wanted, sandboxes.fleet.store())
    };
    if invoke.dry_run {
        admit().map_err(|exceeded| sandboxes.refused(parent, &exceeded.into()))?;
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
    let forked = sandboxes.gateway.fork(order, admit).await;
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

/// What the names of copies begin with when nothing is said: as much of the parent's name as leaves room for the rest, of which
/// so many characters are known.
fn prefix_from(name: &str, n_behind: usize) -> String {
    let room = MAX_PREFIX.saturating_sub(n_behind + 1).max(1);
    let kept = name.get(..room).unwrap_or(name);
    format!("{}-", kept.trim_end_matches(['-', '.']))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, expected: &str) {
        let prefix = prefix_from(name, 0);
        assert_eq!(prefix, expected);
        assert!(prefix.len() <= MAX_PREFIX && is_dns1123_subdomain(&[&prefix, "x"].concat()));
    }

    #[test]
    fn a_name_of_any_length_begins_the_names_of_copies() {
        check("a", "a-");
        check(&"n".repeat(253), &format!("{}-", "n".repeat(199)));
        let dotted = ["n".repeat(198), ".n".repeat(27)].concat();
        check(&dotted, &format!("{}-", "n".repeat(198)));
        let with_an_id = prefix_from(&"n".repeat(253), 40) + &"i".repeat(40);
        assert_eq!(with_an_id.len(), MAX_PREFIX);
    }
}
