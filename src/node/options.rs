//! What may be set.

use std::time::Duration;

/// How often the agent looks and publishes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Shortest time from one look at the daemon to the next while somebody listens. A look takes a tenth of the time at most.
    pub poll_apart: Duration,
    /// The same while nobody listens.
    pub idle_poll_apart: Duration,
    /// How long the daemon may take.
    pub poll_within: Duration,
    /// Shortest time from one question what a sandbox uses to the next; a third more at most.
    pub sample_apart: Duration,
    /// Shortest time from one publication to the next.
    pub publish_apart: Duration,
    /// The same when only the entries changed and somebody listens.
    pub publish_entries_apart: Duration,
    /// Publications of all nodes together, in bytes a second, that kube-apiserver is asked to take.
    pub fleet_bytes_per_second: u64,
    /// Longest inventory. What does not fit is left out, and the inventory says so.
    pub max_inventory_bytes: usize,
    /// How long a user part is kept after its sandbox was last seen.
    pub keep_absent: Duration,
}

impl Default for Options {
    /// 250 ms, 10 s, 5 s; 60 s; 30 s, 10 min, 1 MB/s, 1 MiB; 10 min.
    fn default() -> Self {
        Self {
            poll_apart: Duration::from_millis(250),
            idle_poll_apart: Duration::from_secs(10),
            poll_within: Duration::from_secs(5),
            sample_apart: Duration::from_secs(60),
            publish_apart: Duration::from_secs(30),
            publish_entries_apart: Duration::from_secs(600),
            fleet_bytes_per_second: 1_000_000,
            max_inventory_bytes: 1 << 20,
            keep_absent: Duration::from_secs(600),
        }
    }
}
