//! WATCH: what was there, then every change once, on a stream that ends in order.

use std::time::{Duration, Instant};

use futures::future::join_all;
use sandbox_apiserver::store::Limits;
use serde_json::{Value, json};

use crate::{
    harness::{ALL_SANDBOXES, Cluster, METADATA, SANDBOXES, SOON, TABLE, item, shown, until},
    widgets::{ALL_WIDGETS, WIDGETS, Workshop},
};

/// What client-go's informers ask for.
const STREAMED_LIST: &str =
    "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

fn version(event: &Value) -> u64 {
    let version = event["object"]["metadata"]["resourceVersion"].as_str();
    version.unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_head_comes_at_once_and_the_watcher_is_counted() {
    let cluster = Cluster::of(0).await;
    let begun = Instant::now();
    let watch = cluster
        .client
        .watch(format!("{SANDBOXES}?watch=true"))
        .await;
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "no event was awaited"
    );
    assert_eq!(watch.headers["content-type"], "application/json");
    assert!(!watch.headers.contains_key("content-length"));
    let gauge = "sandbox_apiserver_apiserver_watches";
    until("the watch is counted", || {
        cluster.door.counted(gauge) == 1.0
    })
    .await;
    drop(watch);
    until("the watcher is gone", || cluster.door.counted(gauge) == 0.0).await;
}

#[tokio::test]
async fn a_watch_without_a_version_begins_with_what_is_there() {
    let workshop = Workshop::open().await;
    workshop.put("a", "red");
    workshop.put("b", "red");
    for query in ["watch=1", "watch", "watch=true&resourceVersion=0"] {
        let mut watch = workshop.client.watch(format!("{WIDGETS}?{query}")).await;
        assert_eq!(
            [watch.next().await, watch.next().await],
            ["ADDED a", "ADDED b"]
        );
        assert!(watch.is_silent().await, "no bookmark unless asked for");
        let name = format!("x-{}", query.len());
        let at = workshop.put(&name, "red");
        let event = watch.event().await;
        assert_eq!(shown(&event), format!("ADDED {name}"));
        assert_eq!(version(&event).to_string(), at);
        workshop.remove(&name);
    }
}

#[tokio::test]
async fn a_watch_from_a_version_shows_later_changes_once_and_in_order() {
    let workshop = Workshop::open().await;
    workshop.put("a", "red");
    let from = workshop.put("b", "red");
    let mut expected = vec![
        (workshop.put("a", "blue"), "MODIFIED a"),
        (workshop.remove("b"), "DELETED b"),
    ];
    let path = format!("{WIDGETS}?watch=true&resourceVersion={from}");
    let mut watch = workshop.client.watch(path).await;
    expected.push((workshop.put("b", "green"), "ADDED b"));
    for (at, what) in expected {
        let event = watch.event().await;
        assert_eq!(
            (version(&event).to_string(), shown(&event)),
            (at, what.to_owned())
        );
    }
    assert!(watch.is_silent().await);
}

#[tokio::test]
async fn a_streamed_list_ends_with_its_bookmark_and_goes_on() {
    for count in [0, 1, 5_000] {
        let workshop = Workshop::open().await;
        workshop.put_many(count);
        let begun = Instant::now();
        let path = format!("{WIDGETS}?{STREAMED_LIST}&timeoutSeconds=300");
        let mut watch = workshop.client.watch(path).await;
        let events = watch.initial().await;
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(events.len(), count + 1);
        let (bookmark, added) = events.split_last().unwrap();
        assert_eq!(
            *bookmark,
            json!({"type": "BOOKMARK", "object": {
                "kind": "Widget",
                "apiVersion": "example.com/v1",
                "metadata": {
                    "annotations": {"k8s.io/initial-events-end": "true"},
                    "resourceVersion": workshop.head(),
                },
            }})
        );
        assert!(added.iter().all(|event| event["type"] == "ADDED"));
        assert!(
            added
                .iter()
                .all(|event| version(event) <= version(bookmark))
        );
        workshop.put("later", "red");
        assert_eq!(watch.next().await, "ADDED later");
    }
}

