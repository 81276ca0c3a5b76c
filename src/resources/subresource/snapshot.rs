//! `snapshot`: a checkpoint of a sandbox, on its node.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    api::SandboxSnapshotOptions,
    apiserver::{Invoke, Invoked, Status},
    fleet::{Sandbox, id_name},
    gateway::{Progress, Snapshot},
    meta::UnixTime,
    resources::Sandboxes,
};

pub(in crate::resources) async fn snapshot(
    sandboxes: &Sandboxes,
    invoke: Invoke<Sandbox>,
) -> Result<Invoked<Sandbox>, Status> {
    let options: SandboxSnapshotOptions = serde_json::from_value(invoke.options.clone())
        .map_err(|error| Status::bad_request(format!("invalid SandboxSnapshotOptions: {error}")))?;
    let sandbox = &invoke.object.value;
    if invoke.dry_run {
        return Ok(Invoked::Json(
            StatusCode::CREATED,
            json(sandbox, options.name.as_deref(), None),
        ));
    }
    let outcome = sandboxes
        .gateway
        .snapshot(invoke.object.clone(), options.name.clone())
        .await;
    match outcome.map_err(|error| sandboxes.refused(sandbox, &error))? {
        Progress::Done(taken) => Ok(Invoked::Json(
            StatusCode::CREATED,
            json(sandbox, taken.name.as_deref(), Some(&taken)),
        )),
        Progress::Going => Ok(Invoked::Json(
            StatusCode::ACCEPTED,
            json(sandbox, options.name.as_deref(), None),
        )),
    }
}

/// A SandboxSnapshot; without `taken`, one that is not there yet.
fn json(sandbox: &Sandbox, name: Option<&str>, taken: Option<&Snapshot>) -> Value {
    let mut object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "SandboxSnapshot",
        "metadata": {"namespace": sandbox.namespace.as_str()},
        "spec": {"sandboxName": sandbox.name.as_str()},
    });
    if let Some(name) = name {
        object["metadata"]["annotations"]["sandbox.cocoonstack.io/snapshot-name"] = name.into();
    }
    if let Some(taken) = taken {
        // The daemon's id, in the form that a name has.
        object["metadata"]["name"] = id_name(&taken.id.as_str().into()).as_str().into();
        object["metadata"]["creationTimestamp"] = taken
            .created_at
            .unwrap_or_else(UnixTime::now)
            .to_string()
            .into();
        object["status"] = json!({
            "id": taken.id,
            "sandboxID": taken.claim,
            "pool": taken.pool.to_string(),
            "node": taken.node,
            "createdAt": taken.created_at,
        });
    }
    object
}
