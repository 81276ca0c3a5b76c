//! Snapshots: taken by name, shown at once, started from, and never said to be gone when nobody knows.

use std::time::Duration;

use sandbox_apiserver::{
    sim::{self, Fault, FaultKind},
    snapshots::Whole,
    store::{Limits, Scope},
};
use serde_json::{Value, json};

use crate::harness::{Cluster, SANDBOXES, TABLE, item, mk_node, mk_sandbox, until};

const SNAPSHOTS: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxsnapshots";
const ALL_SNAPSHOTS: &str = "/apis/agents.x-k8s.io/v1beta1/sandboxsnapshots";
const ELSEWHERE: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/elsewhere";

fn snapshot(name: &str) -> String {
    format!("{SNAPSHOTS}/{name}")
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
    let mut sandbox = mk_sandbox(name);
    sandbox["metadata"]["annotations"]["sandbox.cocoonstack.io/snapshot"] = snapshot.into();
    sandbox
}

/// Three nodes and a sandbox `a`, all snapshots known.
async fn mk_cluster() -> Cluster {
    let cluster = Cluster::start(sim::Options {
        nodes: 3,
        ..mk_node(8)
    });
    let cluster = cluster.await;
    cluster.create("a").await;
    heard(&cluster).await;
    cluster
}

async fn heard(cluster: &Cluster) {
    let snapshots = cluster.gateway.snapshots();
    until("every node has told its snapshots", || {
        snapshots.whole() == Whole::Yes
    })
    .await;
}

/// Has every node asked now, and waits until it is so.
async fn asked_until(cluster: &Cluster, what: &str, holds: impl Fn() -> bool) {
    for (node, _) in cluster.fleet.addresses() {
        cluster.gateway.snapshots().ask_soon(&node);
    }
    until(what, holds).await;
}

async fn take(cluster: &Cluster, name: &str) -> Value {
    let taken = cluster
        .client
        .post(SNAPSHOTS, &mk_snapshot(name, "a"))
        .await;
    assert_eq!(taken.code(), 201, "{}", taken.text());
    taken.json()
}

/// Claims that all nodes hold.
fn held(cluster: &Cluster) -> usize {
    let nodes = cluster.nodes.nodes().iter();
    nodes.map(sim::Handle::claimed).sum()
}

fn node_of(cluster: &Cluster, object: &Value) -> usize {
    let name = object["metadata"]["labels"]["sandbox.cocoonstack.io/node"]
        .as_str()
        .unwrap();
    let nodes = cluster.nodes.inventories();
    nodes
        .iter()
        .position(|inventory| inventory.node == name)
        .unwrap()
}

#[tokio::test]
async fn a_snapshot_shows_at_once_and_says_of_what_it_is() {
    let cluster = mk_cluster().await;
    let sandbox = cluster.client.get(item("a")).await.json();
    let mut watch = cluster
        .client
        .watch(format!("{SNAPSHOTS}?watch=true"))
        .await;
    let taken = take(&cluster, "s1").await;
    assert_eq!(taken["kind"], "SandboxSnapshot");
    assert_eq!(taken["spec"], json!({"sandboxName": "a"}));
    assert_eq!(taken["status"]["node"], sandbox["status"]["nodeName"]);
    assert_eq!(taken["status"]["pool"], "python:3.12|none|small");
    assert_eq!(watch.next().await, "ADDED s1");
    assert_eq!(cluster.client.get(snapshot("s1")).await.json(), taken);
    for list in [SNAPSHOTS, ALL_SNAPSHOTS] {
        assert_eq!(cluster.client.get(list).await.names(), ["s1"]);
    }
    for (query, names) in [
        ("fieldSelector=spec.sandboxName%3Da", ["s1"].as_slice()),
        ("fieldSelector=spec.sandboxName%3Db", &[]),
        ("labelSelector=sandbox.cocoonstack.io/sandbox%3Da", &["s1"]),
    ] {
        let listed = cluster.client.get(format!("{SNAPSHOTS}?{query}")).await;
        assert_eq!(listed.names(), names, "{query}");
    }
    let table = cluster.client.get_as(SNAPSHOTS, TABLE).await.json();
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    let node = &sandbox["status"]["nodeName"];
    assert_eq!(cells[..3], [json!("s1"), json!("a"), node.clone()]);

    let named = format!("{}/snapshot", item("a"));
    let again = cluster.client.post(&named, &json!({"name": "s1"})).await;
    assert_eq!(again.json(), taken, "asked for again, it is the same one");
    let made = cluster.client.post(&named, &json!({})).await.json();
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("a-"), "{name}");
    assert_eq!(cluster.client.get(SNAPSHOTS).await.names().len(), 2);
}

