//! Deletes that took more than was meant, or claimed what was not so.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    caller::Caller,
    kubectl::In,
    stage::{self, collection, eventually, item, sandbox},
};

const SOON: Duration = Duration::from_secs(20);

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<_> = items
        .iter()
        .filter_map(|item| Some(item["metadata"]["name"].as_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

async fn listed(caller: &Caller, all: &str) -> Vec<String> {
    names(&caller.get(all).await.ok())
}

// kubernetes/kubernetes#25903
#[tokio::test]
async fn a_collection_loses_what_matches_and_nothing_else() {
    let stage = stage::shared().await;
    let (here, node) = (In::new(&stage, "matching").await, stage.own_node());
    let (admin, all) = (stage.admin(), collection(&here.namespace));
    for n in 0..12 {
        let mut wanted = sandbox(&format!("box-{n:02}"), &node.template);
        wanted["metadata"]["labels"] = json!({"team": if n < 4 { "a" } else { "b" }});
        admin.post(&all, &wanted).await.ok();
    }
    for selector in [
        "labelSelector=a%3Db%3Dc",
        "labelSelector=team+in+a",
        "fieldSelector=spec.nope%3D1",
        "fieldSelector=metadata.name",
        "limit=many",
    ] {
        let refused = admin.delete(&format!("{all}?{selector}")).await;
        refused.expect(400, "BadRequest");
    }
    assert_eq!(listed(&admin, &all).await.len(), 12, "nothing is released");

    here.run(&["delete", "sandboxes", "-l", "team=a"]).await;
    assert_eq!(listed(&admin, &all).await.len(), 8);
    let one = format!("{all}?fieldSelector=metadata.name%3Dbox-04");
    assert_eq!(names(&admin.delete(&one).await.ok()), ["box-04"]);
    let elsewhere = format!("{all}?fieldSelector=status.nodeName%3Dsim-0000");
    assert_eq!(names(&admin.delete(&elsewhere).await.ok()), [""; 0]);
    let some = names(&admin.delete(&format!("{all}?limit=5")).await.ok());
    assert_eq!(some.len(), 5);
    let left = listed(&admin, &all).await;
    assert_eq!(left.len(), 2);
    assert_eq!(stage.nodes.held(&here.namespace).await.len(), 2);
    here.run(&["delete", "sandboxes", "--all"]).await;
    assert_eq!(stage.nodes.held(&here.namespace).await, []);
}

// kubernetes/kubernetes#25903
#[tokio::test]
async fn a_collection_with_dead_and_unreachable_members_is_deleted_as_far_as_that_is_so() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("mixed").await;
    let (admin, all) = (stage.admin(), collection(&namespace));
    let (up, down) = (stage.own_node(), stage.own_node());
    for (name, node) in [("fine", &up), ("far", &down)] {
        admin.post(&all, &sandbox(name, &node.template)).await.ok();
    }
    let mut brief = sandbox("over", &up.template);
    brief["metadata"]["annotations"] = json!({"sandbox.cocoonstack.io/ttl-seconds": "1"});
    admin.post(&all, &brief).await.ok();
    eventually(SOON, "its lease is over", async || {
        let over = admin.get(&item(&namespace, "over")).await.body.to_string();
        over.contains("SandboxExpired")
    })
    .await;
    stage.nodes.stop(down.index).await;

    let deleted = admin.delete(&all).await.ok();
    assert_eq!(names(&deleted), ["far", "fine", "over"]);
    assert_eq!(listed(&admin, &all).await, ["far"], "it may still run");
    let far = admin.get(&item(&namespace, "far")).await.ok();
    assert!(far["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(
        far["metadata"]["finalizers"],
        json!(["sandbox.cocoonstack.io/release"])
    );
    stage.nodes.start(down.index).await;
    eventually(SOON, "it is released", async || {
        listed(&admin, &all).await.is_empty()
    })
    .await;
    assert_eq!(stage.nodes.held(&namespace).await, []);
}

// daytonaio/daytona#5138
#[tokio::test]
async fn a_publisher_that_is_late_brings_back_nothing_and_hides_nothing() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("late").await, stage.own_node());
    let (admin, all) = (stage.admin(), collection(&namespace));
    let mut events = admin.watch(&format!("{all}?watch=1")).await;
    let before = stage.nodes.inventory(node.index).await;
    admin.post(&all, &sandbox("old", &node.template)).await.ok();
    let between = stage.nodes.inventory(node.index).await;
    admin.post(&all, &sandbox("new", &node.template)).await.ok();
    let held = stage.nodes.inventory(node.index).await;
    admin
        .post(&all, &sandbox("gone", &node.template))
        .await
        .ok();
    let with_gone = stage.nodes.inventory(node.index).await;
    admin.delete(&item(&namespace, "gone")).await.ok();
    for late in [&before, &between, &held, &with_gone, &before, &with_gone] {
        stage.publish_late(late.clone()).await;
        for caller in [&admin, &stage.direct()] {
            assert_eq!(listed(caller, &all).await, ["new", "old"]);
            caller
                .get(&item(&namespace, "gone"))
                .await
                .expect(404, "NotFound");
        }
    }
    stage.publish(node.index).await;
    admin.delete(&all).await.ok();
    let mut told = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_secs(2), events.next()).await {
        let name = event["object"]["metadata"]["name"].clone();
        told.push((event["type"].clone(), name));
    }
    for name in ["old", "new", "gone"] {
        for kind in ["ADDED", "DELETED"] {
            let n_told = told.iter().filter(|(k, n)| k == kind && n == name).count();
            assert_eq!(n_told, 1, "{kind} {name}: {told:?}");
        }
    }
}
