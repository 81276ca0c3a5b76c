//! Watches over WebSocket: straight at the server, through kube-apiserver, and as kube-apiserver itself answers them.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
};

use http::Response;
use hyper::body::Incoming;
use sandbox_apiserver::serving::PemPair;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, protocol::frame::coding::CloseCode};

use crate::{
    socket_client::{self, HANDSHAKE, Socket, mk_ping, mk_text},
    stage::{self, Stage, collection, item},
    tls_client,
    users::ADMIN,
};

/// What clients in Go and browsers always send, and kube-apiserver asks for.
const ORIGIN: (&str, &str) = ("origin", "https://localhost");

/// A server and who calls it.
struct Way {
    address: SocketAddr,
    ca: String,
    certificate: Option<PemPair>,
}

impl Way {
    fn new(stage: &Stage, user: Option<&str>, direct: bool) -> Self {
        let config = stage.control_plane.config_as(user.unwrap_or(ADMIN));
        let port = match direct {
            true => stage.port,
            false => config.cluster_url.port_u16().unwrap(),
        };
        let read = |path: Option<String>| fs::read_to_string(path.unwrap()).unwrap();
        let certificate = user.map(|_| PemPair {
            certificate: read(config.auth_info.client_certificate),
            private_key: read(config.auth_info.client_key),
        });
        Self {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            ca: match direct {
                true => stage.ca(),
                false => stage.control_plane.ca(),
            },
            certificate,
        }
    }

    /// Straight at the server, and through kube-apiserver.
    fn both(stage: &Stage, user: Option<&str>) -> [Self; 2] {
        [true, false].map(|direct| Self::new(stage, user, direct))
    }

    /// The head of the answer to a handshake with these headers beside the usual ones, or in their place.
    async fn ask(&self, path: &str, others: &[(&str, &str)]) -> Response<Incoming> {
        let config = tls_client::config(&self.ca, self.certificate.as_ref(), &["http/1.1"]);
        let stream = tls_client::connect(self.address, config).await.unwrap();
        let usual = HANDSHAKE.into_iter().chain([ORIGIN]);
        let kept = usual.filter(|(name, _)| others.iter().all(|(other, _)| other != name));
        let headers = kept.chain(others.iter().copied());
        let headers: Vec<_> = headers.filter(|(_, value)| !value.is_empty()).collect();
        socket_client::ask(stream, socket_client::request(path, &headers)).await
    }

    async fn open(&self, path: &str) -> Socket {
        socket_client::open(self.ask(path, &[]).await).await
    }
}

fn shown(event: &Value) -> (&str, &str) {
    let name = &event["object"]["metadata"]["name"];
    (
        event["type"].as_str().unwrap(),
        name.as_str().unwrap_or("-"),
    )
}

#[tokio::test]
async fn events_come_directly_and_through_kube_apiserver() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("socket").await;
    stage.create(&namespace, "first").await;
    for (index, way) in Way::both(&stage, Some(ADMIN)).iter().enumerate() {
        let path = format!("{}?watch=true&timeoutSeconds=60", collection(&namespace));
        let mut socket = way.open(&path).await;
        assert_eq!(shown(&socket.event().await), ("ADDED", "first"));
        socket.say(mk_text("nobody listens")).await;
        socket.say(mk_ping("who is there")).await;
        assert_eq!(
            socket.hear().await.unwrap().unwrap(),
            Message::Pong("who is there".into())
        );
        let name = format!("later-{index}");
        stage.create(&namespace, &name).await;
        let event = socket.event().await;
        assert_eq!(shown(&event), ("ADDED", name.as_str()));
        assert_eq!(event["object"]["kind"], "Sandbox");
        stage.direct().delete(&item(&namespace, &name)).await.ok();
        loop {
            let event = socket.event().await;
            if shown(&event) == ("DELETED", &name) {
                break;
            }
        }
        socket.close().await;
        let path = format!("{}?watch=true&timeoutSeconds=2", collection(&namespace));
        let mut socket = way.open(&path).await;
        assert_eq!(shown(&socket.event().await), ("ADDED", "first"));
        assert_eq!(socket.goodbye().await, CloseCode::Normal);
    }
}

#[tokio::test]
async fn refusals_come_through_kube_apiserver_as_they_are() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("refused").await;
    let watch = format!("{}?watch=true", collection(&namespace));
    let from_nowhere = format!("{watch}&resourceVersion=x");
    for (user, path, others, code) in [
        (Some("jane"), &watch, &[][..], 403),
        (Some(ADMIN), &from_nowhere, &[], 400),
        (Some(ADMIN), &watch, &[("accept", "application/cbor")], 406),
        (Some(ADMIN), &watch, &[("sec-websocket-version", "8")], 400),
        (None, &watch, &[("authorization", "Bearer wrong")], 401),
    ] {
        for way in Way::both(&stage, user) {
            let answer = way.ask(path, others).await;
            assert_eq!(answer.status(), code, "{path} {others:?}");
            // Ours alone: others are refused by kube-apiserver.
            if user == Some(ADMIN) {
                assert_eq!(answer.headers()["connection"], "close", "{path} {others:?}");
            }
            let status: Value = serde_json::from_str(&tls_client::text(answer).await).unwrap();
            assert_eq!(status["code"], code, "{status}");
        }
    }
}

