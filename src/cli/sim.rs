//! `sim`: simulated nodes, and their publication to a kube-apiserver.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::cluster::{kube_config, write_client};
use crate::{
    api::{PoolKey, Token},
    sim,
    telemetry::shutdown_on_signal,
};

#[derive(Debug, Args)]
pub(super) struct SimArgs {
    /// Number of nodes.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Number of the first node, in its name.
    #[arg(long, default_value_t = 0)]
    first_node: usize,
    /// Number of sandboxes that are there at the start, over all nodes.
    #[arg(long, default_value_t = 0)]
    sandboxes: usize,
    /// Namespaces that those are spread over.
    #[arg(long, value_delimiter = ',', default_value = "default")]
    namespaces: Vec<String>,
    /// Templates that every node keeps warm.
    #[arg(long, value_delimiter = ',', default_value = "python:3.12")]
    templates: Vec<String>,
    /// Warm VMs of each template on each node.
    #[arg(long, default_value_t = 4)]
    warm: u32,
    /// Address to listen on; each node has a port of its own.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind_address: IpAddr,
    /// Port of the first node, the others following; 0: any free ones.
    #[arg(long, default_value_t = 0)]
    first_port: u16,
    /// Port under which others reach the first node, the others following, as through a proxy; 0: its own.
    #[arg(long, default_value_t = 0)]
    first_advertised_port: u16,
    /// Where nodes are inspected and faults are set, without authentication. Unset: nowhere.
    #[arg(long)]
    admin_address: Option<SocketAddr>,
    /// The daemons' API token.
    #[arg(long, default_value = "sim")]
    api_token: String,
    /// Which daemons are simulated: early, a, b or c, each with more routes and fields than the one before.
    #[arg(long, value_enum, default_value_t = Generation::B)]
    generation: Generation,
    /// Milliseconds that a claim of a warm VM takes.
    #[arg(long, default_value_t = 0)]
    claim_latency_ms: u64,
    /// Milliseconds from a claim to the next warm VM in its place.
    #[arg(long, default_value_t = 200)]
    refill_ms: u64,
    /// Most claims on a node; 0: no limit.
    #[arg(long, default_value_t = 0)]
    max_claims: usize,
    /// Beginnings and ends of VMs that each node remembers for its journal.
    #[arg(long, default_value_t = 0)]
    journal: usize,
    /// Seconds that the nodes' clocks are ahead, below zero behind: the first node's, the second's, and so on, again from the
    /// first. Unset: all are right.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    clock_offset_seconds: Vec<i64>,
    /// Makes ids and spread repeatable.
    #[arg(long)]
    seed: Option<u64>,
    /// Publish a NodeInventory of each node to this kube-apiserver. Unset: do not publish.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Seconds between two publications; 0: once.
    #[arg(long, default_value_t = 30)]
    publish_period_seconds: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Generation {
    Early,
    A,
    B,
    C,
}

pub(super) async fn sim(args: SimArgs) -> anyhow::Result<()> {
    let asked = shutdown_on_signal().context("listening for signals")?;
    let kubeconfig = args.kubeconfig.clone();
    let period = Duration::from_secs(args.publish_period_seconds);
    let nodes = sim::Fleet::start(options(args))
        .await
        .context("starting the nodes")?;
    for node in nodes.nodes() {
        println!("{} {}", node.name(), node.address());
    }
    if let Some(admin) = nodes.admin() {
        println!("admin http://{admin}");
    }
    let publisher = match kubeconfig {
        None => None,
        Some(file) => {
            let client = write_client(kube_config(Some(&file)).await?)?;
            Some(sim::Publisher::start(&nodes, client, period))
        }
    };
    asked.cancelled().await;
    drop(publisher);
    Ok(())
}

fn options(args: SimArgs) -> sim::Options {
    let pool = |template: &String| PoolKey {
        template: template.as_str().into(),
        net: PoolKey::DEFAULT_NET.into(),
        size: PoolKey::DEFAULT_SIZE.into(),
    };
    sim::Options {
        nodes: args.nodes,
        first_node: args.first_node,
        first_advertised_port: args.first_advertised_port,
        bind: args.bind_address,
        first_port: args.first_port,
        admin: args.admin_address,
        sandboxes: args.sandboxes,
        namespaces: args.namespaces,
        pools: args.templates.iter().map(pool).collect(),
        warm: args.warm,
        clock_offsets: args.clock_offset_seconds,
        seed: args.seed,
        generation: match args.generation {
            Generation::Early => sim::Generation::Early,
            Generation::A => sim::Generation::A,
            Generation::B => sim::Generation::B,
            Generation::C => sim::Generation::C,
        },
        api_token: Some(Token::from(args.api_token)),
        max_claims: args.max_claims,
        journal: args.journal,
        latency: sim::Latency {
            warm: Duration::from_millis(args.claim_latency_ms),
            refill: Duration::from_millis(args.refill_ms),
            ..sim::Latency::default()
        },
        ..sim::Options::default()
    }
}