#[tokio::test]
async fn a_name_is_one_snapshots_and_a_refusal_asks_no_node() {
    let cluster = mk_cluster().await;
    cluster.create("b").await;
    take(&cluster, "s1").await;
    let calls = cluster.writes_at_nodes();
    let of_b = cluster
        .client
        .post(SNAPSHOTS, &mk_snapshot("s1", "b"))
        .await;
    of_b.refusal(409, "AlreadyExists");
    let named = format!("{}/snapshot", item("b"));
    let of_b = cluster.client.post(&named, &json!({"name": "s1"})).await;
    of_b.refusal(409, "Conflict");
    let absent = cluster
        .client
        .post(SNAPSHOTS, &mk_snapshot("s2", "nothing"))
        .await;
    let refusal = absent.refusal(422, "Invalid");
    assert_eq!(refusal["details"]["causes"][0]["field"], "spec.sandboxName");
    let long = "x".repeat(56);
    let refused = cluster
        .client
        .post(SNAPSHOTS, &mk_snapshot(&long, "a"))
        .await;
    let refusal = refused.refusal(422, "Invalid");
    assert_eq!(refusal["details"]["causes"][0]["field"], "metadata.name");
    let refused = cluster
        .client
        .post(&format!("{}/snapshot", item("a")), &json!({"name": long}))
        .await;
    refused.refusal(422, "Invalid");
    let would = cluster
        .client
        .post(format!("{SNAPSHOTS}?dryRun=All"), &mk_snapshot("s2", "a"))
        .await;
    assert_eq!(would.code(), 201);
    for (method, path) in [("PUT", snapshot("s1")), ("PATCH", snapshot("s1"))] {
        let headers = [("content-type", "application/merge-patch+json")];
        let refused = cluster.client.request(method, &path, &headers, "{}").await;
        refused.refusal(405, "MethodNotAllowed");
    }
    assert_eq!(cluster.writes_at_nodes(), calls);
}

