//! WATCH over WebSocket: the same events, one a message, in a conversation that ends in order.

use std::time::Duration;

use http::{Response, StatusCode};
use hyper::body::Incoming;
use sandbox_apiserver::store::Limits;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio_tungstenite::tungstenite::{Message, protocol::frame::coding::CloseCode};

use crate::{
    harness::{
        ADMIN, ALICE, Answer, Cluster, Door, METADATA, SANDBOXES, TABLE, mk_request, shown, until,
    },
    socket_client::{self, HANDSHAKE, Socket, mk_ping, mk_text},
    tls_client,
    widgets::{WIDGETS, Workshop},
};

const GAUGE: &str = "sandbox_apiserver_apiserver_watches";
/// Tokens as a browser carries them: "admin-token" in base64url, and one that is nobody's.
const ADMINS: &str = "base64url.bearer.authorization.k8s.io.YWRtaW4tdG9rZW4";
const NOBODYS: &str = "base64url.bearer.authorization.k8s.io.bm9ib2R5";

/// The head of the answer to a GET over HTTP/1.1 with these headers and no others.
async fn ask(door: &Door, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
    let config = tls_client::config(door.ca.certificate(), None, &["http/1.1"]);
    let stream = tls_client::connect(door.address, config).await.unwrap();
    socket_client::ask(stream, socket_client::request(path, headers)).await
}

/// The handshake's headers with these beside them, or in their place.
fn handshake<'a>(others: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let ours = HANDSHAKE.into_iter();
    let kept = ours.filter(|(name, _)| others.iter().all(|(other, _)| other != name));
    let all = kept.chain(others.iter().copied());
    all.filter(|(_, value)| !value.is_empty()).collect()
}

async fn ask_as_admin(door: &Door, path: &str, others: &[(&str, &str)]) -> Response<Incoming> {
    let token = format!("Bearer {ADMIN}");
    let mut headers = handshake(others);
    headers.push(("authorization", &token));
    ask(door, path, &headers).await
}

async fn open(door: &Door, path: &str) -> Socket {
    open_as(door, path, "application/json").await
}

async fn open_as(door: &Door, path: &str, accept: &str) -> Socket {
    socket_client::open(ask_as_admin(door, path, &[("accept", accept)]).await).await
}

