//! Which NodeInventory and which SandboxClaims an agent may write, by the shipped policies.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use kube::client::Body;
use serde_json::{Value, json};

use crate::{
    caller::{Answer, Caller},
    control_plane::{self, ControlPlane, Shared},
    stage::eventually,
    users::ADMIN,
};

/// How long a new policy may take to count.
const PROPAGATION: Duration = Duration::from_secs(60);
const INVENTORIES: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/nodeinventories";

/// Somebody with a bearer token and no certificate.
fn bearer(control_plane: &ControlPlane, token: &str) -> Caller {
    let mut config = control_plane.config_as(ADMIN);
    config.auth_info.client_certificate = None;
    config.auth_info.client_key = None;
    config.auth_info.token = Some(token.to_owned().into());
    Caller::new(config)
}

async fn apply(caller: &Caller, name: &str, node: &str) -> Answer {
    let inventory = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "NodeInventory",
        "metadata": {"name": name},
        "node": node,
        "address": "10.0.0.1:7777",
        "entries": [],
        "pools": [],
    });
    let path = format!("{INVENTORIES}/{name}?fieldManager=sandbox-agent&force=true");
    let request = http::Request::patch(path).header("content-type", "application/apply-patch+yaml");
    let body = Body::from(inventory.to_string().into_bytes());
    caller.send(request.body(body).unwrap()).await
}

fn message(answer: &Answer) -> &str {
    answer.body["message"].as_str().unwrap_or_default()
}

/// Two nodes that are in no other test's way, and the callers that an agent of the first is and a Pod of no node.
struct Agents {
    control_plane: Shared,
    own: String,
    other: String,
    agent: Caller,
    stranger: Caller,
}

impl Agents {
    /// Applies what is shipped. Nodes of a stage are listed and counted by its tests, so these have names of their own.
    async fn start(prefix: &str) -> Self {
        let control_plane = control_plane::shared();
        let root = env!("CARGO_MANIFEST_DIR");
        control_plane
            .apply_crds(std::path::Path::new(&format!("{root}/crds")))
            .await;
        let kubectl = control_plane.kubectl();
        for file in ["00-namespace", "60-agent", "70-policy"] {
            let file = format!("--filename={root}/apiservice/{file}.yaml");
            kubectl
                .stdout(&["apply", "--server-side", "--force-conflicts", &file])
                .await;
        }
        let (own, other) = (format!("{prefix}-own"), format!("{prefix}-other"));
        for node in [&own, &other] {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
            let node = node.to_string();
            kubectl
                .stdout_with_input(&["apply", "--filename=-"], &node)
                .await;
        }
        let token = [
            "create",
            "token",
            "sandbox-agent",
            "--namespace=sandbox-agents",
        ];
        let of_node = [
            "--bound-object-kind=Node",
            &format!("--bound-object-name={own}"),
        ];
        let of_node = kubectl.stdout(&[&token[..], &of_node[..]].concat()).await;
        let of_nobody = kubectl.stdout(&token).await;
        let agent = bearer(&control_plane, of_node.trim());
        let stranger = bearer(&control_plane, of_nobody.trim());
        Self {
            control_plane,
            own,
            other,
            agent,
            stranger,
        }
    }

    fn admin(&self) -> Caller {
        Caller::new(self.control_plane.config_as(ADMIN))
    }

    async fn forget_nodes(&self) {
        for name in [&self.own, &self.other] {
            let path = format!("/api/v1/nodes/{name}");
            self.admin().delete(&path).await.ok();
        }
    }
}

#[tokio::test]
async fn an_agent_writes_the_inventory_of_its_own_node_alone() {
    let agents = Agents::start("policy").await;
    let (agent, stranger) = (&agents.agent, &agents.stranger);
    let (own, other) = (agents.own.as_str(), agents.other.as_str());

    eventually(
        PROPAGATION,
        "the role and the policy are in force",
        async || {
            let (allowed, refused) = (
                apply(agent, own, own).await,
                apply(stranger, own, own).await,
            );
            allowed.status.is_success() && message(&refused).contains("of no node")
        },
    )
    .await;
    for (caller, name, node) in [
        (agent, other, other),
        (agent, other, own),
        (agent, own, other),
        (stranger, other, other),
    ] {
        let refused = apply(caller, name, node).await;
        refused.expect(403, "Forbidden");
        assert!(
            message(&refused).contains("ValidatingAdmissionPolicy"),
            "{}",
            message(&refused)
        );
    }
    agent
        .delete(&format!("{INVENTORIES}/{own}"))
        .await
        .expect(403, "Forbidden");
    // Everybody else is bound by roles alone.
    let admin = agents.admin();
    assert!(apply(&admin, other, other).await.status.is_success());
    let left: Value = admin.get(&format!("{INVENTORIES}/{own}")).await.ok();
    assert_eq!(left["node"], own);
    for name in [own, other] {
        admin.delete(&format!("{INVENTORIES}/{name}")).await.ok();
    }
    agents.forget_nodes().await;
}

const EXTENSIONS: &str = "/apis/extensions.agents.x-k8s.io/v1beta1";

