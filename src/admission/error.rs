//! Why a create is refused before it is looked at.

use std::time::Duration;

/// Why nothing may be created in a namespace.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// There is no such namespace: 404 on resource `namespaces`.
    #[error("namespaces {0:?} not found")]
    NotFound(String),
    /// The namespace is being deleted: 403 with cause `NamespaceTerminating`.
    #[error("unable to create new content in namespace {0} because it is being terminated")]
    Terminating(String),
    /// kube-apiserver does not say whether the namespace exists: 500, and nothing was done.
    #[error("cannot find out whether namespace {namespace:?} exists")]
    Unknown {
        /// The namespace.
        namespace: String,
        /// What the client said.
        #[source]
        source: kube::Error,
    },
    /// kube-apiserver does not answer: 500, and nothing was done.
    #[error("kube-apiserver did not say within {after:?} whether namespace {namespace:?} exists")]
    Silent {
        /// The namespace.
        namespace: String,
        /// How long was waited.
        after: Duration,
    },
}
