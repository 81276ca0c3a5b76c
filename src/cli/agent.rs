//! `agent`: the node agent, one beside each node's daemon.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::{ArgAction, Args};
use tokio::net::TcpListener;

use super::cluster::{kube_config, write_client};
use crate::{
    api::{EXTENSIONS_GROUP, NodeAddress, NodeName},
    auth::{AuthMetrics, Authenticator, Authorizer, ClientTrust, TokenReviewer},
    node::{
        Agent, ClaimAccess, GatewayOptions, Identity, Inventories, NodeMetrics, Objects, Options,
    },
    sandboxd::{Client, ClientOptions, TokenSource},
    telemetry::{Metrics, shutdown_on_signal},
};

/// Whom a token for agents is made for.
const AUDIENCE: &str = "sandbox-agent";
/// The resource that callers of the gateway need a right to.
const CLAIMS: &str = "sandboxclaims";

#[derive(Debug, Args)]
pub(super) struct AgentArgs {
    /// Name of the node, and of its NodeInventory.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Where the agent reaches the daemon: host:port or an origin.
    #[arg(long, default_value = "127.0.0.1:7777")]
    sandboxd_address: NodeAddress,
    /// Token for the daemon. Read again when it changes.
    #[arg(long)]
    sandboxd_token_file: PathBuf,
    /// Authorities that sign the daemon's certificate if it is behind https, PEM.
    #[arg(long)]
    sandboxd_ca_file: Option<PathBuf>,
    /// How to reach kube-apiserver. Unset: the pod's ServiceAccount.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Address for HTTPS: feed, objects, the claim gateway, probes and metrics.
    #[arg(long, default_value = "0.0.0.0:9443")]
    listen_address: SocketAddr,
    /// Host or IP under which the API server reaches this node. Unset: that of the listen address; required
    /// when that is 0.0.0.0 or [::].
    #[arg(long, env = "NODE_IP")]
    advertise_host: Option<String>,
    /// Directory for the agent's certificate and for what users sent; made if it is missing.
    #[arg(long)]
    state_dir: PathBuf,
    /// Least seconds from one publication of the NodeInventory to the next.
    #[arg(long, default_value_t = Options::default().publish_apart.as_secs())]
    publish_period_seconds: u64,
    /// Least milliseconds from one look at the daemon to the next while somebody listens.
    #[arg(long, default_value_t = 250)]
    poll_period_milliseconds: u64,
    /// Audiences that callers' tokens may be of. With that of kube-apiserver among them any token of the cluster is taken, and a
    /// node that is taken over can use at kube-apiserver what it is shown.
    #[arg(long, value_delimiter = ',', default_value = AUDIENCE)]
    api_audiences: Vec<String>,
    /// Whether the agent hands warm VMs over by itself, at POST /v1/claims.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    claim_gateway: bool,
    /// API group of the resource that callers of the gateway need a right to, in the namespace of the claim.
    #[arg(long, default_value = EXTENSIONS_GROUP)]
    claim_access_group: String,
    /// The resource.
    #[arg(long, default_value = CLAIMS)]
    claim_access_resource: String,
    /// The verb for a claim.
    #[arg(long, default_value = "create")]
    claim_access_verb: String,
    /// The verb for giving a claim back.
    #[arg(long, default_value = "delete")]
    release_access_verb: String,
}

pub(super) async fn agent(args: AgentArgs) -> anyhow::Result<()> {
    let asked = shutdown_on_signal().context("listening for signals")?;
    let metrics = Metrics::new();
    let counters = NodeMetrics::register(&metrics);
    let objects = Objects::open(&args.state_dir, counters.clone())?;
    let listener = TcpListener::bind(args.listen_address)
        .await
        .context("listening")?;
    let identity = identity(&args, listener.local_addr()?)?;
    let config = kube_config(args.kubeconfig.as_deref()).await?;
    let client = write_client(config).context("building the client for kube-apiserver")?;
    let daemon = Client::new(ClientOptions {
        token: TokenSource::File(args.sandboxd_token_file.clone()),
        ca_file: args.sandboxd_ca_file.clone(),
    })?;
    let of_auth = AuthMetrics::register(&metrics);
    // Callers show tokens. Of certificates none is trusted, and the probes come without either.
    let no_trust = ClientTrust::fixed(&BTreeMap::new(), of_auth.clone());
    let tokens = TokenReviewer::new(client.clone(), args.api_audiences.clone(), of_auth.clone());
    let gateway = gateway(&args, &client);
    let agent = Agent {
        identity,
        daemon,
        daemon_address: args.sandboxd_address.clone(),
        objects,
        inventories: Inventories::Cluster(client.clone()),
        authenticator: Authenticator::delegated(no_trust, tokens, true, of_auth.clone()),
        authorizer: Authorizer::delegated(client, false, of_auth),
        options: options(&args),
        counters,
        gateway,
    };
    agent.run(listener, metrics, asked).await?;
    Ok(())
}

fn gateway(args: &AgentArgs, client: &kube::Client) -> Option<GatewayOptions> {
    let access = ClaimAccess {
        group: args.claim_access_group.clone(),
        resource: args.claim_access_resource.clone(),
        create_verb: args.claim_access_verb.clone(),
        delete_verb: args.release_access_verb.clone(),
    };
    args.claim_gateway.then(|| GatewayOptions {
        client: client.clone(),
        access,
    })
}

fn options(args: &AgentArgs) -> Options {
    use std::time::Duration;
    Options {
        publish_apart: Duration::from_secs(args.publish_period_seconds),
        poll_apart: Duration::from_millis(args.poll_period_milliseconds),
        ..Options::default()
    }
}

fn identity(args: &AgentArgs, listening: SocketAddr) -> anyhow::Result<Identity> {
    let host = match &args.advertise_host {
        Some(host) => host.clone(),
        None => {
            let ip = listening.ip();
            anyhow::ensure!(
                !ip.is_unspecified(),
                "--listen-address {listening} names no host: give --advertise-host"
            );
            ip.to_string()
        }
    };
    let daemon = &args.sandboxd_address;
    let scheme = if daemon.is_tls() { "https" } else { "http" };
    let at = |scheme: &str, port| address(scheme, &host, port);
    let node = NodeName::from(args.node_name.as_str());
    let identity = Identity::load(
        node,
        at(scheme, daemon.port())?,
        at("https", listening.port())?,
        &args.state_dir,
    );
    Ok(identity?)
}

fn address(scheme: &str, host: &str, port: u16) -> anyhow::Result<NodeAddress> {
    let is_v6 = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6());
    let text = match is_v6 {
        true => format!("{scheme}://[{host}]:{port}"),
        false => format!("{scheme}://{host}:{port}"),
    };
    text.parse()
        .with_context(|| format!("--advertise-host {host}"))
}
