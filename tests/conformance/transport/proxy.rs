//! Requests as kube-apiserver passes them on.

use std::time::{Duration, Instant};

use futures::future::join_all;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    auth::certificate_of,
    conformance::{
        client::SOON,
        credentials::{Door, service_account},
        grants::Grant,
        subject::Subject,
    },
    stage::API,
    tls_client,
    users::ADMIN,
};

pub(super) async fn c_009(subject: &Subject) {
    subject.create("a").await;
    let (collection, item) = (subject.collection(), subject.item("a"));
    let direct = subject.direct();
    for path in [
        "/",
        "/api",
        "/apis",
        "/version",
        "/metrics",
        "/healthz",
        "/openapi/v2",
        "/openapi/v3",
        API,
        "/absent",
    ] {
        let path = path.trim_end_matches('/');
        let plain = direct.get(if path.is_empty() { "/" } else { path }).await;
        for other in [format!("{path}/"), format!("/{path}"), format!("{path}//")] {
            let answer = direct.get(&other).await;
            assert!(!answer.status.is_redirection(), "{other}: {answer:?}");
            assert_eq!(answer.headers.get("location"), None, "{other}");
            assert_eq!(answer.status, plain.status, "{other}");
        }
    }
    for (path, kind) in [
        (format!("{collection}/"), "SandboxList"),
        (format!("{item}/"), "Sandbox"),
    ] {
        assert_eq!(direct.get(&path).await.ok()["kind"], kind, "{path}");
    }
    // A hash that names another document, as an old index does.
    let index = direct.get("/openapi/v3").await.ok();
    let named = index["paths"][&API[1..]]["serverRelativeURL"]
        .as_str()
        .unwrap();
    let (path, hash) = named.split_once("?hash=").expect("it is named by its hash");
    let document = direct.get(named).await.ok();
    assert!(document["components"].is_object());
    let stale = format!("{path}?hash={}", hash.chars().rev().collect::<String>());
    assert_eq!(direct.get(&stale).await.ok(), document);
}

pub(super) async fn c_010(subject: &Subject) {
    subject.create("a").await;
    let (admin, item) = (subject.direct(), subject.item("a"));
    for host in [
        "10.1.2.3:6443",
        "[fd00::1]:6443",
        "another.example.org",
        "localhost",
    ] {
        let answer = admin.send("GET", &item, &[("host", host)], "").await;
        assert_eq!(answer.ok()["metadata"]["name"], "a", "{host}");
    }
    let forwarded = [
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "localhost"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-uri", "/version"),
        ("x-forwarded-user", ADMIN),
        ("x-forwarded-groups", "system:masters"),
        ("x-real-ip", "127.0.0.1"),
        ("forwarded", "for=127.0.0.1;host=localhost"),
    ];
    let walter = subject.direct_as("walter");
    let refused = walter.send("GET", &item, &forwarded, "").await;
    refused.expect(403, "Forbidden");
    assert_eq!(refused.body, walter.get(&item).await.body);
    for client in subject.both_ways() {
        let answer = client.send("GET", &item, &forwarded, "").await;
        assert_eq!(answer.ok()["metadata"]["name"], "a");
    }
}

pub(super) async fn c_011(subject: &Subject) {
    let (robot, token) = service_account(subject, "robot").await;
    let mut object = subject.mk("a-b");
    object["metadata"]["labels"] = json!({"color": "red", "n": "2"});
    subject.create_from(object).await;
    subject.create("plain").await;
    Grant::to(&robot, &["list", "get"]).in_force(subject).await;
    let (collection, escaped) = (subject.collection(), subject.item("a%2Db"));
    // In no order, with characters that are escaped in more than one way.
    let query = "timeoutSeconds=20&limit=5&labelSelector=color%20in%20(blue,red)%2Cn!%3D1&fieldSelector=metadata.name!=x";
    let proxied = subject.proxied_with_token(&token);
    let direct = Door::of(subject).with_token(&token);
    for client in [&proxied, &direct] {
        let list = client.get(&format!("{collection}?{query}")).await.ok();
        let names = list["items"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|item| &item["metadata"]["name"]).collect();
        assert_eq!(names, ["a-b"]);
        assert_eq!(client.get(&escaped).await.ok()["metadata"]["name"], "a-b");
    }
    let log = subject.log();
    assert!(log.contains(&robot), "the server knows who asked");
    assert!(!log.contains(&token));
}

pub(super) async fn c_012(subject: &Subject) {
    for client in subject.both_ways() {
        let list = client.get(&subject.collection()).await.ok();
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        let query = format!("watch=1&resourceVersion={version}&timeoutSeconds=20");
        let path = format!("{}?{query}", subject.collection());
        let head = timeout(Duration::from_secs(5), client.watch(&path)).await;
        let mut watch = head.expect("the head comes before any event");
        assert_eq!(watch.headers().get("content-length"), None);
        assert!(watch.is_silent(Duration::from_millis(200)).await);
    }
}

