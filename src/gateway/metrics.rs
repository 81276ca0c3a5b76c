//! What the gateway counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use crate::telemetry::{Metrics, latency_histogram};

/// Counters of calls to nodes. The default counts into nothing that is shown.
#[derive(Clone, Debug)]
pub struct GatewayMetrics {
    claims: Family<ResultLabel, Counter>,
    pub(super) claim_duration: Histogram,
    calls: Family<CallLabels, Counter>,
    pub(super) abandoned_claims: Counter,
    pub(super) lost_answers: Counter,
    pub(super) doubles_released: Counter,
    pub(super) releases_owed: Gauge,
    pub(super) lease_renewals: Counter,
    pub(super) unattributed_snapshots: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
    result: &'static str,
}

impl Default for GatewayMetrics {
    fn default() -> Self {
        Self {
            claims: Family::default(),
            claim_duration: latency_histogram(),
            calls: Family::default(),
            abandoned_claims: Counter::default(),
            lost_answers: Counter::default(),
            doubles_released: Counter::default(),
            releases_owed: Gauge::default(),
            lease_renewals: Counter::default(),
            unattributed_snapshots: Gauge::default(),
        }
    }
}

impl GatewayMetrics {
    /// Counters that show in `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let room = "gateway";
        let new = Self::default();
        Self {
            claims: metrics.register(room, "claims", "Claims asked for, by result", new.claims),
            claim_duration: metrics.register(
                room,
                "claim_duration_seconds",
                "Time of a claim, all its attempts",
                new.claim_duration,
            ),
            calls: metrics.register(
                room,
                "calls",
                "Other calls about a sandbox, by call and result",
                new.calls,
            ),
            abandoned_claims: metrics.register(
                room,
                "abandoned_claims",
                "Grants released because their client had left",
                new.abandoned_claims,
            ),
            lost_answers: metrics.register(
                room,
                "lost_answers",
                "Claims whose node did not say what it did",
                new.lost_answers,
            ),
            doubles_released: metrics.register(
                room,
                "doubles_released",
                "Grants found after a lost answer and released",
                new.doubles_released,
            ),
            releases_owed: metrics.register(
                room,
                "releases_owed",
                "Deleted sandboxes whose node has not confirmed it",
                new.releases_owed,
            ),
            lease_renewals: metrics.register(
                room,
                "lease_renewals",
                "Leases renewed up to a shutdown time",
                new.lease_renewals,
            ),
            unattributed_snapshots: metrics.register(
                room,
                "unattributed_snapshots",
                "Checkpoints on nodes that belong to no namespace and are not listed",
                new.unattributed_snapshots,
            ),
        }
    }

    pub(super) fn claimed(&self, result: &'static str) {
        self.claims.get_or_create(&ResultLabel { result }).inc();
    }

    pub(super) fn called(&self, call: &'static str, ok: bool) {
        let result = if ok { "ok" } else { "error" };
        self.calls.get_or_create(&CallLabels { call, result }).inc();
    }
}
