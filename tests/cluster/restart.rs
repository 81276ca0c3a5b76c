//! The server ends, in order or not, and comes back.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::stage::{self, Stage, StageOptions, collection, eventually, item, sandbox};

const SOON: Duration = Duration::from_secs(10);
const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/sandbox-system/leases/sandbox-apiserver";

fn version(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

fn by_name(list: &Value) -> BTreeMap<String, Value> {
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let named = items.into_iter().map(|item| {
        let name = item["metadata"]["name"].as_str().unwrap_or_default();
        (name.to_owned(), item)
    });
    named.collect()
}

#[tokio::test]
async fn a_killed_server_forgets_no_claim_it_acknowledged() {
    let mut stage = Stage::start(StageOptions {
        // Nothing is published after the start, so that what is remembered comes from the nodes themselves.
        publish_period: Duration::ZERO,
        ..StageOptions::default()
    })
    .await;
    let namespace = stage.namespace("killed").await;
    let (direct, path) = (stage.direct(), collection(&namespace));
    for n in 0..10 {
        stage.create(&namespace, &format!("before-{n}")).await;
    }
    let deleted = item(&namespace, "before-0");
    direct.delete(&deleted).await.ok();
    // Killed in the middle of a stream of creates.
    let (creator, to) = (direct.clone(), path.clone());
    let creates = (0..200).map(move |n| {
        let wanted = sandbox(&format!("during-{n}"), stage::TEMPLATE);
        let (direct, path) = (creator.clone(), to.clone());
        async move {
            let request = http::Request::post(path).header("content-type", "application/json");
            let body = kube::client::Body::from(wanted.to_string().into_bytes());
            let answer = direct.try_send(request.body(body).unwrap()).await;
            answer
                .ok()
                .filter(|answer| answer.status == 201)
                .map(|answer| answer.body)
        }
    });
    let creating = tokio::spawn(
        stream::iter(creates)
            .buffer_unordered(8)
            .collect::<Vec<_>>(),
    );
    eventually(SOON, "some are made", async || {
        by_name(&direct.get(&path).await.ok()).len() > 20
    })
    .await;
    let before = direct.get(&path).await.ok();
    stage.kill_serve();
    let acknowledged = creating.await.unwrap().into_iter().flatten();
    let acknowledged: Vec<Value> = acknowledged.collect();
    assert!(acknowledged.len() < 200, "it was killed too late");
    let began = Instant::now();
    stage.start_serve().await;
    eprintln!(
        "ready {:?} after the kill, {} claims acknowledged",
        began.elapsed(),
        acknowledged.len()
    );

    let direct = stage.direct();
    let after = direct.get(&path).await.ok();
    assert!(version(&after) > version(&before));
    let (before, after) = (by_name(&before), by_name(&after));
    let known = before.values().chain(&acknowledged);
    for object in known {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let Some(now) = after.get(name) else {
            panic!("{name} is forgotten");
        };
        for field in ["uid", "creationTimestamp", "name", "namespace"] {
            assert_eq!(
                now["metadata"][field], object["metadata"][field],
                "{name} {field}"
            );
        }
        assert!(version(now) > version(object), "{name}");
    }
    direct.get(&deleted).await.expect(404, "NotFound");
    let held = stage.nodes.held(&namespace).await;
    assert_eq!(
        held.len(),
        after.len(),
        "what the nodes hold is what is listed"
    );

    let old = version(before.values().next().unwrap());
    let watch = format!("{path}?watch=1&resourceVersion={old}");
    let mut events = direct.watch(&watch).await;
    let refused = events.next_within(SOON).await;
    assert_eq!(
        (&refused["type"], &refused["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert!(events.next().await.is_none(), "it ends there");
    let list = format!("{path}?resourceVersion={old}&resourceVersionMatch=NotOlderThan");
    assert_eq!(by_name(&direct.get(&list).await.ok()).len(), after.len());
    direct
        .get(&format!(
            "{path}?resourceVersion={old}&resourceVersionMatch=Exact"
        ))
        .await
        .expect(410, "Expired");
    direct.delete(&path).await.ok();
    assert_eq!(stage.nodes.held(&namespace).await, []);
}

// kubernetes/kubernetes#135285
#[tokio::test]
async fn a_server_that_is_asked_to_end_finishes_what_it_began() {
    let mut stage = Stage::start(StageOptions {
        own_nodes: 1,
        ..StageOptions::default()
    })
    .await;
    let (namespace, node) = (stage.namespace("ended").await, stage.own_node());
    let (direct, path) = (stage.direct(), collection(&namespace));
    stage.create(&namespace, "before").await;
    let mut events = direct.watch(&format!("{path}?watch=1")).await;
    events.next_within(SOON).await;
    let late = json!({"late": {"millis": 1700}});
    stage.nodes.fail_once(node.index, late, "/v1/claim").await;
    let (creator, wanted) = (direct.clone(), sandbox("in-flight", &node.template));
    let to = path.clone();
    let in_flight = tokio::spawn(async move { creator.post(&to, &wanted).await });
    eventually(SOON, "the node is asked", async || {
        !stage.nodes.requests(node.index, "POST").await.is_empty()
    })
    .await;

    stage.serve.terminate();
    eventually(SOON, "readiness ends", async || {
        direct.get("/readyz").await.status == 500
    })
    .await;
    // Load balancers have not noticed yet.
    direct.get(&path).await.ok();
    direct.get("/livez").await.ok();
    let created = in_flight.await.unwrap();
    assert_eq!(created.status, 201, "{:#}", created.body);
    let mut last = Value::Null;
    while let Some(event) = tokio::time::timeout(SOON, events.next()).await.unwrap() {
        last = event;
    }
    assert_ne!(last["type"], "ERROR", "{last:#}");
    eventually(SOON, "it ends", async || {
        // An ended process is asked once more than needed.
        !stage.serve.log().is_empty() && direct.try_get("/livez").await.is_none()
    })
    .await;
    let began = Instant::now();
    let status = loop {
        match stage.serve.exited().unwrap() {
            Some(status) => break status,
            None if began.elapsed() < SOON => tokio::time::sleep(Duration::from_millis(20)).await,
            None => panic!("it does not end"),
        }
    };
    assert!(status.success(), "{status}\n{}", stage.serve.log_tail(20));
    let lease = stage.admin().get(LEASE).await.ok();
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    assert_eq!(holder, "", "the Lease is free for the next one");

    stage.start_serve().await;
    let listed = by_name(&stage.direct().get(&path).await.ok());
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["before", "in-flight"]);
}
