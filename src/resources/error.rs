//! What a client is told of a call that the gateway could not carry out.

use crate::{
    api::labels,
    apiserver::{Definition, Status, StatusCause},
    gateway::Error,
};

/// Seconds after which a refused call may be tried again. Given only where nothing was done: clients repeat any verb on it.
const RETRY_SECONDS: u32 = 1;

/// The Status for a failed call about the object `name`.
pub(super) fn status(definition: &Definition, name: &str, error: &Error) -> Status {
    let text = error.to_string();
    let unavailable = |cause: &str| {
        Status::unavailable(text.clone())
            .of(definition, name)
            .cause(StatusCause::new(cause, text.clone()))
    };
    match error {
        Error::NameTaken {
            terminating: true, ..
        } => Status::being_deleted(definition, name),
        Error::NameTaken {
            terminating: false, ..
        } => Status::already_exists(definition, name),
        Error::OverQuota(exceeded) => Status::over_quota(definition.counted(), name, exceeded),
        Error::SnapshotNameTaken { .. } => Status::conflict(definition, name, &text),
        Error::SnapshotNameTooLong(too_long) => {
            let cause =
                StatusCause::of_field("metadata.name", format!("Invalid value: {too_long}"));
            Status::invalid(definition.group, definition.kind, name, vec![cause])
        }
        Error::SnapshotGone { .. } => unavailable("SnapshotGone"),
        Error::NoToken(_) => unavailable("NoSandboxdToken"),
        Error::NoNode => unavailable("NoNode").retry_after(RETRY_SECONDS),
        Error::NoWarmCapacity { .. } => unavailable("NoWarmCapacity").retry_after(RETRY_SECONDS),
        Error::UnknownTemplate { template } => unknown_template(definition, name, template),
        Error::AtCapacity { .. } | Error::Busy { .. } => {
            Status::too_many_requests(text, RETRY_SECONDS).of(definition, name)
        }
        Error::Conflict { reason } => Status::conflict(definition, name, reason),
        Error::Gone { .. } => Status::not_found(definition, name),
        Error::TooOld { .. } => unavailable("DaemonTooOld"),
        Error::NoCredential { .. } => unavailable("NodeWithoutToken"),
        Error::NoAddress { .. } => unavailable("NodeAddressUnknown").retry_after(RETRY_SECONDS),
        Error::NodeDown { .. } => unavailable("NodeUnavailable").retry_after(RETRY_SECONDS),
        Error::Ending => unavailable("ServerEnding"),
        Error::TokenRefused { .. } | Error::Refused { .. } | Error::OutcomeUnknown { .. } => {
            tracing::warn!(
                name,
                error = error as &dyn std::error::Error,
                "a call to a node failed"
            );
            Status::internal(text).of(definition, name)
        }
    }
}

fn unknown_template(definition: &Definition, name: &str, template: &str) -> Status {
    let template: String = template.chars().take(256).collect();
    let cause = StatusCause {
        reason: "FieldValueInvalid".to_owned(),
        message: format!(
            "Invalid value: {template:?}: no node keeps sandboxes of this template; it is the image of the first container, or the annotation {}",
            labels::TEMPLATE
        ),
        field: "spec.podTemplate.spec.containers[0].image".to_owned(),
    };
    Status::invalid(definition.group, definition.kind, name, vec![cause])
}
