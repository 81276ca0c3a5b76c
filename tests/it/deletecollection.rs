//! DELETE of a collection: what matches, each as if by name.

use sandbox_apiserver::sim::{Fault, FaultKind};
use serde_json::{Value, json};

use crate::harness::{ALL_SANDBOXES, Answer, Cluster, SANDBOXES, item, mk_node, mk_sandbox};

/// Sandboxes `a` to `d`, of two teams.
async fn mk_cluster() -> Cluster {
    let cluster = Cluster::start(mk_node(8)).await;
    for (name, team) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "x")] {
        let mut sandbox = mk_sandbox(name);
        sandbox["metadata"]["labels"] = json!({"team": team});
        assert_eq!(cluster.client.post(SANDBOXES, &sandbox).await.code(), 201);
    }
    cluster
}

async fn delete(cluster: &Cluster, query: &str) -> Answer {
    let path = format!("{SANDBOXES}?{query}");
    cluster.client.delete(path, Value::Null).await
}

async fn left(cluster: &Cluster) -> Vec<String> {
    cluster.client.get(SANDBOXES).await.names()
}

#[tokio::test]
async fn selectors_choose_what_goes() {
    let cluster = mk_cluster().await;
    let deleted = delete(
        &cluster,
        "labelSelector=team%3Dx&fieldSelector=metadata.name!%3Dc",
    )
    .await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    assert_eq!(deleted.json()["kind"], "SandboxList");
    assert_eq!(deleted.names(), ["a", "d"]);
    assert_eq!(left(&cluster).await, ["b", "c"]);
    assert_eq!(cluster.nodes.nodes()[0].claimed(), 2);
    assert_eq!(delete(&cluster, "").await.names(), ["b", "c"]);
    assert_eq!(delete(&cluster, "").await.json()["items"], json!([]));
    assert_eq!(cluster.nodes.nodes()[0].claimed(), 0);
}

#[tokio::test]
async fn a_limit_is_a_limit() {
    let cluster = mk_cluster().await;
    assert_eq!(delete(&cluster, "limit=2").await.names(), ["a", "b"]);
    assert_eq!(
        delete(&cluster, "labelSelector=team%3Dx&limit=1")
            .await
            .names(),
        ["c"]
    );
    assert_eq!(left(&cluster).await, ["d"]);
}

#[tokio::test]
async fn what_cannot_be_read_deletes_nothing() {
    let cluster = mk_cluster().await;
    let calls = cluster.writes_at_nodes();
    for query in [
        "labelSelector=team%3Dx%3Dy",
        "labelSelector=team%20in%20x",
        "fieldSelector=spec.nope%3D1",
        "fieldSelector=%3D",
        "limit=x",
        "continue=x",
    ] {
        delete(&cluster, query).await.refusal(400, "BadRequest");
    }
    delete(&cluster, "propagationPolicy=Sideways")
        .await
        .refusal(422, "Invalid");
    delete(&cluster, "dryRun=Some")
        .await
        .refusal(422, "Invalid");
    let body = [("content-type", "application/json")];
    let refused = cluster
        .client
        .request("DELETE", SANDBOXES, &body, "{")
        .await;
    refused.refusal(400, "BadRequest");
    let everywhere = cluster.client.delete(ALL_SANDBOXES, Value::Null).await;
    everywhere.refusal(405, "MethodNotAllowed");
    assert_eq!(cluster.writes_at_nodes(), calls);
    assert_eq!(left(&cluster).await.len(), 4);
}

#[tokio::test]
async fn a_dry_run_shows_what_would_go() {
    let cluster = mk_cluster().await;
    let (calls, version) = (cluster.writes_at_nodes(), cluster.fleet.store().head());
    assert_eq!(
        delete(&cluster, "dryRun=All&labelSelector=team%3Dx")
            .await
            .names(),
        ["a", "c", "d"]
    );
    let options = json!({"dryRun": ["All"], "propagationPolicy": "Foreground"});
    let all = cluster.client.delete(SANDBOXES, options).await;
    assert_eq!(all.names(), ["a", "b", "c", "d"]);
    assert_eq!(cluster.writes_at_nodes(), calls);
    assert_eq!(cluster.fleet.store().head(), version);
}

#[tokio::test]
async fn what_the_node_lost_already_is_no_error() {
    let cluster = mk_cluster().await;
    let node = &cluster.nodes.nodes()[0];
    let id = &node.claims_of("default/b")[0];
    assert!(node.lose(id));
    let deleted = delete(&cluster, "").await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    assert_eq!(left(&cluster).await, Vec::<String>::new());
}

#[tokio::test]
async fn what_may_still_run_is_not_said_to_be_gone() {
    let cluster = mk_cluster().await;
    let node = &cluster.nodes.nodes()[0];
    assert!(node.inject(Fault::always(FaultKind::Refuse)).await);
    let deleted = delete(&cluster, "labelSelector=team%3Dy").await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    let pending = &deleted.json()["items"][0];
    assert!(pending["metadata"]["deletionTimestamp"].is_string());
    let shown = cluster.client.get(item("b")).await.json();
    assert!(shown["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn a_namespace_empties() {
    let cluster = mk_cluster().await;
    let options =
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"});
    assert_eq!(cluster.client.delete(SANDBOXES, options).await.code(), 200);
    let left = cluster
        .client
        .get_as(SANDBOXES, crate::harness::METADATA_LIST)
        .await
        .json();
    assert_eq!(left["items"], json!([]));
}
