//! What a node says, word for word: raw requests, as a client in any language sends them. And the admin endpoint and the
//! publisher, over their own sockets.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{FIELD_MANAGER, Fleet, Generation, Options, Planted, Publisher};
use crate::api::{NodeAddress, PoolKey, Token};

/// Status, head and body of the answer to one request on a connection of its own.
pub(super) async fn raw(
    address: &str,
    line: &str,
    headers: &str,
    body: &str,
) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (
        head[9..12].parse().unwrap(),
        head.to_ascii_lowercase(),
        body.to_owned(),
    )
}

pub(super) struct Wire {
    pub(super) fleet: Fleet,
}

impl Wire {
    pub(super) async fn start(generation: Generation, api_token: Option<&str>) -> Self {
        let options = Options {
            nodes: 1,
            generation,
            api_token: api_token.map(|token| Token::from(token.to_owned())),
            ..Options::default()
        };
        Self {
            fleet: Fleet::start(options).await.unwrap(),
        }
    }

    pub(super) fn address(&self) -> String {
        self.fleet.nodes()[0].address().authority()
    }

    /// Sends a request with a bearer (none if empty) and compares status and body.
    pub(super) async fn says(
        &self,
        line: &str,
        bearer: &str,
        body: &str,
        status: u16,
        expected: &str,
    ) {
        let headers = match bearer {
            "" => String::new(),
            bearer => format!("authorization: Bearer {bearer}\r\n"),
        };
        let (got, _, answer) = raw(&self.address(), line, &headers, body).await;
        assert_eq!((got, answer.as_str()), (status, expected), "{line}");
    }

    pub(super) fn plant(&self, claim_ref: &str) -> (String, String) {
        let node = &self.fleet.nodes()[0];
        let id = node.plant(Planted::new(claim_ref, mk_key()));
        let token = node.token_of(&id).unwrap();
        (id.to_string(), token.expose().to_owned())
    }
}

fn mk_key() -> PoolKey {
    PoolKey {
        template: "python:3.12".into(),
        net: "none".into(),
        size: "small".into(),
    }
}