/// A node that never answers, and less than the server's own patience; the longest is that of a fork, 25 s.
pub(super) async fn c_013(subject: &Subject) {
    let lasting = ["attach", "exec", "proxy", "log", "portforward"];
    let short = [
        "status", "scale", "stats", "token", "pause", "resume", "fork", "snapshot", "promote",
    ];
    let resources = subject.proxied().get(API).await.ok();
    for resource in resources["resources"].as_array().unwrap() {
        let name = resource["name"].as_str().unwrap();
        if let Some((_, subresource)) = name.split_once('/') {
            let known = lasting.contains(&subresource) || short.contains(&subresource);
            assert!(known, "is {subresource} a stream?");
        }
    }
    let node = subject.own_node();
    let calls = [
        ("a", "GET", "stats", json!({})),
        ("b", "POST", "pause", json!({})),
        ("c", "POST", "resume", json!({})),
        ("d", "POST", "fork", json!({})),
        ("e", "POST", "snapshot", json!({})),
        ("f", "POST", "promote", json!({"template": "promoted:1"})),
    ];
    for (name, ..) in &calls {
        let object = crate::stage::sandbox(name, &node.template);
        subject.create_from(object).await;
    }
    let pause = format!("{}/pause", subject.item("c"));
    subject.proxied().post(&pause, &json!({})).await.ok();
    let faults = json!([
        {"kind": "hang", "method": "POST"},
        {"kind": "hang", "path": "/v1/sandboxes/*/stats"},
    ]);
    subject.nodes().set_faults(node.index, faults).await;
    // Without kube-apiserver, which heeds the same parameter.
    let client = subject.direct();
    let calls = calls.iter().map(async |(name, method, action, body)| {
        let path = format!("{}/{action}?timeout=10s", subject.item(name));
        let started = Instant::now();
        let answer = client.send(method, &path, &[], &body.to_string()).await;
        let took = started.elapsed();
        assert!(answer.status.is_server_error(), "{action}: {answer:?}");
        assert_eq!(answer.body["kind"], "Status", "{action}");
        assert!(took < Duration::from_secs(15), "{action} took {took:?}");
    });
    join_all(calls).await;
    subject.nodes().clear_faults(node.index).await;
}

/// That what is upgraded is relayed is seen where there is something to upgrade: in C-133.
pub(super) async fn c_015(subject: &Subject) {
    subject.create("a").await;
    for client in subject.upgraders() {
        for (path, code) in [
            (format!("{}/exec?command=true", subject.item("a")), 404),
            (subject.item("absent"), 404),
            (
                format!("{}?watch=1&resourceVersion=nonsense", subject.collection()),
                400,
            ),
        ] {
            for protocol in ["websocket", "SPDY/3.1"] {
                let request = http::Request::get(&path)
                    .header("connection", "Upgrade")
                    .header("upgrade", protocol)
                    .header("sec-websocket-version", "13")
                    .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
                let answer = client.send(request.body(Body::empty()).unwrap()).await;
                let status = answer.unwrap().status().as_u16();
                assert_eq!(status, code, "{protocol} {path}");
            }
        }
    }
}

pub(super) async fn c_016(subject: &Subject) {
    const N_STREAMS: usize = 100;
    let mut object = subject.mk("big");
    object["metadata"]["annotations"] = json!({"pad": "x".repeat(100_000)});
    subject.create_from(object).await;
    let admin = certificate_of(subject.control_plane, ADMIN);
    let tls = tls_client::config(&subject.ca(), Some(&admin), &["h2"]);
    let stream = tls_client::connect(subject.address(), tls).await.unwrap();
    // Each stream stalls in its first event, and the connection has room for all of them.
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(1_000)
        .initial_connection_window_size(1 << 20);
    let handshake = builder
        .handshake::<_, tls_client::Body>(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = handshake.unwrap();
    tokio::spawn(connection);
    let path = format!("{}?watch=1", subject.collection());
    let mut stalled = Vec::new();
    for n in 0..N_STREAMS - 1 {
        let answer = timeout(SOON, sender.send_request(tls_client::get(&path))).await;
        let answer = answer
            .unwrap_or_else(|_| panic!("stream {n} waits"))
            .unwrap();
        let media_type = answer.headers().get("content-type").cloned();
        assert_eq!(
            media_type.as_ref().map(|it| it.as_bytes()),
            Some(&b"application/json"[..])
        );
        stalled.push(answer);
    }
    for _ in 0..5 {
        let answer = timeout(SOON, sender.send_request(tls_client::get("/version"))).await;
        let text = tls_client::text(answer.expect("no other stream is waited for").unwrap()).await;
        let version: Value = serde_json::from_str(&text).unwrap();
        assert!(version["gitVersion"].is_string(), "{version}");
    }
    drop(stalled);
}
