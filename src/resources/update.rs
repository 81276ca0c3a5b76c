//! Changes of a Sandbox: what the user says of it is stored, and what it says to do is done.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Sandboxes,
    order::{shutdown_time, user_part, warn_of_loss},
};
use crate::{
    apiserver::{Context, NotUpdated, Status, StatusCause, Update},
    fleet::Sandbox,
    gateway::Progress,
    meta::UnixTime,
    store::Stored,
};

/// Refuses what cannot be changed, and an end in the past.
pub(super) fn validate(sandboxes: &Sandboxes, update: &Update<Sandbox>) -> Result<(), Status> {
    let mut causes = Vec::new();
    let mut invalid = |field: &str, message: &str| {
        causes.push(StatusCause::of_field(
            field,
            format!("Invalid value: {message}"),
        ));
    };
    let claims = |object: &Value| match &object["spec"]["volumeClaimTemplates"] {
        Value::Array(claims) => claims.clone(),
        _ => Vec::new(),
    };
    if claims(&update.old_json) != claims(&update.new_json) {
        invalid(
            "spec.volumeClaimTemplates",
            "\"array\": volumeClaimTemplates is immutable",
        );
    }
    let end = shutdown_time(&update.new_json);
    if end != shutdown_time(&update.old_json) && end.is_some_and(|end| end <= UnixTime::now()) {
        invalid("spec.shutdownTime", "must be in the future");
    }
    let definition = &sandboxes.definition;
    let name = &update.old.value.name;
    match causes.is_empty() {
        true => Ok(()),
        false => Err(Status::invalid(
            definition.group,
            definition.kind,
            name,
            causes,
        )),
    }
}

/// Does what the change asks of the node, then stores what the user says.
///
/// The node comes first: what it refuses is not stored.
pub(super) async fn update(
    sandboxes: &Sandboxes,
    context: &Context,
    update: Update<Sandbox>,
) -> Result<Arc<Stored<Sandbox>>, NotUpdated> {
    let old = &update.old;
    let acts = !old.value.gone && old.value.deleted_at.is_none();
    let mode = |object: &Value| object["spec"]["operatingMode"].as_str().map(str::to_owned);
    let turns = acts && mode(&update.new_json) != mode(&update.old_json);
    if turns {
        set_mode(sandboxes, context, old, mode(&update.new_json).as_deref()).await?;
    }
    let end = shutdown_time(&update.new_json);
    let end = end.filter(|_| acts && end != shutdown_time(&update.old_json));
    if let Some(end) = end {
        let renewed = sandboxes.gateway.renew_until(old.clone(), end).await;
        renewed.map_err(|error| sandboxes.refused(&old.value, &error))?;
    }
    let fleet = &sandboxes.fleet;
    let mut user = user_part(&update.new_json);
    let knew_spec = old
        .value
        .user
        .as_ref()
        .is_some_and(|user| !user.spec.is_empty());
    if !knew_spec && update.new_json["spec"] == update.old_json["spec"] {
        // What is shown there is made of the node's facts. Whose object it is remains to be told.
        user.spec = "".into();
    }
    let user = Arc::new(user);
    let Sandbox { node, claim, .. } = &old.value;
    // What was done at the node for this change made new versions; so may others have, while the node was waited for.
    let stored = match turns || end.is_some() {
        true => fleet.set_user_after(&old.value, user),
        false => fleet.set_user(node, claim, old.version, user),
    };
    let stored = stored.map_err(|_| NotUpdated::Overtaken)?;
    let kept = sandboxes.gateway.keep_user(node, claim).await;
    warn_of_loss(sandboxes, context, &stored, kept);
    Ok(stored)
}

async fn set_mode(
    sandboxes: &Sandboxes,
    context: &Context,
    record: &Arc<Stored<Sandbox>>,
    mode: Option<&str>,
) -> Result<(), Status> {
    let outcome = match mode {
        Some("Suspended") => sandboxes.gateway.pause(record.clone()).await,
        _ => sandboxes.gateway.resume(record.clone()).await,
    };
    match outcome {
        Ok(Progress::Done(_)) => Ok(()),
        Ok(Progress::Going) => {
            context.warn("spec.operatingMode: the node is still at it; the object shows the new mode once it is done");
            Ok(())
        }
        Err(error) => Err(sandboxes.refused(&record.value, &error)),
    }
}