#[tokio::test]
async fn a_message_is_a_line_of_the_plain_watch() {
    let cluster = Cluster::of(3).await;
    let path = format!(
        "{SANDBOXES}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    for accept in ["application/json", METADATA, TABLE] {
        let mut plain = cluster.client.watch_as(&path, accept).await;
        let mut socket = open_as(&cluster.door, &path, accept).await;
        assert_eq!(
            socket.headers["sec-websocket-accept"],
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        assert!(!socket.headers.contains_key("sec-websocket-protocol"));
        assert!(socket.headers.contains_key("audit-id"));
        let name = format!("new-{}", accept.len());
        for message in 0..5 {
            if message == 4 {
                cluster.create(&name).await;
            }
            let line = plain.line().await.unwrap();
            let line = std::str::from_utf8(&line).unwrap();
            let text = socket.text().await;
            // Ages are written when a row is.
            match accept == TABLE {
                true => assert_eq!(
                    shown(&serde_json::from_str(&text).unwrap()),
                    shown(&serde_json::from_str(line).unwrap())
                ),
                false => assert_eq!(text, line.trim_end_matches('\n')),
            }
        }
        let deleted = cluster
            .client
            .delete(format!("{SANDBOXES}/{name}"), Value::Null)
            .await;
        assert_eq!(deleted.code(), 200);
    }
}

#[tokio::test]
async fn a_socket_is_counted_until_its_client_says_goodbye() {
    let workshop = Workshop::open().await;
    let path = format!("{WIDGETS}?watch=true");
    let socket = open(&workshop.door, &path).await;
    until("the watch is counted", || {
        workshop.door.counted(GAUGE) == 1.0
    })
    .await;
    socket.close().await;
    until("the watch is over", || workshop.door.counted(GAUGE) == 0.0).await;
    let socket = open(&workshop.door, &path).await;
    until("the watch is counted", || {
        workshop.door.counted(GAUGE) == 1.0
    })
    .await;
    drop(socket);
    until("its client is gone", || workshop.door.counted(GAUGE) == 0.0).await;
}

#[tokio::test]
async fn what_the_client_says_is_ignored_and_its_pings_are_answered() {
    let workshop = Workshop::open().await;
    let mut socket = open(&workshop.door, &format!("{WIDGETS}?watch=true")).await;
    for message in [mk_text("{}"), Message::Binary(vec![0; 60_000].into())] {
        socket.say(message).await;
    }
    for payload in ["a", "b"] {
        socket.say(mk_ping(payload)).await;
        let pong = socket.hear().await.unwrap().unwrap();
        assert_eq!(pong, Message::Pong(payload.into()));
    }
    workshop.put("a", "red");
    assert_eq!(shown(&socket.event().await), "ADDED a");
    socket.close().await;
}

#[tokio::test]
async fn who_breaks_the_rules_is_told_so_and_let_go() {
    let workshop = Workshop::open().await;
    let path = format!("{WIDGETS}?watch=true");
    let mut socket = open(&workshop.door, &path).await;
    socket.say(Message::Binary(vec![0; 70_000].into())).await;
    assert_eq!(socket.goodbye().await, CloseCode::Size);

    let mut socket = open(&workshop.door, &path).await;
    // A text that is not masked.
    socket.raw().write_all(b"\x81\x01a").await.unwrap();
    socket.raw().flush().await.unwrap();
    assert_eq!(socket.goodbye().await, CloseCode::Protocol);
    until("no watch stays", || workshop.door.counted(GAUGE) == 0.0).await;
}

#[tokio::test]
async fn a_socket_ends_when_its_time_is_over() {
    let workshop = Workshop::open().await;
    let path = format!("{WIDGETS}?watch=true&timeoutSeconds=1");
    let mut socket = open(&workshop.door, &path).await;
    assert_eq!(socket.goodbye().await, CloseCode::Normal);
}

#[tokio::test]
async fn a_socket_ends_behind_an_error() {
    let history = Limits {
        events: 10,
        ..Limits::default()
    };
    let workshop = Workshop::with_history(history).await;
    let old = workshop.put("a", "red");
    workshop.put_many(20);
    let path = format!("{WIDGETS}?watch=true&resourceVersion={old}");
    let mut socket = open(&workshop.door, &path).await;
    let event = socket.event().await;
    assert_eq!(
        (&event["type"], &event["object"]["reason"]),
        (&"ERROR".into(), &"Expired".into())
    );
    assert_eq!(socket.goodbye().await, CloseCode::Normal);
}

#[tokio::test]
async fn a_server_that_ends_says_that_it_goes() {
    let workshop = Workshop::open().await;
    let mut socket = open(&workshop.door, &format!("{WIDGETS}?watch=true")).await;
    workshop.door.closing.cancel();
    assert_eq!(socket.goodbye().await, CloseCode::Away);
    let refused = ask_as_admin(&workshop.door, &format!("{WIDGETS}?watch=true"), &[]).await;
    Answer::of(refused).await.refusal(429, "TooManyRequests");
}

#[tokio::test]
async fn a_socket_whose_client_reads_too_slowly_is_told_so() {
    let history = Limits {
        events: 1_000,
        ..Limits::default()
    };
    let workshop = Workshop::with_history(history).await;
    let mut socket = open(&workshop.door, &format!("{WIDGETS}?watch=true")).await;
    // More than all buffers on the way hold.
    for _ in 0..80 {
        workshop.put_many(1_000);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut n_events = 0;
    let last = loop {
        let event = socket.event().await;
        if event["type"] == "ERROR" {
            break event;
        }
        n_events += 1;
    };
    assert_eq!(last["object"]["reason"], "Expired");
    assert!(n_events < 80_000, "{n_events} were kept for it");
    assert_eq!(socket.goodbye().await, CloseCode::Normal);
}

#[tokio::test]
async fn refusals_come_before_the_upgrade() {
    let workshop = Workshop::open().await;
    let door = &workshop.door;
    let refused = async |path: &str, others: &[(&str, &str)], code, reason| {
        let answer = Answer::of(ask_as_admin(door, path, others).await).await;
        answer.refusal(code, reason);
        answer
    };
    let watch = format!("{WIDGETS}?watch=true");
    let query = format!("{watch}&resourceVersion=x");
    refused(&query, &[], 400, "BadRequest").await;
    let query = format!("{watch}&sendInitialEvents=true");
    refused(&query, &[], 422, "Invalid").await;
    let cbor = [("accept", "application/cbor")];
    refused(&watch, &cbor, 406, "NotAcceptable").await;
    let other = "/apis/example.com/v1/gadgets?watch=true";
    refused(other, &[], 404, "NotFound").await;
    refused(&watch, &[("sec-websocket-key", "")], 400, "BadRequest").await;
    let several = [("sec-websocket-protocol", "a, b")];
    refused(&watch, &several, 400, "BadRequest").await;
    for version in ["", "8", "13, 8"] {
        let version = [("sec-websocket-version", version)];
        let answer = refused(&watch, &version, 400, "BadRequest").await;
        assert_eq!(answer.header("sec-websocket-version"), "13");
    }
    let wrong = handshake(&[("authorization", "Bearer wrong")]);
    let answer = Answer::of(ask(door, &watch, &wrong).await).await;
    answer.refusal(401, "Unauthorized");
    assert_eq!(door.counted(GAUGE), 0.0);
}

#[tokio::test]
async fn who_asks_for_another_protocol_or_is_no_watch_is_answered_plainly() {
    let workshop = Workshop::open().await;
    workshop.put("a", "red");
    let watch = format!("{WIDGETS}?watch=true&timeoutSeconds=1");
    let item = format!("{WIDGETS}/a");
    for (path, others) in [
        (watch.as_str(), &[("upgrade", "SPDY/3.1")][..]),
        (&watch, &[("upgrade", "h2c")]),
        (&watch, &[("connection", "keep-alive")]),
        (WIDGETS, &[]),
        (&item, &[]),
        (&item, &[("upgrade", "SPDY/3.1")]),
        ("/apis", &[]),
    ] {
        let answer = ask_as_admin(&workshop.door, path, others).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path} {others:?}");
        assert!(!answer.headers().contains_key("upgrade"));
        // kube-apiserver closes the connection that it passes such an answer on to.
        let asked_to_upgrade = !others.contains(&("connection", "keep-alive"));
        let connection = answer.headers().get("connection");
        assert_eq!(
            connection.is_some_and(|it| it == "close"),
            asked_to_upgrade,
            "{path} {others:?}"
        );
        let answer = Answer::of(answer).await;
        assert!(answer.text().starts_with('{'), "{path} {others:?}");
    }
}

#[tokio::test]
async fn only_a_get_over_http_1_1_is_upgraded() {
    let workshop = Workshop::open().await;
    let config = tls_client::config(workshop.door.ca.certificate(), None, &["http/1.1"]);
    let watch = format!("{WIDGETS}?watch=true&timeoutSeconds=1");
    let mut answers = Vec::new();
    for (method, version) in [
        ("HEAD", http::Version::HTTP_11),
        ("GET", http::Version::HTTP_10),
    ] {
        let stream = tls_client::connect(workshop.door.address, config.clone());
        let body = tls_client::empty();
        let mut request = mk_request(ADMIN, method, &watch, &HANDSHAKE, body);
        *request.version_mut() = version;
        answers.push(socket_client::ask(stream.await.unwrap(), request).await);
    }
    for answer in answers {
        assert_eq!(answer.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_subprotocol_is_echoed_and_a_token_among_them_is_not() {
    let workshop = Workshop::open().await;
    workshop.put("a", "red");
    let (door, watch) = (&workshop.door, format!("{WIDGETS}?watch=true"));
    let both = format!("{ADMINS}, v1.watch.example.com");
    let reversed = format!("v1.watch.example.com,{ADMINS}");
    let (alice, basic) = (format!("Bearer {ALICE}"), "Basic YWJj");
    for (offered, others) in [
        (both.as_str(), &[][..]),
        (&reversed, &[]),
        (&both, &[("authorization", basic)]),
        (
            &format!("{NOBODYS}, v1.watch.example.com"),
            &[("authorization", &*alice)],
        ),
        ("v1.watch.example.com", &[("authorization", &*alice)]),
    ] {
        let mut headers = handshake(&[("sec-websocket-protocol", offered)]);
        headers.extend(others);
        let answer = ask(door, &watch, &headers).await;
        let echoed = answer.headers().get_all("sec-websocket-protocol");
        let echoed: Vec<_> = echoed.into_iter().collect();
        assert_eq!(echoed, ["v1.watch.example.com"], "{offered}");
        let mut socket = socket_client::open(answer).await;
        assert_eq!(shown(&socket.event().await), "ADDED a");
    }
    for unusable in [
        ADMINS.to_owned(),
        format!("{NOBODYS}, v1"),
        format!("{ADMINS}, {ADMINS}, v1"),
        "base64url.bearer.authorization.k8s.io.?, v1".to_owned(),
        "base64url.bearer.authorization.k8s.io., v1".to_owned(),
    ] {
        let headers = handshake(&[("sec-websocket-protocol", &unusable)]);
        let answer = Answer::of(ask(door, &watch, &headers).await).await;
        answer.refusal(401, "Unauthorized");
        assert!(!answer.headers.contains_key("sec-websocket-protocol"));
    }
}
