//! The product as its chart installs it, in a cluster of its own: what is rendered is applied, and what a kubelet would run is
//! run by [`Pod`]. Beside it the operator does what NOTES.txt says, and the nodes' daemons are simulated.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{path::Path, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    api_service,
    caller::Caller,
    chart::{documents, helm_template},
    components::free_port,
    control_plane::ControlPlane,
    kubelet::Pod,
    nodes::Nodes,
    process::{Directory, Process},
    stage::{NODE_TOKEN, eventually, pointed_at, start_binary},
    users::ADMIN,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Where the chart is installed, and where it puts its agents.
const NAMESPACES: [&str; 2] = ["sandbox-system", "sandbox-agents"];
/// What the server is reached by: no cluster IP leads anywhere without kube-proxy.
const SERVICE: &str = "sandbox-apiserver";

/// A program of the product and the Pod that it is started from.
pub(crate) struct Running {
    pub(crate) pod: Pod,
    process: Option<Process>,
}

impl Running {
    fn new(pod: Pod) -> Self {
        let process = Some(pod.start());
        Self { pod, process }
    }

    /// Ends it as a crash does, and starts it anew.
    pub(crate) fn crash(&mut self) {
        // Gone before the next one wants its port.
        self.process = None;
        self.process = Some(self.pod.start());
    }

    /// All that it logged, in all of its lives.
    pub(crate) fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }
}

/// Everything that was installed. It ends when it is dropped.
pub(crate) struct Installation {
    pub(crate) server: Running,
    pub(crate) agents: Vec<Running>,
    pub(crate) nodes: Nodes,
    port: u16,
    _sim: Process,
    directory: Directory,
    // Last: the others are its clients.
    pub(crate) control_plane: ControlPlane,
}

impl Drop for Installation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for program in [&self.server].into_iter().chain(&self.agents) {
                let log = program.log();
                let lines: Vec<_> = log.lines().collect();
                let tail = &lines[lines.len().saturating_sub(15)..];
                eprintln!("---\n{}", tail.join("\n"));
            }
        }
    }
}

impl Installation {
    /// Installs the chart for so many nodes, which keep nothing warm yet, and returns when sandboxes are served.
    pub(crate) async fn new(n_nodes: usize) -> Self {
        Self::over(n_nodes, 0).await
    }

    /// The same over nodes that have so many sandboxes already.
    pub(crate) async fn over(n_nodes: usize, sandboxes: usize) -> Self {
        let control_plane = ControlPlane::own();
        let directory = Directory::create("installation-").unwrap();
        let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/sandbox-apiserver/crds");
        // kubectl reads no directory behind a symbolic link.
        let crds = crds.canonicalize().unwrap();
        control_plane.apply_crds(&crds).await;
        let rendered = documents(&helm_template(&[
            "--set=warmPoolDriver=true",
            "--set=extraArgs={--warm-pool-takeover}",
            "--set=nodeAddressCIDRs={127.0.0.0/8}",
        ]));
        let port = free_port().unwrap();
        apply(&control_plane, &rendered, port).await;
        give_token(&control_plane).await;

        let admin_port = free_port().unwrap();
        let sim = start_sim(n_nodes, sandboxes, admin_port, directory.path());
        let nodes = Nodes::new(admin_port);
        eventually(PATIENCE, "the nodes are there", async || {
            nodes.answer().await
        })
        .await;
        let replaced = [
            ("--secure-port", port.to_string()),
            ("--bind-address", "127.0.0.1".to_owned()),
            ("--lease-namespace", NAMESPACES[0].to_owned()),
        ];
        let server_dir = directory.path().join("server");
        let server = Pod::new(
            &control_plane,
            "serve",
            workload(&rendered, "Deployment"),
            None,
            &replaced,
            &server_dir,
        );
        let server = Running::new(server.await);
        let mut agents = Vec::new();
        for node in nodes.all().await {
            let agent = workload(&rendered, "DaemonSet");
            let dir = directory.path();
            agents.push(start_agent(&control_plane, agent, &node, dir).await);
        }
        let installation = Self {
            server,
            agents,
            nodes,
            port,
            _sim: sim,
            directory,
            control_plane,
        };
        installation.until_available().await;
        installation
    }

    /// The administrator's calls, through kube-apiserver.
    pub(crate) fn admin(&self) -> Caller {
        Caller::new(self.control_plane.config_as(ADMIN))
    }

