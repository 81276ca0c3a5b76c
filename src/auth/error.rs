//! Why Kubernetes could not be asked.

use std::{sync::Arc, time::Duration};

/// Why a question of this room has no answer. Never a reason to let somebody in.
///
/// Cheap to clone: everybody who waits for one call gets its error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// kube-apiserver refused the review or could not be reached.
    #[error("the {review} failed")]
    Review {
        /// `TokenReview` or `SubjectAccessReview`.
        review: &'static str,
        /// What the client said.
        #[source]
        source: Arc<kube::Error>,
    },
    /// kube-apiserver did not answer the review.
    #[error("the {review} was not answered within {after:?}")]
    ReviewTimedOut {
        /// `TokenReview` or `SubjectAccessReview`.
        review: &'static str,
        /// How long was waited, retries included.
        after: Duration,
    },
    /// kube-apiserver answered a review without a status.
    #[error("the {review} came back without a status")]
    ReviewWithoutStatus {
        /// `TokenReview` or `SubjectAccessReview`.
        review: &'static str,
    },
    /// So many reviews wait for kube-apiserver that no more are asked.
    #[error("too many reviews are waiting for kube-apiserver")]
    Overloaded,
    /// The task that asked ended without an answer.
    #[error("the review was interrupted")]
    Interrupted,
    /// The ConfigMap that says whom to trust cannot be read at the start.
    #[error("cannot read ConfigMap kube-system/extension-apiserver-authentication")]
    ConfigMap(#[source] Arc<kube::Error>),
    /// There is no ConfigMap that says whom to trust.
    #[error("ConfigMap kube-system/extension-apiserver-authentication does not exist")]
    NoConfigMap,
    /// The ConfigMap was not answered for in time.
    #[error(
        "ConfigMap kube-system/extension-apiserver-authentication was not answered within {after:?}"
    )]
    ConfigMapTimedOut {
        /// How long was waited.
        after: Duration,
    },
}

/// The result of asking.
pub type Result<T, E = Error> = std::result::Result<T, E>;
