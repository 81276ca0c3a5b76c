//! A daemon of its own, and the agent beside it under the ServiceAccount that the manifests bind, with a token of its node.

// clippy's own exemption for tests ends at their helpers. A benchmark uses this file as well.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use sandbox_apiserver::api::AgentEndpoint;
use serde_json::{Value, json};

use super::PATIENCE;
use crate::{
    components::free_port,
    gateway_client::GatewayClient,
    nodes::{Held, Nodes},
    process::{Directory, Process, signal},
    stage::{self, NODE_TOKEN, Stage, TEMPLATE, eventually},
    users::ADMIN,
};

const SERVER_TOKEN: &str = "server-token";
/// What the manifests let an agent do with SandboxClaims.
const ROLE: &str = "clusterrole/sandbox-agent";

pub(crate) struct Files(Directory);

pub(crate) struct GatewayNode {
    pub(super) name: String,
    nodes: Nodes,
    port: u16,
    pub(super) daemon_address: String,
    endpoint: AgentEndpoint,
    // Dropped in order: the processes end before their directory is gone.
    agent: Option<Process>,
    _daemon: Process,
    files: Files,
}

impl Files {
    /// The token by which the agent knows the server; written when the node starts.
    pub(crate) fn server_token(&self) -> PathBuf {
        self.0.path().join(SERVER_TOKEN)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.0.path().join(name), content).unwrap();
    }
}

impl GatewayNode {
    pub(crate) fn files() -> Files {
        Files(Directory::create("gateway-").unwrap())
    }

