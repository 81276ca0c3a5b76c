//! Why TLS could not be set up.

use std::{io, path::PathBuf};

/// Why there is no certificate to serve with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate or key file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The text is not PEM, or holds no certificate or no key.
    #[error("the {what} is not PEM or empty")]
    Pem {
        /// `certificate` or `private key`.
        what: &'static str,
        /// What the parser said.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The key does not belong to the certificate, or its kind is not supported.
    #[error("certificate and private key cannot be used together")]
    Pair(#[source] rustls::Error),
    /// A certificate could not be made.
    #[error("cannot issue a certificate")]
    Issue(#[source] rcgen::Error),
}

/// The result of a call into this room.
pub type Result<T, E = Error> = std::result::Result<T, E>;