#[tokio::test]
async fn the_closing_bookmark_has_the_form_that_was_asked_for() {
    let cluster = Cluster::of(2).await;
    let path = format!("{SANDBOXES}?{STREAMED_LIST}");
    let mut watch = cluster.client.watch_as(&path, METADATA).await;
    let events = watch.initial().await;
    assert_eq!(events.len(), 3);
    for event in &events {
        assert_eq!(event["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(event["object"]["apiVersion"], "meta.k8s.io/v1");
    }
    let path = format!("{path}&includeObject=None");
    let mut watch = cluster.client.watch_as(&path, TABLE).await;
    let events = watch.initial().await;
    let (bookmark, added) = events.split_last().unwrap();
    for (index, event) in added.iter().enumerate() {
        let table = &event["object"];
        assert_eq!(table["kind"], "Table");
        assert_eq!(table["columnDefinitions"].is_array(), index == 0);
        assert_eq!(table["rows"].as_array().unwrap().len(), 1);
        assert_eq!(table["rows"][0]["object"], Value::Null);
    }
    let object = &bookmark["object"]["rows"][0]["object"];
    assert_eq!(object["kind"], "PartialObjectMetadata");
    assert_eq!(
        object["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
}

#[tokio::test]
async fn a_streamed_list_without_bookmarks_has_none() {
    let workshop = Workshop::open().await;
    workshop.put("a", "red");
    let query = STREAMED_LIST.replace("&allowWatchBookmarks=true", "");
    let mut watch = workshop.client.watch(format!("{WIDGETS}?{query}")).await;
    assert_eq!(watch.next().await, "ADDED a");
    assert!(watch.is_silent().await);
}

#[tokio::test]
async fn a_bookmark_comes_before_the_end_and_moves_past_what_is_not_shown() {
    let workshop = Workshop::open().await;
    let from = workshop.put("a", "red");
    let query = "watch=true&allowWatchBookmarks=true&timeoutSeconds=3";
    let path = format!("{WIDGETS}?{query}&labelSelector=color%3Dgreen&resourceVersion={from}");
    let mut watch = workshop.client.watch(path).await;
    let at = workshop.put("b", "red");
    let event = watch.event().await;
    assert_eq!(
        event,
        json!({"type": "BOOKMARK", "object": {
            "kind": "Widget",
            "apiVersion": "example.com/v1",
            "metadata": {"resourceVersion": at},
        }})
    );
    assert_eq!(watch.line().await, None, "the stream ends without an error");
}

#[tokio::test]
async fn a_timeout_ends_the_stream_without_an_error() {
    let workshop = Workshop::open().await;
    let begun = Instant::now();
    let path = format!("{WIDGETS}?watch=true&timeoutSeconds=2");
    let mut watch = workshop.client.watch(path).await;
    assert_eq!(watch.line().await, None);
    assert!(begun.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn a_timeout_ends_a_busy_stream_too() {
    let workshop = Workshop::open().await;
    let path = format!("{WIDGETS}?watch=true&timeoutSeconds=1");
    let mut watch = workshop.client.watch(path).await;
    let busy = async {
        loop {
            workshop.put("a", "red");
            tokio::task::yield_now().await;
        }
    };
    let reading = async { while watch.line().await.is_some() {} };
    tokio::select! {
        () = busy => {}
        ended = tokio::time::timeout(SOON, reading) => ended.expect("the end"),
    }
}

#[tokio::test]
async fn an_object_enters_and_leaves_a_selection_by_changing() {
    let workshop = Workshop::open().await;
    let from = workshop.put("a", "blue");
    let red = format!("labelSelector=color%3Dred&resourceVersion={from}");
    let by_label = format!("{WIDGETS}?watch=true&{red}");
    let red = format!("fieldSelector=spec.color%3Dred&resourceVersion={from}");
    let by_field = format!("{ALL_WIDGETS}?watch=true&{red}");
    let versions = [
        workshop.put("a", "red"),
        workshop.put("a", "red"),
        workshop.put("a", "blue"),
        workshop.put("a", "red"),
        workshop.remove("a"),
    ];
    for path in [by_label, by_field] {
        let mut watch = workshop.client.watch(path).await;
        let kinds = ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"];
        for (kind, at) in kinds.iter().zip(&versions) {
            let event = watch.event().await;
            assert_eq!(event["type"], *kind);
            assert_eq!(event["object"]["spec"]["color"], "red", "{kind}");
            assert_eq!(&version(&event).to_string(), at);
        }
    }
}

#[tokio::test]
async fn one_object_is_followed_by_its_name() {
    let cluster = Cluster::of(3).await;
    let name = "fieldSelector=metadata.name%3Dsb-000001";
    let begun = Instant::now();
    let mut watch = cluster
        .client
        .watch(format!("{SANDBOXES}?watch=true&{name}"))
        .await;
    let event = watch.event().await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(shown(&event), "ADDED sb-000001");
    let others = cluster.client.delete(item("sb-000000"), Value::Null);
    assert_eq!(others.await.code(), 200);
    assert!(watch.is_silent().await);
    let own = cluster.client.delete(item("sb-000001"), Value::Null).await;
    assert_eq!(own.code(), 200, "{}", own.text());
    let event = watch.event().await;
    assert_eq!(shown(&event), "DELETED sb-000001");
}

#[tokio::test]
async fn a_version_out_of_the_history_is_an_error_event_and_the_end() {
    let history = Limits {
        events: 10,
        ..Limits::default()
    };
    let workshop = Workshop::with_history(history).await;
    let old = workshop.put("a", "red");
    workshop.put_many(20);
    let path = format!("{WIDGETS}?watch=true&resourceVersion={old}");
    let mut watch = workshop.client.watch(path).await;
    let event = watch.event().await;
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["kind"], "Status");
    assert_eq!(event["object"]["code"], 410);
    assert_eq!(event["object"]["reason"], "Expired");
    assert_eq!(watch.line().await, None);
}

#[tokio::test]
async fn a_plain_watch_from_the_future_is_silent_until_it_is_reached() {
    let workshop = Workshop::open().await;
    let now: u64 = workshop.put("a", "red").parse().unwrap();
    let query = format!(
        "allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion={}",
        now + 2
    );
    let mut watch = workshop
        .client
        .watch(format!("{WIDGETS}?watch=true&{query}"))
        .await;
    workshop.put("b", "red");
    workshop.put("c", "red");
    assert!(watch.is_silent().await, "nothing up to the version itself");
    workshop.put("d", "red");
    assert_eq!(watch.next().await, "ADDED d");

    let query = format!(
        "allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion={}",
        now + 99
    );
    let mut watch = workshop
        .client
        .watch(format!("{WIDGETS}?watch=true&{query}"))
        .await;
    assert_eq!(
        watch.line().await,
        None,
        "no bookmark of a version that is not there"
    );
}

#[tokio::test]
async fn a_streamed_list_from_the_future_is_an_error_event() {
    let workshop = Workshop::open().await;
    let path = format!("{WIDGETS}?{STREAMED_LIST}&resourceVersion=5000");
    let mut watch = workshop.client.watch(path).await;
    let event = watch.event().await;
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["code"], 504);
    let cause = &event["object"]["details"]["causes"][0]["reason"];
    assert_eq!(cause, "ResourceVersionTooLarge");
    assert_eq!(event["object"]["details"]["retryAfterSeconds"], 1);
    assert_eq!(watch.line().await, None);
}

#[tokio::test]
async fn options_that_contradict_each_other_are_invalid() {
    let cluster = Cluster::of(0).await;
    for query in [
        "sendInitialEvents=true",
        "resourceVersion=5&resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=5",
        "sendInitialEvents=true&resourceVersionMatch=Newest",
    ] {
        let path = format!("{SANDBOXES}?watch=true&{query}");
        let status = cluster.client.get(&path).await.refusal(422, "Invalid");
        assert_eq!(status["details"]["kind"], "ListOptions", "{query}");
    }
    for query in [
        "resourceVersion=x",
        "timeoutSeconds=x",
        "fieldSelector=spec.x%3D1",
    ] {
        let path = format!("{SANDBOXES}?watch=true&{query}");
        cluster.client.get(&path).await.refusal(400, "BadRequest");
    }
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_told_so() {
    let history = Limits {
        events: 1_000,
        ..Limits::default()
    };
    let workshop = Workshop::with_history(history).await;
    let path = format!("{WIDGETS}?watch=true");
    let mut watch = workshop.client.watch(path).await;
    // More than all buffers on the way hold.
    for _ in 0..40 {
        workshop.put_many(1_000);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (mut last, mut expired) = (0, false);
    while let Some(line) = watch.line().await {
        let event: Value = serde_json::from_slice(&line).unwrap();
        if event["type"] == "ERROR" {
            assert_eq!(event["object"]["reason"], "Expired");
            expired = true;
            continue;
        }
        assert!(!expired, "nothing comes behind the error");
        let at = version(&event);
        assert!(last == 0 || at == last + 1, "nothing is skipped before it");
        last = at;
    }
    assert!(expired);
}

#[tokio::test]
async fn all_watchers_of_a_form_get_the_same_bytes() {
    let cluster = Cluster::of(0).await;
    let head = cluster.client.get(SANDBOXES).await.json();
    let from = head["metadata"]["resourceVersion"].as_str().unwrap();
    let paths = [
        format!("{SANDBOXES}?watch=true&resourceVersion={from}"),
        format!("{ALL_SANDBOXES}?watch=true&resourceVersion={from}"),
        format!("{ALL_SANDBOXES}?watch=true&resourceVersion={from}&labelSelector=!x"),
    ];
    let watches = join_all(paths.iter().map(|path| cluster.client.watch(path))).await;
    cluster.create("a").await;
    cluster.client.delete(item("a"), Value::Null).await;
    let mut seen = Vec::new();
    for mut watch in watches {
        seen.push([watch.line().await.unwrap(), watch.line().await.unwrap()]);
    }
    assert!(seen.iter().all(|lines| *lines == seen[0]));
    let last: Value = serde_json::from_slice(&seen[0][1]).unwrap();
    assert_eq!(shown(&last), "DELETED a");
}

#[tokio::test]
async fn tokens_never_show_in_a_watch() {
    let cluster = Cluster::of(0).await;
    let mut watch = cluster
        .client
        .watch(format!("{SANDBOXES}?watch=true"))
        .await;
    let created = cluster.create("a").await;
    let token = &created["metadata"]["annotations"]["sandbox.cocoonstack.io/token"];
    assert!(token.is_string(), "the create answer has it");
    let event = watch.event().await;
    assert_eq!(shown(&event), "ADDED a");
    assert!(!event.to_string().contains(token.as_str().unwrap()));
}

#[tokio::test]
async fn the_end_of_the_server_ends_watches_cleanly() {
    let workshop = Workshop::open().await;
    let mut watch = workshop.client.watch(format!("{WIDGETS}?watch=true")).await;
    workshop.door.closing.cancel();
    assert_eq!(watch.line().await, None);
}
