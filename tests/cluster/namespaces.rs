//! Namespaces that end with all that is in them, as kube-controller-manager ends them.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};

use crate::{
    nodes::Held,
    stage::{self, Stage, StageOptions, TEMPLATE, collection, eventually, item, sandbox},
};

const SANDBOXES: usize = 500;
const NODES: usize = 4;
/// What a namespace of hundreds may take, and the part of it whose nodes can be reached.
const GONE_WITHIN: Duration = Duration::from_secs(60);
/// How soon the rest of it is released once its node is back, and how soon the namespace ends then: its controller comes back
/// every 8 s for what a finalizer holds.
const RELEASED_WITHIN: Duration = Duration::from_secs(5);
const REST_WITHIN: Duration = Duration::from_secs(12);
/// Long enough for whoever waits longer after each failure to wait for longer than that.
const OUTAGE: Duration = Duration::from_secs(40);

async fn stage() -> Stage {
    Stage::start(StageOptions {
        nodes: NODES,
        warm: 200,
        ..StageOptions::default()
    })
    .await
}

/// A namespace with sandboxes on every node.
async fn crowded(stage: &Stage) -> String {
    let namespace = stage.namespace("crowded").await;
    let (direct, path) = (stage.direct(), collection(&namespace));
    let calls = (0..SANDBOXES).map(|n| {
        let wanted = sandbox(&format!("box-{n}"), TEMPLATE);
        let (direct, path) = (&direct, &path);
        async move { direct.post(path, &wanted).await.ok() }
    });
    stream::iter(calls)
        .buffer_unordered(8)
        .for_each(async |_| {})
        .await;
    let held = stage.nodes.held(&namespace).await;
    assert_eq!(held.len(), SANDBOXES);
    for node in 0..NODES {
        assert!(held.iter().any(|held| held.node == node), "{node} has none");
    }
    namespace
}

async fn is_gone(stage: &Stage, namespace: &str) -> bool {
    let path = format!("/api/v1/namespaces/{namespace}");
    stage.admin().get(&path).await.status == 404
}

async fn delete(stage: &Stage, namespace: &str) {
    let path = format!("/api/v1/namespaces/{namespace}");
    stage.admin().delete(&path).await.ok();
}

// kubernetes/kubernetes#86666, kubernetes/kubernetes#119662
#[tokio::test]
async fn a_namespace_with_five_hundred_sandboxes_goes_away_and_every_claim_is_released() {
    let stage = stage().await;
    let namespace = crowded(&stage).await;
    let began = Instant::now();
    delete(&stage, &namespace).await;
    eventually(GONE_WITHIN, "the namespace is gone", async || {
        is_gone(&stage, &namespace).await
    })
    .await;
    eprintln!(
        "{SANDBOXES} sandboxes and their namespace took {:?}",
        began.elapsed()
    );
    assert_eq!(stage.nodes.held(&namespace).await, []);
}

#[tokio::test]
async fn creates_that_meet_the_end_of_their_namespace_leave_nothing_behind() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("ending").await;
    let (direct, path) = (stage.direct(), collection(&namespace));
    let create = async |n: usize| {
        let wanted = sandbox(&format!("box-{n}"), TEMPLATE);
        direct.post(&path, &wanted).await
    };
    assert_eq!(create(0).await.status, 201);
    let next = std::sync::atomic::AtomicUsize::new(1);
    let until_refused = async || {
        let mut n_made = 0;
        loop {
            let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let answer = create(n).await;
            match answer.status.as_u16() {
                201 => n_made += 1,
                // Nothing is warm for a moment.
                503 => tokio::time::sleep(Duration::from_millis(20)).await,
                403 => {
                    assert_eq!(answer.causes(), ["NamespaceTerminating"]);
                    return n_made;
                }
                _ => {
                    answer.expect(404, "NotFound");
                    return n_made;
                }
            }
        }
    };
    let (made, ()) = tokio::join!(
        futures::future::join_all((0..8).map(|_| until_refused())),
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            delete(&stage, &namespace).await;
        }
    );
    eprintln!("made meanwhile: {made:?}");
    eventually(GONE_WITHIN, "the namespace is gone", async || {
        is_gone(&stage, &namespace).await
    })
    .await;
    assert_eq!(stage.nodes.held(&namespace).await, []);
    let listed = direct.get(&path).await.ok();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(0));
    create(0).await.expect(404, "NotFound");
}

#[tokio::test]
async fn one_node_that_is_down_holds_up_its_own_sandboxes_alone_and_no_longer_than_it_is_down() {
    let stage = stage().await;
    let namespace = crowded(&stage).await;
    let down = 0;
    stage.nodes.stop(down).await;
    let began = Instant::now();
    delete(&stage, &namespace).await;
    eventually(GONE_WITHIN, "the others are released", async || {
        let held = stage.nodes.held(&namespace).await;
        held.iter().all(|Held { node, .. }| *node == down)
    })
    .await;
    let listed = stage.direct().get(&collection(&namespace)).await.ok();
    let listed = listed["items"].as_array().cloned().unwrap_or_default();
    eprintln!(
        "all but the {} of the node that is down went in {:?}",
        listed.len(),
        began.elapsed()
    );
    assert!(listed.len() >= SANDBOXES / NODES / 4, "{}", listed.len());
    for object in &listed {
        assert_eq!(object["status"]["nodeName"], "sim-0000");
        assert!(object["metadata"]["deletionTimestamp"].is_string());
    }
    tokio::time::sleep(OUTAGE).await;
    assert!(
        !is_gone(&stage, &namespace).await,
        "what still runs is not said to be gone"
    );

    stage.nodes.start(down).await;
    let back = Instant::now();
    eventually(RELEASED_WITHIN, "what was owed is released", async || {
        stage.nodes.held(&namespace).await.is_empty()
    })
    .await;
    eprintln!("released {:?} after the node was back", back.elapsed());
    let rest = REST_WITHIN.saturating_sub(back.elapsed());
    eventually(rest, "the namespace is gone", async || {
        is_gone(&stage, &namespace).await
    })
    .await;
    eprintln!(
        "the namespace ended {:?} after the node was back",
        back.elapsed()
    );
    let name = item(&namespace, "box-0");
    stage.direct().get(&name).await.expect(404, "NotFound");
}