#[tokio::test]
async fn a_deleted_snapshot_is_gone_from_its_node() {
    let cluster = mk_cluster().await;
    let taken = take(&cluster, "s1").await;
    take(&cluster, "s2").await;
    take(&cluster, "s3").await;
    let mut watch = cluster
        .client
        .watch(format!(
            "{SNAPSHOTS}?watch=true&resourceVersion={}",
            cluster.client.get(SNAPSHOTS).await.json()["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
        ))
        .await;
    let wrong = cluster
        .client
        .delete(snapshot("s1"), json!({"preconditions": {"uid": "other"}}))
        .await;
    wrong.refusal(409, "Conflict");
    let dry = cluster
        .client
        .delete(format!("{}?dryRun=All", snapshot("s1")), json!({}))
        .await;
    assert_eq!(dry.code(), 200);
    let deleted = cluster
        .client
        .delete(
            snapshot("s1"),
            json!({"preconditions": {"uid": taken["metadata"]["uid"]}}),
        )
        .await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    assert_eq!(deleted.json()["details"]["uid"], taken["metadata"]["uid"]);
    assert_eq!(watch.next().await, "DELETED s1");
    cluster
        .client
        .get(snapshot("s1"))
        .await
        .refusal(404, "NotFound");
    let rest = cluster.client.delete(SNAPSHOTS, json!({})).await;
    assert_eq!(rest.names(), ["s2", "s3"]);
    let node = node_of(&cluster, &taken);
    let (_, address) = cluster
        .fleet
        .addresses()
        .into_iter()
        .find(|(name, _)| *name.as_str() == *taken["status"]["node"].as_str().unwrap())
        .unwrap();
    let left = cluster
        .daemons
        .node(&address, Duration::from_secs(5))
        .checkpoints()
        .await;
    assert!(left.unwrap().is_empty(), "node {node} has none left");
    // A snapshot goes with nothing else: its sandbox stays.
    assert_eq!(cluster.client.get(SANDBOXES).await.names(), ["a"]);
}

#[tokio::test]
async fn a_snapshot_whose_node_does_not_answer_is_not_called_deleted() {
    let cluster = mk_cluster().await;
    let taken = take(&cluster, "s1").await;
    let node = &cluster.nodes.nodes()[node_of(&cluster, &taken)];
    node.stop().await;
    let refused = cluster.client.delete(snapshot("s1"), json!({})).await;
    refused.refusal(503, "ServiceUnavailable");
    assert_eq!(cluster.client.get(snapshot("s1")).await.code(), 200);
    node.start().await;
    let deleted = cluster.client.delete(snapshot("s1"), json!({})).await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
}

#[tokio::test]
async fn a_sandbox_starts_from_a_snapshot_on_its_node() {
    let cluster = mk_cluster().await;
    let taken = take(&cluster, "s1").await;
    for name in ["b", "c"] {
        let created = cluster
            .client
            .post(SANDBOXES, &from_snapshot(name, "s1"))
            .await;
        assert_eq!(created.code(), 201, "{}", created.text());
        let created = created.json();
        assert_eq!(created["status"]["nodeName"], taken["status"]["node"]);
        assert_eq!(created["metadata"]["name"], name);
        let from = &created["metadata"]["annotations"]["sandbox.cocoonstack.io/from-checkpoint"];
        assert_eq!(*from, taken["status"]["id"], "it says where it comes from");
        assert!(created["metadata"]["annotations"]["sandbox.cocoonstack.io/token"].is_string());
    }
    // What the nodes publish names them as they are.
    cluster.publish().await;
    assert_eq!(cluster.client.get(SANDBOXES).await.names(), ["a", "b", "c"]);
    // The snapshot outlives its sandbox.
    cluster.client.delete(item("a"), json!({})).await;
    let created = cluster
        .client
        .post(SANDBOXES, &from_snapshot("d", "s1"))
        .await;
    assert_eq!(created.code(), 201, "{}", created.text());
    assert_eq!(
        cluster.client.get(snapshot("s1")).await.json()["spec"]["sandboxName"],
        "a"
    );
}

#[tokio::test]
async fn a_snapshot_of_another_namespace_is_none() {
    let cluster = mk_cluster().await;
    take(&cluster, "s1").await;
    let calls = cluster.writes_at_nodes();
    let path = format!("{ELSEWHERE}/sandboxes");
    for (path, name) in [(path.as_str(), "s1"), (SANDBOXES, "s2")] {
        let refused = cluster.client.post(path, &from_snapshot("b", name)).await;
        let refusal = refused.refusal(422, "Invalid");
        let cause = &refusal["details"]["causes"][0];
        assert_eq!(
            cause["field"],
            "metadata.annotations[sandbox.cocoonstack.io/snapshot]"
        );
    }
    assert_eq!(cluster.writes_at_nodes(), calls);
    assert!(
        cluster
            .client
            .get(format!("{ELSEWHERE}/sandboxsnapshots"))
            .await
            .names()
            .is_empty()
    );
}

#[tokio::test]
async fn a_start_whose_answer_breaks_off_is_found_again() {
    let cluster = mk_cluster().await;
    let taken = take(&cluster, "s1").await;
    let node = &cluster.nodes.nodes()[node_of(&cluster, &taken)];
    let lost = Fault::once(FaultKind::AnswerLost, "/v1/checkpoints/*/claim");
    assert!(node.inject(lost).await);
    let created = cluster
        .client
        .post(SANDBOXES, &from_snapshot("b", "s1"))
        .await;
    assert_eq!(created.code(), 201, "{}", created.text());
    assert_eq!(held(&cluster), 2);
}

#[tokio::test]
async fn a_start_whose_answer_comes_too_late_leaves_nothing_behind() {
    let cluster = mk_cluster().await;
    let taken = take(&cluster, "s1").await;
    let node = &cluster.nodes.nodes()[node_of(&cluster, &taken)];
    let late = Fault::once(FaultKind::Late { millis: 2_500 }, "/v1/checkpoints/*/claim");
    assert!(node.inject(late).await);
    let lost = cluster
        .client
        .post(SANDBOXES, &from_snapshot("b", "s1"))
        .await;
    lost.refusal(500, "InternalError");
    // Whether the daemon notices that its client is gone before it grants is the daemon's affair.
    tokio::time::sleep(Duration::from_secs(2)).await;
    until("nothing but the first sandbox is held", || {
        held(&cluster) == 1
    })
    .await;
}

#[tokio::test]
async fn a_daemon_that_forgets_whose_a_claim_is_gets_it_back() {
    let cluster = Cluster::start(sim::Options {
        generation: sim::Generation::A,
        ..mk_node(8)
    });
    let cluster = cluster.await;
    cluster.create("a").await;
    heard(&cluster).await;
    take(&cluster, "s1").await;
    let refused = cluster
        .client
        .post(SANDBOXES, &from_snapshot("b", "s1"))
        .await;
    let refusal = refused.refusal(503, "ServiceUnavailable");
    assert_eq!(refusal["details"]["causes"][0]["reason"], "DaemonTooOld");
    until("it is released", || held(&cluster) == 1).await;
}

#[tokio::test]
async fn what_nodes_hold_beside_ours_is_found_and_given_to_nobody_else() {
    let cluster = mk_cluster().await;
    let sandbox = cluster.client.get(item("a")).await.json();
    let claim = sandbox["metadata"]["annotations"]["sandbox.cocoonstack.io/claim-id"]
        .as_str()
        .unwrap();
    let node_name = sandbox["status"]["nodeName"].as_str().unwrap();
    let (_, address) = cluster
        .fleet
        .addresses()
        .into_iter()
        .find(|(name, _)| name.as_str() == node_name)
        .unwrap();
    let daemon = cluster.daemons.node(&address, Duration::from_secs(5));
    let foreign = daemon
        .checkpoint(&claim.into(), Some("by-hand"))
        .await
        .unwrap();
    let snapshots = cluster.gateway.snapshots().clone();
    let listed = || snapshots.store().count(&Scope::All);
    asked_until(&cluster, "it is listed", || listed() == 1).await;
    let name = foreign.id.as_str().replace('_', "-");
    assert_eq!(cluster.client.get(snapshot(&name)).await.code(), 200);
    daemon.delete_checkpoint(&foreign.id).await.unwrap();
    asked_until(&cluster, "it is gone", || listed() == 0).await;

    // Of a sandbox that nobody knows, it is nobody's.
    daemon
        .checkpoint(&claim.into(), Some("by-hand"))
        .await
        .unwrap();
    cluster.client.delete(item("a"), json!({})).await;
    asked_until(&cluster, "it is counted", || {
        snapshots.n_unattributed() == 1
    })
    .await;
    assert!(cluster.client.get(ALL_SNAPSHOTS).await.names().is_empty());
}

#[tokio::test]
async fn what_a_silent_node_holds_is_not_said_to_be_absent() {
    let cluster = Cluster::start(sim::Options {
        nodes: 3,
        ..mk_node(8)
    });
    let cluster = cluster.await;
    cluster.create("a").await;
    heard(&cluster).await;
    take(&cluster, "s1").await;
    assert!(
        cluster
            .client
            .get(SNAPSHOTS)
            .await
            .headers("warning")
            .is_empty()
    );

    let options = mk_node(8);
    let token = options.api_token.clone();
    let nodes = sim::Fleet::start(options).await.unwrap();
    let fault = Fault {
        path: "/v1/checkpoints".to_owned(),
        ..Fault::always(FaultKind::Unauthorized)
    };
    assert!(nodes.nodes()[0].inject(fault).await);
    let silent = Cluster::over(nodes, token, Limits::default()).await;
    until("the node was asked", || {
        silent.gateway.snapshots().whole() != Whole::NotYet
    })
    .await;
    let listed = silent.client.get(SNAPSHOTS).await;
    assert_eq!(listed.code(), 200, "{}", listed.text());
    let warnings = listed.headers("warning").join(" ");
    assert!(warnings.contains("have not answered"), "{warnings}");
    silent
        .client
        .get(snapshot("s1"))
        .await
        .refusal(503, "ServiceUnavailable");
    let refused = silent.client.delete(SNAPSHOTS, json!({})).await;
    refused.refusal(503, "ServiceUnavailable");
    let refused = silent
        .client
        .post(SANDBOXES, &from_snapshot("b", "s1"))
        .await;
    refused.refusal(503, "ServiceUnavailable");
}

#[tokio::test]
async fn of_creates_of_one_name_one_is_the_one() {
    let cluster = mk_cluster().await;
    let wanted = mk_snapshot("s1", "a");
    let creates = (0..8).map(|_| cluster.client.post(SNAPSHOTS, &wanted));
    let answers = futures::future::join_all(creates).await;
    let created = answers.iter().filter(|answer| answer.code() == 201);
    assert_eq!(created.count(), 1);
    let refused = answers.iter().filter(|answer| answer.code() != 201);
    refused.for_each(|answer| {
        answer.refusal(409, "AlreadyExists");
    });
    assert_eq!(cluster.client.get(SNAPSHOTS).await.names(), ["s1"]);
}

#[tokio::test]
async fn a_name_that_looks_like_a_namespace_puts_nothing_there() {
    let cluster = mk_cluster().await;
    let sandbox = cluster.client.get(item("a")).await.json();
    let metadata = &sandbox["metadata"];
    let claim = metadata["annotations"]["sandbox.cocoonstack.io/claim-id"].as_str();
    let node = &cluster.nodes.nodes()[node_of(&cluster, &sandbox)];
    let daemon = cluster.daemons.node(node.address(), Duration::from_secs(5));
    for name in ["elsewhere/python", "k8s/elsewhere/python"] {
        let taken = daemon.checkpoint(&claim.unwrap().into(), Some(name)).await;
        taken.unwrap();
    }
    let snapshots = cluster.gateway.snapshots().clone();
    asked_until(&cluster, "both are listed", || {
        snapshots.store().count(&Scope::All) == 2
    })
    .await;
    assert_eq!(cluster.client.get(SNAPSHOTS).await.names().len(), 2);
    let elsewhere = format!("{ELSEWHERE}/sandboxsnapshots");
    assert!(cluster.client.get(elsewhere).await.names().is_empty());
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_looked_into() {
    let cluster = mk_cluster().await;
    let sandbox = cluster.client.get(item("a")).await.json();
    let node = &cluster.nodes.nodes()[node_of(&cluster, &sandbox)];
    let lost = Fault::once(FaultKind::AnswerLost, "/v1/sandboxes/*/checkpoint");
    assert!(node.inject(lost).await);
    take(&cluster, "s1").await;
    let lost = Fault::once(FaultKind::AnswerLost, "/v1/checkpoints/*");
    assert!(node.inject(lost).await);
    let deleted = cluster.client.delete(snapshot("s1"), json!({})).await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    let absent = cluster.client.get(snapshot("s1")).await;
    absent.refusal(404, "NotFound");
}
