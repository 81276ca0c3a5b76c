//! The bounds of the listener.

use std::time::Duration;

use super::ServingMetrics;

/// What a client may cost. The defaults suit one kube-apiserver in front and some hundred direct clients.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Open connections. More wait in the kernel's backlog. Default 10 000.
    pub max_connections: usize,
    /// Open connections of one IPv4 address or IPv6 /64 on which nobody has shown a good credential yet. More are closed at
    /// once. Default 500: one address can take no more than a twentieth of the room, and a kube-apiserver or the clients
    /// behind a NAT count only between their SYN and their first authenticated request.
    pub max_strangers: usize,
    /// Time for the TLS handshake. Default 10 s.
    pub handshake_timeout: Duration,
    /// Time for the header of an HTTP/1.1 request, counted from the answer before it. Default 32 s, as kube-apiserver's.
    pub header_read_timeout: Duration,
    /// A connection is closed after once to twice this time in which no request was begun or worked on and no part of an
    /// answer was taken. Default 90 s, as kube-apiserver's.
    pub idle_timeout: Duration,
    /// A connection that is to end, for whatever reason, is cut after once to twice this time in which nothing moved on it.
    /// Default 10 s.
    pub closing_timeout: Duration,
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
            max_strangers: 500,
            handshake_timeout: Duration::from_secs(10),
            header_read_timeout: Duration::from_secs(32),
            idle_timeout: Duration::from_secs(90),
            closing_timeout: Duration::from_secs(10),
            max_concurrent_streams: 250,
            max_header_bytes: 256 << 10,
            drain_timeout: Duration::from_secs(30),
            metrics: ServingMetrics::default(),
        }
    }
}
