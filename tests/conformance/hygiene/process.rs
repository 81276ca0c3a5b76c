//! The process: whether it is well, how it ends, what it tells of itself.

use std::time::{Duration, Instant};

use http::Request;
use sandbox_apiserver::serving::PemPair;
use serde_json::{Value, json};

use crate::{
    caller::Answer,
    conformance::{server::Server, subject::Subject},
    stage::{self, NODE_TOKEN, eventually},
    tls_client,
    users::ADMIN,
};

const SOON: Duration = Duration::from_secs(20);
const PROBES: [&str; 3] = ["/livez", "/readyz", "/healthz"];
/// What the server must know before it serves.
const KNOWN_FIRST: [&str; 4] = ["authentication", "namespaces", "quotas", "inventory"];

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.bytes).into_owned()
}

pub(super) async fn c_211(subject: &Subject) {
    let client = subject.direct();
    for path in PROBES {
        let answer = client.get(path).await;
        assert_eq!(
            (answer.status.as_u16(), text(&answer)),
            (200, "ok".to_owned()),
            "{path}"
        );
        let content_type = answer.headers["content-type"].to_str().unwrap();
        assert!(content_type.starts_with("text/plain"), "{content_type}");
    }
    let verbose = text(&client.get("/readyz?verbose").await);
    for check in KNOWN_FIRST {
        assert!(verbose.contains(&format!("[+]{check} ok")), "{verbose}");
        let alone = client.get(&format!("/readyz/{check}")).await;
        assert_eq!(
            (alone.status.as_u16(), text(&alone)),
            (200, "ok".to_owned())
        );
    }
    assert_eq!(client.get("/readyz/nothing").await.status, 404);

    // A node that is gone is no reason to restart the server, or to take it out of service.
    let node = subject.own_node();
    subject.nodes().stop(node.index).await;
    let object = stage::sandbox("down", &node.template);
    let refused = client.post(&subject.collection(), &object).await;
    refused.expect(503, "ServiceUnavailable");
    for path in PROBES {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    subject.nodes().start(node.index).await;
    nothing_is_ready_that_knows_nothing(subject).await;
}

/// A server that may read nothing yet lives and is not ready.
async fn nothing_is_ready_that_knows_nothing(subject: &Subject) {
    let user = format!("server-{}", subject.namespace);
    let server = subject.server_as(&user, &["--authentication-tolerate-lookup-failure"]);
    let client = server.client();
    let ask = async |path: &str| client.try_get(path).await;
    eventually(SOON, "every check is there", async || {
        let verbose = ask("/readyz?verbose").await;
        let verbose = verbose.as_ref().map(text).unwrap_or_default();
        KNOWN_FIRST
            .iter()
            .all(|check| verbose.contains(&format!("{check} failed: reason withheld")))
    })
    .await;
    assert_eq!(ask("/readyz").await.unwrap().status, 500);
    assert_eq!(ask("/livez").await.unwrap().status, 200);
    let left_out = "/readyz?exclude=authentication&exclude=namespaces&exclude=quotas&exclude=inventory&exclude=lease";
    assert_eq!(ask(left_out).await.unwrap().status, 200);
    let to_user = format!("--user={user}");
    let role = "--clusterrole=cluster-admin";
    let all = ["create", "clusterrolebinding", &user, role, &to_user];
    subject.control_plane.kubectl().stdout(&all).await;
    eventually(SOON * 2, "it is ready", async || {
        ask("/readyz")
            .await
            .is_some_and(|answer| answer.status == 200)
    })
    .await;
}

pub(super) async fn c_212(subject: &Subject) {
    let node = subject.own_node();
    subject
        .create_from(stage::sandbox("a", &node.template))
        .await;
    let mut server = subject.server(&["--shutdown-delay-seconds=3"]);
    server.ready().await;
    let client = server.client();
    let watch = format!("{}?watch=true", subject.collection());
    let mut watch = client.watch(&watch).await;
    assert_eq!(watch.event().await["type"], "ADDED");
    let late = json!({"late": {"millis": 8_000}});
    let hibernate = "/v1/sandboxes/*/hibernate";
    subject.nodes().fail_once(node.index, late, hibernate).await;
    let (pauser, path) = (client.clone(), format!("{}/pause", subject.item("a")));
    let in_flight = tokio::spawn(async move { pauser.post(&path, &json!({})).await });
    eventually(SOON, "the node is asked", async || {
        let requests = subject.nodes().requests(node.index, "POST").await;
        requests
            .iter()
            .any(|(path, _)| path.ends_with("/hibernate"))
    })
    .await;

    server.running().process.terminate();
    eventually(SOON, "readiness ends", async || {
        client.get("/readyz").await.status == 500
    })
    .await;
    // Load balancers have not noticed yet.
    client.get(&subject.collection()).await.ok();
    client.get("/livez").await.ok();
    refuses_in_time(subject, &server).await;
    let ended = async {
        // What becomes of the sandbox meanwhile may still be told.
        while let Some(event) = watch.next().await {
            assert_eq!(event["type"], "MODIFIED", "no error: {event:#}");
        }
    };
    let ended = tokio::time::timeout(SOON, ended).await;
    ended.expect("the watch ends");
    for path in ["/livez", "/metrics"] {
        assert_eq!(server.client().get(path).await.status, 200, "{path}");
    }
    let paused = in_flight.await.unwrap().ok();
    assert_eq!(paused["spec"]["operatingMode"], "Suspended");
    let process = &mut server.running().process;
    let began = Instant::now();
    let status = loop {
        match process.exited().unwrap() {
            Some(status) => break status,
            None if began.elapsed() < SOON => tokio::time::sleep(Duration::from_millis(20)).await,
            None => panic!("it does not end"),
        }
    };
    assert!(status.success(), "{status}\n{}", process.log_tail(20));
}

/// When load balancers have had their time, new requests are sent away and their connections end.
async fn refuses_in_time(subject: &Subject, server: &Server) {
    let auth = subject.control_plane.config_as(ADMIN).auth_info;
    let read = |path: Option<String>| std::fs::read_to_string(path.unwrap()).unwrap();
    let pair = PemPair {
        certificate: read(auth.client_certificate),
        private_key: read(auth.client_key),
    };
    let deadline = Instant::now() + SOON;
    loop {
        // HTTP/1.1, where a connection's end is a header.
        let tls = tls_client::config(&server.ca, Some(&pair), &["http/1.1"]);
        let stream = tls_client::connect(server.address, tls).await.unwrap();
        let mut sender = tls_client::http1(stream).await;
        let request = Request::get(subject.collection()).header("host", "localhost");
        let answer = sender.send_request(request.body(tls_client::empty()).unwrap());
        let answer = answer.await.unwrap();
        if answer.status() == 200 {
            assert!(Instant::now() < deadline, "it does not refuse");
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        }
        assert_eq!(answer.status(), 429);
        assert_eq!(answer.headers()["retry-after"], "5");
        assert_eq!(answer.headers()["connection"], "close");
        let status: Value = serde_json::from_str(&tls_client::text(answer).await).unwrap();
        assert_eq!(status["reason"], "TooManyRequests");
        assert_eq!(status["details"]["retryAfterSeconds"], 5);
        return;
    }
}

/// That a panic costs one request alone is a test of its own, `it::errors`: no request from outside is known to cause one.
/// Here come those that try.
pub(super) async fn c_213(subject: &Subject) {
    subject.create("a").await;
    let client = subject.direct();
    let deep = format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000));
    for (method, path, body) in [
        ("POST", subject.collection(), deep.as_str()),
        ("POST", subject.collection(), "null"),
        ("PATCH", subject.item("a"), deep.as_str()),
        ("GET", subject.item("%00%ff"), ""),
        (
            "GET",
            format!("{}?limit=18446744073709551616", subject.collection()),
            "",
        ),
        (
            "DELETE",
            subject.item("a") + "?gracePeriodSeconds=-9223372036854775809",
            "",
        ),
    ] {
        let headers = [("content-type", "application/merge-patch+json")];
        let headers = if method == "PATCH" { &headers[..] } else { &[] };
        let answer = client.send(method, &path, headers, body).await;
        assert!(
            answer.status.is_client_error(),
            "{method} {path}: {}",
            answer.status
        );
        client.get(&subject.item("a")).await.ok();
    }
    let metrics = client.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(text(&metrics).contains("\n# TYPE "), "{}", text(&metrics));
    let nobody = subject.direct_as(&format!("nobody-{}", subject.namespace));
    nobody.get("/metrics").await.expect(403, "Forbidden");
}

