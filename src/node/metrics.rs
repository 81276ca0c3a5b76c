//! What this room counts.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use crate::telemetry::{Metrics, latency_histogram};

const ROOM: &str = "node";

/// Counters of looks at the daemon, of publications and of stored objects. The default counts into nothing that is shown.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    polls: Family<OutcomeLabel, Counter>,
    poll_seconds: Histogram,
    publications: Family<OutcomeLabel, Counter>,
    entries_left_out: Gauge,
    listeners: Gauge,
    objects: Gauge,
    object_bytes: Gauge,
    writes: Family<OutcomeLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

impl Default for NodeMetrics {
    fn default() -> Self {
        Self {
            polls: Family::default(),
            poll_seconds: latency_histogram(),
            publications: Family::default(),
            entries_left_out: Gauge::default(),
            listeners: Gauge::default(),
            objects: Gauge::default(),
            object_bytes: Gauge::default(),
            writes: Family::default(),
        }
    }
}

impl NodeMetrics {
    /// Counters that show in `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let new = Self::default();
        Self {
            polls: metrics.register(ROOM, "polls", "Looks at the daemon, by outcome", new.polls),
            poll_seconds: metrics.register(
                ROOM,
                "poll_seconds",
                "How long the daemon takes to list its sandboxes",
                new.poll_seconds,
            ),
            publications: metrics.register(
                ROOM,
                "publications",
                "Publications of the NodeInventory, by outcome",
                new.publications,
            ),
            entries_left_out: metrics.register(
                ROOM,
                "entries_left_out",
                "Sandboxes that do not fit into the NodeInventory",
                new.entries_left_out,
            ),
            listeners: metrics.register(ROOM, "listeners", "Listeners of the feed", new.listeners),
            objects: metrics.register(ROOM, "objects", "User parts that are kept", new.objects),
            object_bytes: metrics.register(
                ROOM,
                "object_bytes",
                "Bytes of user parts that are kept",
                new.object_bytes,
            ),
            writes: metrics.register(
                ROOM,
                "object_writes",
                "Changes of user parts, by outcome",
                new.writes,
            ),
        }
    }

    pub(super) fn polled(&self, took: Duration, answered: bool) {
        self.poll_seconds.observe(took.as_secs_f64());
        self.polls.get_or_create(&outcome(answered)).inc();
    }

    pub(super) fn published(&self, taken: bool) {
        self.publications.get_or_create(&outcome(taken)).inc();
    }

    pub(super) fn left_out(&self, n: usize) {
        self.entries_left_out.set(gauge(n));
    }

    pub(super) fn listeners(&self, n: usize) {
        self.listeners.set(gauge(n));
    }

    pub(super) fn objects(&self, n: usize, bytes: usize) {
        self.objects.set(gauge(n));
        self.object_bytes.set(gauge(bytes));
    }

    pub(super) fn written(&self, n: usize, stored: bool) {
        let writes = self.writes.get_or_create(&outcome(stored));
        writes.inc_by(u64::try_from(n).unwrap_or(u64::MAX));
    }
}

fn outcome(succeeded: bool) -> OutcomeLabel {
    OutcomeLabel {
        outcome: if succeeded { "ok" } else { "failed" },
    }
}

fn gauge(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
