//! The stage of the measurement: control plane, nodes, server, and an ordinary user.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use rustls::ClientConfig;
use sandbox_apiserver::{api::NodeAddress, serving::PemPair};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    client::Client,
    control_plane::{self, ControlPlane},
    endpoint::Endpoint,
    gateway::{Files, GatewayNode},
    options::Options,
    stage::{self, API, Stage, StageOptions},
    tls_client,
    usage::{Memory, Usage},
};

/// The user that asks: known by a client certificate of the cluster's CA, with no rights but those of [`role`].
pub(crate) const USER: &str = "bench";
/// Where claims are made.
pub(crate) const CLAIMS_NAMESPACE: &str = "bench-0";
/// A list of names that a server need not hold at once.
const NAMES_A_PAGE: usize = 5_000;
/// Generous: every node is published through a kube-apiserver that shares the machine.
const FULL_WITHIN: Duration = Duration::from_secs(600);

/// All that is running.
pub(crate) struct Cluster {
    /// A warm connection of the user.
    pub(crate) client: Client,
    pub(crate) server: Server,
    /// Where the nodes' daemons are.
    pub(crate) nodes: Vec<NodeAddress>,
    port: u16,
    config: ClientConfig,
    pub(crate) stage: Stage,
    /// For a node with an agent that the server listens to; taken by it.
    pub(crate) agent_files: Option<Files>,
}

/// The server as a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server(Usage);

/// A sandbox.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Name {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Cluster {
    /// Starts everything and waits until the server lists every sandbox to the user.
    pub(crate) async fn start(options: &Options) -> anyhow::Result<Self> {
        eprintln!("starting the control plane");
        let control_plane = control_plane::shared();
        let namespaces: Vec<_> = (0..options.namespaces)
            .map(|it| format!("bench-{it}"))
            .collect();
        apply(&control_plane, &prerequisites(&namespaces)).await;
        eprintln!("starting {} nodes and the server", options.nodes);
        let begun = Instant::now();
        let files = GatewayNode::files();
        let stage = Stage::start(stage_options(options, &namespaces, &files)).await;
        let flag = format!("--secure-port={}", stage.port);
        let binary = Path::new(env!("CARGO_BIN_EXE_sandbox-apiserver"));
        let server = Server(Usage::find(binary, &flag)?);
        eprintln!(
            "ready after {:.1?}, pid {}",
            begun.elapsed(),
            server.0.pid()
        );

        let pair = certificate(&control_plane)?;
        let config = tls_client::config(&stage.ca(), Some(&pair), &["h2"]);
        let client = Client::connect(stage.port, config.clone()).await?;
        wait_until_full(&client, options.sandboxes).await?;
        eprintln!(
            "{} sandboxes after {:.1?}",
            options.sandboxes,
            begun.elapsed()
        );
        Ok(Self {
            client,
            server,
            nodes: nodes(&stage).await?,
            port: stage.port,
            config,
            stage,
            agent_files: Some(files),
        })
    }

    /// Another connection of the same user.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        Client::connect(self.port, self.config.clone()).await
    }

    /// Where the server is, for connections of the same user from another runtime.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::new(self.port, self.config.clone())
    }

    /// Every sandbox there is.
    pub(crate) async fn names(&self) -> anyhow::Result<Vec<Name>> {
        const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        let (mut names, mut token) = (Vec::new(), String::new());
        loop {
            let path = format!("{API}/sandboxes?limit={NAMES_A_PAGE}&continue={token}");
            let page = self.client.get_as(&path, METADATA).await?;
            let page: List = serde_json::from_slice(&page.body)?;
            names.extend(page.items.into_iter().map(|item| item.metadata));
            token = page.metadata.continue_token;
            if token.is_empty() {
                return Ok(names);
            }
        }
    }
}

impl Server {
    pub(crate) fn pid(self) -> u32 {
        self.0.pid()
    }

    pub(crate) fn cpu(self) -> anyhow::Result<Duration> {
        self.0.cpu()
    }

    pub(crate) fn memory(self) -> anyhow::Result<Memory> {
        self.0.memory()
    }