#[tokio::test]
async fn refusals_read_as_the_daemons_do() {
    let wire = Wire::start(Generation::B, Some("root")).await;
    let bad_body = r#"{"error":"invalid request body"}"#;
    wire.says("GET /healthz", "", "", 200, "ok").await;
    wire.says(
        "POST /v1/claim",
        "",
        "{}",
        401,
        r#"{"error":"invalid api token"}"#,
    )
    .await;
    wire.says(
        "GET /v1/info",
        "nope",
        "",
        401,
        r#"{"error":"invalid api token"}"#,
    )
    .await;
    wire.says("POST /v1/claim", "root", "", 400, bad_body).await;
    wire.says("POST /v1/claim", "root", "{", 400, bad_body)
        .await;
    wire.says("GET /v1/nothing", "root", "", 404, "404 page not found\n")
        .await;
    wire.says("GET /v1/claim", "root", "", 405, "Method Not Allowed\n")
        .await;
    let unknown = "POST /v1/sandboxes/sb_1/release";
    wire.says(unknown, "", "", 401, r#"{"error":"missing bearer token"}"#)
        .await;
    wire.says(unknown, "root", "", 404, r#"{"error":"unknown sandbox"}"#)
        .await;
    wire.says("GET /v1/peers", "root", "", 200, r#"{"peers":null}"#)
        .await;
    wire.says("GET /v1/volumes", "root", "", 200, r#"{"volumes":[]}"#)
        .await;
    wire.says("GET /v1/sandboxes", "root", "", 200, r#"{"sandboxes":[]}"#)
        .await;
    let (status, head, _) = raw(
        &wire.address(),
        "GET /v1/info",
        "authorization: Bearer root\r\n",
        "",
    )
    .await;
    assert!(
        status == 200 && head.contains("content-type: application/json"),
        "{head}"
    );
}

#[tokio::test]
async fn a_body_may_be_a_mebibyte_and_no_longer() {
    let wire = Wire::start(Generation::B, Some("root")).await;
    let body = |length: usize| {
        let mut body = r#"{"template":"python:3.12","claim_ref":"d/a"}"#.to_owned();
        body.push_str(&" ".repeat(length - body.len()));
        body
    };
    let bearer = "authorization: Bearer root\r\n";
    let (fits, ..) = raw(&wire.address(), "POST /v1/claim", bearer, &body(1 << 20)).await;
    assert_eq!(fits, 200);
    let refused = r#"{"error":"invalid request body"}"#;
    wire.says("POST /v1/claim", "root", &body((1 << 20) + 1), 400, refused)
        .await;
}

#[tokio::test]
async fn a_sandbox_token_opens_its_own_sandbox_and_the_owner_route() {
    let wire = Wire::start(Generation::B, Some("root")).await;
    let ((id, token), (other, _)) = (wire.plant("d/a"), wire.plant("d/b"));
    let owner = format!(r#"{{"owner_addr":"{}"}}"#, wire.address());
    wire.says(
        &format!("GET /v1/sandboxes/{id}/owner"),
        &token,
        "",
        200,
        &owner,
    )
    .await;
    wire.says(
        &format!("GET /v1/sandboxes/{other}/owner"),
        &token,
        "",
        404,
        r#"{"error":"not owned here"}"#,
    )
    .await;
    let unknown = r#"{"error":"unknown sandbox"}"#;
    wire.says(
        &format!("POST /v1/sandboxes/{other}/hibernate"),
        &token,
        "",
        404,
        unknown,
    )
    .await;
    wire.says(
        &format!("POST /v1/sandboxes/{id}/hibernate"),
        &token,
        "",
        204,
        "",
    )
    .await;
    // In a body: the token itself, or root and none; root with a wrong one is refused.
    let checkpoint = format!("POST /v1/sandboxes/{id}/checkpoint");
    wire.says(&checkpoint, "root", r#"{"token":"wrong"}"#, 404, unknown)
        .await;
    let (status, _, body) = raw(
        &wire.address(),
        &checkpoint,
        "authorization: Bearer root\r\n",
        "{}",
    )
    .await;
    assert_eq!((status, body.contains(&id)), (200, true), "{body}");
}

#[tokio::test]
async fn an_open_node_asks_for_nothing_and_gives_no_power_by_id() {
    let wire = Wire::start(Generation::B, None).await;
    let (id, token) = wire.plant("d/a");
    let (status, _, row) = raw(&wire.address(), &format!("GET /v1/sandboxes/{id}"), "", "").await;
    assert_eq!((status, row.contains("token")), (200, false), "{row}");
    let release = format!("POST /v1/sandboxes/{id}/release");
    wire.says(
        &release,
        "anything",
        "",
        404,
        r#"{"error":"unknown sandbox"}"#,
    )
    .await;
    let fork = format!("POST /v1/sandboxes/{id}/fork");
    wire.says(
        &fork,
        "",
        r#"{"count":1}"#,
        404,
        r#"{"error":"unknown sandbox"}"#,
    )
    .await;
    wire.says(&release, &token, "", 204, "").await;
}

#[tokio::test]
async fn rows_show_what_their_generation_knows() {
    for (generation, fields) in [
        (
            Generation::A,
            "claim_ref claimed_at deadline hibernated id key",
        ),
        (
            Generation::B,
            "claim_ref claimed_at cpu_count deadline hibernated id key mem_total_bytes metadata",
        ),
        (
            Generation::C,
            "claim_ref claimed_at cpu_count deadline failed hibernated id key mem_total_bytes metadata",
        ),
    ] {
        let wire = Wire::start(generation, Some("root")).await;
        let node = &wire.fleet.nodes()[0];
        let mut planted = Planted::new("d/a", mk_key());
        planted.metadata.insert("k".to_owned(), "v".to_owned());
        let id = node.plant(planted);
        assert!(node.fail(&id, "vmm died"));
        let line = "GET /v1/sandboxes?claim_ref=d%2Fa";
        let (_, _, body) = raw(&wire.address(), line, "authorization: Bearer root\r\n", "").await;
        let body: Value = serde_json::from_str(&body).unwrap();
        let row = body["sandboxes"][0].as_object().unwrap();
        let names: Vec<_> = row.keys().map(String::as_str).collect();
        assert_eq!(names.join(" "), fields, "{generation:?}");
    }
}

#[tokio::test]
async fn rows_are_filtered_by_reference_and_metadata() {
    let wire = Wire::start(Generation::B, Some("root")).await;
    for (name, team) in [("d/a", "x"), ("d/b", "y")] {
        let mut planted = Planted::new(name, mk_key());
        planted.metadata.insert("team".to_owned(), team.to_owned());
        wire.fleet.nodes()[0].plant(planted);
    }
    let count = async |query: &str| {
        let line = format!("GET /v1/sandboxes?{query}");
        let (status, _, body) =
            raw(&wire.address(), &line, "authorization: Bearer root\r\n", "").await;
        let body: Value = serde_json::from_str(&body).unwrap();
        (status, body["sandboxes"].as_array().map(Vec::len))
    };
    assert_eq!(count("claim_ref=").await, (200, Some(2)));
    assert_eq!(count("claim_ref=d/a").await, (200, Some(1)));
    assert_eq!(
        count("claim_ref=d/a&metadata=team%3Dy").await,
        (200, Some(0))
    );
    assert_eq!(count("metadata=team=y").await, (200, Some(1)));
    for bad in ["metadata=team", "metadata==x", "metadata=a=1&metadata=a=2"] {
        assert_eq!(count(bad).await, (400, None), "{bad}");
    }
}

#[tokio::test]
async fn env_and_labels_are_kept() {
    let wire = Wire::start(Generation::C, Some("root")).await;
    let (id, _) = wire.plant("d/a");
    let env = format!("/v1/sandboxes/{id}/env");
    let put = r#"{"env":{"A":{"value":"1"},"KEY":{"value":"hidden","guest":false}}}"#;
    wire.says(&format!("PUT {env}"), "root", put, 204, "").await;
    wire.says(
        &format!("PATCH {env}"),
        "root",
        r#"{"env":{"A":null,"B":{"value":"2"}}}"#,
        204,
        "",
    )
    .await;
    let shown = r#"{"env":{"B":{"guest":true,"value":"2"},"KEY":{"guest":false,"value":""}}}"#;
    wire.says(&format!("GET {env}"), "root", "", 200, shown)
        .await;
    let refused = r#"{"error":"template is required"}"#;
    wire.says(
        "PUT /v1/templates/labels",
        "root",
        r#"{"labels":{}}"#,
        400,
        refused,
    )
    .await;
    let unknown = r#"{"error":"unknown template"}"#;
    wire.says(
        "PUT /v1/templates/labels?template=mine",
        "root",
        r#"{"labels":{}}"#,
        404,
        unknown,
    )
    .await;
    wire.says(
        "DELETE /v1/templates?template=mine",
        "root",
        "",
        404,
        unknown,
    )
    .await;
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let wire = Wire::start(Generation::B, Some("root")).await;
    let bearer = "authorization: Bearer root\r\n";
    raw(
        &wire.address(),
        "POST /v1/claim",
        bearer,
        r#"{"template":"python:3.12"}"#,
    )
    .await;
    let (_, head, text) = raw(&wire.address(), "GET /metrics", bearer, "").await;
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    for line in [
        "sandboxd_claimed 1",
        "sandboxd_claims_total{tier=\"warm\"} 1",
        "sandboxd_pool_warm{template=\"python:3.12\",net=\"none\",size=\"small\"} 3",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "no {line} in\n{text}"
        );
    }
}

#[tokio::test]
async fn the_admin_endpoint_shows_and_drives() {
    let fleet = Fleet::start(Options {
        nodes: 2,
        admin: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        ..Options::default()
    })
    .await
    .unwrap();
    let admin = fleet.admin().unwrap().to_string();
    let ask = async |line: &str, body: &str| {
        let (status, _, answer) = raw(&admin, line, "", body).await;
        (
            status,
            serde_json::from_str::<Value>(&answer).unwrap_or_default(),
        )
    };
    let (_, nodes) = ask("GET /nodes", "").await;
    assert_eq!(
        (nodes[1]["name"].as_str(), nodes[1]["up"].as_bool()),
        (Some("sim-0001"), Some(true))
    );
    let (_, planted) = ask(
        "POST /nodes/sim-0001/claims",
        r#"{"claimRef":"d/a","template":"t"}"#,
    )
    .await;
    let id = planted["id"].as_str().unwrap();
    let node = &fleet.nodes()[1];
    assert_eq!((node.claimed(), node.claims_of("d/a")[0].as_str()), (1, id));

    let faults = r#"[{"kind":{"status":{"status":503,"text":"x"}},"path":"/v1/info","times":1}]"#;
    assert_eq!(ask("PUT /nodes/1/faults", faults).await.0, 204);
    let shown = ask("GET /nodes/1/faults", "").await.1;
    assert_eq!(shown, serde_json::from_str::<Value>(faults).unwrap());
    let info = async || {
        raw(
            &node.address().authority(),
            "GET /v1/info",
            "authorization: Bearer sim\r\n",
            "",
        )
        .await
        .0
    };
    assert_eq!((info().await, info().await), (503, 200));
    let (_, log) = ask("GET /nodes/1/log", "").await;
    assert_eq!(
        (&log[0]["outcome"], &log[1]["outcome"]),
        (&json!("status"), &json!("200"))
    );
    assert_eq!(
        ask("PUT /nodes/1/faults", r#"[{"kind":"explode"}]"#)
            .await
            .0,
        400
    );
    assert_eq!(
        ask(
            "PUT /nodes/1/pools",
            r#"{"template":"t","warm":7,"target":9}"#
        )
        .await
        .0,
        204
    );
    let (_, inventory) = ask("GET /nodes/1/inventory", "").await;
    assert_eq!(
        inventory["pools"][1],
        json!({"template": "t", "net": "none", "size": "small", "warm": 7, "target": 9})
    );
    assert_eq!(
        ask(&format!("DELETE /nodes/1/claims/{id}"), "").await.0,
        204
    );
    assert_eq!(
        ask(&format!("DELETE /nodes/1/claims/{id}"), "").await.0,
        404
    );
    assert_eq!(ask("POST /nodes/1/stop", "").await.0, 204);
    assert!(!node.is_up());
    assert_eq!(
        (ask("POST /nodes/1/start", "").await.0, node.is_up()),
        (204, true)
    );
    assert_eq!(
        (
            ask("GET /nodes/9", "").await.0,
            ask("GET /else", "").await.0
        ),
        (404, 404)
    );
}

/// Answers every request with `{}`-like success and keeps what it was sent.
async fn mk_apiserver() -> (SocketAddr, Arc<Mutex<Vec<(String, Value)>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
    let kept = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = kept.clone();
            let service =
                hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let kept = kept.clone();
                    async move {
                        let line = format!(
                            "{} {} {:?}",
                            request.method(),
                            request.uri(),
                            request.headers()["content-type"]
                        );
                        let body = http_body_util::BodyExt::collect(request.into_body())
                            .await
                            .unwrap()
                            .to_bytes();
                        kept.lock()
                            .unwrap()
                            .push((line, serde_json::from_slice(&body).unwrap()));
                        let mut response = http::Response::new(http_body_util::Full::new(body));
                        let json = http::HeaderValue::from_static("application/json");
                        response.headers_mut().insert("content-type", json);
                        Ok::<_, std::convert::Infallible>(response)
                    }
                });
            let io = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
        }
    });
    (address, seen)
}

#[tokio::test]
async fn inventories_are_applied_under_our_field_manager() {
    let fleet = Fleet::start(Options {
        nodes: 3,
        sandboxes: 3,
        ..Options::default()
    })
    .await
    .unwrap();
    let (address, seen) = mk_apiserver().await;
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    let publisher = Publisher::start(
        &fleet,
        kube::Client::try_from(config).unwrap(),
        Duration::ZERO,
    );
    super::tests::eventually(async || seen.lock().unwrap().len() == 3).await;
    publisher.publish_now(&fleet.nodes()[2]).await.unwrap();
    let seen = seen.lock().unwrap();
    let (line, body) = &seen[3];
    let path = "/apis/extensions.agents.x-k8s.io/v1beta1/nodeinventories/sim-0002";
    assert!(line.starts_with(&format!("PATCH {path}?")), "{line}");
    for part in [
        "force=true",
        &format!("fieldManager={FIELD_MANAGER}"),
        "application/apply-patch+yaml",
    ] {
        assert!(line.contains(part), "{line}");
    }
    assert_eq!(
        (&body["kind"], &body["metadata"]["name"]),
        (&json!("NodeInventory"), &json!("sim-0002"))
    );
    assert_eq!(
        body["address"]
            .as_str()
            .unwrap()
            .parse::<NodeAddress>()
            .unwrap(),
        *fleet.nodes()[2].address()
    );
    let entry = body["entries"][0].as_object().unwrap();
    let fields: Vec<_> = entry.keys().map(String::as_str).collect();
    assert_eq!(
        fields.join(" "),
        "addr claimRef claimedAt deadline id name net phase size template"
    );
    assert_eq!(
        (&entry["name"], &entry["phase"]),
        (&json!("default/sb-000002"), &json!("Running"))
    );
    assert_eq!(
        (&body["total"], body["observedAt"].is_string()),
        (&json!(1), true)
    );
}

#[tokio::test]
async fn a_publication_that_is_refused_says_for_which_node() {
    let fleet = Fleet::start(Options::default()).await.unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let config = kube::Config::new(format!("http://{nobody}").parse().unwrap());
    let publisher = Publisher::start(
        &fleet,
        kube::Client::try_from(config).unwrap(),
        Duration::ZERO,
    );
    let error = publisher.publish_now(&fleet.nodes()[1]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot publish the inventory of sim-0001"
    );
}
