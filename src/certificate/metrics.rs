//! What this room counts.

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

use crate::telemetry::Metrics;

/// When certificates end, and what went wrong. The default counts into nothing that is shown.
#[derive(Clone, Debug, Default)]
pub struct CertificateMetrics {
    pub(super) serving_expiration: Gauge,
    pub(super) ca_expiration: Gauge,
    pub(super) failures: Counter,
}

impl CertificateMetrics {
    /// Counters that show in `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let room = "certificate";
        let new = Self::default();
        Self {
            serving_expiration: metrics.register(
                room,
                "serving_expiration_timestamp_seconds",
                "When the certificate that is served ends, in seconds since 1970",
                new.serving_expiration,
            ),
            ca_expiration: metrics.register(
                room,
                "ca_expiration_timestamp_seconds",
                "When the CA that issued it ends, in seconds since 1970",
                new.ca_expiration,
            ),
            failures: metrics.register(
                room,
                "failures",
                "Attempts to read or renew the CA, or to publish it, that did not succeed",
                new.failures,
            ),
        }
    }
}
