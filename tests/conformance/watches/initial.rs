//! Streamed lists, and bookmarks.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::STREAMED_LIST;
use crate::conformance::{
    client::{METADATA, TABLE},
    shown::{said, version},
    subject::Subject,
};

const QUIET: Duration = Duration::from_secs(1);

/// Asserts that events are these objects and the bookmark behind them, and gives its version.
#[track_caller]
fn are_a_list(events: &[Value], names: &[&str]) -> u64 {
    let (bookmark, added) = events.split_last().unwrap();
    let mut found: Vec<_> = added.iter().map(said).collect();
    found.sort();
    let expected: Vec<_> = names.iter().map(|name| format!("ADDED {name}")).collect();
    assert_eq!(found, expected);
    assert_eq!(bookmark["type"], "BOOKMARK");
    let annotations = &bookmark["object"]["metadata"]["annotations"];
    assert_eq!(*annotations, json!({"k8s.io/initial-events-end": "true"}));
    version(&bookmark["object"])
}

pub(super) async fn c_122(subject: &Subject) {
    let (all, plural) = (subject.collection(), subject.translated("sandboxes"));
    let mut names = vec!["a", "b"];
    for name in ["a", "b"] {
        subject.create(name).await;
    }
    for (client, added) in subject.both_ways().into_iter().zip(["c", "d"]) {
        let mut watch = client.watch(&format!("{all}?{STREAMED_LIST}")).await;
        let from = are_a_list(&watch.initial().await, &names);
        let created = subject.create(added).await;
        let event = watch.event().await;
        assert_eq!(said(&event), format!("ADDED {added}"), "on the same stream");
        assert_eq!(version(&event["object"]), version(&created));
        assert!(version(&created) > from);
        names.push(added);
        // Taken up again later, from the last version.
        for last in [from, version(&created)] {
            let path = format!("{all}?{STREAMED_LIST}&resourceVersion={last}");
            let events = client.watch(&path).await.initial().await;
            assert!(are_a_list(&events, &names) >= last);
        }
    }
    // Waits for the end of the object by such a stream.
    let args = [
        "delete",
        &plural,
        "a",
        "--timeout=15s",
        "--namespace",
        &subject.namespace,
    ];
    subject.kubectl().stdout(&args).await;
    let missing = subject.proxied().get(&subject.item("a")).await;
    missing.expect(404, "NotFound");
}

pub(super) async fn c_123(subject: &Subject) {
    let empty = crate::stage::collection(&subject.other_namespace().await);
    let newest = version(&subject.create("a").await);
    let all = subject.collection();
    for client in subject.both_ways() {
        for (path, n_objects) in [
            (format!("{empty}?{STREAMED_LIST}"), 0),
            (format!("{all}?{STREAMED_LIST}&resourceVersion=0"), 1),
            (format!("{all}?{STREAMED_LIST}&resourceVersion={newest}"), 1),
            (
                format!("{all}?{STREAMED_LIST}&labelSelector=colour%3Dnone"),
                0,
            ),
            (
                format!("{all}?{STREAMED_LIST}&fieldSelector=metadata.name%3Dabsent"),
                0,
            ),
            (
                format!("{all}?{STREAMED_LIST}&fieldSelector=metadata.name%3Da"),
                1,
            ),
        ] {
            for form in ["application/json", METADATA, TABLE] {
                let mut watch = client.watch_with(&path, &[("accept", form)]).await;
                // Panics when the bookmark does not come.
                let events = watch.initial().await;
                assert_eq!(events.len(), n_objects + 1, "{path} as {form}");
            }
        }
    }
}

