//! What the driver counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use crate::telemetry::Metrics;

/// Counters of the warm-pool driver. The default counts into nothing that is shown.
#[derive(Clone, Debug, Default)]
pub struct WarmPoolMetrics {
    calls: Family<CallLabels, Counter>,
    pub(super) status_writes: Counter,
    pub(super) record_writes: Counter,
    pub(super) wanted: Gauge,
    pub(super) nodes_failing: Gauge,
    pub(super) nodes_foreign: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
    result: &'static str,
}

impl WarmPoolMetrics {
    /// Counters that show in `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let room = "warmpool";
        let new = Self::default();
        Self {
            calls: metrics.register(
                room,
                "calls",
                "Calls to nodes about their pools, by call and result",
                new.calls,
            ),
            status_writes: metrics.register(
                room,
                "status_writes",
                "Statuses of SandboxWarmPools written",
                new.status_writes,
            ),
            record_writes: metrics.register(
                room,
                "record_writes",
                "Times that the record of written pools was saved",
                new.record_writes,
            ),
            wanted: metrics.register(
                room,
                "wanted",
                "Warm sandboxes wanted over all pools",
                new.wanted,
            ),
            nodes_failing: metrics.register(
                room,
                "nodes_failing",
                "Nodes whose last call about pools failed",
                new.nodes_failing,
            ),
            nodes_foreign: metrics.register(
                room,
                "nodes_foreign",
                "Nodes left alone because of pools that are not the driver's",
                new.nodes_foreign,
            ),
        }
    }

    pub(super) fn called(&self, call: &'static str, ok: bool) {
        let result = if ok { "ok" } else { "error" };
        self.calls.get_or_create(&CallLabels { call, result }).inc();
    }
}
