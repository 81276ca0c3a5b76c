//! The registry behind `/metrics`.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::{
    encoding::prometheus_text,
    metrics::histogram::{Histogram, exponential_buckets},
    registry::{Metric, Registry},
};

/// The `Content-Type` of [`Metrics::encode`].
pub const METRICS_CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// The product's name, in front of every metric.
const PREFIX: &str = "sandbox_apiserver";

/// Every metric of the process. A clone is the same registry.
#[derive(Clone, Debug)]
pub struct Metrics {
    // Held for one registration or one scrape, never over an await.
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// A registry without metrics.
    pub fn new() -> Self {
        Self {
            registry: Arc::new(Mutex::new(Registry::with_prefix(PREFIX))),
        }
    }

    /// Makes `metric` part of `/metrics` as `sandbox_apiserver_<room>_<name>` and gives it back.
    ///
    /// `name` ends with the unit (`_seconds`, `_bytes`); a counter gets its `_total` by itself. `help` is a phrase without a
    /// full stop.
    pub fn register<M: Metric + Clone>(&self, room: &str, name: &str, help: &str, metric: M) -> M {
        let name = format!("{room}_{name}");
        self.registry.lock().register(name, help, metric.clone());
        metric
    }

    /// All metrics in the Prometheus text format, of type [`METRICS_CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry.lock())
            .expect("writing to a String does not fail");
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// A histogram of seconds, from 100 µs (an answer from memory) to 13 s (past every deadline), each bucket twice the last.
pub fn latency_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.0, 18))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;

    #[test]
    fn names_carry_product_and_room() {
        let metrics = Metrics::new();
        let reviews: Counter =
            metrics.register("auth", "reviews", "Reviews asked", Counter::default());
        reviews.inc();
        let text = metrics.clone().encode();
        assert!(
            text.contains("sandbox_apiserver_auth_reviews_total 1\n"),
            "{text}"
        );
        assert!(
            text.contains("# HELP sandbox_apiserver_auth_reviews_total Reviews asked.\n"),
            "{text}"
        );
    }
}
