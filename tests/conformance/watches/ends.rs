//! How watches fail, and how they end.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::STREAMED_LIST;
use crate::conformance::{
    client::{Events, MERGE, SOON},
    shown::{said, version},
    subject::Subject,
};

/// The ERROR event that comes next, which ends the stream.
async fn error(watch: &mut Events) -> Value {
    let event = watch.event().await;
    assert_eq!(event["type"], "ERROR", "{event:#}");
    assert!(watch.ends(SOON).await, "nothing comes behind it");
    let status = event["object"].clone();
    assert_eq!(
        (&status["kind"], &status["apiVersion"], &status["status"]),
        (&json!("Status"), &json!("v1"), &json!("Failure"))
    );
    status
}

pub(super) async fn c_127(subject: &Subject) {
    subject.create("a").await;
    let all = subject.collection();
    for client in subject.both_ways() {
        for query in [
            "watch=true&resourceVersion=1",
            "watch=true&resourceVersion=1&allowWatchBookmarks=true",
            "watch=true&resourceVersion=1&labelSelector=colour",
        ] {
            let mut watch = client.watch(&format!("{all}?{query}")).await;
            let status = error(&mut watch).await;
            assert_eq!(
                (&status["code"], &status["reason"]),
                (&json!(410), &json!("Expired")),
                "{query}"
            );
        }
    }
    if subject.has_nodes() {
        an_outlived_version_is_expired(subject).await;
    }
}

/// One that this very server handed out, and has forgotten since. How much it remembers is its own matter.
async fn an_outlived_version_is_expired(subject: &Subject) {
    let (all, item) = (subject.collection(), subject.item("a"));
    let mut server = subject.server(&["--history-events=20"]);
    server.ready().await;
    let client = server.client();
    let old = version(&client.get(&all).await.ok());
    let path = format!("{all}?watch=true&resourceVersion={old}");
    let change = async |n: usize| {
        let label = json!({"metadata": {"labels": {"n": n.to_string()}}});
        version(&client.patch(MERGE, &item, &label).await.ok())
    };
    let first = change(0).await;
    let event = client.watch(&path).await.event().await;
    assert_eq!(
        version(&event["object"]),
        first,
        "it is remembered at first"
    );
    for n in 1..30 {
        change(n).await;
    }
    let status = error(&mut client.watch(&path).await).await;
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(410), &json!("Expired"))
    );
}

pub(super) async fn c_128(subject: &Subject) {
    let all = subject.collection();
    subject.create("a").await;
    for (client, way) in subject.both_ways().into_iter().zip(["proxied", "direct"]) {
        let now = version(&client.get(&all).await.ok());
        let far = now + 1_000_000;
        let path = format!("{all}?watch=true&resourceVersion={far}");
        let mut silent = client.watch(&path).await;
        // Which of the changes to come is the first behind it depends on what else happens in the cluster.
        let near = now + 3;
        let path = format!("{all}?watch=true&resourceVersion={near}");
        let mut reached = client.watch(&path).await;

        let began = Instant::now();
        let path = format!("{all}?{STREAMED_LIST}&resourceVersion={far}");
        let status = error(&mut client.watch(&path).await).await;
        let waited = began.elapsed();
        assert!((2..10).contains(&waited.as_secs()), "{waited:?}");
        assert_eq!(
            (&status["code"], &status["reason"]),
            (&json!(504), &json!("Timeout"))
        );
        let message = status["message"].as_str().unwrap();
        let begins = format!("Timeout: Too large resource version: {far}, current: ");
        assert!(message.starts_with(&begins), "{message}");
        let details = &status["details"];
        assert_eq!(details["causes"][0]["reason"], "ResourceVersionTooLarge");
        assert_eq!(details["retryAfterSeconds"], 1);

        let mut last = 0;
        for n in 0..6 {
            let value = format!("{way}-{n}");
            last = version(&subject.label("a", "n", &value).await);
        }
        loop {
            let event = reached.event().await;
            assert_eq!(said(&event), "MODIFIED a");
            let at = version(&event["object"]);
            assert!(at > near, "{at} is not behind {near}");
            if at >= last {
                break;
            }
        }
        assert!(silent.is_silent(Duration::from_millis(500)).await);
    }
}

