//! Snapshots behind kube-apiserver: kubectl sees them, a namespace goes with them, a restart changes nothing.

use serde_json::{Value, json};

use crate::stage::{self, Stage, StageOptions, collection, item};

fn snapshots(namespace: &str) -> String {
    format!("{}/namespaces/{namespace}/sandboxsnapshots", stage::API)
}

fn mk_snapshot(name: &str, sandbox: &str) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "SandboxSnapshot",
        "metadata": {"name": name},
        "spec": {"sandboxName": sandbox},
    })
}

fn from_snapshot(name: &str, snapshot: &str) -> Value {
    let mut sandbox = stage::sandbox(name, stage::TEMPLATE);
    sandbox["metadata"]["annotations"]["sandbox.cocoonstack.io/snapshot"] = snapshot.into();
    sandbox
}

/// What is to be the same after a restart.
fn identity(object: &Value) -> [Value; 4] {
    let metadata = &object["metadata"];
    [
        metadata["namespace"].clone(),
        metadata["name"].clone(),
        metadata["uid"].clone(),
        metadata["creationTimestamp"].clone(),
    ]
}

#[tokio::test]
async fn kubectl_takes_a_snapshot_starts_from_it_and_deletes_it() {
    let stage = stage::shared().await;
    // kubectl keeps the index of documents that it sees first.
    stage.openapi_has("agents.x-k8s.io/v1beta1").await;
    let namespace = stage.namespace("snapshots").await;
    stage.create(&namespace, "a").await;
    let kubectl = stage.control_plane.kubectl();
    let at = format!("--namespace={namespace}");
    let create = ["create", "--filename=-", &at];
    let taken = mk_snapshot("s1", "a").to_string();
    let made = kubectl.stdout_with_input(&create, &taken);
    assert_eq!(
        made.await.trim(),
        "sandboxsnapshot.agents.x-k8s.io/s1 created"
    );
    let started = from_snapshot("b", "s1").to_string();
    let started = kubectl.stdout_with_input(&create, &started).await;
    assert_eq!(started.trim(), "sandbox.agents.x-k8s.io/b created");
    let table = kubectl.stdout(&["get", "sandboxsnapshots", &at]).await;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|row| row.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["NAME", "SANDBOX", "NODE", "AGE"]);
    assert_eq!(rows[1][..2], ["s1", "a"]);
    let explained = ["explain", "sandboxsnapshot.spec.sandboxName"];
    assert!(
        kubectl
            .stdout(&explained)
            .await
            .contains("sandbox in the same namespace")
    );
    let deleted = kubectl
        .stdout(&["delete", "sandboxsnapshot", "s1", &at, "--timeout=20s"])
        .await;
    assert!(deleted.contains("deleted"), "{deleted}");
    let left = kubectl
        .stdout(&["get", "sandboxsnapshots", &at, "--output=name"])
        .await;
    assert_eq!(left, "");
}

#[tokio::test]
async fn a_namespace_goes_with_its_snapshots() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("snapshots").await;
    stage.create(&namespace, "a").await;
    let admin = stage.admin();
    for name in ["s1", "s2"] {
        admin
            .post(&snapshots(&namespace), &mk_snapshot(name, "a"))
            .await
            .ok();
    }
    let kubectl = stage.control_plane.kubectl();
    kubectl
        .stdout(&["delete", "namespace", &namespace, "--timeout=60s"])
        .await;
    let listed = admin
        .get(&format!("{}/sandboxsnapshots", stage::API))
        .await
        .ok();
    assert!(!listed.to_string().contains(&namespace), "{listed:#}");
}

#[tokio::test]
async fn a_killed_server_knows_snapshots_and_what_started_from_them() {
    let mut stage = Stage::start(StageOptions::default()).await;
    stage.serves_snapshots().await;
    let namespace = stage.namespace("snapshots").await;
    stage.create(&namespace, "a").await;
    let direct = stage.direct();
    direct
        .post(&snapshots(&namespace), &mk_snapshot("s1", "a"))
        .await
        .ok();
    direct
        .post(&collection(&namespace), &from_snapshot("b", "s1"))
        .await
        .ok();
    let (list, path) = (snapshots(&namespace), item(&namespace, "b"));
    let before = [
        identity(&direct.get(&format!("{list}/s1")).await.ok()),
        identity(&direct.get(&path).await.ok()),
    ];
    // One of the nodes' publications may be older than the claim, another newer.
    stage.publish(0).await;
    stage.kill_serve();
    stage.start_serve().await;
    let direct = stage.direct();
    stage.serves_snapshots().await;
    let after = [
        identity(&direct.get(&format!("{list}/s1")).await.ok()),
        identity(&direct.get(&path).await.ok()),
    ];
    assert_eq!(after, before);
    let names = direct.get(&collection(&namespace)).await.ok();
    assert_eq!(names["items"].as_array().unwrap().len(), 2, "{names:#}");
    direct.delete(&format!("{list}/s1")).await.ok();
}
