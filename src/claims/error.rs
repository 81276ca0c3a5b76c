//! Why a claim could not be brought further.

use crate::{controller::CallError, gateway};

/// Result of a step of a claim.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a claim could not be brought further now. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// kube-apiserver did not do what was asked.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The sandbox could not be released.
    #[error("the sandbox could not be released")]
    NotReleased(#[source] gateway::Error),
    /// The claim changes faster than it can be followed.
    #[error("the claim did not come to rest")]
    Restless,
}

impl Error {
    /// Whether the object has changed since it was read, or is gone: a newer one is on its way.
    pub(super) fn is_stale(&self) -> bool {
        matches!(self, Self::Call(error) if error.is_stale())
    }
}
