//! Watches through kube-apiserver.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    caller::{Caller, Events},
    stage::{self, collection, item},
};

const SOON: Duration = Duration::from_secs(10);

fn name(event: &Value) -> String {
    event["object"]["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn version(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

/// Names of the objects that a watch begins with.
async fn begins_with(events: &mut Events, n_objects: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for _ in 0..n_objects {
        let event = events.next_within(SOON).await;
        assert_eq!(event["type"], "ADDED", "{event:#}");
        names.insert(name(&event));
    }
    names
}

async fn labelled(admin: &Caller, path: &str, label: &str) {
    let patch = json!({"metadata": {"labels": {"colour": label}}});
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    let body = kube::client::Body::from(patch.to_string().into_bytes());
    admin.send(request.body(body).unwrap()).await.ok();
}

// cozystack/cozystack#1860, kubernetes/kubernetes#75837
#[tokio::test]
async fn a_watch_answers_at_once_and_begins_where_it_is_asked_to() {
    let stage = stage::shared().await;
    let (admin, direct) = (stage.admin(), stage.direct());
    let empty = stage.namespace("silent").await;
    for caller in [&admin, &direct] {
        let began = Instant::now();
        drop(
            caller
                .watch(&format!("{}?watch=1", collection(&empty)))
                .await,
        );
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
    }

    let namespace = stage.namespace("watch").await;
    let all = collection(&namespace);
    for name in ["a", "b"] {
        stage.create(&namespace, name).await;
    }
    let both: BTreeSet<String> = ["a", "b"].map(String::from).into();
    for from in ["", "&resourceVersion=0"] {
        let mut events = admin.watch(&format!("{all}?watch=1{from}")).await;
        assert_eq!(begins_with(&mut events, 2).await, both, "{from:?}");
    }
    let list = admin.get(&all).await.ok();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    assert!(
        items
            .iter()
            .all(|item| version(item) > 0 && version(item) <= version(&list))
    );
    let mut later = admin
        .watch(&format!("{all}?watch=1&resourceVersion={}", version(&list)))
        .await;
    let single = format!("{all}?watch=1&fieldSelector=metadata.name%3Db");
    let mut single = admin.watch(&single).await;
    assert_eq!(begins_with(&mut single, 1).await, ["b".to_owned()].into());
    stage.create(&namespace, "c").await;
    let event = later.next_within(SOON).await;
    assert_eq!(
        (name(&event).as_str(), &event["type"]),
        ("c", &json!("ADDED"))
    );
    assert!(version(&event["object"]) > version(&list));
}

// kubernetes/kubernetes#140890
#[tokio::test]
async fn a_streamed_list_ends_with_its_bookmark() {
    let stage = stage::shared().await;
    let admin = stage.admin();
    let namespace = stage.namespace("bookmark").await;
    let all = collection(&namespace);
    let stream = format!(
        "{all}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    for n_objects in 0..3 {
        let mut events = admin.watch(&stream).await;
        begins_with(&mut events, n_objects).await;
        let bookmark = events.next_within(SOON).await;
        assert_eq!(bookmark["type"], "BOOKMARK", "{bookmark:#}");
        let object = &bookmark["object"];
        assert_eq!(object["kind"], "Sandbox");
        assert_eq!(
            object["metadata"]["annotations"]["k8s.io/initial-events-end"],
            "true"
        );
        assert!(version(object) > 0);
        stage.create(&namespace, &format!("n{n_objects}")).await;
        assert_eq!(events.next_within(SOON).await["type"], "ADDED");
    }
}

// kubernetes/kubernetes#120282
#[tokio::test]
async fn a_watch_ends_in_order_when_its_time_is_over() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("timeout").await;
    let began = Instant::now();
    let path = format!("{}?watch=1&timeoutSeconds=3", collection(&namespace));
    let mut events = stage.admin().watch(&path).await;
    assert!(events.next().await.is_none(), "no ERROR event");
    let took = began.elapsed();
    assert!((2..8).contains(&took.as_secs()), "{took:?}");
}

// kubernetes/kubernetes#43299
#[tokio::test]
async fn what_leaves_a_selection_is_deleted_for_its_watcher() {
    let stage = stage::shared().await;
    let admin = stage.admin();
    let namespace = stage.namespace("select").await;
    let all = collection(&namespace);
    stage.create(&namespace, "painted").await;
    stage.create(&namespace, "plain").await;
    let path = item(&namespace, "painted");
    let mut events = admin
        .watch(&format!("{all}?watch=1&labelSelector=colour%3Dred"))
        .await;
    for (label, kind) in [("red", "ADDED"), ("blue", "DELETED"), ("red", "ADDED")] {
        labelled(&admin, &path, label).await;
        let event = events.next_within(SOON).await;
        assert_eq!(
            (event["type"].as_str(), name(&event).as_str()),
            (Some(kind), "painted")
        );
    }
    let node = admin.get(&item(&namespace, "plain")).await.ok();
    let node = node["status"]["nodeName"].as_str().unwrap_or_default();
    let on_its_node = format!("fieldSelector=status.nodeName%3D{node},metadata.name%3Dplain");
    for (selector, expected) in [
        ("labelSelector=colour+in+(red,blue)", &["painted"][..]),
        ("labelSelector=colour+in+(red,blue),!shape", &["painted"]),
        ("labelSelector=colour+in+(red,blue),shape", &[]),
        ("labelSelector=!colour", &["plain"]),
        (&on_its_node, &["plain"]),
        ("fieldSelector=status.nodeName%3Dnowhere", &[]),
        ("fieldSelector=metadata.name%3D%3Dplain", &["plain"]),
        ("fieldSelector=metadata.name!%3Dplain", &["painted"]),
        (
            "fieldSelector=metadata.name%3Dplain,metadata.namespace%3Delsewhere",
            &[],
        ),
    ] {
        let list = admin.get(&format!("{all}?{selector}")).await.ok();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let names: Vec<_> = items
            .iter()
            .filter_map(|item| item["metadata"]["name"].as_str())
            .collect();
        assert_eq!(names, expected, "{selector}");
    }
    for selector in [
        "fieldSelector=spec.nope%3D1",
        "fieldSelector=metadata.name",
        "labelSelector=a%3Db%3Dc",
        "labelSelector=a+in+x",
    ] {
        admin
            .get(&format!("{all}?{selector}"))
            .await
            .expect(400, "BadRequest");
    }
}

#[tokio::test]
async fn a_streamed_list_is_compressed_through_kube_apiserver() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("gzip").await;
    stage.create(&namespace, "packed").await;
    let streamed = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let path = format!(
        "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds=1",
        collection(&namespace)
    );
    for caller in [stage.admin(), stage.direct()] {
        for (query, encoding) in [
            (format!("{path}&{streamed}"), Some("gzip")),
            (path.clone(), None),
        ] {
            let request = http::Request::get(&query).header("accept-encoding", "gzip");
            let body = kube::client::Body::empty();
            let answer = caller.send(request.body(body).unwrap()).await;
            let found = answer.headers.get("content-encoding");
            let found = found.map(|value| value.to_str().unwrap());
            assert_eq!(found, encoding, "{query}");
        }
    }
}
