//! Sockets, TLS and HTTP framing: everything between the kernel and a handler, and nothing about what is served.
//!
//! The handshake asks for a client certificate and takes any whose key the client proves to hold: whether it identifies
//! somebody is judged per request, by `auth`, since a wrong certificate beside a good token must still be served and the CAs
//! change while connections live. What a client may cost before it is known is bounded here: connections, header bytes,
//! streams, idle time.
//!
//! A place among the connections is held by who uses it. A connection is idle, and closed, when no request works on it: an
//! answer that its client does not take is no work, whether HTTP/2 has no window for it or nobody reads the socket. That is
//! judged for the connection as a whole, since one stalled watch among those of all users of a kube-apiserver must not end
//! the others. A connection that is to end is cut once nothing moves on it. And until somebody shows a credential that `auth`
//! finds good, a connection counts against the strangers of its address.

mod body;
mod certificate_authority;
mod client_certificate;
mod connection;
mod error;
mod lingering;
mod listener;
mod metrics;
mod options;
mod peers;
mod private_file;
mod protocol;
mod tls;
mod upgrade;

pub use certificate_authority::{CertificateAuthority, PemPair};
pub use connection::Connection;
pub use error::{Error, Result};
pub use listener::run;
pub use metrics::ServingMetrics;
pub use options::ServeOptions;
pub use private_file::write_private;
pub use tls::{CertificateFiles, TlsMaterial, Transport};
pub use upgrade::{Upgrade, UpgradedStream};