/// Without a timeout a stream ends after 30 to 60 minutes, which the test `watch_times` shows on a clock of its own: here it
/// is only still there.
pub(super) async fn c_129(subject: &Subject) {
    let all = subject.collection();
    for client in subject.both_ways() {
        let mut endless = client.watch(&format!("{all}?watch=true")).await;
        let mut none = client
            .watch(&format!("{all}?watch=true&timeoutSeconds=0"))
            .await;
        let path = format!("{all}?watch=true&timeoutSeconds=2");
        let mut watch = client.watch(&path).await;
        assert!(watch.is_silent(Duration::from_secs(1)).await);
        assert!(watch.ends(Duration::from_secs(5)).await, "without an ERROR");
        for watch in [&mut endless, &mut none] {
            assert!(watch.is_silent(Duration::from_millis(200)).await);
        }
    }
}

pub(super) async fn c_130(subject: &Subject) {
    /// Together many times what the buffers on the way hold.
    const CHANGES: usize = 160;
    const BYTES: usize = 100_000;
    let mut server = subject.server(&["--history-events=50"]);
    server.ready().await;
    let client = server.client();
    let (all, item) = (subject.collection(), subject.item("a"));
    let mut slow = client.watch(&format!("{all}?watch=true")).await;
    subject.create_at(&client, &subject.mk("a")).await;
    assert_eq!(said(&slow.event().await), "ADDED a");
    let filler = "x".repeat(BYTES);
    for n in 0..CHANGES {
        let annotations = json!({"n": n.to_string(), "filler": filler});
        let patch = json!({"metadata": {"annotations": annotations}});
        client.patch(MERGE, &item, &patch).await.ok();
    }
    let mut n_seen = 0;
    loop {
        let next = tokio::time::timeout(SOON, slow.next()).await;
        let Some(event) = next.expect("it is not left hanging") else {
            break;
        };
        if event["type"] == "ERROR" {
            assert_eq!(event["object"]["reason"], "Expired");
            assert!(slow.ends(SOON).await, "nothing comes behind it");
            break;
        }
        let n = &event["object"]["metadata"]["annotations"]["n"];
        assert_eq!(*n, n_seen.to_string(), "nothing is skipped");
        n_seen += 1;
    }
    assert!(n_seen < CHANGES, "what it did not read was not kept for it");
}

/// Kept from starting by a Lease that somebody else has.
pub(super) async fn c_132(subject: &Subject) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "sandbox-apiserver", "namespace": subject.namespace},
        "spec": {
            "holderIdentity": "somebody else",
            "leaseDurationSeconds": 3_600,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    });
    let kubectl = subject.control_plane.kubectl();
    let create = ["create", "--filename=-"];
    kubectl.stdout_with_input(&create, &lease.to_string()).await;

    let mut server = subject.server(&[]);
    let client = server.client();
    let path = format!("{}?watch=true&timeoutSeconds=1", subject.collection());
    let deadline = Instant::now() + SOON;
    while client.try_get(&path).await.is_none() {
        assert!(Instant::now() < deadline, "it listens before it is ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = async || {
        let answer = client.get(&path).await;
        if answer.status == 200 {
            return false;
        }
        answer.expect(429, "TooManyRequests");
        assert!(answer.retry_after().is_some_and(|seconds| seconds > 0));
        true
    };
    assert!(refused().await, "nobody knows yet what there is");
    let delete = ["delete", "lease", "sandbox-apiserver", "--namespace"];
    let delete = [&delete[..], &[&subject.namespace]].concat();
    kubectl.stdout(&delete).await;
    let deadline = Instant::now() + SOON * 2;
    while refused().await {
        assert!(Instant::now() < deadline, "it watches in the end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.ready().await;
}
