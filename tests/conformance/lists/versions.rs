//! Versions: how they rise, and what a read may ask of them.

use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::json;

use crate::conformance::{
    client::{Client, MERGE, SOON},
    shown::{names, version},
    subject::Subject,
};

/// How long a version of the future is waited for, at least and at most, and what a busy machine adds.
const WAITED: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_secs(5);

async fn version_of_list(client: &Client, path: &str) -> u64 {
    version(&client.get(path).await.ok())
}

pub(super) async fn c_096(subject: &Subject) {
    let old_path = subject.item("a").replace("/v1beta1/", "/v1alpha1/");
    let created = subject.create("a").await;
    for client in subject.both_ways() {
        let shown = client.get(&subject.item("a")).await.ok();
        let in_old_version = client.get(&old_path).await.ok();
        assert_eq!(in_old_version["apiVersion"], "agents.x-k8s.io/v1alpha1");
        for field in ["uid", "resourceVersion"] {
            assert!(shown["metadata"][field].is_string(), "{shown:#}");
            assert_eq!(shown["metadata"][field], in_old_version["metadata"][field]);
        }
    }
    let client = subject.proxied();
    let labelled = subject.label("a", "colour", "red").await;
    let other = subject.create("b").await;
    let before = version_of_list(&client, &subject.collection()).await;
    client.delete(&subject.item("a")).await.ok();
    let after = version_of_list(&client, &subject.collection()).await;
    let versions = [version(&created), version(&labelled), version(&other)];
    assert!(
        versions.is_sorted_by(|a, b| a < b),
        "every change has a version: {versions:?}"
    );
    assert!(
        versions[2] <= before && before < after,
        "a deletion too: {before}, {after}"
    );
}

/// Restarted in order. A server that crashed, and one that takes over, are shown by the tests `restart` and `sequencer`.
pub(super) async fn c_097(subject: &Subject) {
    let collection = subject.collection();
    let mut first = subject.server(&[]);
    first.ready().await;
    let client = first.client();
    let made = subject.create_at(&client, &subject.mk("a")).await;
    let old = version(&made);
    let label = json!({"metadata": {"labels": {"colour": "red"}}});
    client.patch(MERGE, &subject.item("a"), &label).await.ok();
    let last = version_of_list(&client, &collection).await;
    first.end().await;

    let mut second = subject.server(&[]);
    second.ready().await;
    let client = second.client();
    let found = client.get(&subject.item("a")).await.ok();
    assert_eq!(found["metadata"]["uid"], made["metadata"]["uid"]);
    let path = format!("{collection}?resourceVersion={last}");
    let list = client.get(&path).await.ok();
    assert!(version(&list) > last && version(&found) > last, "{list:#}");
    let other = subject.create_at(&client, &subject.mk("b")).await;
    assert!(version(&other) > version(&list));
    let exactly = format!("{collection}?resourceVersion={old}&resourceVersionMatch=Exact");
    client.get(&exactly).await.expect(410, "Expired");
    // No watch is resumed where another process left off: not even behind the last that it handed out.
    for earlier in [old, last] {
        let path = format!("{collection}?watch=true&resourceVersion={earlier}");
        let mut watch = client.watch(&path).await;
        let event = watch.event().await;
        let status = &event["object"];
        assert_eq!(
            (&event["type"], &status["code"], &status["reason"]),
            (&json!("ERROR"), &json!(410), &json!("Expired")),
            "{earlier}"
        );
        assert!(watch.ends(SOON).await, "nothing comes behind it");
    }
}

pub(super) async fn c_100(subject: &Subject) {
    let old = version(&subject.create("a").await);
    let new = version(&subject.create("b").await);
    for client in subject.both_ways() {
        let list = async |query: &str| {
            let path = format!("{}?{query}", subject.collection());
            client.get(&path).await
        };
        for query in ["", "resourceVersion="] {
            let newest = list(query).await.ok();
            assert_eq!(names(&newest), ["a", "b"], "{query}");
            assert!(version(&newest) >= new);
        }
        for at_least in [
            format!("resourceVersion={new}"),
            format!("resourceVersion={new}&resourceVersionMatch=NotOlderThan"),
            format!("resourceVersion={new}&resourceVersionMatch=NotOlderThan&limit=5"),
        ] {
            let list = list(&at_least).await.ok();
            assert_eq!(names(&list), ["a", "b"], "{at_least}");
            assert!(version(&list) >= new, "{at_least}");
        }
        for any in ["", "&resourceVersionMatch=NotOlderThan"] {
            let any = list(&format!("resourceVersion=0{any}")).await.ok();
            assert_eq!(any["kind"], "SandboxList");
        }
        for exactly in ["resourceVersionMatch=Exact", "limit=5"] {
            let then = list(&format!("resourceVersion={old}&{exactly}")).await.ok();
            assert_eq!((names(&then), version(&then)), (vec!["a"], old));
            // Older than all that this server keeps. A custom resource is kept longer.
            let first = list(&format!("resourceVersion=1&{exactly}")).await;
            match first.status.as_u16() {
                200 => assert_eq!(version(&first.ok()), 1),
                _ => first.expect(410, "Expired"),
            }
        }
        let get = async |query: &str| {
            let path = format!("{}?{query}", subject.item("b"));
            client.get(&path).await.ok()
        };
        for query in ["", "resourceVersion=", "resourceVersion=0"] {
            assert_eq!(version(&get(query).await), new, "{query}");
        }
        for at_least in [old, new] {
            let shown = get(&format!("resourceVersion={at_least}")).await;
            assert_eq!(version(&shown), new);
        }
    }
}

