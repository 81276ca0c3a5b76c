//! Sockets, TLS and HTTP framing: everything between the kernel and a handler, and nothing about what is served.
//!
//! The handshake asks for a client certificate and takes any whose key the client proves to hold: whether it identifies
//! somebody is judged per request, by `auth`, since a wrong certificate beside a good token must still be served and the CAs
//! change while connections live. What a client may cost before it is known is bounded here: connections, header bytes,
//! streams, idle time.

mod body;
mod certificate_authority;
mod client_certificate;
mod connection;
mod error;
mod listener;
mod metrics;
mod options;
mod protocol;
mod tls;

pub use certificate_authority::{CertificateAuthority, PemPair};
pub use connection::Connection;
pub use error::{Error, Result};
pub use listener::run;
pub use metrics::ServingMetrics;
pub use options::ServeOptions;
pub use tls::{CertificateFiles, TlsMaterial, Transport};