#[tokio::test]
async fn a_token_comes_as_a_subprotocol() {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let stage = stage::shared().await;
    let namespace = stage.namespace("token").await;
    let kubectl = stage.control_plane.kubectl();
    let within = ["--namespace", &namespace];
    let account = ["create", "serviceaccount", "robot"];
    kubectl.stdout(&[&account[..], &within].concat()).await;
    let subject = format!("--serviceaccount={namespace}:robot");
    let role = ["create", "role", "robot", "--verb=get,list,watch"];
    let role = [
        &role[..],
        &["--resource=sandboxes.agents.x-k8s.io"],
        &within,
    ];
    kubectl.stdout(&role.concat()).await;
    let binding = ["create", "rolebinding", "robot", "--role=robot", &subject];
    kubectl.stdout(&[&binding[..], &within].concat()).await;
    let token = stage
        .control_plane
        .service_account_token(&namespace, "robot")
        .await;
    let token = format!(
        "base64url.bearer.authorization.k8s.io.{}",
        URL_SAFE_NO_PAD.encode(token)
    );
    stage.create(&namespace, "seen").await;
    let watch = format!("{}?watch=true", collection(&namespace));
    for way in Way::both(&stage, None) {
        let offered = format!("{token}, v1.watch.example.com");
        let answer = way
            .ask(&watch, &[("sec-websocket-protocol", &offered)])
            .await;
        assert_eq!(
            answer.headers()["sec-websocket-protocol"],
            "v1.watch.example.com"
        );
        let mut socket = socket_client::open(answer).await;
        assert_eq!(shown(&socket.event().await), ("ADDED", "seen"));
        socket.close().await;
        let alone = way.ask(&watch, &[("sec-websocket-protocol", &token)]).await;
        assert_eq!(alone.status(), 401, "a token is no protocol");
    }
}

#[tokio::test]
async fn a_handshake_is_answered_as_kube_apiserver_answers_its_own() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("handshake").await;
    let admin = stage.admin();
    let built_in = format!("/api/v1/namespaces/{namespace}/configmaps");
    let config_map = json!({"metadata": {"name": "a"}});
    admin.post(&built_in, &config_map).await.ok();
    stage.create(&namespace, "a").await;
    let [direct, proxied] = Way::both(&stage, Some(ADMIN));
    let ours = collection(&namespace);
    let watch = "watch=true&timeoutSeconds=5&fieldSelector=metadata.name%3Da";
    for (query, others, code) in [
        (watch, &[][..], 101),
        (watch, &[("sec-websocket-protocol", "v1")], 101),
        (watch, &[("sec-websocket-protocol", "v1, v2")], 400),
        (watch, &[("sec-websocket-key", "")], 400),
        (watch, &[("sec-websocket-version", "8")], 400),
        (watch, &[("origin", "https://elsewhere.example.com")], 101),
        (watch, &[("upgrade", "SPDY/3.1")], 200),
        (watch, &[("connection", "keep-alive")], 200),
        ("", &[], 200),
    ] {
        let theirs = proxied.ask(&format!("{built_in}?{query}"), others).await;
        let ours = direct.ask(&format!("{ours}?{query}"), others).await;
        let facts = |answer: &Response<Incoming>| {
            let header = |name| answer.headers().get(name).cloned();
            (
                answer.status().as_u16(),
                header("upgrade"),
                header("sec-websocket-protocol"),
                header("sec-websocket-accept"),
            )
        };
        assert_eq!(facts(&ours), facts(&theirs), "{query} {others:?}");
        assert_eq!(ours.status(), code, "{query} {others:?}");
        if code == 101 {
            for answer in [ours, theirs] {
                let mut socket = socket_client::open(answer).await;
                assert_eq!(shown(&socket.event().await), ("ADDED", "a"));
                assert_eq!(socket.goodbye().await, CloseCode::Normal);
            }
        }
    }
    // The one difference: who names no origin is refused there.
    let nowhere = [("origin", "")];
    let theirs = proxied.ask(&format!("{built_in}?{watch}"), &nowhere).await;
    assert_eq!(theirs.status(), 403);
    for way in [direct, proxied] {
        let answer = way.ask(&format!("{ours}?{watch}"), &nowhere).await;
        let mut socket = socket_client::open(answer).await;
        assert_eq!(shown(&socket.event().await), ("ADDED", "a"));
    }
}
