//! The product on its stage: simulated nodes and `serve`, real processes of the built binary, behind the control plane.
//!
//! Nodes and registration are one for the cluster, so there is one stage at a time. Tests that only add to it share
//! [`shared`]; what breaks the server has a [`Stage`] of its own, and waits for its turn.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Value, json};

use crate::{
    api_service::{self, Registration, SERVER_NAME, Turn},
    caller::Caller,
    components::free_port,
    control_plane::{self, ControlPlane},
    nodes::Nodes,
    pki::{Authority, Certificate},
    process::{Directory, Process},
    users::ADMIN,
};

/// The identity of the server, as the shipped manifests bind it.
pub(crate) const SERVICE_ACCOUNT: &str = "system:serviceaccount:sandbox-system:sandbox-apiserver";
const BINARY: &str = env!("CARGO_BIN_EXE_sandbox-apiserver");
/// Generous, since other builds may share the machine.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// What every node keeps warm but those that a test has for itself.
pub(crate) const TEMPLATE: &str = "python:3.12";
/// The nodes' own credential, which nobody but the server is to see.
pub(crate) const NODE_TOKEN: &str = "the-nodes-own-token";
/// Path of the served version.
pub(crate) const API: &str = "/apis/agents.x-k8s.io/v1beta1";

/// What the stage looks like.
#[derive(Clone, Debug)]
pub(crate) struct StageOptions {
    /// Nodes that keep [`TEMPLATE`] warm.
    pub(crate) nodes: usize,
    /// Nodes beside them, each for one test; see [`Stage::own_node`].
    pub(crate) own_nodes: usize,
    pub(crate) sandboxes: usize,
    /// Warm VMs on each node.
    pub(crate) warm: u32,
    pub(crate) publish_period: Duration,
    /// How long the nodes may take to publish, and the server to be ready.
    pub(crate) ready_within: Duration,
    /// Whether the server has a token for the nodes.
    pub(crate) token: bool,
    /// Where the server's Lease is.
    pub(crate) lease_namespace: String,
    /// Further flags of `sim`, and of `serve`.
    pub(crate) sim_flags: Vec<String>,
    pub(crate) serve_flags: Vec<String>,
}

impl Default for StageOptions {
    fn default() -> Self {
        Self {
            nodes: 3,
            own_nodes: 0,
            sandboxes: 0,
            warm: 20,
            publish_period: Duration::from_secs(30),
            ready_within: READY_TIMEOUT,
            token: true,
            lease_namespace: "sandbox-system".to_owned(),
            sim_flags: Vec::new(),
            serve_flags: Vec::new(),
        }
    }
}

/// Nodes and a registered server. All of it ends when it is dropped.
pub(crate) struct Stage {
    pub(crate) control_plane: &'static ControlPlane,
    options: StageOptions,
    kubeconfig: PathBuf,
    authority: Authority,
    pub(crate) port: u16,
    pub(crate) nodes: Nodes,
    n_own_nodes_given: AtomicUsize,
    // Dropped in order: the registration goes before its server, that before its nodes, and the turn when all is gone.
    _registration: Registration<'static>,
    pub(crate) serve: Process,
    pub(crate) sim: Process,
    directory: Directory,
    _turn: Turn<'static>,
}

/// A test's hold on the stage that tests share.
pub(crate) struct SharedStage(Arc<Stage>);

/// A node that no other test uses, alone in having its template.
#[derive(Clone, Debug)]
pub(crate) struct OwnNode {
    pub(crate) index: usize,
    pub(crate) template: String,
}

/// The stage that tests share, started by the first that asks and gone with the last.
pub(crate) async fn shared() -> SharedStage {
    static CURRENT: tokio::sync::Mutex<Weak<Stage>> = tokio::sync::Mutex::const_new(Weak::new());
    let mut current = CURRENT.lock().await;
    let stage = match current.upgrade() {
        Some(stage) => stage,
        None => {
            let options = StageOptions {
                own_nodes: 100,
                sim_flags: vec!["--journal=1000".to_owned()],
                ..StageOptions::default()
            };
            let stage = Stage::start(options).await;
            stage.serves_snapshots().await;
            Arc::new(stage)
        }
    };
    *current = Arc::downgrade(&stage);
    SharedStage(stage)
}

impl std::ops::Deref for SharedStage {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.0
    }
}

impl Drop for SharedStage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}{}", self.serve.log_tail(30), self.sim.log_tail(5));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}{}", self.serve.log_tail(60), self.sim.log_tail(5));
        }
    }
}

