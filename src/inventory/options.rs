//! What may be set.

use std::time::Duration;

use ipnet::IpNet;

use crate::feed::Credential;

/// Where nodes may be, and how often and how long they are asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// Networks that a node's daemon may be in although no Node object says so (`--node-address-cidrs`).
    pub node_address_cidrs: Vec<IpNet>,
    /// What to show the nodes' agents; without it their feeds are not listened to.
    pub agent_credential: Option<Credential>,
    /// How long the start waits for the Nodes' own addresses; longer when no networks are given, since then there are no
    /// others.
    pub nodes_within: Duration,
    /// Direct reads (`GET /v1/sandboxes`) under way at once.
    pub reads_at_once: usize,
    /// How long a node may take for a direct read before the server is ready.
    pub first_read_within: Duration,
    /// How long it may take later.
    pub read_within: Duration,
    /// Time between the beginnings of two direct reads of one node.
    pub reads_apart: Duration,
    /// The same for a node whose inventory does not list everything.
    pub cut_reads_apart: Duration,
    /// The same for a node whose agent is not heard.
    pub unfed_reads_apart: Duration,
    /// Silent nodes that are asked whether they are there (`GET /v1/info`) at once.
    pub probes_at_once: usize,
    /// How long a node may take for `GET /v1/info`.
    pub info_within: Duration,
    /// A probe waits for up to so long, so that nodes which fell silent together are not asked together.
    pub probe_jitter: Duration,
    /// An answer to `GET /v1/info` that was asked for within this is good enough for whoever asks next.
    pub infos_apart: Duration,
}

impl Default for Options {
    /// No networks; no feeds; 64 reads at once, of 1 s and later 2 s; 64 probes at once, of 1 s.
    fn default() -> Self {
        Self {
            node_address_cidrs: Vec::new(),
            agent_credential: None,
            nodes_within: Duration::from_secs(5),
            reads_at_once: 64,
            first_read_within: Duration::from_secs(1),
            read_within: Duration::from_secs(2),
            reads_apart: Duration::from_secs(1),
            cut_reads_apart: Duration::from_secs(30),
            unfed_reads_apart: Duration::from_secs(60),
            probes_at_once: 64,
            info_within: Duration::from_secs(1),
            probe_jitter: Duration::from_secs(5),
            infos_apart: Duration::from_millis(250),
        }
    }
}
