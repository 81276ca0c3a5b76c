//! Nodes that are gone and were taken for healthy, and nodes that were healthy and taken for gone.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::{
    caller::{Caller, Events},
    stage::{self, Stage, StageOptions, TEMPLATE, collection, eventually, item, sandbox},
};

const SOON: Duration = Duration::from_secs(10);
/// After so long a silence a node is lost, and a while for its questions and a busy machine.
const LOST_WITHIN: Duration = Duration::from_secs(160);
/// Until a node is asked or published again.
const BACK_WITHIN: Duration = Duration::from_secs(45);

/// Status and reason of Ready.
fn ready(object: &Value) -> (String, String) {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    let text = |field: &str| {
        let value = ready.and_then(|ready| ready[field].as_str());
        value.unwrap_or_default().to_owned()
    };
    (text("status"), text("reason"))
}

// TencentCloud/CubeSandbox#454
#[tokio::test]
async fn creates_go_to_the_node_that_answers_and_wait_for_no_other_twice() {
    const CREATES: usize = 30;
    const AT_ONCE: usize = 10;
    /// A node is given 2 s for a claim, of which none may be spent twice; a busy machine adds to it.
    const WITHIN: Duration = Duration::from_secs(10);
    let stage = Stage::start(StageOptions {
        warm: 100,
        // They all published once, and say that they are well.
        publish_period: Duration::ZERO,
        ..StageOptions::default()
    })
    .await;
    let namespace = stage.namespace("one-good").await;
    let (refuses, silent, good) = (0, 1, 2);
    stage.nodes.stop(refuses).await;
    stage
        .nodes
        .set_faults(silent, json!([{"kind": "hang"}]))
        .await;
    let mut asked_of_silent = Vec::new();
    for wave in ["first", "then"] {
        let (admin, path) = (stage.admin(), collection(&namespace));
        let creates = (0..CREATES).map(|n| {
            let wanted = sandbox(&format!("{wave}-{n}"), TEMPLATE);
            let (admin, path) = (&admin, &path);
            async move {
                let began = Instant::now();
                let created = admin.post(path, &wanted).await.ok();
                assert_eq!(created["status"]["nodeName"], format!("sim-{good:04}"));
                began.elapsed()
            }
        });
        let took: Vec<_> = stream::iter(creates)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let longest = took.iter().max().copied().unwrap_or_default();
        eprintln!("{wave}: the longest of {CREATES} creates took {longest:?}");
        assert!(longest < WITHIN, "{wave}: {longest:?}");
        let asked = stage.nodes.requests(silent, "POST").await;
        asked_of_silent.push(asked.iter().filter(|(path, _)| path == "/v1/claim").count());
    }
    // Those that came at the same time may each have met the silent one, and nobody after them.
    let [first, then] = asked_of_silent[..] else {
        unreachable!("two waves")
    };
    assert!(first <= AT_ONCE, "{first} creates met the silent node");
    assert_eq!(then, first, "nobody waits for it again");
    let held = stage.nodes.held(&namespace).await;
    assert_eq!(held.len(), 2 * CREATES);
    assert!(held.iter().all(|held| held.node == good));
}

/// Name and readiness of the next event, which has to be of that kind.
async fn told(events: &mut Events, kind: &str, within: Duration) -> (String, String, String) {
    let event = events.next_within(within).await;
    assert_eq!(event["type"], kind, "{event:#}");
    let name = event["object"]["metadata"]["name"]
        .as_str()
        .unwrap_or_default();
    let (status, reason) = ready(&event["object"]);
    (name.to_owned(), status, reason)
}

async fn shown(caller: &Caller, namespace: &str, name: &str) -> Value {
    caller.get(&item(namespace, name)).await.ok()
}

// mirendev/runtime#762
#[tokio::test]
async fn sandboxes_of_a_dead_node_are_unknown_until_it_is_back_and_gone_with_its_inventory() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("lost").await, stage.own_node());
    let (direct, all) = (stage.direct(), collection(&namespace));
    for (name, seconds) in [("a", "3600"), ("b", "3600"), ("brief", "30")] {
        let mut wanted = sandbox(name, &node.template);
        wanted["metadata"]["annotations"] = json!({"sandbox.cocoonstack.io/ttl-seconds": seconds});
        direct.post(&all, &wanted).await.ok();
    }
    let uid = shown(&direct, &namespace, "a").await["metadata"]["uid"].clone();
    stage.publish(node.index).await;
    let version = direct.get(&all).await.ok()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap_or_default();
    let mut events = direct
        .watch(&format!("{all}?watch=1&resourceVersion={version}"))
        .await;

    let began = Instant::now();
    stage.nodes.stop(node.index).await;
    let expired = told(&mut events, "MODIFIED", LOST_WITHIN).await;
    assert_eq!(
        expired,
        ("brief".into(), "False".into(), "SandboxExpired".into())
    );
    let mut lost = Vec::new();
    for _ in 0..2 {
        lost.push(told(&mut events, "MODIFIED", LOST_WITHIN).await);
    }
    lost.sort();
    let unknown = |name: &str| (name.to_owned(), "Unknown".to_owned(), "NodeLost".to_owned());
    assert_eq!(lost, [unknown("a"), unknown("b")]);
    eprintln!("the node was lost after {:?}", began.elapsed());
    assert!(began.elapsed() < LOST_WITHIN, "{:?}", began.elapsed());
    assert_eq!(
        shown(&direct, &namespace, "a").await["metadata"]["uid"],
        uid
    );

    stage.nodes.start(node.index).await;
    let mut back = Vec::new();
    while back.len() < 2 {
        let event = events.next_within(BACK_WITHIN).await;
        let name = event["object"]["metadata"]["name"].clone();
        // The node says now that the one whose lease was over is gone, which is one more word of that one.
        if name != "brief" {
            assert_eq!(event["type"], "MODIFIED", "{event:#}");
            back.push((name, ready(&event["object"])));
        }
    }
    let well = || ("True".to_owned(), "DependenciesReady".to_owned());
    back.sort_by_key(|(name, _)| name.to_string());
    assert_eq!(back, [(json!("a"), well()), (json!("b"), well())]);
    assert_eq!(
        shown(&direct, &namespace, "a").await["metadata"]["uid"],
        uid
    );

    stage.nodes.stop(node.index).await;
    let inventory = format!("nodeinventory/sim-{:04}", node.index);
    stage
        .control_plane
        .kubectl()
        .stdout(&["delete", &inventory])
        .await;
    let mut gone = Vec::new();
    while gone.len() < 2 {
        let event = events.next_within(SOON).await;
        let name = event["object"]["metadata"]["name"].clone();
        if name != "brief" {
            assert_eq!(event["type"], "DELETED", "{event:#}");
            gone.push(name);
        }
    }
    eventually(SOON, "none is listed", async || {
        let listed = direct.get(&all).await.ok();
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        items.iter().all(|item| item["metadata"]["name"] == "brief")
    })
    .await;
}
