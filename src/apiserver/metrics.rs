//! What the machinery counts.

use std::time::Duration;

use http::StatusCode;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use crate::telemetry::{Metrics, latency_histogram};

/// Counters of requests. The default counts into nothing that is shown.
#[derive(Clone, Debug)]
pub struct ApiMetrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<DurationLabels, Histogram>,
    watches: Gauge,
}

/// A watch that is open, counted until this is dropped.
#[derive(Debug)]
pub(super) struct OpenWatch(Gauge);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Only names that are served become labels, so that a client cannot make series.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    resource: String,
    subresource: String,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: &'static str,
    resource: String,
    subresource: String,
}

/// A request as the counters see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) verb: &'static str,
    pub(super) resource: String,
    pub(super) subresource: String,
}

impl Default for ApiMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(latency_histogram),
            watches: Gauge::default(),
        }
    }
}

impl ApiMetrics {
    /// Counters that show in `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let Self {
            requests,
            durations,
            watches,
        } = Self::default();
        let room = "apiserver";
        Self {
            requests: metrics.register(
                room,
                "requests",
                "Requests answered, by verb, resource and code",
                requests,
            ),
            durations: metrics.register(
                room,
                "request_duration_seconds",
                "Time from the request to the head of its answer, streams left out",
                durations,
            ),
            watches: metrics.register(room, "watches", "Watches that are open", watches),
        }
    }

    /// Counts a watch.
    pub(super) fn watch_opens(&self) -> OpenWatch {
        self.watches.inc();
        OpenWatch(self.watches.clone())
    }

    pub(super) fn answered(&self, subject: &Subject, code: StatusCode, took: Duration) {
        let Subject {
            verb,
            resource,
            subresource,
        } = subject.clone();
        let labels = RequestLabels {
            verb,
            resource,
            subresource,
            code: code.as_u16(),
        };
        self.requests.get_or_create(&labels).inc();
        if verb != "watch" {
            let RequestLabels {
                verb,
                resource,
                subresource,
                ..
            } = labels;
            let labels = DurationLabels {
                verb,
                resource,
                subresource,
            };
            self.durations
                .get_or_create(&labels)
                .observe(took.as_secs_f64());
        }
    }
}
