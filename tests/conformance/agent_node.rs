//! A node with an agent, of which kube-apiserver learns from the agent alone.

use std::path::PathBuf;

use serde_json::json;

use super::{subject::Subject, writes::SOON};
use crate::{
    components::free_port,
    nodes::Nodes,
    process::{Directory, Process},
    stage::{self, NODE_TOKEN, eventually},
    users::ADMIN,
};

/// The rights that an agent asks of a server, which the manifests do not grant: they do not install the agent.
const ROLE: &str = "conformance-agent-caller";

/// A daemon with warm VMs of its own template, and the agent beside it.
pub(super) struct AgentNode {
    pub(super) template: String,
    // Dropped in order: the processes end before their directory is gone.
    _agent: Process,
    _daemon: Process,
    directory: Directory,
}

impl AgentNode {
    /// Starts both; the inventory is published soon after.
    pub(super) async fn start(subject: &Subject) -> Self {
        let directory = Directory::create("agent-").unwrap();
        let template = format!("only-{}:1", subject.namespace);
        let admin_port = free_port().unwrap();
        let flags = [
            "sim",
            "--nodes=1",
            "--warm=5",
            &format!("--templates={template}"),
            &format!("--api-token={NODE_TOKEN}"),
            &format!("--admin-address=127.0.0.1:{admin_port}"),
        ];
        let daemon = stage::start_binary("daemon", &flags, directory.path());
        let nodes = Nodes::new(admin_port);
        eventually(SOON, "the daemon answers", async || nodes.answer().await).await;
        let address = nodes.all().await[0]["address"].clone();
        let token = server_token(subject).await;
        for (file, content) in [
            ("daemon-token", NODE_TOKEN),
            ("agent-token", token.as_str()),
        ] {
            std::fs::write(directory.path().join(file), content).unwrap();
        }
        let kubeconfig = subject.control_plane.kubeconfig_as(ADMIN);
        let flags = [
            "agent",
            "--sandboxd-token-file=daemon-token",
            "--state-dir=state",
            &format!("--node-name={}", subject.namespace),
            &format!(
                "--sandboxd-address={}",
                address.as_str().unwrap_or_default()
            ),
            &format!("--kubeconfig={}", kubeconfig.display()),
            &format!("--listen-address=127.0.0.1:{}", free_port().unwrap()),
        ];
        let agent = stage::start_binary("agent", &flags, directory.path());
        Self {
            template,
            _agent: agent,
            _daemon: daemon,
            directory,
        }
    }

    /// The token by which agents know a server.
    pub(super) fn token_file(&self) -> PathBuf {
        self.directory.path().join("agent-token")
    }

    /// Takes back what the agent published.
    pub(super) async fn forget(self, subject: &Subject) {
        let name = subject.namespace.clone();
        drop(self);
        let delete = ["delete", "nodeinventory", &name];
        subject.control_plane.kubectl().stdout(&delete).await;
    }
}

/// A token that agents take for a server's. The account that it is of goes with the check's namespace.
async fn server_token(subject: &Subject) -> String {
    let (kubectl, namespace) = (subject.control_plane.kubectl(), &subject.namespace);
    let here = format!("--namespace={namespace}");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": ROLE},
        "rules": [{
            "apiGroups": ["extensions.agents.x-k8s.io"],
            "resources": ["nodeinventories", "nodeinventories/feed", "nodeinventories/objects"],
            "verbs": ["*"],
        }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": "server", "namespace": namespace}],
    });
    kubectl
        .stdout(&["create", "serviceaccount", "server", &here])
        .await;
    for object in [role, binding] {
        let apply = ["apply", "--server-side", "--filename=-"];
        kubectl.stdout_with_input(&apply, &object.to_string()).await;
    }
    let token = [
        "create",
        "token",
        "server",
        &here,
        "--audience=sandbox-agent",
    ];
    kubectl.stdout(&token).await.trim().to_owned()
}
