//! The bounds of the listener.

use std::time::Duration;

use super::ServingMetrics;

/// What a client may cost. The defaults suit one kube-apiserver in front and some hundred direct clients.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Open connections. More wait in the kernel's backlog. Default 10 000.
    pub max_connections: usize,
    /// Time for the TLS handshake. Default 10 s.
    pub handshake_timeout: Duration,
    /// Time for the header of an HTTP/1.1 request, counted from the answer before it. Default 32 s, as kube-apiserver's.
    pub header_read_timeout: Duration,
    /// A connection without a request is closed after once to twice this time. Default 90 s, as kube-apiserver's.
    pub idle_timeout: Duration,
    /// Streams an HTTP/2 client may hold open: kube-apiserver puts the watches of all users on few connections. Default 250.
    pub max_concurrent_streams: u32,
    /// Bytes of a request's header. A user with a thousand groups needs some 70 KiB of them. Default 256 KiB.
    pub max_header_bytes: u32,
    /// Time for the requests in flight when the listener ends. Default 30 s.
    pub drain_timeout: Duration,
    /// Where the listener counts.
    pub metrics: ServingMetrics,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            handshake_timeout: Duration::from_secs(10),
            header_read_timeout: Duration::from_secs(32),
            idle_timeout: Duration::from_secs(90),
            max_concurrent_streams: 250,
            max_header_bytes: 256 << 10,
            drain_timeout: Duration::from_secs(30),
            metrics: ServingMetrics::default(),
        }
    }
}