pub(super) async fn c_214(subject: &Subject) {
    let created = subject.create("a").await;
    let bearer = format!("a-secret-of-{}", subject.namespace);
    let authorization = format!("Bearer {bearer}");
    let path = format!("{}/pause", subject.item("a"));
    for (client, id) in subject.both_ways().into_iter().zip(["proxied", "direct"]) {
        let id = format!("{id}-{}", subject.namespace);
        // The direct one is known by its certificate; the proxied one's header never comes here.
        let headers = [("audit-id", id.as_str()), ("authorization", &authorization)];
        let headers = if id.starts_with("direct") {
            &headers[..]
        } else {
            &headers[..1]
        };
        client
            .send("POST", &path, headers, r#"{"kind":""}"#)
            .await
            .ok();
        let line = line_of(subject, &id).await;
        for field in [
            r#"user="admin""#.to_owned(),
            "system:masters".to_owned(),
            r#"verb="create""#.to_owned(),
            r#"resource="sandboxes""#.to_owned(),
            r#"subresource="pause""#.to_owned(),
            format!(r#"namespace="{}""#, subject.namespace),
            r#"name="a""#.to_owned(),
            "code=200".to_owned(),
            "seconds=".to_owned(),
        ] {
            assert!(line.contains(&field), "{field} is missing: {line}");
        }
    }
    let refused_id = format!("refused-{}", subject.namespace);
    let headers = [("audit-id", refused_id.as_str())];
    let absent = subject.item("absent");
    subject.direct().send("GET", &absent, &headers, "").await;
    let line = line_of(subject, &refused_id).await;
    assert!(
        line.contains("code=404") && line.contains(r#"verb="get""#),
        "{line}"
    );

    let token = &created["metadata"]["annotations"]["sandbox.cocoonstack.io/token"];
    let log = subject.log();
    for secret in [&bearer, token.as_str().expect("a credential"), NODE_TOKEN] {
        assert!(!log.contains(secret), "the log has a secret");
    }
}

/// The line that a request left in the log.
async fn line_of(subject: &Subject, audit_id: &str) -> String {
    let find = || {
        let log = subject.log();
        let mut lines = log.lines().filter(|line| line.contains(audit_id));
        lines.next().map(str::to_owned)
    };
    eventually(SOON, "the request is logged", async || find().is_some()).await;
    find().unwrap()
}