pub(super) async fn c_101(subject: &Subject) {
    subject.create("a").await;
    let collection = subject.collection();
    for (client, name) in subject.both_ways().into_iter().zip(["b", "c"]) {
        let now = version_of_list(&client, &collection).await;
        let far = now + 1_000_000;
        let paths = [
            format!("{collection}?resourceVersion={far}"),
            format!("{collection}?resourceVersion={far}&resourceVersionMatch=NotOlderThan"),
            format!("{}?resourceVersion={far}", subject.item("a")),
        ];
        let refused = join_all(paths.iter().map(async |path| {
            let began = Instant::now();
            (client.get(path).await, began.elapsed())
        }));
        for (answer, waited) in refused.await {
            assert!(WAITED < waited && waited < PATIENCE + SLACK, "{waited:?}");
            answer.expect(504, "Timeout");
            let message = answer.body["message"].as_str().unwrap();
            let begins = format!("Timeout: Too large resource version: {far}, current: ");
            let current = message.strip_prefix(&begins).expect(message);
            assert!(current.parse::<u64>().unwrap() >= now, "{message}");
            let cause = &answer.body["details"]["causes"][0];
            assert_eq!(
                *cause,
                json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"})
            );
            assert_eq!(answer.retry_after(), Some(1));
        }

        // One that comes in time is served.
        let next = now + 1;
        let path = format!("{collection}?resourceVersion={next}");
        let (list, _) = tokio::join!(client.get(&path), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            subject.create(name).await
        });
        assert!(version(&list.ok()) >= next);
    }
}

/// A custom resource answers 500 to a GET and a watch: see `docs/differences.md`.
pub(super) async fn c_102(subject: &Subject) {
    subject.create("a").await;
    for client in subject.both_ways() {
        for wrong in ["x", "1.5", "-1"] {
            for path in [
                format!("{}?resourceVersion={wrong}", subject.collection()),
                format!("{}?limit=1&resourceVersion={wrong}", subject.collection()),
                format!("{}?resourceVersion={wrong}", subject.item("a")),
                format!(
                    "{}?watch=true&resourceVersion={wrong}",
                    subject.collection()
                ),
            ] {
                let answer = client.get(&path).await;
                answer.expect(400, "BadRequest");
                let message = answer.body["message"].as_str().unwrap();
                assert!(
                    message.to_lowercase().contains("invalid resource version"),
                    "{path}: {message}"
                );
            }
        }
    }
}

pub(super) async fn c_103(subject: &Subject) {
    for client in subject.both_ways() {
        for (query, field) in [
            ("resourceVersionMatch=Exact", "resourceVersionMatch"),
            ("resourceVersionMatch=NotOlderThan", "resourceVersionMatch"),
            (
                "resourceVersion=5&resourceVersionMatch=NotOlderThan&continue=x",
                "resourceVersionMatch",
            ),
            (
                "resourceVersion=5&resourceVersionMatch=Newest",
                "resourceVersionMatch",
            ),
            (
                "resourceVersion=0&resourceVersionMatch=Exact",
                "resourceVersionMatch",
            ),
            ("sendInitialEvents=true", "sendInitialEvents"),
            ("sendInitialEvents=false", "sendInitialEvents"),
        ] {
            let path = format!("{}?{query}", subject.collection());
            let answer = client.get(&path).await;
            answer.expect(422, "Invalid");
            let details = &answer.body["details"];
            assert_eq!(
                (&details["group"], &details["kind"]),
                (&json!("meta.k8s.io"), &json!("ListOptions")),
                "{query}"
            );
            assert_eq!(details["causes"][0]["field"], field, "{query}");
        }
    }
}
