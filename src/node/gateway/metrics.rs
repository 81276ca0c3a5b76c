//! What the gateway counts.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use crate::telemetry::{Metrics, latency_histogram};

const ROOM: &str = "node";

/// Counters of claims that are handed over beside the daemon, and of their records.
#[derive(Clone, Debug)]
pub(super) struct GatewayMetrics {
    claims: Family<OutcomeLabel, Counter>,
    releases: Family<OutcomeLabel, Counter>,
    claim_seconds: Histogram,
    records: Family<OutcomeLabel, Counter>,
    owed: Gauge,
    orphans_adopted: Counter,
    abandoned: Counter,
    lost_answers: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

impl GatewayMetrics {
    /// Counters that show in `metrics`.
    pub(super) fn register(metrics: &Metrics) -> Self {
        Self {
            claims: metrics.register(
                ROOM,
                "gateway_claims",
                "Claims asked of the node's gateway, by outcome",
                Family::default(),
            ),
            releases: metrics.register(
                ROOM,
                "gateway_releases",
                "Claims given back to the node's gateway, by outcome",
                Family::default(),
            ),
            claim_seconds: metrics.register(
                ROOM,
                "gateway_claim_seconds",
                "Time from an authorized claim to its answer, the daemon's own time included",
                latency_histogram(),
            ),
            records: metrics.register(
                ROOM,
                "gateway_records",
                "Attempts to record a claim that was handed over as a SandboxClaim, by outcome",
                Family::default(),
            ),
            owed: metrics.register(
                ROOM,
                "gateway_owed",
                "Claims that were handed over and are not recorded yet",
                Gauge::default(),
            ),
            orphans_adopted: metrics.register(
                ROOM,
                "gateway_orphans_adopted",
                "Claims of an earlier life of the agent that were found without a record and got one",
                Counter::default(),
            ),
            abandoned: metrics.register(
                ROOM,
                "gateway_abandoned_claims",
                "Claims that were granted after their callers had left, and were given back",
                Counter::default(),
            ),
            lost_answers: metrics.register(
                ROOM,
                "gateway_lost_answers",
                "Claims that the daemon did not answer, so that it was asked what it had granted",
                Counter::default(),
            ),
        }
    }

    pub(super) fn claimed(&self, outcome: &'static str) {
        self.claims.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub(super) fn released(&self, outcome: &'static str) {
        self.releases.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub(super) fn claim_seconds(&self, took: Duration) {
        self.claim_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn recorded(&self, outcome: &'static str) {
        self.records.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub(super) fn owed(&self, n: usize) {
        self.owed.set(i64::try_from(n).unwrap_or(i64::MAX));
    }

    pub(super) fn adopted(&self) {
        self.orphans_adopted.inc();
    }

    pub(super) fn abandoned(&self) {
        self.abandoned.inc();
    }

    pub(super) fn lost_answer(&self) {
        self.lost_answers.inc();
    }
}
