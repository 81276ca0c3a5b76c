//! The token of a browser, which can set no header on a WebSocket.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use super::refused_user;
use crate::{
    conformance::{
        credentials::{Door, service_account},
        grants::Grant,
        subject::Subject,
    },
    tls_client,
};

const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

pub(super) async fn c_033(subject: &Subject) {
    let (robot, token) = service_account(subject, "robot").await;
    let path = format!("{}?watch=true&timeoutSeconds=5", subject.collection());
    let token = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(token));
    let offered = format!("{token}, chat");
    // Known by it, and not allowed anything yet.
    let client = Door::of(subject).nobody();
    let headers = [("sec-websocket-protocol", offered.as_str())];
    let refused = client.send("GET", &path, &headers, "").await;
    assert_eq!(refused_user(&refused), robot);
    for unusable in [format!("{PREFIX}!, chat"), format!("{PREFIX}AAAA, chat")] {
        let answer = open(subject, &path, &unusable).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{unusable}");
    }
    Grant::to(&robot, &["watch"]).in_force(subject).await;
    // A refusal counts for some seconds.
    let opened = async || loop {
        let answer = open(subject, &path, &offered).await;
        if answer.status() != StatusCode::FORBIDDEN {
            return answer;
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    };
    let answer = tokio::time::timeout(super::SOON, opened()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut echoed = answer.headers().get_all("sec-websocket-protocol").iter();
    assert_eq!(echoed.next().unwrap(), "chat");
    assert!(echoed.next().is_none(), "the token is not echoed");
    assert!(!subject.log().contains(&token), "nor is it logged");
}

/// Asks for a WebSocket without any other credential.
async fn open(subject: &Subject, path: &str, protocols: &str) -> Response<Incoming> {
    let config = tls_client::config(&subject.ca(), None, &["http/1.1"]);
    let stream = tls_client::connect(subject.address(), config)
        .await
        .unwrap();
    let request = Request::get(path)
        .header("host", "localhost")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("sec-websocket-protocol", protocols)
        .body(tls_client::empty());
    let mut sender = tls_client::http1(stream).await;
    sender.send_request(request.unwrap()).await.unwrap()
}
