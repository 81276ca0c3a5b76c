//! From the first probe to the last answer.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    harness::{
        ADMIN, ALICE, Cluster, Door, SANDBOXES, SOON, item, mk_node, mk_request, mk_sandbox,
    },
    tls_client,
    widgets::{WIDGETS, Workshop},
};

#[tokio::test]
async fn health_is_for_everybody_and_verbose_on_request() {
    let cluster = Cluster::of(0).await;
    // Nobody's HTTP/2 connection ends with its first answer.
    let ask = async |path: &str| cluster.door.client("").await.get(path).await;
    for path in ["/livez", "/readyz", "/healthz"] {
        let answer = ask(path).await;
        assert_eq!(
            (answer.code(), answer.text()),
            (200, "ok".to_owned()),
            "{path}"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert!(answer.header("content-type").starts_with("text/plain"));
    }
    let verbose = ask("/readyz?verbose").await.text();
    assert!(verbose.contains("[+]inventory ok"), "{verbose}");
    assert_eq!(ask("/readyz/inventory").await.code(), 200);
    assert_eq!(ask("/readyz/nothing").await.code(), 404);
}

#[tokio::test]
async fn an_http2_connection_of_somebody_unknown_ends_with_its_answer() {
    let cluster = Cluster::of(0).await;
    let tls = || tls_client::config(cluster.door.ca.certificate(), None, &["h2"]);
    let ask = |token: &str, path: &str| {
        let body = tls_client::empty();
        mk_request(token, "GET", path, &[], body)
    };
    for (token, path, code, ends) in [
        ("", "/livez", 200, true),
        ("", SANDBOXES, 200, true),
        ("wrong", SANDBOXES, 401, true),
        (ALICE, "/livez", 200, false),
        (ALICE, SANDBOXES, 200, false),
        (ALICE, "/nowhere", 404, false),
    ] {
        let stream = tls_client::connect(cluster.door.address, tls()).await;
        let mut client = tls_client::http2(stream.unwrap()).await;
        let answer = client.send_request(ask(token, path)).await.unwrap();
        assert_eq!(answer.status(), code, "{token} {path}");
        let patience = if ends {
            SOON
        } else {
            Duration::from_millis(300)
        };
        let again = async {
            while client.ready().await.is_ok()
                && client.send_request(ask(token, path)).await.is_ok()
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(patience, again).await;
        assert_eq!(ended.is_ok(), ends, "{token} {path}");
    }
}

#[tokio::test]
async fn a_failing_check_is_named_and_may_be_left_out() {
    let workshop = Workshop::open().await;
    let check = workshop.door.readiness.check("nodes");
    check.fail("the reason");
    let failing = workshop.client.get("/readyz").await;
    assert_eq!(failing.code(), 500);
    assert!(
        failing.text().contains("[-]nodes failed"),
        "{}",
        failing.text()
    );
    assert!(!failing.text().contains("the reason"), "withheld");
    assert_eq!(
        workshop.client.get("/readyz?exclude=nodes").await.code(),
        200
    );
    assert_eq!(workshop.client.get("/readyz/nodes").await.code(), 500);
    assert_eq!(workshop.client.get("/livez").await.code(), 200);
    let refused = workshop.client.get(WIDGETS).await;
    let status = refused.refusal(503, "ServiceUnavailable");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    check.pass();
    assert_eq!(workshop.client.get(WIDGETS).await.code(), 200);
}

#[tokio::test]
async fn before_the_server_is_there_everything_is_unavailable_but_probes() {
    let door = Door::open().await;
    let client = door.client(ADMIN).await;
    assert_eq!(client.get("/livez").await.code(), 200);
    for path in [SANDBOXES, "/nowhere", "/version", "/metrics"] {
        let status = client.get(path).await.refusal(503, "ServiceUnavailable");
        assert_eq!(status["details"]["retryAfterSeconds"], 5, "{path}");
    }
    assert_eq!(client.get("/livez").await.header("audit-id").len(), 36);
}

#[tokio::test]
async fn documents_that_were_served_once_stay_whatever_fails() {
    let workshop = Workshop::open().await;
    assert_eq!(workshop.client.get("/apis").await.code(), 200);
    let check = workshop.door.readiness.check("nodes");
    check.fail("gone");
    for path in ["/apis", "/apis/example.com/v1", "/openapi/v3"] {
        assert_eq!(workshop.client.get(path).await.code(), 200, "{path}");
    }
}

#[tokio::test]
async fn the_end_is_announced_then_comes() {
    let cluster = Cluster::of(1).await;
    let mut watch = cluster
        .client
        .watch(format!("{SANDBOXES}?watch=true"))
        .await;
    assert_eq!(watch.next().await, "ADDED sb-000000");

    // First new clients are kept away, while those that are here are served.
    cluster.door.readiness.shutting_down();
    assert_eq!(cluster.client.get("/readyz").await.code(), 500);
    assert_eq!(cluster.client.get("/livez").await.code(), 200);
    assert_eq!(cluster.client.get(SANDBOXES).await.code(), 200);
    cluster.create("a").await;
    assert_eq!(watch.next().await, "ADDED a");

    // Then nothing new is begun.
    cluster.door.closing.cancel();
    assert_eq!(watch.line().await, None);
    let client = cluster.door.client(ADMIN).await;
    for refused in [
        client.get(SANDBOXES).await,
        cluster
            .door
            .client(ADMIN)
            .await
            .post(SANDBOXES, &mk_sandbox("b"))
            .await,
    ] {
        let status = refused.refusal(429, "TooManyRequests");
        assert_eq!(status["details"]["retryAfterSeconds"], 5);
    }
    let probe = cluster.door.client(ADMIN).await;
    assert_eq!(probe.get("/livez").await.code(), 200);
    assert_eq!(
        cluster
            .door
            .client(ADMIN)
            .await
            .get("/metrics")
            .await
            .code(),
        200
    );
}

#[tokio::test]
async fn a_server_that_may_not_write_any_more_leaves_everything_as_it_is() {
    let cluster = Cluster::start(mk_node(2)).await;
    cluster.create("a").await;
    let (before, writes) = (
        cluster.client.get(item("a")).await.json(),
        cluster.writes_at_nodes(),
    );
    cluster.daemons.fence(|| false);
    let pause = format!("{}/pause", item("a"));
    for refused in [
        cluster.client.delete(item("a"), Value::Null).await,
        cluster.client.post(SANDBOXES, &mk_sandbox("b")).await,
        cluster.client.post(pause, &json!({})).await,
    ] {
        let status = refused.refusal(503, "ServiceUnavailable");
        let cause = &status["details"]["causes"][0]["reason"];
        assert_eq!(cause, "ServerEnding", "{status}");
    }
    assert_eq!(cluster.client.get(item("a")).await.json(), before);
    assert_eq!(cluster.client.get(item("b")).await.code(), 404);
    assert_eq!(cluster.writes_at_nodes(), writes);
}

#[tokio::test]
async fn metrics_count_what_is_asked_in_names_that_are_served() {
    let cluster = Cluster::of(1).await;
    cluster.client.get(SANDBOXES).await;
    cluster.client.get(item("x")).await;
    cluster
        .client
        .get("/apis/invented.io/v1/namespaces/a/inventions")
        .await;
    let answer = cluster.client.get("/metrics").await;
    assert_eq!(answer.code(), 200);
    let text = answer.text();
    let requests = text
        .lines()
        .filter(|line| line.starts_with("sandbox_apiserver_apiserver_requests_total{"));
    let requests: Vec<_> = requests.collect();
    let has = |parts: &[&str]| {
        requests
            .iter()
            .any(|line| parts.iter().all(|part| line.contains(part)))
    };
    assert!(
        has(&["verb=\"list\"", "resource=\"sandboxes\"", "code=\"200\""]),
        "{requests:#?}"
    );
    assert!(has(&[
        "verb=\"get\"",
        "resource=\"sandboxes\"",
        "code=\"404\""
    ]));
    assert!(!text.contains("invention"));
}

#[tokio::test]
async fn a_restart_shows_the_same_objects_with_newer_versions() {
    let cluster = Cluster::of(2).await;
    let before = cluster.client.get(SANDBOXES).await.json();
    let uid = |list: &Value| list["items"][0]["metadata"]["uid"].clone();
    cluster.publish().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let after = cluster.client.get(SANDBOXES).await.json();
    assert_eq!(uid(&after), uid(&before));
    assert_eq!(after, before, "a publication of the same is no change");
    assert_ne!(before["items"], json!([]));
}
