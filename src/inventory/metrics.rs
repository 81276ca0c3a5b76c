//! What this room counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use super::rejection::{Reason, Rejections};
use crate::{fleet::Counts, telemetry::Metrics};

const ROOM: &str = "inventory";

/// Counters of inventories and of questions to nodes, and the fleet in numbers. The default counts into nothing that is
/// shown.
#[derive(Clone, Debug, Default)]
pub struct InventoryMetrics {
    pub(super) applied: Counter,
    rejected: Family<ReasonLabel, Counter>,
    rejected_entries: Family<ReasonLabel, Counter>,
    refused_addresses: Family<ReasonLabel, Counter>,
    interruptions: Family<ObjectLabel, Counter>,
    reads: Family<OutcomeLabel, Counter>,
    infos: Family<OutcomeLabel, Counter>,
    nodes: Family<HealthLabel, Gauge>,
    sandboxes: Gauge,
    name_conflicts: Gauge,
    warm: Gauge,
    clocks_off: Gauge,
    largest_clock_offset: Gauge,
    live_feeds: Gauge,
    lost_feeds: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HealthLabel {
    health: &'static str,
}

impl InventoryMetrics {
    /// Counters that show in `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let new = Self::default();
        Self {
            applied: metrics.register(ROOM, "publications", "Inventories taken over", new.applied),
            rejected: metrics.register(
                ROOM,
                "rejected_publications",
                "Inventories that could not be read, by reason",
                new.rejected,
            ),
            rejected_entries: metrics.register(
                ROOM,
                "rejected_entries",
                "Parts of inventories and of nodes' answers that were left out, by reason",
                new.rejected_entries,
            ),
            refused_addresses: metrics.register(
                ROOM,
                "refused_addresses",
                "Inventories whose address is not used, by reason",
                new.refused_addresses,
            ),
            interruptions: metrics.register(
                ROOM,
                "watch_interruptions",
                "Failures to list or watch, by kind of object",
                new.interruptions,
            ),
            reads: metrics.register(
                ROOM,
                "direct_reads",
                "Nodes asked for all their sandboxes, by outcome",
                new.reads,
            ),
            infos: metrics.register(
                ROOM,
                "probes",
                "Nodes asked whether they are there and what is warm, by outcome",
                new.infos,
            ),
            nodes: metrics.register(ROOM, "nodes", "Nodes by health", new.nodes),
            sandboxes: metrics.register(ROOM, "sandboxes", "Sandboxes listed", new.sandboxes),
            name_conflicts: metrics.register(
                ROOM,
                "name_conflicts",
                "Sandboxes listed under their id because another one has their name",
                new.name_conflicts,
            ),
            warm: metrics.register(ROOM, "warm", "Warm VMs that could be claimed", new.warm),
            clocks_off: metrics.register(
                ROOM,
                "clocks_off",
                "Nodes whose clock is off by more than 5 s, so that their times are moved",
                new.clocks_off,
            ),
            largest_clock_offset: metrics.register(
                ROOM,
                "largest_clock_offset_seconds",
                "How far that clock is ahead of this server's, or behind below zero, that is off the most",
                new.largest_clock_offset,
            ),
            live_feeds: metrics.register(
                ROOM,
                "live_feeds",
                "Nodes whose agent tells changes as they happen",
                new.live_feeds,
            ),
            lost_feeds: metrics.register(
                ROOM,
                "lost_feeds",
                "Feeds that ended or could not be had",
                new.lost_feeds,
            ),
        }
    }

    pub(super) fn rejected(&self, reason: Reason) {
        count(&self.rejected, reason, 1);
    }

    pub(super) fn rejected_entries(&self, rejections: &Rejections) {
        for (reason, n) in rejections.iter() {
            count(&self.rejected_entries, reason, n);
        }
    }

    pub(super) fn refused_address(&self, reason: Reason) {
        count(&self.refused_addresses, reason, 1);
    }

    pub(super) fn interrupted(&self, kind: &'static str) {
        self.interruptions
            .get_or_create(&ObjectLabel { kind })
            .inc();
    }

    pub(super) fn read(&self, answered: bool) {
        self.reads.get_or_create(&outcome(answered)).inc();
    }

    pub(super) fn asked(&self, answered: bool) {
        self.infos.get_or_create(&outcome(answered)).inc();
    }

    pub(super) fn show_feeds(&self, live: usize) {
        self.live_feeds.set(gauge(live));
    }

    pub(super) fn show_clocks(&self, offsets: impl Iterator<Item = i64>) {
        let off: Vec<_> = offsets.filter(|offset| *offset != 0).collect();
        let largest = off.iter().copied().max_by_key(|offset| offset.abs());
        self.clocks_off.set(gauge(off.len()));
        self.largest_clock_offset.set(largest.unwrap_or(0));
    }

    pub(super) fn feed_lost(&self) {
        self.lost_feeds.inc();
    }

    pub(super) fn show(&self, counts: &Counts) {
        for (health, n) in ["fresh", "stale", "lost"].into_iter().zip(counts.nodes) {
            self.nodes
                .get_or_create(&HealthLabel { health })
                .set(gauge(n));
        }
        self.sandboxes.set(gauge(counts.sandboxes));
        self.name_conflicts.set(gauge(counts.name_conflicts));
        self.warm
            .set(i64::try_from(counts.warm).unwrap_or(i64::MAX));
    }
}

fn count(family: &Family<ReasonLabel, Counter>, reason: Reason, n: u64) {
    let label = ReasonLabel {
        reason: reason.as_str(),
    };
    family.get_or_create(&label).inc_by(n);
}

fn outcome(answered: bool) -> OutcomeLabel {
    OutcomeLabel {
        outcome: if answered { "ok" } else { "failed" },
    }
}

fn gauge(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
