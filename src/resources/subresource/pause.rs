//! `pause` and `resume`.

use std::sync::Arc;

use http::StatusCode;

use crate::{
    apiserver::{Invoke, Invoked, Status},
    fleet::{Phase, Sandbox},
    gateway::{Progress, Result},
    resources::Sandboxes,
    store::Stored,
};

pub(in crate::resources) async fn pause(
    sandboxes: &Sandboxes,
    invoke: Invoke<Sandbox>,
) -> Result<Invoked<Sandbox>, Status> {
    if invoke.dry_run {
        return Ok(would_be(sandboxes, &invoke, Phase::Paused));
    }
    let outcome = sandboxes.gateway.pause(invoke.object.clone()).await;
    answer(sandboxes, &invoke, outcome)
}

pub(in crate::resources) async fn resume(
    sandboxes: &Sandboxes,
    invoke: Invoke<Sandbox>,
) -> Result<Invoked<Sandbox>, Status> {
    if invoke.dry_run {
        return Ok(would_be(sandboxes, &invoke, Phase::Running));
    }
    let outcome = sandboxes.gateway.resume(invoke.object.clone()).await;
    answer(sandboxes, &invoke, outcome)
}

/// The object afterwards; while the call goes on, the object as it is, with 202.
fn answer(
    sandboxes: &Sandboxes,
    invoke: &Invoke<Sandbox>,
    outcome: Result<Progress<Arc<Stored<Sandbox>>>>,
) -> Result<Invoked<Sandbox>, Status> {
    let object = &invoke.object;
    match outcome {
        Ok(Progress::Done(changed)) => Ok(Invoked::Object(changed)),
        Ok(Progress::Going) => Ok(Invoked::Json(
            StatusCode::ACCEPTED,
            sandboxes.json(&object.value, object.version),
        )),
        Err(error) => Err(sandboxes.refused(&object.value, &error)),
    }
}

fn would_be(sandboxes: &Sandboxes, invoke: &Invoke<Sandbox>, phase: Phase) -> Invoked<Sandbox> {
    let sandbox = &invoke.object.value;
    let changed = match sandbox.phase.is_suspended() == phase.is_suspended() {
        true => sandbox.clone(),
        false => sandbox.turned(),
    };
    let changed = Sandbox { phase, ..changed };
    Invoked::Json(
        StatusCode::OK,
        sandboxes.json(&changed, invoke.object.version),
    )
}
