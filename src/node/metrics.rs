//! What this room counts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use crate::{
    api::PoolKey,
    telemetry::{Metrics, latency_histogram},
};

const ROOM: &str = "node";
/// Pools that have a series of their own. A claim from an image that nobody keeps warm is of a pool of its own, too.
const MAX_POOLS: usize = 50;

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
    memory_used: Family<PoolLabels, Gauge>,
    /// The pools that have a series now.
    // Held for one update, never over an await.
    pools_shown: Arc<Mutex<Vec<PoolLabels>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabels {
    template: String,
    net: String,
    size: String,
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
            memory_used: Family::default(),
            pools_shown: Arc::default(),
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
            memory_used: metrics.register(
                ROOM,
                "memory_used_bytes",
                "Memory of running sandboxes as the daemon measured it last, by pool",
                new.memory_used,
            ),
            pools_shown: new.pools_shown,
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

    /// Those of the most memory have a series each, the others one together.
    pub(super) fn memory_used(&self, by_pool: BTreeMap<PoolKey, u64>) {
        let mut by_pool: Vec<_> = by_pool.into_iter().collect();
        by_pool.sort_by_key(|(_, used)| std::cmp::Reverse(*used));
        let others = by_pool.split_off(by_pool.len().min(MAX_POOLS));
        let others = (!others.is_empty()).then(|| {
            // A daemon may say anything.
            let used = (others.iter()).fold(0_u64, |sum, (_, used)| sum.saturating_add(*used));
            (PoolLabels::others(), used)
        });
        let pools = by_pool.iter().map(|(pool, used)| (pool.into(), *used));
        let now: Vec<(PoolLabels, u64)> = pools.chain(others).collect();
        for (labels, used) in &now {
            let used = i64::try_from(*used).unwrap_or(i64::MAX);
            self.memory_used.get_or_create(labels).set(used);
        }
        let now: Vec<_> = now.into_iter().map(|(labels, _)| labels).collect();
        let mut shown = self.pools_shown.lock();
        for gone in shown.iter().filter(|labels| !now.contains(labels)) {
            self.memory_used.remove(gone);
        }
        *shown = now;
    }

    pub(super) fn written(&self, n: usize, stored: bool) {
        let writes = self.writes.get_or_create(&outcome(stored));
        writes.inc_by(u64::try_from(n).unwrap_or(u64::MAX));
    }
}

impl From<&PoolKey> for PoolLabels {
    fn from(pool: &PoolKey) -> Self {
        Self {
            template: pool.template.to_string(),
            net: pool.net.to_string(),
            size: pool.size.to_string(),
        }
    }
}

impl PoolLabels {
    fn others() -> Self {
        let other = || "other".to_owned();
        Self {
            template: other(),
            net: other(),
            size: other(),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_have_a_series_while_they_use_memory_and_many_share_one() {
        let metrics = Metrics::new();
        let counters = NodeMetrics::register(&metrics);
        let pool = |template: usize| PoolKey {
            template: format!("t{template}").as_str().into(),
            net: "none".into(),
            size: "small".into(),
        };
        let shown = || {
            let text = metrics.encode();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let series = lines.filter(|line| line.contains("node_memory_used_bytes{"));
            series.map(str::to_owned).collect::<Vec<_>>()
        };
        let many = (0..MAX_POOLS + 2).map(|n| (pool(n), 10));
        counters.memory_used(many.collect());
        let other = r#"{template="other",net="other",size="other"} 20"#;
        assert_eq!(shown().len(), MAX_POOLS + 1);
        assert!(shown().iter().any(|line| line.ends_with(other)));
        counters.memory_used(BTreeMap::from([(pool(1), 7)]));
        let own = r#"{template="t1",net="none",size="small"} 7"#;
        let [only] = shown().try_into().unwrap();
        assert!(only.ends_with(own), "{only}");
        counters.memory_used(BTreeMap::new());
        assert!(shown().is_empty());
    }
}