/// A SandboxClaim that an agent of `node` makes.
fn claim(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": {
            "name": name,
            "annotations": {
                "sandbox.cocoonstack.io/node": node,
                "sandbox.cocoonstack.io/claim-id": "sb_1",
            },
            "finalizers": ["sandbox.cocoonstack.io/release"],
        },
        "spec": {"warmPoolRef": {"name": "pool"}},
    })
}

/// Says a condition of a claim, as an agent does.
async fn say(caller: &Caller, path: &str, kind: &str, node: &str) -> Answer {
    let (_, name) = path.rsplit_once('/').unwrap();
    let condition = json!({
        "type": kind, "status": "True", "reason": "Delivered",
        "message": format!("node {node} handed over sb_1"),
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let said = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "metadata": {"name": name}, "status": {"conditions": [condition]},
    });
    let path = format!("{path}/status?fieldManager=sandbox-agent&force=true");
    let request = http::Request::patch(path).header("content-type", "application/apply-patch+yaml");
    let body = Body::from(said.to_string().into_bytes());
    caller.send(request.body(body).unwrap()).await
}

#[track_caller]
fn refused_by_policy(answer: &Answer) {
    answer.expect(403, "Forbidden");
    let said = message(answer);
    assert!(said.contains("ValidatingAdmissionPolicy"), "{said}");
}

#[tokio::test]
async fn an_agent_makes_claims_of_what_its_own_node_handed_over_and_ends_no_other() {
    let agents = Agents::start("claims-policy").await;
    let (agent, admin) = (&agents.agent, agents.admin());
    let (own, other) = (agents.own.as_str(), agents.other.as_str());
    let namespace = agents.control_plane.create_namespace("policy").await;
    let claims = format!("{EXTENSIONS}/namespaces/{namespace}/sandboxclaims");
    let of = |name: &str| format!("{claims}/{name}");
    eventually(
        PROPAGATION,
        "the role and the policy are in force",
        async || {
            let probe = agent.post(&claims, &claim("probe", other)).await;
            message(&probe).contains("an agent makes and deletes SandboxClaims of its own node")
        },
    )
    .await;

    agent.post(&claims, &claim("made", own)).await.ok();
    let with = |path: &[&str], value: Value| {
        let mut changed = claim("more", own);
        let field = path.iter().fold(&mut changed, |at, key| &mut at[*key]);
        *field = value;
        changed
    };
    for more in [
        with(
            &["metadata", "annotations"],
            json!({"sandbox.cocoonstack.io/node": own}),
        ),
        with(&["metadata", "finalizers"], json!(["a.io/b"])),
        with(&["metadata", "labels"], json!({"a": "b"})),
        with(&["spec", "lifecycle"], json!({"shutdownPolicy": "Delete"})),
        with(&["spec", "env"], json!([{"name": "A", "value": "b"}])),
    ] {
        let answer = agent.post(&claims, &more).await;
        refused_by_policy(&answer);
        let said = message(&answer);
        assert!(said.contains("what it was made for"), "{said}");
    }
    let of_nobody = agents.stranger.post(&claims, &claim("more", own)).await;
    refused_by_policy(&of_nobody);

    // Claims of others: Bound may be said of them, by the node that it names, once, and before they have a sandbox.
    for name in ["free", "given"] {
        let mut theirs = claim(name, own);
        theirs["metadata"]["annotations"] = json!({});
        theirs["metadata"]["finalizers"] = json!([]);
        admin.post(&claims, &theirs).await.ok();
    }
    refused_by_policy(&say(agent, &of("free"), "Bound", other).await);
    refused_by_policy(&say(agent, &of("free"), "Ready", own).await);
    say(agent, &of("free"), "Bound", own).await.ok();
    say(agent, &of("made"), "Bound", own).await.ok();
    say(&admin, &of("free"), "Bound", other).await.ok();
    refused_by_policy(&say(agent, &of("free"), "Bound", own).await);
    let given = json!({"status": {"sandbox": {"name": "given"}}});
    let path = format!("{}/status", of("given"));
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    let body = Body::from(given.to_string().into_bytes());
    admin.send(request.body(body).unwrap()).await.ok();
    refused_by_policy(&say(agent, &of("given"), "Bound", own).await);

    refused_by_policy(&agent.delete(&of("free")).await);
    agent.delete(&of("made")).await.ok();
    let patch =
        http::Request::patch(of("free")).header("content-type", "application/merge-patch+json");
    let body = Body::from(br#"{"spec": {"warmPoolRef": {"name": "other"}}}"#.to_vec());
    let changed = agent.send(patch.body(body).unwrap()).await;
    changed.expect(403, "Forbidden");
    agent.get(&claims).await.expect(403, "Forbidden");

    let unlock = [
        "patch",
        "sandboxclaim/made",
        "--type=merge",
        "--namespace",
        &namespace,
    ];
    let unlock = [&unlock[..], &["--patch={\"metadata\":{\"finalizers\":[]}}"]].concat();
    // A server that another test runs just now may have done so.
    agents.control_plane.kubectl().run(&unlock).await;
    agents.forget_nodes().await;
}