pub(super) async fn c_124(subject: &Subject) {
    let all = subject.collection();
    for (client, added) in subject.both_ways().into_iter().zip(["a", "b"]) {
        let newest = version(&subject.create(added).await);
        for form in ["application/json", METADATA, TABLE] {
            let path = format!("{all}?{STREAMED_LIST}");
            let mut watch = client.watch_with(&path, &[("accept", form)]).await;
            let events = watch.initial().await;
            let (bookmark, added) = events.split_last().unwrap();
            let kind = |event: &Value| {
                let text = |field: &str| event["object"][field].as_str().unwrap().to_owned();
                (text("apiVersion"), text("kind"))
            };
            let expected = match form {
                METADATA => ("meta.k8s.io/v1", "PartialObjectMetadata"),
                TABLE => ("meta.k8s.io/v1", "Table"),
                _ => ("agents.x-k8s.io/v1beta1", "Sandbox"),
            };
            let expected = (expected.0.to_owned(), expected.1.to_owned());
            assert!(!added.is_empty());
            for event in &events {
                assert_eq!(kind(event), expected);
            }
            let object = |event: &Value| match form {
                TABLE => event["object"]["rows"][0]["object"].clone(),
                _ => event["object"].clone(),
            };
            let at = version(&object(bookmark));
            assert!(at >= newest, "not older than the request");
            assert!(added.iter().all(|event| version(&object(event)) <= at));
        }
    }
}

pub(super) async fn c_125(subject: &Subject) {
    for client in subject.both_ways() {
        for query in [
            "sendInitialEvents=true",
            "sendInitialEvents=false",
            "sendInitialEvents=true&resourceVersion=0",
            "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=Exact&resourceVersion=5",
            "sendInitialEvents=true&resourceVersionMatch=Newest",
            "resourceVersion=5&resourceVersionMatch=NotOlderThan",
            "resourceVersion=5&resourceVersionMatch=Exact",
        ] {
            let path = format!("{}?watch=true&{query}", subject.collection());
            let answer = client.get(&path).await;
            answer.expect(422, "Invalid");
            let details = &answer.body["details"];
            assert_eq!(
                (&details["group"], &details["kind"]),
                (&json!("meta.k8s.io"), &json!("ListOptions")),
                "{query}"
            );
            assert_eq!(details["causes"][0]["field"], "resourceVersionMatch");
        }
    }
}

/// The bookmarks in between come once a minute, which the test `watch_times` shows on a clock of its own.
pub(super) async fn c_126(subject: &Subject) {
    let all = subject.collection();
    subject.create("a").await;
    let without = STREAMED_LIST.replace("&allowWatchBookmarks=true", "");
    for (client, way) in subject.both_ways().into_iter().zip(["proxied", "direct"]) {
        let from = version(&client.get(&subject.item("a")).await.ok());
        let mut streamed = client.watch(&format!("{all}?{without}")).await;
        let path = format!("{all}?watch=true&resourceVersion={from}&timeoutSeconds=4");
        let mut plain = client.watch(&path).await;
        let path = format!("{path}&allowWatchBookmarks=true");
        let (mut allowed, began) = (client.watch(&path).await, Instant::now());

        let bookmark = allowed.event().await;
        let after = began.elapsed();
        assert_eq!(bookmark["type"], "BOOKMARK");
        let object = &bookmark["object"];
        let at = object["metadata"]["resourceVersion"].clone();
        let expected = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1",
            "kind": "Sandbox",
            "metadata": {"resourceVersion": at},
        });
        assert_eq!(*object, expected);
        assert!(version(object) >= from);
        assert!((1_000..3_500).contains(&after.as_millis()), "{after:?}");
        while let Some(event) = tokio::time::timeout(QUIET * 5, allowed.next())
            .await
            .unwrap()
        {
            assert_eq!(event["type"], "BOOKMARK", "nothing else was to be told");
        }

        assert!(plain.ends(QUIET * 5).await);
        assert_eq!(said(&streamed.event().await), "ADDED a");
        assert!(streamed.is_silent(QUIET).await);
        subject.label("a", "colour", way).await;
        assert_eq!(said(&streamed.event().await), "MODIFIED a");
    }
}