    pub(crate) fn forget_peak(self) -> std::io::Result<()> {
        self.0.forget_peak()
    }
}

impl Name {
    /// A name that claims are made under.
    pub(crate) fn of_claim(name: String) -> Self {
        Self {
            namespace: CLAIMS_NAMESPACE.to_owned(),
            name,
        }
    }

    pub(crate) fn path(&self) -> String {
        stage::item(&self.namespace, &self.name)
    }

    /// Where it is created.
    pub(crate) fn collection(&self) -> String {
        stage::collection(&self.namespace)
    }
}

/// The path of all sandboxes.
pub(crate) fn all() -> String {
    format!("{API}/sandboxes")
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    items: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    #[serde(default, rename = "continue")]
    continue_token: String,
    #[serde(default)]
    remaining_item_count: usize,
}

#[derive(Deserialize)]
struct Item {
    metadata: Name,
}

fn stage_options(options: &Options, namespaces: &[String], files: &Files) -> StageOptions {
    let agent_token = format!("--agent-token-file={}", files.server_token().display());
    let own = std::iter::once(agent_token);
    StageOptions {
        nodes: options.nodes,
        sandboxes: options.sandboxes,
        warm: options.warm,
        publish_period: Duration::from_secs(options.publish_period_seconds),
        ready_within: FULL_WITHIN,
        sim_flags: vec![format!("--namespaces={}", namespaces.join(","))],
        serve_flags: own.chain(options.serve_flags.iter().cloned()).collect(),
        ..StageOptions::default()
    }
}

fn prerequisites(namespaces: &[String]) -> Value {
    let mut items: Vec<_> = namespaces
        .iter()
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
        .collect();
    items.extend(role());
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// What an ordinary user of the cluster has: verbs on a resource, granted by RBAC.
fn role() -> [Value; 2] {
    let api = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{api}/v1"),
        "kind": "ClusterRole",
        "metadata": {"name": USER},
        "rules": [{
            "apiGroups": ["agents.x-k8s.io"],
            "resources": ["sandboxes"],
            "verbs": ["get", "list", "watch", "create", "delete"],
        }],
    });
    let binding = json!({
        "apiVersion": format!("{api}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": USER},
        "subjects": [{"apiGroup": api, "kind": "User", "name": USER}],
    });
    [role, binding]
}

pub(crate) async fn apply(control_plane: &ControlPlane, objects: &Value) {
    let arguments = ["apply", "--server-side", "--filename=-"];
    let kubectl = control_plane.kubectl();
    kubectl
        .stdout_with_input(&arguments, &objects.to_string())
        .await;
}

/// The user's certificate, from where its kubeconfig says that it lies.
pub(crate) fn certificate(control_plane: &ControlPlane) -> anyhow::Result<PemPair> {
    let kubeconfig = fs::read_to_string(control_plane.kubeconfig_as(USER))?;
    let kubeconfig: Value = serde_json::from_str(&kubeconfig)?;
    let read = |field: &str| {
        let path = kubeconfig["users"][0]["user"][field].as_str();
        let path = path.with_context(|| format!("the kubeconfig has no {field}"))?;
        anyhow::Ok(fs::read_to_string(path)?)
    };
    Ok(PemPair {
        certificate: read("client-certificate")?,
        private_key: read("client-key")?,
    })
}

async fn wait_until_full(client: &Client, sandboxes: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + FULL_WITHIN;
    loop {
        let page = client.get(&format!("{}?limit=1", all())).await?;
        let page: List = serde_json::from_slice(&page.body)?;
        let listed = page.items.len() + page.metadata.remaining_item_count;
        if listed >= sandboxes {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{listed} of {sandboxes} sandboxes after {FULL_WITHIN:?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Asked of the simulator, since kubectl would read every inventory for it.
async fn nodes(stage: &Stage) -> anyhow::Result<Vec<NodeAddress>> {
    let nodes = stage.nodes.all().await;
    let addresses = nodes.iter().filter_map(|node| node["address"].as_str());
    Ok(addresses.map(str::parse).collect::<Result<_, _>>()?)
}
