//! Watches that never began, never ended, or said what no client could read.

use std::{collections::BTreeSet, time::Duration};

use kube::{
    api::DynamicObject,
    core::{WatchEvent, watch::Bookmark},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    caller::{Caller, Events},
    stage::{self, Stage, StageOptions, collection, eventually, item},
};

const SOON: Duration = Duration::from_secs(10);
/// How often a bookmark has to come, and a while for a busy machine.
const A_MINUTE: Duration = Duration::from_secs(75);

fn version(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str();
    let version = version.unwrap_or_else(|| panic!("no version: {object:#}"));
    assert!(!version.starts_with('0'), "{version}");
    version.parse().expect("a version is a decimal number")
}

/// All that a watch tells until it says nothing for a minute and more; it has to go on for as long.
async fn told_in_a_minute(mut events: Events) -> Vec<Value> {
    let ends = Instant::now() + A_MINUTE;
    let mut told = Vec::new();
    while let Ok(event) = tokio::time::timeout_at(ends, events.next()).await {
        told.push(event.expect("the watch goes on"));
    }
    told
}

// phenixblue/k8shark#64
#[tokio::test]
async fn bookmarks_are_of_the_watched_kind_and_come_every_minute_to_who_asked() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("idle").await;
    stage.create(&namespace, "alone").await;
    let all = collection(&namespace);
    let asked = format!("{all}?watch=1&allowWatchBookmarks=true");
    let unasked = format!("{all}?watch=1");
    let (asked, unasked) = (
        stage.admin().watch(&asked).await,
        stage.admin().watch(&unasked).await,
    );
    let (asked, unasked) = tokio::join!(told_in_a_minute(asked), told_in_a_minute(unasked));
    let kinds = |told: &[Value]| -> BTreeSet<String> {
        let kinds = told.iter().map(|event| event["type"].to_string());
        kinds.collect()
    };
    assert_eq!(
        kinds(&unasked),
        BTreeSet::from([json!("ADDED").to_string()])
    );
    let bookmarks: Vec<_> = asked.iter().filter(|it| it["type"] == "BOOKMARK").collect();
    assert!(!bookmarks.is_empty(), "{asked:#?}");
    let mut newest = version(&asked[0]["object"]);
    for bookmark in bookmarks {
        let event: WatchEvent<DynamicObject> =
            serde_json::from_value(bookmark.clone()).expect("clients read it");
        let WatchEvent::Bookmark(Bookmark { types, .. }) = event else {
            panic!("{bookmark:#}")
        };
        assert_eq!(
            (types.kind.as_str(), types.api_version.as_str()),
            ("Sandbox", "agents.x-k8s.io/v1beta1")
        );
        assert!(version(&bookmark["object"]) >= newest);
        newest = version(&bookmark["object"]);
    }
}

// kube-rs/kube#1092
#[tokio::test]
async fn lists_objects_answers_and_events_all_have_a_version() {
    let stage = stage::shared().await;
    let (admin, namespace) = (stage.admin(), stage.namespace("versions").await);
    let (all, one) = (collection(&namespace), item(&namespace, "a"));
    let empty = version(&admin.get(&all).await.ok());
    let mut events = admin.watch(&format!("{all}?watch=1")).await;
    let created = version(&stage.create(&namespace, "a").await);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let patched = version(&merge(&admin, &one, &label).await);
    let paused = admin.post(&format!("{one}/pause"), &json!({})).await.ok();
    let got = version(&admin.get(&one).await.ok());
    assert_eq!(version(&paused), got);
    assert!(empty < created && created < patched && patched < got);
    let list = admin.get(&all).await.ok();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    assert_eq!(items.iter().map(version).collect::<Vec<_>>(), [got]);
    assert!(version(&list) >= got);
    admin.delete(&one).await.ok();
    let mut last = 0;
    loop {
        let event = events.next_within(SOON).await;
        assert!(version(&event["object"]) > last, "{event:#}");
        last = version(&event["object"]);
        if event["type"] == "DELETED" {
            break;
        }
    }
    assert!(last > got);
    assert!(version(&admin.get(&all).await.ok()) >= last);
}

async fn merge(caller: &Caller, path: &str, patch: &Value) -> Value {
    let request = http::Request::patch(path)
        .header("content-type", "application/merge-patch+json")
        .body(kube::client::Body::from(patch.to_string().into_bytes()))
        .expect("a request");
    caller.send(request).await.ok()
}

// kubernetes/kubernetes#75837
#[tokio::test]
async fn a_watcher_that_leaves_is_forgotten() {
    const CROWD: u32 = 200;
    /// The controllers of the cluster, which watch whatever is served.
    const FEW: u32 = 10;
    let stage = Stage::start(StageOptions::default()).await;
    let namespace = stage.namespace("leaving").await;
    let watch = format!("{}?watch=1", collection(&namespace));
    let direct = stage.direct();
    let watches = async || direct.metric("_apiserver_watches").await;
    for caller in [stage.admin(), stage.direct()] {
        let before = watches().await;
        assert!(before <= f64::from(FEW), "{before}");
        let mut crowd = Vec::new();
        for _ in 0..CROWD {
            crowd.push(caller.watch(&watch).await);
        }
        let counted = watches().await;
        let expected = f64::from(CROWD)..=f64::from(CROWD + FEW);
        assert!(expected.contains(&counted), "{counted}");
        drop(crowd);
        eventually(SOON, "they are forgotten", async || {
            watches().await <= f64::from(FEW)
        })
        .await;
    }
}
