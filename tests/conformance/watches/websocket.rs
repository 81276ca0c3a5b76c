//! Watches of clients that cannot read an answer while it comes: browsers.

use std::net::SocketAddr;

use http::{Request, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use sandbox_apiserver::serving::PemPair;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    conformance::{
        client::SOON,
        shown::{said, version},
        subject::Subject,
    },
    tls_client,
    users::ADMIN,
};

/// Of RFC 6455: its example of a key with what the server makes of it, and the first byte of a whole text message.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPTED: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
const TEXT: u8 = 0x81;

struct Socket(TokioIo<Upgraded>);

impl Socket {
    async fn open(subject: &Subject, address: SocketAddr, ca: &str, path: &str) -> Self {
        let user = subject.control_plane.config_as(ADMIN).auth_info;
        let read = |file: Option<String>| std::fs::read_to_string(file.unwrap()).unwrap();
        let certificate = PemPair {
            certificate: read(user.client_certificate),
            private_key: read(user.client_key),
        };
        let config = tls_client::config(ca, Some(&certificate), &["http/1.1"]);
        let stream = tls_client::connect(address, config).await.unwrap();
        let request = Request::get(path)
            .header("host", "localhost")
            .header("origin", "https://localhost")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", KEY)
            .body(tls_client::empty());
        let mut sender = tls_client::http1(stream).await;
        let answer = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(answer.headers()["sec-websocket-accept"], ACCEPTED);
        Self(TokioIo::new(hyper::upgrade::on(answer).await.unwrap()))
    }

    /// The event of the next message, which is a text in one piece.
    async fn event(&mut self) -> Value {
        let event = tokio::time::timeout(SOON, async {
            assert_eq!(self.0.read_u8().await.unwrap(), TEXT);
            let length = match self.0.read_u8().await.unwrap() {
                126 => u64::from(self.0.read_u16().await.unwrap()),
                127 => self.0.read_u64().await.unwrap(),
                short => u64::from(short),
            };
            let mut text = vec![0; usize::try_from(length).unwrap()];
            self.0.read_exact(&mut text).await.unwrap();
            serde_json::from_slice(&text).unwrap()
        });
        event.await.expect("an event comes in time")
    }

    /// Sends a short text, masked with zeros.
    async fn say(&mut self, text: &str) {
        let length = u8::try_from(text.len()).unwrap();
        assert!(length < 126);
        let head = [TEXT, 0x80 | length, 0, 0, 0, 0];
        let message = [&head, text.as_bytes()].concat();
        self.0.write_all(&message).await.unwrap();
    }
}

pub(super) async fn c_133(subject: &Subject) {
    let all = subject.collection();
    let from = version(&subject.create("a").await);
    for (n, (address, ca)) in subject.endpoints().into_iter().enumerate() {
        let path = format!("{all}?watch=true&resourceVersion={from}");
        let mut plain = subject.proxied().watch(&path).await;
        let path = subject.translated(&path);
        let mut socket = Socket::open(subject, address, &ca, &path).await;
        let other = format!("b{n}");
        subject.label("a", "n", &n.to_string()).await;
        subject.create(&other).await;
        subject.proxied().delete(&subject.item(&other)).await.ok();
        loop {
            let expected = plain.event().await;
            let event = socket.event().await.to_string();
            let event: Value = serde_json::from_str(&crate::twin::of_twin(&event)).unwrap();
            assert_eq!(event, expected, "the same over a WebSocket");
            if said(&event) == format!("DELETED {other}") {
                break;
            }
            socket.say("and what about me?").await;
        }
    }
}
