//! What to measure, and at which size.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::scale::Trial;

/// Measures the server under load.
#[derive(Clone, Debug, Parser, Serialize)]
// `hack/bench growth` gives flags of its own, which those of its caller outweigh.
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// Simulated nodes.
    #[arg(long, env = "BENCH_NODES", default_value_t = 200)]
    pub(crate) nodes: usize,
    /// Sandboxes that are there at the start, over all nodes.
    #[arg(long, env = "BENCH_SANDBOXES", default_value_t = 50_000)]
    pub(crate) sandboxes: usize,
    /// Namespaces that they are spread over.
    #[arg(long, default_value_t = 10)]
    pub(crate) namespaces: usize,
    /// Warm VMs on each node.
    #[arg(long, default_value_t = 100)]
    pub(crate) warm: u32,
    /// What to measure.
    #[arg(long, env = "BENCH_PARTS", value_enum, value_delimiter = ',', default_values_t = [Part::Scale, Part::Reads, Part::Claims, Part::Aggregated, Part::Gateway, Part::Watches, Part::Pressure])]
    pub(crate) parts: Vec<Part>,
    /// Gets, one after the other; as many of names that do not exist.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) gets: usize,
    /// Lists of each kind.
    #[arg(long, default_value_t = 10)]
    pub(crate) lists: usize,
    /// Pages of 500.
    #[arg(long, default_value_t = 200)]
    pub(crate) pages: usize,
    /// Claims, one after the other; as many sent to the nodes directly.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) claims: usize,
    /// Claims at a node's gateway, one after the other; as many sent to its daemon directly.
    #[arg(long, default_value_t = 300)]
    pub(crate) gateway_claims: usize,
    /// Claims with `in_flight` at once; as many sent to the nodes directly.
    #[arg(long, default_value_t = 4_000)]
    pub(crate) burst: usize,
    /// Claims under way at once.
    #[arg(long, default_value_t = 16)]
    pub(crate) in_flight: usize,
    /// Watchers of all namespaces.
    #[arg(long, env = "BENCH_WATCHERS", default_value_t = 50)]
    pub(crate) watchers: usize,
    /// Connections that they are spread over. The server allows 250 streams on each.
    #[arg(long, default_value_t = 10)]
    pub(crate) watch_connections: usize,
    /// Changes that the watchers are timed by.
    #[arg(long, default_value_t = 200)]
    pub(crate) changes: usize,
    /// Seconds of lists, watches and claims at once. The server cuts a client that stalls after 50, by its pings.
    #[arg(long, default_value_t = 10)]
    pub(crate) pressure_seconds: usize,
    /// Watchers that read meanwhile.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) pressure_watchers: usize,
    /// Seconds between two publications of a node.
    #[arg(long, default_value_t = 30)]
    pub(crate) publish_period_seconds: u64,
    /// Seconds without a request; the default is one round of publications.
    #[arg(long, default_value_t = 30)]
    pub(crate) idle_seconds: u64,
    /// Nodes of the part `scale`, each an inventory in memory.
    #[arg(long, default_value_t = 400)]
    pub(crate) scale_nodes: usize,
    /// Sandboxes of the part `scale`, over all its nodes.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) scale_sandboxes: usize,
    /// Further flags of the server.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) serve_flags: Vec<String>,
    /// Where the numbers go.
    #[arg(long, default_value = "target/bench/load.json")]
    pub(crate) output: PathBuf,
    /// Measure nothing, and compare the numbers in the `old-*` and `new-*` files of this directory.
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub(crate) compare: Option<PathBuf>,
    /// Measure nothing, and draw the numbers in the `sandboxes-*` and `watchers-*` files of this directory.
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub(crate) plot: Option<PathBuf>,
    /// Be the ceiling, with the files of this directory.
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub(crate) ceiling: Option<PathBuf>,
    /// Be the relay, with the files of this directory.
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub(crate) relay: Option<PathBuf>,
    /// Be this trial of the part `scale`.
    #[arg(long, hide = true, value_enum)]
    #[serde(skip)]
    pub(crate) trial: Option<Trial>,
    /// Be the ceiling of watches, with the files of this directory.
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub(crate) fan_out: Option<PathBuf>,
    /// What `cargo bench` says to every benchmark.
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub(crate) bench: bool,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    /// The index at its largest, in process, and the binary.
    Scale,
    /// Get, lists, pages.
    Reads,
    /// Claims and deletions.
    Claims,
    /// Gets and claims through kube-apiserver.
    Aggregated,
    /// Claims at the gateway of a node.
    Gateway,
    /// Watchers, and the server at rest with them.
    Watches,
    /// Lists, watches, clients that stall, and claims, all at once.
    Pressure,
}

impl Options {
    pub(crate) fn runs(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}
