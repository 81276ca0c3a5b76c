//! `dev`: the server over simulated nodes, in one process, without a cluster and without root.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use base64::{Engine, engine::general_purpose::STANDARD};
use clap::Args;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::server::{Access, Process};
use crate::{
    admission::{Namespaces, Quotas},
    api::{NodeInventory, PoolKey, Token},
    apiserver::GoawayChance,
    auth::{Authenticator, Authorizer, UserInfo},
    feed::Credential,
    fleet::{Fleet, HealthLimits},
    inventory::{Publication, Source, Update},
    node::{self, Agent, Identity, Inventories, NodeMetrics, Objects},
    sandboxd::{Client, ClientOptions, TokenSource},
    sequencer::Sequencer,
    serving::{CertificateAuthority, ServingMetrics, TlsMaterial, write_private},
    sim,
    store::Limits,
    telemetry::{Metrics, Tasks, shutdown_on_signal},
};

/// How often an agent looks at its node: as often as a real one does, but all of them together 200 times a second at most.
const POLL_APART: Duration = Duration::from_millis(250);
const POLL_APART_A_NODE: Duration = Duration::from_millis(5);
/// Publications on their way to the index.
const CHANNEL: usize = 16;
const TASKS_PATIENCE: Duration = Duration::from_secs(2);
/// A sandbox to try.
const HELLO: &str = "\
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata:
  name: hello
spec:
  podTemplate:
    spec:
      containers:
      - name: main
        image: python:3.12
";
/// Templates that the nodes keep warm.
const TEMPLATES: [&str; 2] = ["python:3.12", "node:22"];

#[derive(Debug, Args)]
pub(super) struct DevArgs {
    /// Directory for the kubeconfig and the server's state; made if it is missing.
    #[arg(long, default_value = "sandbox-dev")]
    dir: PathBuf,
    /// Port for HTTPS on the loopback address; 0: any free one.
    #[arg(long, default_value_t = 6443)]
    secure_port: u16,
    /// Number of simulated nodes.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Number of sandboxes that are there at the start.
    #[arg(long, default_value_t = 6)]
    sandboxes: usize,
    /// Warm VMs of each template on each node.
    #[arg(long, default_value_t = 4)]
    warm: u32,
}

pub(super) async fn dev(args: DevArgs) -> anyhow::Result<()> {
    let asked = shutdown_on_signal().context("listening for signals")?;
    std::fs::create_dir_all(&args.dir).with_context(|| format!("making {}", args.dir.display()))?;
    let sequencer = Sequencer::in_directory(&args.dir).context("taking the directory")?;
    let metrics = Metrics::new();
    let mut tasks = Tasks::new(asked.clone());
    let authority = CertificateAuthority::new("sandbox-apiserver dev")?;
    let tls = Arc::new(TlsMaterial::from_pem(
        &authority.server_certificate(&["localhost", "127.0.0.1"])?,
    )?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.secure_port))
        .await
        .context("listening")?;
    let port = listener.local_addr()?.port();
    let serving_metrics = ServingMetrics::register(&metrics);
    let process = Process::start(listener, tls, metrics.clone(), serving_metrics, &mut tasks);

    let token = Uuid::new_v4().simple().to_string();
    let node_token = Token::from(Uuid::new_v4().simple().to_string());
    let agent_token = Token::from(Uuid::new_v4().simple().to_string());
    let nodes = sim::Fleet::start(sim::Options {
        nodes: args.nodes,
        sandboxes: args.sandboxes,
        warm: args.warm,
        pools: TEMPLATES.map(pool).into(),
        api_token: Some(node_token.clone()),
        ..sim::Options::default()
    })
    .await
    .context("starting the simulated nodes")?;

    let fleet = Arc::new(Fleet::new(
        sequencer.first_version(),
        Limits::default(),
        HealthLimits::default(),
    ));
    let daemons = Client::new(ClientOptions {
        token: TokenSource::Fixed(node_token),
        ca_file: None,
    })?;
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let inventory = process.inventory(
        fleet.clone(),
        daemons.clone(),
        vec![loopback.into()],
        Some(Credential::Fixed(agent_token.clone())),
    );
    let gateway = process.gateway(
        fleet.clone(),
        inventory.clone(),
        daemons.clone(),
        &mut tasks,
    );
    process.open(
        access(&token),
        fleet,
        gateway.clone(),
        GoawayChance::default(),
    )?;
    let (updates_tx, inventories) = mpsc::channel(CHANNEL);
    let (_, no_nodes) = mpsc::channel(1);
    process.follow(
        &inventory,
        Source::InProcess {
            inventories,
            nodes: no_nodes,
        },
        &mut tasks,
    );
    let published = start_agents(
        &nodes,
        &daemons,
        &args.dir,
        &agent_token,
        &process.served,
        &mut tasks,
    )
    .await
    .context("starting the nodes' agents")?;
    tasks.spawn("publisher", publish(args.nodes, published, updates_tx));

    let kubeconfig = args.dir.join("kubeconfig");
    write_kubeconfig(&kubeconfig, port, authority.certificate(), &token)?;
    let hello = args.dir.join("hello.yaml");
    std::fs::write(&hello, HELLO).with_context(|| format!("writing {}", hello.display()))?;
    wait_until_ready(&process).await;
    println!("{}", instructions(&args.dir, port));
    process.end(Duration::ZERO, gateway).await;
    sequencer.release().await;
    tasks.finish(TASKS_PATIENCE).await;
    Ok(())
}

