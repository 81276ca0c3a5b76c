//! What the controller counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
};

use crate::telemetry::{Metrics, latency_histogram};

/// Counters of the claim controller. The default counts into nothing that is shown.
#[derive(Clone, Debug)]
pub struct ClaimMetrics {
    outcomes: Family<OutcomeLabel, Counter>,
    pub(super) bind_duration: Histogram,
    pub(super) doubles_released: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

impl Default for ClaimMetrics {
    fn default() -> Self {
        Self {
            outcomes: Family::default(),
            bind_duration: latency_histogram(),
            doubles_released: Counter::default(),
        }
    }
}

impl ClaimMetrics {
    /// Counters that show in `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let room = "claims";
        let new = Self::default();
        Self {
            outcomes: metrics.register(
                room,
                "outcomes",
                "What became of attempts to bind a SandboxClaim",
                new.outcomes,
            ),
            bind_duration: metrics.register(
                room,
                "bind_duration_seconds",
                "Time from the first look at a SandboxClaim to its sandbox, without waiting for capacity",
                new.bind_duration,
            ),
            doubles_released: metrics.register(
                room,
                "doubles_released",
                "Sandboxes released since a node had handed over another for the same claim",
                new.doubles_released,
            ),
        }
    }

    pub(super) fn outcome(&self, outcome: &'static str) {
        self.outcomes.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}
