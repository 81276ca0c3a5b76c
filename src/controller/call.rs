//! A call to kube-apiserver that ends in time.

use std::time::Duration;

/// Why a call to kube-apiserver did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// It refused or could not be reached.
    #[error("kube-apiserver refused")]
    Refused(#[source] Box<kube::Error>),
    /// It did not answer in time.
    #[error("kube-apiserver did not answer within {after:?}")]
    Silent {
        /// The deadline.
        after: Duration,
    },
}

impl CallError {
    /// Whether the object has changed since it was read, or is gone: a newer one is on its way.
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Refused(error) if matches!(&**error, kube::Error::Api(status) if matches!(status.code, 404 | 409)))
    }
}

/// The call's result.
///
/// # Errors
/// [`CallError::Refused`]; [`CallError::Silent`] when there is none within `limit`.
pub async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(done) => done.map_err(|error| CallError::Refused(Box::new(error))),
        Err(_) => Err(CallError::Silent { after: limit }),
    }
}
