//! `dev`: the server over simulated nodes, in one process, without a cluster and without root.

use std::{
    collections::HashMap,
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
use uuid::Uuid;

use super::server::{Access, Process};
use crate::{
    admission::Namespaces,
    api::{PoolKey, Token},
    auth::{Authenticator, Authorizer, UserInfo},
    fleet::{Fleet, HealthLimits},
    inventory::{Publication, Source, Update},
    sandboxd::{Client, ClientOptions, TokenSource},
    sequencer::Sequencer,
    serving::{CertificateAuthority, ServingMetrics, TlsMaterial},
    sim,
    store::Limits,
    telemetry::{Metrics, Tasks, shutdown_on_signal},
};

/// Time between two publications of the simulated nodes, as slow as a real agent's without a feed.
const PUBLISH_PERIOD: Duration = Duration::from_secs(30);
/// Publications on their way to the index.
const CHANNEL: usize = 16;
const TASKS_PATIENCE: Duration = Duration::from_secs(2);
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
    let process = Process::start(
        listener,
        tls,
        asked.clone(),
        metrics.clone(),
        serving_metrics,
    );

    let token = Uuid::new_v4().simple().to_string();
    let node_token = Token::from(Uuid::new_v4().simple().to_string());
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
    let inventory = process.inventory(fleet.clone(), daemons.clone(), vec![loopback.into()], None);
    let gateway = process.gateway(fleet.clone(), inventory.clone(), daemons);
    process.open(access(&token), fleet, gateway.clone())?;
    let (inventories_tx, inventories) = mpsc::channel(CHANNEL);
    let (_, no_nodes) = mpsc::channel(1);
    process.follow(
        &inventory,
        Source::InProcess {
            inventories,
            nodes: no_nodes,
        },
        &mut tasks,
    );
    tasks.spawn("publisher", publish(nodes, inventories_tx));

    let kubeconfig = args.dir.join("kubeconfig");
    write_kubeconfig(&kubeconfig, port, authority.certificate(), &token)?;
    wait_until_ready(&process).await;
    println!("{}", instructions(&kubeconfig, port));
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

/// Publishes what the nodes hold, as agents would. The nodes live as long as this.
async fn publish(nodes: sim::Fleet, inventories_tx: mpsc::Sender<Update<Publication>>) {
    let mut ticks = tokio::time::interval(PUBLISH_PERIOD);
    ticks.tick().await;
    let first = publications(&nodes).into_iter().map(Update::Listed);
    let first: Vec<_> = first.chain([Update::ListEnds]).collect();
    for update in first {
        if inventories_tx.send(update).await.is_err() {
            return;
        }
    }
    loop {
        ticks.tick().await;
        for publication in publications(&nodes) {
            if inventories_tx
                .send(Update::Applied(publication))
                .await
                .is_err()
            {
                return;
            }
        }
    }
}

/// The inventories by way of their JSON, which is how they come from a cluster too.
fn publications(nodes: &sim::Fleet) -> Vec<Publication> {
    let inventories = nodes.inventories().into_iter();
    let json = inventories.filter_map(|inventory| serde_json::to_vec(&inventory).ok());
    json.filter_map(|json| Publication::decode(&json).ok())
        .collect()
}

async fn wait_until_ready(process: &Process) {
    while !process.readiness.is_ready() && !process.asked.is_cancelled() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn access(token: &str) -> Access {
    let admin = UserInfo::new("admin", &["system:masters"]);
    Access {
        authenticator: Authenticator::fixed([(token.to_owned(), admin)], false),
        authorizer: Authorizer::always_allow(),
        namespaces: Namespaces::every(),
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

/// A file that only its owner reads: it holds a token.
fn write_private(file: &Path, text: &str) -> std::io::Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)?;
    file.write_all(text.as_bytes())
}

fn instructions(kubeconfig: &Path, port: u16) -> String {
    let kubectl = format!("kubectl --kubeconfig {}", kubeconfig.display());
    format!(
        "Serving sandboxes on https://localhost:{port}. Try:

  export KUBECONFIG={file}
  kubectl get sandboxes -o wide
  kubectl explain sandbox.spec
  {kubectl} get sandboxes --watch

  kubectl create -f - <<EOF
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
  EOF
  kubectl create --raw /apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes/hello/pause -f /dev/null
  kubectl delete sandbox hello

Ctrl-C ends it.",
        file = kubeconfig.display(),
    )
}
