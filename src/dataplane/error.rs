//! What a client is told of a call that could not be carried out, in the codes that the SDKs know from their router: 502 for a
//! node or guest that fails, 503 for one that cannot be asked, 504 for one that takes too long.

use http::StatusCode;

use super::path::GuestPath;
use crate::{
    api::SandboxKey,
    apiserver::Status,
    gateway::Error,
    sandboxd::{self, GuestError, GuestRefusal},
};

/// Seconds after which a call may be made again that was not begun.
const RETRY_SECONDS: u32 = 1;
const KIND: &str = "sandboxes.agents.x-k8s.io";

/// There is no such sandbox, or none any more.
pub(super) fn unknown(key: &SandboxKey) -> Status {
    Status::other_not_found(KIND, &key.name)
}

/// The Status for a call that did not come as far as the guest, or of which the node says what became.
pub(super) fn of_gateway(key: &SandboxKey, error: &Error) -> Status {
    let text = error.to_string();
    match error {
        Error::Conflict { reason } => Status::other_conflict(KIND, &key.name, reason),
        Error::Gone { .. } => unknown(key),
        Error::AtCapacity { .. } | Error::Busy { .. } => {
            Status::too_many_requests(text, RETRY_SECONDS)
        }
        // The daemon's own 503: it has no room for what a command says, and may have ended it for that.
        Error::NodeDown { source, .. } if has_answered(source) => {
            Status::unavailable(format!("the node has no room for it: {source}"))
        }
        Error::NodeDown { .. } | Error::NoAddress { .. } => {
            Status::unavailable(text).retry_after(RETRY_SECONDS)
        }
        Error::NoToken(_)
        | Error::NoCredential { .. }
        | Error::TooOld { .. }
        | Error::Ending
        | Error::NoNode => Status::unavailable(text),
        Error::Refused { source, .. } => match &**source {
            sandboxd::Error::BadRequest { status, text } => of_daemon(*status, text),
            other => failed(error, format!("{text}: {other}")),
        },
        Error::OutcomeUnknown { .. } if is_timeout(error) => Status::timeout("it took too long"),
        Error::OutcomeUnknown { source, .. } | Error::TokenRefused { source, .. } => {
            failed(error, format!("{text}: {source}"))
        }
        // Of creates and snapshots, which nobody makes here.
        Error::NameTaken { .. }
        | Error::SnapshotNameTaken { .. }
        | Error::SnapshotNameTooLong(_)
        | Error::SnapshotGone { .. }
        | Error::UnknownTemplate { .. }
        | Error::NoWarmCapacity { .. }
        | Error::OverQuota(_) => Status::internal(text),
    }
}

fn has_answered(error: &sandboxd::Error) -> bool {
    matches!(error, sandboxd::Error::ServerError { .. })
}

/// Whether the node, or its answer, took too long.
pub(super) fn is_timeout(error: &Error) -> bool {
    let Error::OutcomeUnknown { source, .. } = error else {
        return false;
    };
    match &**source {
        sandboxd::Error::Silent { .. } => true,
        sandboxd::Error::ServerError {
            status, by_daemon, ..
        } => *by_daemon && *status == StatusCode::GATEWAY_TIMEOUT,
        _ => false,
    }
}

/// What the daemon refuses is the caller's to mend: a command that cannot be started, too much output.
fn of_daemon(status: StatusCode, text: &str) -> Status {
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => Status::over_limit(format!("the output: {text}")),
        StatusCode::BAD_REQUEST => Status::bad_request(text),
        _ => Status::bad_gateway(format!("the node refused ({status}): {text}")),
    }
}

/// The Status for what the guest's agent did not do.
pub(super) fn of_guest(path: &GuestPath, error: &GuestError) -> Status {
    let path = path.as_str();
    match error {
        GuestError::Refused { refusal, text } => match refusal {
            GuestRefusal::NotFound => Status::other_not_found("file", path),
            GuestRefusal::BadRequest => Status::bad_request(format!("{path}: {text}")),
            GuestRefusal::Unimplemented | GuestRefusal::Internal => {
                Status::bad_gateway(format!("{path}: {error}"))
            }
        },
        GuestError::TooLarge { .. } => Status::over_limit(format!("{path}: {error}")),
        GuestError::Lost(_) | GuestError::Malformed { .. } => failed(error, error.to_string()),
    }
}

/// 502, with the whole chain for who looks into it: a guest makes as many of these as it likes.
fn failed(error: &(dyn std::error::Error + 'static), text: String) -> Status {
    tracing::debug!(error, "a call into a sandbox failed");
    Status::bad_gateway(text)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;

    #[track_caller]
    fn check(error: sandboxd::Error, expected: u16) {
        let (node, source) = ("n1".into(), Arc::new(error));
        let error = match &*source {
            sandboxd::Error::BadRequest { .. } => Error::Refused { node, source },
            _ => Error::OutcomeUnknown { node, source },
        };
        let status = of_gateway(&SandboxKey::new("ns", "a"), &error);
        assert_eq!(status.code().as_u16(), expected, "{error:?}");
    }

    #[test]
    fn a_node_that_takes_too_long_and_one_that_fails_are_told_apart() {
        let server = |status: u16, by_daemon| sandboxd::Error::ServerError {
            status: StatusCode::from_u16(status).unwrap(),
            text: "why".to_owned(),
            by_daemon,
        };
        let bad = |status: u16| sandboxd::Error::BadRequest {
            status: StatusCode::from_u16(status).unwrap(),
            text: "why".to_owned(),
        };
        let after = Duration::ZERO;
        check(sandboxd::Error::Silent { after }, 504);
        check(server(504, true), 504);
        check(server(504, false), 502);
        check(server(502, true), 502);
        check(sandboxd::Error::TooLarge { limit: 1 }, 502);
        check(bad(413), 413);
        check(bad(400), 400);
        check(bad(426), 502);
    }
}
