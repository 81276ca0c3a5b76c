//! Why a claim could not be brought further.

use std::time::Duration;

use crate::gateway;

/// Result of a step of a claim.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a claim could not be brought further now. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// kube-apiserver refused or could not be reached.
    #[error("kube-apiserver refused")]
    Refused(#[source] Box<kube::Error>),
    /// kube-apiserver did not answer in time.
    #[error("kube-apiserver did not answer within {after:?}")]
    Silent {
        /// The deadline.
        after: Duration,
    },
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
        matches!(self, Self::Refused(error) if matches!(&**error, kube::Error::Api(status) if matches!(status.code, 404 | 409)))
    }
}

/// The call's result, or [`Error::Silent`] when there is none within `limit`.
pub(super) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T> {
    match tokio::time::timeout(limit, call).await {
        Ok(done) => done.map_err(|error| Error::Refused(Box::new(error))),
        Err(_) => Err(Error::Silent { after: limit }),
    }
}