fn pool(template: &str) -> PoolKey {
    PoolKey {
        template: template.into(),
        net: PoolKey::DEFAULT_NET.into(),
        size: PoolKey::DEFAULT_SIZE.into(),
    }
}

/// Starts an agent beside each node, until `served`. What they publish comes through the channel.
pub(super) async fn start_agents(
    nodes: &sim::Fleet,
    daemons: &Client,
    dir: &Path,
    token: &Token,
    served: &CancellationToken,
    tasks: &mut Tasks,
) -> anyhow::Result<mpsc::Receiver<NodeInventory>> {
    let (inventories_tx, inventories_rx) = mpsc::channel(CHANNEL);
    let server = UserInfo::new("sandbox-apiserver", &["system:masters"]);
    let n_nodes = u32::try_from(nodes.nodes().len()).unwrap_or(u32::MAX);
    let options = node::Options {
        poll_apart: POLL_APART.max(POLL_APART_A_NODE * n_nodes),
        ..node::Options::default()
    };
    for daemon in nodes.nodes() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = format!("https://{}", listener.local_addr()?).parse()?;
        let (name, at) = (daemon.name().clone(), daemon.address().clone());
        let state_dir = dir.join("agents").join(name.as_str());
        let counters = NodeMetrics::default();
        let objects = Objects::open(&state_dir, counters.clone())?;
        let agent = Agent {
            identity: Identity::load(name, at.clone(), address, &state_dir)?,
            daemon: daemons.clone(),
            daemon_address: at,
            objects,
            inventories: Inventories::InProcess(inventories_tx.clone()),
            authenticator: Authenticator::fixed(
                [(token.expose().to_owned(), server.clone())],
                false,
            ),
            authorizer: Authorizer::always_allow(),
            options: options.clone(),
            counters,
            gateway: None,
        };
        let run = agent.run(listener, Metrics::new(), served.clone());
        tasks.spawn("agent", async move {
            if let Err(error) = run.await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "an agent did not start"
                );
            }
        });
    }
    Ok(inventories_rx)
}

/// Hands on what the agents publish: the first inventory of each node is the list.
pub(super) async fn publish(
    n_nodes: usize,
    mut inventories_rx: mpsc::Receiver<NodeInventory>,
    updates_tx: mpsc::Sender<Update<Publication>>,
) {
    let mut listed = HashSet::new();
    while let Some(inventory) = inventories_rx.recv().await {
        // By way of their JSON, which is how they come from a cluster too.
        let json = serde_json::to_vec(&inventory).unwrap_or_default();
        let Ok(publication) = Publication::decode(&json) else {
            continue;
        };
        let is_list = listed.len() < n_nodes;
        let update = match is_list {
            true => Update::Listed(publication),
            false => Update::Applied(publication),
        };
        listed.insert(inventory.node);
        let ends = is_list && listed.len() == n_nodes;
        for update in [Some(update), ends.then_some(Update::ListEnds)]
            .into_iter()
            .flatten()
        {
            if updates_tx.send(update).await.is_err() {
                return;
            }
        }
    }
}

pub(super) async fn wait_until_ready(process: &Process) {
    while !process.readiness.is_ready() && !process.asked.is_cancelled() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(super) fn access(token: &str) -> Access {
    let admin = UserInfo::new("admin", &["system:masters"]);
    Access {
        authenticator: Authenticator::fixed([(token.to_owned(), admin)], false),
        authorizer: Authorizer::always_allow(),
        namespaces: Namespaces::every(),
        quotas: Quotas::none(),
        fixed: core_discovery(),
    }
}

/// Just enough of the core group for kubectl, which looks there whatever it is asked for: that there is nothing.
fn core_discovery() -> HashMap<String, Value> {
    let versions = json!({"kind": "APIVersions", "versions": [], "serverAddressByClientCIDRs": []});
    HashMap::from([("/api".to_owned(), versions)])
}

fn write_kubeconfig(file: &Path, port: u16, authority: &str, token: &str) -> anyhow::Result<()> {
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "dev",
        "clusters": [{"name": "dev", "cluster": {
            "server": format!("https://localhost:{port}"),
            "certificate-authority-data": STANDARD.encode(authority),
        }}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "dev", "context": {"cluster": "dev", "user": "admin", "namespace": "default"}}],
    });
    let text = serde_json::to_string_pretty(&kubeconfig)?;
    write_private(file, &text).with_context(|| format!("writing {}", file.display()))
}

fn instructions(dir: &Path, port: u16) -> String {
    let dir = dir.display();
    format!(
        "Serving sandboxes on https://localhost:{port}. In another terminal, try:

  export KUBECONFIG={dir}/kubeconfig
  kubectl get sandboxes -o wide
  kubectl create -f {dir}/hello.yaml
  kubectl describe sandbox hello
  kubectl create --raw /apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes/hello/pause -f /dev/null
  kubectl get sandboxes --watch
  kubectl delete sandbox hello

Ctrl-C ends it."
    )
}
