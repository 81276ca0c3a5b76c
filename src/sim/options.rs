//! What kind of fleet to simulate.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::api::{PoolKey, Token};

/// How new the daemons are. Each one hides what came later: the routes, and the fields in bodies and rows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Generation {
    /// Before A: no `renew`, `exec`, `ports` and volumes, and only root lists sandboxes.
    Early,
    /// Claim, fork, checkpoint, renew.
    A,
    /// Metadata, `on_expire`, env, labels.
    #[default]
    B,
    /// Failed sandboxes, tenants in rows, PATCH of env.
    C,
}

/// A tenant of every node.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its name, which its claims carry.
    pub name: String,
    /// Its token.
    pub token: Token,
    /// Most claims it may have on a node; 0 for no limit.
    pub max_claims: usize,
}

/// How long a node takes. Work is done after the delay, so a caller that hangs up before leaves no trace, as on a daemon
/// that sees the connection close.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// A claim that finds a warm VM.
    pub warm: Duration,
    /// A VM cloned from an image on the node; also each child of a fork and a claim of a checkpoint.
    pub clone: Duration,
    /// A VM of an image that the node has not seen. None: such images do not exist, and claims of them fail with a 500.
    pub cold: Option<Duration>,
    /// Hibernate, checkpoint and promote.
    pub snapshot: Duration,
    /// Wake.
    pub wake: Duration,
    /// From a claim to the next warm VM in its place.
    pub refill: Duration,
}

/// What kind of fleet to simulate.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of nodes. Named `sim-0000`, `sim-0001`, …
    pub nodes: usize,
    /// The first node's number, in its name.
    pub first_node: usize,
    /// Port under which others reach the first node, the others following, as through a proxy; 0: the one it listens on.
    pub first_advertised_port: u16,
    /// Where the nodes listen, each on a port of its own.
    pub bind: IpAddr,
    /// Port of the first node, the others following; 0 for any free ones.
    pub first_port: u16,
    /// Where the admin endpoint listens. None for none; it has no authentication, so it belongs on loopback.
    pub admin: Option<SocketAddr>,
    /// Sandboxes over the whole fleet at the start, named `<namespace>/sb-000000`, …
    pub sandboxes: usize,
    /// Namespaces that those are spread over.
    pub namespaces: Vec<String>,
    /// The pools of each node; sandboxes at the start are spread over them.
    pub pools: Vec<PoolKey>,
    /// Warm VMs in each pool of each node, and its target.
    pub warm: u32,
    /// Lease of the sandboxes at the start.
    pub lease: Duration,
    /// Seconds that the nodes' clocks are ahead, below zero behind, in the nodes' order and again from the first; empty: all
    /// are right.
    pub clock_offsets: Vec<i64>,
    /// Makes ids and spread repeatable. Two fleets with one seed use the same ids; None picks one.
    pub seed: Option<u64>,
    /// How new the daemons are.
    pub generation: Generation,
    /// The root token. Without it and without tenants the nodes are open.
    pub api_token: Option<Token>,
    /// Tenants of every node.
    pub tenants: Vec<Tenant>,
    /// Most claims on a node; 0 for no limit.
    pub max_claims: usize,
    /// Most children of one fork.
    pub max_fork_count: u32,
    /// Whether the nodes know each other: redirects, peers, checkpoints deleted everywhere.
    pub mesh: bool,
    /// Whether nodes have an egress attachment.
    pub egress: bool,
    /// Delays.
    pub latency: Latency,
    /// Requests that each node remembers for its log; 0 for none.
    pub log: usize,
    /// Beginnings and ends of VMs that each node remembers for its journal; 0 for none.
    pub journal: usize,
}

impl Options {
    /// Longest lease a daemon grants.
    pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
    /// The lease of a claim that names none.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(300);
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            warm: Duration::ZERO,
            clone: Duration::from_millis(30),
            cold: None,
            snapshot: Duration::from_millis(50),
            wake: Duration::from_millis(20),
            refill: Duration::from_millis(200),
        }
    }
}

impl Default for Options {
    /// Three nodes of generation B on loopback with four warm Python VMs each, no sandboxes, no admin endpoint.
    fn default() -> Self {
        Self {
            nodes: 3,
            first_node: 0,
            first_advertised_port: 0,
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            first_port: 0,
            admin: None,
            sandboxes: 0,
            namespaces: vec!["default".to_owned()],
            pools: vec![PoolKey {
                template: "python:3.12".into(),
                net: PoolKey::DEFAULT_NET.into(),
                size: PoolKey::DEFAULT_SIZE.into(),
            }],
            warm: 4,
            lease: Self::MAX_TTL,
            clock_offsets: Vec::new(),
            seed: None,
            generation: Generation::default(),
            api_token: Some(Token::from("sim".to_owned())),
            tenants: Vec::new(),
            max_claims: 0,
            max_fork_count: 16,
            mesh: true,
            egress: true,
            latency: Latency::default(),
            log: 256,
            journal: 0,
        }
    }
}
