//! What this room counts.

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

use crate::telemetry::Metrics;

/// Counters of the listener and of the certificate reload. The default counts into nothing that is shown.
#[derive(Clone, Debug, Default)]
pub struct ServingMetrics {
    pub(super) connections: Gauge,
    pub(super) requests_in_flight: Gauge,
    pub(super) strangers_refused: Counter,
    pub(super) handshake_failures: Counter,
    pub(super) panics: Counter,
    pub(super) certificate_reload_failures: Counter,
}

impl ServingMetrics {
    /// Counters that show in `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let Self {
            connections,
            requests_in_flight,
            strangers_refused,
            handshake_failures,
            panics,
            certificate_reload_failures,
        } = Self::default();
        let room = "serving";
        Self {
            connections: metrics.register(room, "connections", "Open connections", connections),
            requests_in_flight: metrics.register(
                room,
                "requests_in_flight",
                "Requests whose answer is not complete, watches included",
                requests_in_flight,
            ),
            strangers_refused: metrics.register(
                room,
                "strangers_refused",
                "Connections closed at once because their address had too many without a credential",
                strangers_refused,
            ),
            handshake_failures: metrics.register(
                room,
                "tls_handshake_failures",
                "Connections that ended before TLS was established",
                handshake_failures,
            ),
            panics: metrics.register(
                room,
                "panics",
                "Requests answered 500 because the handler panicked",
                panics,
            ),
            certificate_reload_failures: metrics.register(
                room,
                "certificate_reload_failures",
                "Changed certificate files that could not be used, so that the old pair is kept",
                certificate_reload_failures,
            ),
        }
    }
}
