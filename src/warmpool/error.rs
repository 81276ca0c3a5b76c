//! Why the driver's own records could not be read or written.

use std::time::Duration;

/// Result of a call to kube-apiserver.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call to kube-apiserver did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It refused or could not be reached.
    #[error("kube-apiserver refused")]
    Refused(#[source] Box<kube::Error>),
    /// It did not answer in time.
    #[error("kube-apiserver did not answer within {after:?}")]
    Silent {
        /// The deadline.
        after: Duration,
    },
    /// The record of what the driver wrote cannot be read; it has to be repaired or deleted.
    #[error("the ConfigMap {name} does not hold what the driver wrote there")]
    Unreadable {
        /// Namespace and name.
        name: String,
        /// Where reading stopped.
        #[source]
        source: serde_json::Error,
    },
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