impl Stage {
    /// Applies CRDs and RBAC as shipped, starts the nodes, then the server, registers it, and returns when it serves.
    ///
    /// # Panics
    /// When one of them does not start; the message shows the ends of the logs.
    pub(crate) async fn start(options: StageOptions) -> Self {
        let control_plane = control_plane::shared().forever();
        let turn = control_plane.api_service.lock().await;
        prepare(control_plane).await;
        let directory = Directory::create("stage-").unwrap();
        let authority = Authority::new("sandbox-apiserver").unwrap();
        write_files(&authority, directory.path());
        let (port, admin_port) = (free_port().unwrap(), free_port().unwrap());
        let nodes = Nodes::new(admin_port);
        let admin = control_plane.kubeconfig_as(ADMIN);
        let sim = start_sim(&options, &admin, admin_port, directory.path());
        set_up_nodes(control_plane, nodes, &options).await;
        let kubeconfig = control_plane.kubeconfig_as(SERVICE_ACCOUNT);
        let mut serve = start_serve(&options, &kubeconfig, port, directory.path());
        let direct = pointed_at(control_plane.config_as(ADMIN), &authority.pem(), port);
        wait_until_ready_within(&direct, &mut serve, options.ready_within).await;
        let registration = control_plane
            .register_in_turn(&turn, &["v1beta1", "v1alpha1"], port, &authority.pem())
            .await;
        let stage = Self {
            control_plane,
            options,
            kubeconfig,
            authority,
            port,
            nodes,
            n_own_nodes_given: AtomicUsize::new(0),
            _registration: registration,
            serve,
            sim,
            directory,
            _turn: turn,
        };
        api_service::is_discovered(&stage.admin()).await;
        stage
    }

    /// Waits until the nodes have been asked for their snapshots, which the server does once it is ready.
    pub(crate) async fn serves_snapshots(&self) {
        let path = format!("{API}/sandboxsnapshots");
        let admin = self.admin();
        eventually(
            Duration::from_secs(30),
            "snapshots are served",
            async || admin.get(&path).await.status == 200,
        )
        .await;
    }

    /// A new namespace.
    pub(crate) async fn namespace(&self, prefix: &str) -> String {
        self.control_plane.create_namespace(prefix).await
    }

    /// A node for the caller alone.
    pub(crate) fn own_node(&self) -> OwnNode {
        let n_given = self.n_own_nodes_given.fetch_add(1, Ordering::Relaxed);
        assert!(n_given < self.options.own_nodes, "no node is left");
        let index = self.options.nodes + n_given;
        OwnNode {
            index,
            template: own_template(index),
        }
    }

    /// The administrator's calls, through kube-apiserver.
    pub(crate) fn admin(&self) -> Caller {
        Caller::new(self.control_plane.config_as(ADMIN))
    }

    /// Calls of `user`, known by a client certificate, at the server's own port.
    pub(crate) fn direct_as(&self, user: &str) -> Caller {
        Caller::new(self.direct_config(self.control_plane.config_as(user)))
    }

    /// The administrator's calls at the server's own port.
    pub(crate) fn direct(&self) -> Caller {
        self.direct_as(ADMIN)
    }

    /// A configuration made to reach the server's own port.
    pub(crate) fn direct_config(&self, config: kube::Config) -> kube::Config {
        pointed_at(config, &self.authority.pem(), self.port)
    }

    /// The CA of the server's certificate, PEM.
    pub(crate) fn ca(&self) -> String {
        self.authority.pem()
    }

    /// Makes a sandbox and gives it as the answer shows it. Waits for a warm VM if there is none, as clients do.
    pub(crate) async fn create(&self, namespace: &str, name: &str) -> Value {
        let (direct, path) = (self.direct(), collection(namespace));
        let wanted = sandbox(name, TEMPLATE);
        loop {
            let answer = direct.post(&path, &wanted).await;
            if answer.causes() != ["NoWarmCapacity"] {
                return answer.ok();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until kube-apiserver has the documents of a group and version. It fetches them when a server comes to it, and
    /// once a minute afterwards. Until then kubectl judges fields by itself.
    pub(crate) async fn openapi_has(&self, api_version: &str) {
        let (admin, path) = (self.admin(), format!("/openapi/v3/apis/{api_version}"));
        let within = Duration::from_secs(70);
        eventually(within, "OpenAPI is aggregated", async || {
            admin.get(&path).await.status == 200
        })
        .await;
    }

    /// Publishes a node's inventory as it is now, without waiting for its period.
    pub(crate) async fn publish(&self, node: usize) {
        publish(self.control_plane, self.nodes, [node]).await;
    }

    /// Publishes an inventory that was read before, as a publisher does that is late.
    pub(crate) async fn publish_late(&self, inventory: Value) {
        apply_inventories(self.control_plane, vec![inventory]).await;
    }

    /// Where the server was started: its certificate is `tls.crt` and `tls.key` there.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A new certificate of the server's own authority, and its key.
    pub(crate) fn certificate(&self) -> Certificate {
        serving_certificate(&self.authority)
    }

    /// Ends the server as a crash does.
    pub(crate) fn kill_serve(&mut self) {
        let idle = Process::start(
            "killed",
            Path::new("/bin/true"),
            [] as [&str; 0],
            self.directory.path(),
        );
        // Dropped: its port is free then.
        self.serve = idle.unwrap();
    }

    /// Starts a server that was killed, and waits until it is ready.
    pub(crate) async fn start_serve(&mut self) {
        self.begin_serve();
        self.serve_is_ready().await;
        api_service::is_discovered(&self.admin()).await;
    }

    /// Starts a server that was killed.
    pub(crate) fn begin_serve(&mut self) {
        let dir = self.directory.path();
        self.serve = start_serve(&self.options, &self.kubeconfig, self.port, dir);
    }

    /// Waits until the server is ready.
    pub(crate) async fn serve_is_ready(&mut self) {
        let direct = self.direct_config(self.control_plane.config_as(ADMIN));
        wait_until_ready_within(&direct, &mut self.serve, self.options.ready_within).await;
    }
}

/// A Sandbox that a client sends.
pub(crate) fn sandbox(name: &str, template: &str) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": template}]}}},
    })
}

