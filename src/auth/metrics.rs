//! What this room counts.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
};

use crate::telemetry::{Metrics, latency_histogram};

/// Counters of authentication and authorization. The default counts into nothing that is shown.
#[derive(Clone, Debug)]
pub struct AuthMetrics {
    review_seconds: Family<Review, Histogram, fn() -> Histogram>,
    review_failures: Family<Review, Counter>,
    pub(super) answers_from_cache: Counter,
    pub(super) unauthorized: Counter,
    pub(super) config_map_problems: Counter,
}

/// `TokenReview` or `SubjectAccessReview`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Review {
    review: &'static str,
}

impl AuthMetrics {
    /// Counters that show in `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let Self {
            review_seconds,
            review_failures,
            answers_from_cache,
            unauthorized,
            config_map_problems,
        } = Self::default();
        let room = "auth";
        Self {
            review_seconds: metrics.register(
                room,
                "review_seconds",
                "Time of reviews at kube-apiserver, retries included",
                review_seconds,
            ),
            review_failures: metrics.register(
                room,
                "review_failures",
                "Reviews that brought no answer",
                review_failures,
            ),
            answers_from_cache: metrics.register(
                room,
                "answers_from_cache",
                "Reviews that were not asked because the answer was known",
                answers_from_cache,
            ),
            unauthorized: metrics.register(
                room,
                "unauthorized",
                "Requests whose credential was refused",
                unauthorized,
            ),
            config_map_problems: metrics.register(
                room,
                "config_map_problems",
                "Values of the authentication ConfigMap that could not be read, so that they trust nobody",
                config_map_problems,
            ),
        }
    }

    pub(super) fn reviewed(&self, review: &'static str, took: Duration, answered: bool) {
        let review = Review { review };
        self.review_seconds
            .get_or_create(&review)
            .observe(took.as_secs_f64());
        if !answered {
            self.review_failures.get_or_create(&review).inc();
        }
    }
}

impl Default for AuthMetrics {
    fn default() -> Self {
        Self {
            review_seconds: Family::new_with_constructor(latency_histogram),
            review_failures: Family::default(),
            answers_from_cache: Counter::default(),
            unauthorized: Counter::default(),
            config_map_problems: Counter::default(),
        }
    }
}
