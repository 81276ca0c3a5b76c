//! Why an agent could not be heard.

use std::{io, time::Duration};

use http::StatusCode;

/// The result of speaking to an agent.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an agent could not be heard, or did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no token to show. Nothing was sent.
    #[error("no token for agents: {reason}")]
    NoToken {
        /// What is missing.
        reason: String,
    },
    /// No connection, or none in time.
    #[error("agent unreachable")]
    Unreachable(#[source] io::Error),
    /// Another certificate than the inventory names. Nothing was sent.
    #[error("agent shows a certificate that its inventory does not name")]
    WrongCertificate,
    /// The connection broke.
    #[error("connection to the agent broke")]
    Broken(#[source] hyper::Error),
    /// The agent ended the feed.
    #[error("agent ended the feed")]
    Ended,
    /// The agent refused.
    #[error("agent refused ({status}): {text}")]
    Refused {
        /// The status.
        status: StatusCode,
        /// The agent's words, cut to 256 characters.
        text: String,
    },
    /// Nothing came for too long.
    #[error("nothing from the agent for {after:?}")]
    Silent {
        /// How long was waited.
        after: Duration,
    },
    /// A line that is none of a feed, or not in its place.
    #[error("agent said what no feed says: {reason}")]
    Malformed {
        /// What was wrong.
        reason: String,
    },
    /// Changes are missing.
    #[error("change {found} came where {expected} was due")]
    Gap {
        /// The next number.
        expected: u64,
        /// The number that came.
        found: u64,
    },
}