/// Path of a namespace's sandboxes.
pub(crate) fn collection(namespace: &str) -> String {
    format!("{API}/namespaces/{namespace}/sandboxes")
}

/// Path of one sandbox.
pub(crate) fn item(namespace: &str, name: &str) -> String {
    format!("{}/{name}", collection(namespace))
}

/// Waits until `holds`, at most for `within`.
///
/// # Panics
/// With `what`, when the time is over.
#[track_caller]
pub(crate) fn eventually<'a>(
    within: Duration,
    what: &'a str,
    holds: impl AsyncFn() -> bool + 'a,
) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + within;
        while !holds().await {
            assert!(
                Instant::now() < deadline,
                "{caller}: not within {within:?}: {what}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn own_template(node: usize) -> String {
    format!("only-{node}:1")
}

/// Applies what is shipped, and takes away what an earlier stage's nodes published.
pub(crate) async fn prepare(control_plane: &ControlPlane) {
    control_plane
        .apply_crds(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/crds")))
        .await;
    let kubectl = control_plane.kubectl();
    for file in ["00-namespace", "10-rbac", "20-user-roles"] {
        let file = format!(
            "--filename={}/apiservice/{file}.yaml",
            env!("CARGO_MANIFEST_DIR")
        );
        kubectl
            .stdout(&["apply", "--server-side", "--force-conflicts", &file])
            .await;
    }
    forget_nodes(control_plane).await;
    // The next server has another port, and so is another one to the Lease of one that was killed.
    let lease = ["delete", "lease", "--all", "--namespace=sandbox-system"];
    kubectl.stdout(&lease).await;
    forget_pools(control_plane).await;
}

/// Takes away what an earlier stage's driver was told and wrote down: nodes have the same names on each.
async fn forget_pools(control_plane: &ControlPlane) {
    let kubectl = control_plane.kubectl();
    let pools = ["delete", "sandboxwarmpools", "--all", "--all-namespaces"];
    kubectl.stdout(&pools).await;
    let record = "configmap/sandbox-apiserver-warm-pools";
    let record = [
        "delete",
        record,
        "--ignore-not-found",
        "--namespace=sandbox-system",
    ];
    kubectl.stdout(&record).await;
}

/// Deletes what nodes of earlier tests published.
pub(crate) async fn forget_nodes(control_plane: &ControlPlane) {
    let delete = ["delete", "nodeinventories", "--all"];
    control_plane.kubectl().stdout(&delete).await;
}

fn serving_certificate(authority: &Authority) -> Certificate {
    let names = [SERVER_NAME, "localhost", "127.0.0.1"];
    authority.serving(&names).unwrap()
}

pub(crate) fn write_files(authority: &Authority, dir: &Path) {
    let serving = serving_certificate(authority);
    for (file, content) in [
        ("tls.crt", &serving.certificate_pem),
        ("tls.key", &serving.key_pem),
        ("token", &NODE_TOKEN.to_owned()),
    ] {
        std::fs::write(dir.join(file), content).unwrap();
    }
}

/// Waits until all nodes have published, and gives those that are for one test a template of their own.
async fn set_up_nodes(control_plane: &ControlPlane, nodes: Nodes, options: &StageOptions) {
    eventually(READY_TIMEOUT, "the simulator answers", async || {
        nodes.answer().await
    })
    .await;
    let n_nodes = options.nodes + options.own_nodes;
    let kubectl = control_plane.kubectl();
    let within = options.ready_within;
    eventually(within, "every node has published", async || {
        // A table, since for anything else kubectl would read the inventories themselves.
        let rows = kubectl
            .stdout(&["get", "nodeinventories", "--no-headers"])
            .await;
        rows.lines().count() == n_nodes
    })
    .await;
    for node in options.nodes..n_nodes {
        nodes.set_pool(node, TEMPLATE, 0, 0).await;
        let template = own_template(node);
        nodes
            .set_pool(node, &template, options.warm, options.warm)
            .await;
    }
    publish(control_plane, nodes, options.nodes..n_nodes).await;
}

/// Publishes inventories as the nodes' own publisher does.
async fn publish(
    control_plane: &ControlPlane,
    nodes: Nodes,
    which: impl IntoIterator<Item = usize>,
) {
    let mut items = Vec::new();
    for node in which {
        items.push(nodes.inventory(node).await);
    }
    apply_inventories(control_plane, items).await;
}

async fn apply_inventories(control_plane: &ControlPlane, mut items: Vec<Value>) {
    for inventory in &mut items {
        inventory["apiVersion"] = "extensions.agents.x-k8s.io/v1beta1".into();
        inventory["kind"] = "NodeInventory".into();
    }
    if items.is_empty() {
        return;
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let apply = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=sandbox-sim",
        "--filename=-",
    ];
    control_plane
        .kubectl()
        .stdout_with_input(&apply, &list)
        .await;
}

/// The configuration, made to reach the server at a port of this machine, whose certificate is of `ca` (PEM).
pub(crate) fn pointed_at(mut config: kube::Config, ca: &str, port: u16) -> kube::Config {
    config.cluster_url = format!("https://localhost:{port}").parse().unwrap();
    let ca = CertificateDer::from_pem_slice(ca.as_bytes()).unwrap();
    config.root_cert = Some(vec![ca.to_vec()]);
    config
}

/// Waits until `/readyz` says ok.
pub(crate) async fn wait_until_ready(config: &kube::Config, serve: &mut Process) {
    wait_until_ready_within(config, serve, READY_TIMEOUT).await;
}

async fn wait_until_ready_within(config: &kube::Config, serve: &mut Process, within: Duration) {
    let deadline = Instant::now() + within;
    let caller = Caller::new(config.clone());
    loop {
        let request = http::Request::get("/readyz?verbose").body(kube::client::Body::empty());
        let answer = caller.try_send(request.unwrap()).await;
        if answer.as_ref().is_ok_and(|answer| answer.status == 200) {
            return;
        }
        let ended = serve.exited().ok().flatten().is_some();
        assert!(
            !ended && Instant::now() < deadline,
            "the server is not ready: {answer:?}\n{}",
            serve.log_tail(40)
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Starts the built binary in a directory.
pub(crate) fn start_binary(name: &'static str, flags: &[&str], dir: &Path) -> Process {
    Process::start(name, Path::new(BINARY), flags, dir).expect("the binary starts")
}

fn start_sim(options: &StageOptions, kubeconfig: &Path, admin_port: u16, dir: &Path) -> Process {
    let mut flags = vec![
        "sim".to_owned(),
        format!("--nodes={}", options.nodes + options.own_nodes),
        format!("--sandboxes={}", options.sandboxes),
        format!("--templates={TEMPLATE}"),
        format!("--warm={}", options.warm),
        format!("--api-token={NODE_TOKEN}"),
        format!(
            "--publish-period-seconds={}",
            options.publish_period.as_secs()
        ),
        format!("--admin-address=127.0.0.1:{admin_port}"),
        format!("--kubeconfig={}", kubeconfig.display()),
    ];
    flags.extend(options.sim_flags.iter().cloned());
    Process::start("sim", Path::new(BINARY), flags, dir).expect("the nodes start")
}

pub(crate) fn start_serve(
    options: &StageOptions,
    kubeconfig: &Path,
    port: u16,
    dir: &Path,
) -> Process {
    let mut flags = vec![
        "serve".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        "--tls-cert-file=tls.crt".to_owned(),
        "--tls-private-key-file=tls.key".to_owned(),
        "--node-address-cidrs=127.0.0.0/8".to_owned(),
        format!("--lease-namespace={}", options.lease_namespace),
        format!("--kubeconfig={}", kubeconfig.display()),
    ];
    let delay = "--shutdown-delay-seconds";
    if !options
        .serve_flags
        .iter()
        .any(|flag| flag.starts_with(delay))
    {
        flags.push(format!("{delay}=1"));
    }
    if options.token {
        flags.push("--sandboxd-token-file=token".to_owned());
    }
    flags.extend(options.serve_flags.iter().cloned());
    Process::start("serve", Path::new(BINARY), flags, dir).expect("the server starts")
}