    /// Starts daemon and agent, and waits until the agent is ready.
    pub(super) async fn start(stage: &Stage, files: Files) -> Self {
        let kubectl = stage.control_plane.kubectl();
        for file in ["60-agent", "70-policy"] {
            let file = format!(
                "--filename={}/apiservice/{file}.yaml",
                env!("CARGO_MANIFEST_DIR")
            );
            let apply = ["apply", "--server-side", "--force-conflicts", &file];
            kubectl.stdout(&apply).await;
        }
        let admin_port = free_port().unwrap();
        let flags = [
            "sim",
            "--nodes=1",
            "--warm=40",
            &format!("--templates={TEMPLATE}"),
            &format!("--api-token={NODE_TOKEN}"),
            &format!("--admin-address=127.0.0.1:{admin_port}"),
        ];
        let daemon = stage::start_binary("daemon", &flags, files.0.path());
        let nodes = Nodes::new(admin_port);
        eventually(PATIENCE, "the daemon answers", async || {
            nodes.answer().await
        })
        .await;
        let address = nodes.all().await[0]["address"].clone();
        let mut node = Self {
            name: format!("gateway-{}", rand::random::<u32>()),
            nodes,
            port: free_port().unwrap(),
            daemon_address: address.as_str().unwrap().to_owned(),
            endpoint: AgentEndpoint::default(),
            agent: None,
            _daemon: daemon,
            files,
        };
        let of_cluster =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}});
        let apply = ["apply", "--filename=-"];
        kubectl
            .stdout_with_input(&apply, &of_cluster.to_string())
            .await;
        node.write_files(stage).await;
        node.start_agent(stage).await;
        node
    }

    async fn write_files(&self, stage: &Stage) {
        let kubectl = stage.control_plane.kubectl();
        let bound = [
            "create",
            "token",
            "sandbox-agent",
            "--namespace=sandbox-agents",
            "--bound-object-kind=Node",
            &format!("--bound-object-name={}", self.name),
        ];
        let own = kubectl.stdout(&bound).await;
        let server = [
            "create",
            "token",
            "sandbox-apiserver",
            "--namespace=sandbox-system",
            "--audience=sandbox-agent",
        ];
        let server = kubectl.stdout(&server).await;
        let config = stage.control_plane.config_as(ADMIN);
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {
                "server": config.cluster_url.to_string(), "certificate-authority": "ca.crt"}}],
            "users": [{"name": "u", "user": {"token": own.trim()}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        self.files.write("ca.crt", &stage.control_plane.ca());
        self.files.write("kubeconfig", &kubeconfig.to_string());
        self.files.write("daemon-token", NODE_TOKEN);
        self.files.write(SERVER_TOKEN, server.trim());
    }

    /// Starts the agent, and waits until it is ready and has published where it is.
    pub(super) async fn start_agent(&mut self, stage: &Stage) {
        let flags = [
            "agent",
            "--sandboxd-token-file=daemon-token",
            "--state-dir=state",
            "--kubeconfig=kubeconfig",
            &format!("--node-name={}", self.name),
            &format!("--sandboxd-address={}", self.daemon_address),
            &format!("--listen-address=127.0.0.1:{}", self.port),
        ];
        self.agent = Some(stage::start_binary("agent", &flags, self.files.0.path()));
        let path = format!(
            "/apis/extensions.agents.x-k8s.io/v1beta1/nodeinventories/{}",
            self.name
        );
        let admin = stage.admin();
        eventually(PATIENCE, "the agent publishes", async || {
            admin.get(&path).await.status == 200
        })
        .await;
        let inventory = admin.get(&path).await.ok();
        self.endpoint = serde_json::from_value(inventory["agent"].clone()).unwrap();
        let ready = format!("127.0.0.1:{}", self.port);
        eventually(PATIENCE, "the agent listens", async || {
            tokio::net::TcpStream::connect(&ready).await.is_ok()
        })
        .await;
        let caller = GatewayClient::connect(&self.endpoint, None).await;
        eventually(PATIENCE, "the agent is ready", async || {
            caller.send("GET", "/readyz", String::new()).await.0 == 200
        })
        .await;
    }

    /// Waits until the server hears an agent.
    pub(super) async fn is_heard(&self, stage: &Stage) {
        let live = async || {
            let metrics = stage.direct().get("/metrics").await.ok();
            metrics.as_str().unwrap().lines().any(|line| {
                line.starts_with("sandbox_apiserver_inventory_live_feeds ") && !line.ends_with(" 0")
            })
        };
        eventually(PATIENCE, "the server hears the agent", live).await;
    }

    /// Ends the agent as kill -9 does.
    pub(super) fn kill(&mut self) {
        self.agent = None;
    }

    /// Sends the agent a signal by its name, such as `STOP`.
    pub(super) fn signal(&self, name: &str) {
        let pid = self.agent.as_ref().and_then(Process::pid);
        assert!(signal(name, &pid.unwrap()));
    }

    pub(super) fn log(&self) -> String {
        self.agent.as_ref().map_or(String::new(), Process::log)
    }

    pub(super) async fn held(&self, namespace: &str) -> Vec<Held> {
        self.nodes.held(namespace).await
    }

    /// A caller with the token of a ServiceAccount of the namespace, which may claim there or not.
    pub(super) async fn caller(
        &self,
        stage: &Stage,
        namespace: &str,
        name: &str,
        may_claim: bool,
    ) -> GatewayClient {
        let kubectl = stage.control_plane.kubectl();
        let here = format!("--namespace={namespace}");
        kubectl
            .stdout(&["create", "serviceaccount", name, &here])
            .await;
        if may_claim {
            let verbs = "--verb=create,delete";
            let resource = "--resource=sandboxclaims.extensions.agents.x-k8s.io";
            kubectl
                .stdout(&["create", "role", name, verbs, resource, &here])
                .await;
            let role = format!("--role={name}");
            let account = format!("--serviceaccount={namespace}:{name}");
            kubectl
                .stdout(&["create", "rolebinding", name, &role, &account, &here])
                .await;
            let as_account = format!("--as=system:serviceaccount:{namespace}:{name}");
            let can = [
                "auth",
                "can-i",
                "create",
                "sandboxclaims",
                &as_account,
                &here,
            ];
            eventually(PATIENCE, "the role is in force", async || {
                kubectl.run(&can).await.status.success()
            })
            .await;
        }
        let token = ["create", "token", name, "--audience=sandbox-agent", &here];
        let token = kubectl.stdout(&token).await;
        GatewayClient::connect(&self.endpoint, Some(token.trim())).await
    }

    /// Lets the agent make SandboxClaims, or not.
    pub(super) async fn may_record(&self, stage: &Stage, may: bool) {
        let kubectl = stage.control_plane.kubectl();
        let role = kubectl.stdout(&["get", ROLE, "--output=json"]).await;
        let mut role: Value = serde_json::from_str(&role).unwrap();
        for rule in role["rules"].as_array_mut().unwrap() {
            if rule["resources"] == json!(["sandboxclaims"]) {
                let verbs: &[&str] = match may {
                    true => &["get", "create", "delete"],
                    false => &["get", "delete"],
                };
                rule["verbs"] = json!(verbs);
            }
        }
        let replace = ["replace", "--filename=-"];
        kubectl.stdout_with_input(&replace, &role.to_string()).await;
        let agent = "--as=system:serviceaccount:sandbox-agents:sandbox-agent";
        let can = ["auth", "can-i", "create", "sandboxclaims", agent];
        eventually(PATIENCE, "the role is in force", async || {
            kubectl.run(&can).await.status.success() == may
        })
        .await;
    }

    /// Takes back what the agent published.
    pub(super) async fn forget(mut self, stage: &Stage) {
        self.kill();
        let kubectl = stage.control_plane.kubectl();
        for kind in ["nodeinventory", "node"] {
            kubectl.stdout(&["delete", kind, &self.name]).await;
        }
    }
}
