//! Deletes of sandboxes whose node cannot be reached.

use std::time::Duration;

use serde_json::Value;

use crate::{
    caller::Caller,
    stage::{self, Stage, StageOptions, collection, eventually, item, sandbox},
};

const SOON: Duration = Duration::from_secs(10);
/// The pause between two tries of a silent node, a round, and time for a busy machine.
const PAID_WITHIN: Duration = Duration::from_secs(6);

async fn records(stage: &Stage, node: &str) -> Vec<String> {
    let path = format!("/apis/extensions.agents.x-k8s.io/v1beta1/nodeinventories/{node}");
    let inventory = stage.admin().get(&path).await.ok();
    let releases = inventory["releases"].as_array().cloned();
    let releases = releases.unwrap_or_default().into_iter();
    releases
        .filter_map(|id| id.as_str().map(str::to_owned))
        .collect()
}

async fn is_deleted(caller: &Caller, path: &str) -> bool {
    let object = caller.get(path).await.ok();
    object["metadata"]["deletionTimestamp"].is_string()
}

#[tokio::test]
async fn a_delete_waits_for_its_node_and_ends_when_it_is_back() {
    let stage = stage::shared().await;
    let (node, namespace) = (stage.own_node(), stage.namespace("owed").await);
    let direct = stage.direct();
    let path = item(&namespace, "owed");
    let created = direct
        .post(&collection(&namespace), &sandbox("owed", &node.template))
        .await
        .ok();
    let version = &created["metadata"]["resourceVersion"];
    let version = version.as_str().unwrap_or_default();
    let watch = format!(
        "{}?watch=1&resourceVersion={version}",
        collection(&namespace)
    );
    let mut events = direct.watch(&watch).await;

    stage.nodes.stop(node.index).await;
    let pending = direct.delete(&path).await.ok();
    assert_eq!(pending["kind"], "Sandbox", "{pending:#}");
    assert!(is_deleted(&direct, &path).await);
    let again = direct.delete(&path).await.ok();
    assert_eq!(again["metadata"]["uid"], created["metadata"]["uid"]);
    let taken = direct
        .post(&collection(&namespace), &sandbox("owed", &node.template))
        .await;
    taken.expect(409, "AlreadyExists");
    let message = taken.body["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("object is being deleted"), "{message}");

    stage.nodes.start(node.index).await;
    eventually(PAID_WITHIN, "it is gone", async || {
        direct.get(&path).await.status == 404
    })
    .await;
    assert_eq!(stage.nodes.held(&namespace).await, []);
    let mut kinds = Vec::new();
    while kinds.last() != Some(&Value::from("DELETED")) {
        kinds.push(events.next_within(SOON).await["type"].clone());
    }
    assert_eq!(kinds, ["MODIFIED", "DELETED"]);
}

#[tokio::test]
async fn a_delete_survives_the_server_while_its_node_is_down() {
    let mut stage = Stage::start(StageOptions {
        own_nodes: 2,
        ..StageOptions::default()
    })
    .await;
    let namespace = stage.namespace("survive").await;
    let (node, other) = (stage.own_node(), stage.own_node());
    let direct = stage.direct();
    for (name, node) in [("deleted", &node), ("kept", &node), ("other", &other)] {
        let wanted = sandbox(name, &node.template);
        direct.post(&collection(&namespace), &wanted).await.ok();
    }
    // What a restarted server learns of a node that is down is what the node published.
    stage.publish(node.index).await;
    let (deleted, kept) = (item(&namespace, "deleted"), item(&namespace, "kept"));
    let before = direct.get(&deleted).await.ok();

    stage.nodes.stop(node.index).await;
    direct.delete(&deleted).await.ok();
    let name = format!("sim-{:04}", node.index);
    let id = &before["metadata"]["annotations"]["sandbox.cocoonstack.io/claim-id"];
    assert_eq!(
        records(&stage, &name).await,
        [id.as_str().unwrap_or_default()],
        "recorded before the answer"
    );
    stage.kill_serve();
    // The publisher's next word leaves the record alone.
    stage.publish(node.index).await;
    stage.start_serve().await;

    let direct = stage.direct();
    eventually(SOON, "the delete is remembered", async || {
        is_deleted(&direct, &deleted).await
    })
    .await;
    let after = direct.get(&deleted).await.ok();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert!(!is_deleted(&direct, &kept).await);

    stage.nodes.start(node.index).await;
    eventually(PAID_WITHIN, "it is gone", async || {
        direct.get(&deleted).await.status == 404
    })
    .await;
    direct.get(&kept).await.ok();
    let held = stage.nodes.held_by(node.index, &namespace).await;
    let held: Vec<_> = held.into_iter().map(|held| held.claim_ref).collect();
    assert_eq!(held, [format!("{namespace}/kept")]);
    eventually(SOON, "the record is struck", async || {
        records(&stage, &name).await.is_empty()
    })
    .await;
}
