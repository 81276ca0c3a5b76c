//! Why the certificate is not as it should be.

use crate::{controller::CallError, serving};

/// Result of a step of this room.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the certificate is not as it should be. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// kube-apiserver did not do what was asked.
    #[error("{what}")]
    Call {
        /// What was asked.
        what: String,
        /// What it said.
        #[source]
        source: CallError,
    },
    /// The Secret was not made by this server, so it is not written to.
    #[error(
        "the Secret {secret} was not made by this server: delete it, or name another with --tls-secret"
    )]
    Foreign {
        /// Namespace and name.
        secret: String,
    },
    /// The Secret changed each time between being read and being written.
    #[error("the Secret {secret} changes faster than it can be written")]
    Raced {
        /// Namespace and name.
        secret: String,
    },
    /// No certificate for this name could be verified.
    #[error("{name:?} is neither a DNS name, without a wildcard, nor an address")]
    Name {
        /// As it was given.
        name: String,
    },
    /// A CA or a certificate could not be made or read.
    #[error("a certificate cannot be issued")]
    Issue(#[source] serving::Error),
    /// What was kept is no CA that could issue.
    #[error("the CA cannot be used: {0}")]
    Unusable(&'static str),
    /// A client would not take what the CA issues.
    #[error("what the CA issues cannot be verified")]
    Untrusted(#[source] webpki::Error),
}

impl Error {
    /// For `map_err` of a call.
    pub(super) fn calling(what: impl Into<String>) -> impl FnOnce(CallError) -> Self {
        let what = what.into();
        |source| Self::Call { what, source }
    }
}