    /// The administrator's calls at the server's own port, whose certificate is of the CA that it registered itself with.
    pub(crate) async fn direct(&self) -> Caller {
        let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.agents.x-k8s.io";
        let service = self.admin().get(path).await.ok();
        let ca = service["spec"]["caBundle"].as_str().unwrap();
        let ca = String::from_utf8(BASE64_STANDARD.decode(ca).unwrap()).unwrap();
        let config = self.control_plane.config_as(ADMIN);
        Caller::new(pointed_at(config, &ca, self.port))
    }

    /// What the server and the agents wrote: logs, certificates, and what users said.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Waits until kube-apiserver finds the server, and the server has heard of every node.
    pub(crate) async fn until_available(&self) {
        let kubectl = self.control_plane.kubectl();
        let wait = [
            "wait",
            "--for=condition=Available",
            "--timeout=60s",
            "apiservice/v1beta1.agents.x-k8s.io",
            "apiservice/v1alpha1.agents.x-k8s.io",
        ];
        kubectl.stdout(&wait).await;
        let n_nodes = self.agents.len();
        eventually(PATIENCE, "every node has published", async || {
            let get = ["get", "nodeinventories", "--output=name"];
            kubectl.stdout(&get).await.lines().count() == n_nodes
        })
        .await;
        let path = format!("{}?limit=1", crate::stage::collection("default"));
        let admin = self.admin();
        eventually(PATIENCE, "sandboxes are served", async || {
            admin.get(&path).await.status == 200
        })
        .await;
        api_service::is_discovered(&admin).await;
    }
}

fn workload<'a>(rendered: &'a [Value], kind: &str) -> &'a Value {
    let workload = rendered.iter().find(|object| object["kind"] == kind);
    workload.unwrap_or_else(|| panic!("the chart renders a {kind}"))
}

/// Applies what is rendered. The Service leads to this machine, where the server has a port of its own.
async fn apply(control_plane: &ControlPlane, rendered: &[Value], port: u16) {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACES[0]}});
    let mut items = vec![namespace];
    for object in rendered {
        items.push(led_here(object.clone(), port));
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let apply = ["apply", "--server-side", "--filename=-"];
    let kubectl = control_plane.kubectl();
    kubectl.stdout_with_input(&apply, &list).await;
}

/// An object of the chart with what leads to the server: here that has a port of this machine.
pub(crate) fn led_here(mut object: Value, port: u16) -> Value {
    match object["kind"].as_str() {
        Some("Service") if object["metadata"]["name"] == SERVICE => {
            object["spec"] = json!({
                "type": "ExternalName",
                "externalName": "localhost",
                "ports": [{"name": "https", "port": port}],
            });
        }
        Some("APIService") => object["spec"]["service"]["port"] = port.into(),
        _ => {}
    }
    object
}

/// The daemons' token, as NOTES.txt tells the operator to add it.
async fn give_token(control_plane: &ControlPlane) {
    let kubectl = control_plane.kubectl();
    for namespace in NAMESPACES {
        let namespace = format!("--namespace={namespace}");
        let token = format!("--from-literal=token={NODE_TOKEN}");
        let name = "sandbox-apiserver-sandboxd";
        let create = ["create", "secret", "generic", name, &namespace, &token];
        kubectl.stdout(&create).await;
    }
}

fn start_sim(n_nodes: usize, sandboxes: usize, admin_port: u16, dir: &Path) -> Process {
    let flags = [
        "sim",
        &format!("--nodes={n_nodes}"),
        &format!("--sandboxes={sandboxes}"),
        "--warm=0",
        "--generation=c",
        &format!("--api-token={NODE_TOKEN}"),
        &format!("--admin-address=127.0.0.1:{admin_port}"),
    ];
    start_binary("sim", &flags, dir)
}

/// Makes the Node of a daemon, as a kubelet does, and starts its agent.
async fn start_agent(
    control_plane: &ControlPlane,
    workload: &Value,
    daemon: &Value,
    dir: &Path,
) -> Running {
    let name = daemon["name"].as_str().unwrap();
    let selector = &workload["spec"]["template"]["spec"]["nodeSelector"];
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": selector}});
    let apply = ["apply", "--filename=-"];
    let kubectl = control_plane.kubectl();
    kubectl.stdout_with_input(&apply, &node.to_string()).await;
    let port = free_port().unwrap();
    let replaced = [
        ("--listen-address", format!("127.0.0.1:{port}")),
        (
            "--sandboxd-address",
            daemon["address"].as_str().unwrap().to_owned(),
        ),
    ];
    let dir = dir.join(name);
    Running::new(
        Pod::new(
            control_plane,
            "agent",
            workload,
            Some(name),
            &replaced,
            &dir,
        )
        .await,
    )
}
