//! `snapshot`: a checkpoint of a sandbox, on its node.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    admission::{Counted, Wanted},
    api::{GROUP, SandboxSnapshotOptions, V1BETA1},
    apiserver::{Context, Invoke, Invoked, Status, StatusCause},
    fleet::Sandbox,
    gateway::Progress,
    meta::generate_name,
    resources::{
        Sandboxes,
        definition::{SNAPSHOT_NAME, SNAPSHOT_PLURAL},
        snapshots,
    },
    snapshots::{daemon_name, name_room},
    store::Key,
};

/// Snapshots, as quotas count them.
const SNAPSHOTS: Counted<'_> = Counted {
    group: GROUP,
    plural: SNAPSHOT_PLURAL,
};
/// Characters that a made name has behind the sandbox's.
const SUFFIX: usize = 6;

pub(in crate::resources) async fn snapshot(
    sandboxes: &Sandboxes,
    context: &Context,
    invoke: Invoke<Sandbox>,
) -> Result<Invoked<Sandbox>, Status> {
    let options: SandboxSnapshotOptions = serde_json::from_value(invoke.options.clone())
        .map_err(|error| Status::bad_request(format!("invalid SandboxSnapshotOptions: {error}")))?;
    let sandbox = &invoke.object.value;
    let name = options.name.unwrap_or_else(|| made_name(sandbox));
    let key = Key::new(sandbox.namespace.clone(), name.clone());
    if let Err(too_long) = daemon_name(&key) {
        let cause = StatusCause::of_field("name", format!("Invalid value: {too_long}"));
        let kind = "SandboxSnapshotOptions";
        return Err(Status::invalid(GROUP, kind, &sandbox.name, vec![cause]));
    }
    let snapshots = sandboxes.gateway.snapshots().store();
    let quota = context
        .admit(SNAPSHOTS, &key, Wanted::NewOrKnown, snapshots)
        .map_err(|exceeded| Status::over_quota(SNAPSHOTS, &name, &exceeded))?;
    if invoke.dry_run {
        return Ok(Invoked::Json(StatusCode::CREATED, would_be(sandbox, &name)));
    }
    let outcome = sandboxes
        .gateway
        .snapshot(invoke.object.clone(), &name, quota)
        .await;
    match outcome.map_err(|error| sandboxes.refused(sandbox, &error))? {
        Progress::Done(taken) => {
            let taken = snapshots::json(&taken.value, taken.version);
            Ok(Invoked::Json(StatusCode::CREATED, taken))
        }
        Progress::Going => Ok(Invoked::Json(
            StatusCode::ACCEPTED,
            would_be(sandbox, &name),
        )),
    }
}

fn made_name(sandbox: &Sandbox) -> String {
    let room = name_room(&sandbox.namespace).saturating_sub(SUFFIX);
    let base: String = sandbox.name.chars().take(room).collect();
    match base.trim_end_matches(['.', '-']) {
        "" => generate_name(""),
        base => generate_name(&format!("{base}-")),
    }
}

/// A SandboxSnapshot that is not there yet.
fn would_be(sandbox: &Sandbox, name: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{V1BETA1}"),
        "kind": SNAPSHOT_NAME,
        "metadata": {"name": name, "namespace": sandbox.namespace.as_str()},
        "spec": {"sandboxName": sandbox.name.as_str()},
    })
}
