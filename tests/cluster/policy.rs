//! Who may write which NodeInventory, by the shipped policy.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use kube::client::Body;
use serde_json::{Value, json};

use crate::{
    caller::{Answer, Caller},
    control_plane::{self, ControlPlane},
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

#[tokio::test]
async fn an_agent_writes_the_inventory_of_its_own_node_alone() {
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
    // Names of their own: the nodes of a stage are listed and counted by its tests.
    let (own, other) = ("policy-own", "policy-other");
    for node in [own, other] {
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

    eventually(
        PROPAGATION,
        "the role and the policy are in force",
        async || {
            let (allowed, refused) = (
                apply(&agent, own, own).await,
                apply(&stranger, own, own).await,
            );
            allowed.status.is_success() && message(&refused).contains("of no node")
        },
    )
    .await;
    for (caller, name, node) in [
        (&agent, other, other),
        (&agent, other, own),
        (&agent, own, other),
        (&stranger, other, other),
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
    let admin = Caller::new(control_plane.config_as(ADMIN));
    assert!(apply(&admin, other, other).await.status.is_success());
    let left: Value = admin.get(&format!("{INVENTORIES}/{own}")).await.ok();
    assert_eq!(left["node"], own);
    for name in [own, other] {
        admin.delete(&format!("{INVENTORIES}/{name}")).await.ok();
        admin.delete(&format!("/api/v1/nodes/{name}")).await.ok();
    }
}
