//! Why a call to a node did not succeed, and what that says about the node.

use std::{io, path::PathBuf, time::Duration};

use http::StatusCode;

/// Result of a call to a node.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call to a node did not succeed.
///
/// `text` is the daemon's own, cut to 256 printable characters: it is fit for a log, and not a promise.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no token to call with. Nothing was sent.
    #[error("no sandboxd token: {reason}")]
    NoToken {
        /// What is missing.
        reason: String,
    },
    /// This process may not change nodes any more. Nothing was sent.
    #[error("this server has lost the right to write")]
    Fenced,
    /// The CA file given for TLS is unusable; only building a client fails so.
    #[error("cannot use the CA file {}: {reason}", path.display())]
    UnusableCa {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No connection: refused, unresolved, TLS failed, all connections busy, or none in time. Nothing was sent.
    #[error("node unreachable")]
    Unreachable(#[source] io::Error),
    /// The request was handed to a connection and its answer was not complete in time.
    #[error("node did not answer within {after:?}")]
    Silent {
        /// The deadline of the call.
        after: Duration,
    },
    /// The connection broke after the request was handed to it and before the answer was complete.
    #[error("connection to the node was lost before its answer")]
    Interrupted(#[source] hyper::Error),
    /// 401 or 403: the node does not take our token.
    #[error("node refused our token: {text}")]
    Unauthorized {
        /// The daemon's text.
        text: String,
    },
    /// A 404 or 405 without the daemon's error body: an older daemon that lacks the route. Says nothing of the sandbox.
    #[error("node has no such route")]
    RouteMissing,
    /// The daemon's own 404: what the request names is not there.
    #[error("not found on the node: {text}")]
    NotFound {
        /// The daemon's text.
        text: String,
    },
    /// 409: the state of what the request names forbids it.
    #[error("node refused: {text}")]
    Conflict {
        /// The daemon's text.
        text: String,
    },
    /// 429: no room for a claim, or draining.
    #[error("node is at capacity: {text}")]
    AtCapacity {
        /// The daemon's text.
        text: String,
    },
    /// Any other 4xx.
    #[error("node refused the request ({status}): {text}")]
    BadRequest {
        /// The status.
        status: StatusCode,
        /// The daemon's text.
        text: String,
    },
    /// A 5xx. `by_daemon` is false when something in front of it answered.
    #[error("node failed ({status}): {text}")]
    ServerError {
        /// The status.
        status: StatusCode,
        /// The daemon's text.
        text: String,
        /// Whether the body was the daemon's error body.
        by_daemon: bool,
    },
    /// A 3xx, which the daemon never sends. Not followed.
    #[error("node answered with an HTTP redirect ({status})")]
    Redirected {
        /// The status.
        status: StatusCode,
    },
    /// The answer is not what the API describes.
    #[error("node answered what its API does not describe: {reason}")]
    Malformed {
        /// Where the decoder stopped.
        reason: String,
    },
    /// The answer is longer than the limit for its kind.
    #[error("node answered more than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}

impl Error {
    /// Whether the node may have done what was asked, so that it must be read before anything is decided on.
    ///
    /// A 5xx counts as unknown, also the daemon's own 500: a claim that failed half-way may have left its row. The one
    /// exception is the daemon's own 503, which it gives before it begins.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Silent { .. }
            | Self::Interrupted(_)
            | Self::Malformed { .. }
            | Self::TooLarge { .. } => true,
            Self::ServerError {
                status, by_daemon, ..
            } => !(*by_daemon && *status == StatusCode::SERVICE_UNAVAILABLE),
            Self::NoToken { .. }
            | Self::Fenced
            | Self::UnusableCa { .. }
            | Self::Unreachable(_)
            | Self::Unauthorized { .. }
            | Self::RouteMissing
            | Self::NotFound { .. }
            | Self::Conflict { .. }
            | Self::AtCapacity { .. }
            | Self::BadRequest { .. }
            | Self::Redirected { .. } => false,
        }
    }

    /// Whether the node is certainly as it was, so that the call may be made elsewhere with nothing to settle.
    pub fn nothing_happened(&self) -> bool {
        !self.outcome_unknown()
    }
}
