//! A WebSocket client that shows its handshake, and does what it is told on the socket afterwards.

// clippy's own exemption for tests ends at their helpers. Two test binaries use this file, neither all of it.
#![allow(clippy::unwrap_used, dead_code)]

use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        protocol::{Role, frame::coding::CloseCode},
    },
};

use crate::tls_client::{self, Body};

const SOON: Duration = Duration::from_secs(20);

/// What every client asks for, with the key of RFC 6455.
pub(crate) const HANDSHAKE: [(&str, &str); 4] = [
    ("connection", "keep-alive, Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

/// An open WebSocket.
pub(crate) struct Socket {
    pub(crate) headers: HeaderMap,
    io: WebSocketStream<TokioIo<Upgraded>>,
}

/// A GET of `path` with these headers.
pub(crate) fn request(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::get(path).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(tls_client::empty()).unwrap()
}

/// The head of the answer on a connection of its own.
pub(crate) async fn ask(
    stream: TlsStream<TcpStream>,
    request: Request<Body>,
) -> Response<Incoming> {
    let mut sender = tls_client::http1(stream).await;
    let answer = timeout(SOON, sender.send_request(request)).await;
    answer.expect("an answer").unwrap()
}

/// The socket behind an answer with 101.
pub(crate) async fn open(answer: Response<Incoming>) -> Socket {
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    let headers = answer.headers().clone();
    let upgraded = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
    let io = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
    Socket { headers, io }
}

impl Socket {
    pub(crate) async fn say(&mut self, message: Message) {
        self.io.send(message).await.unwrap();
    }

    /// What comes next, if the connection does not just end.
    pub(crate) async fn hear(&mut self) -> Option<tungstenite::Result<Message>> {
        timeout(SOON, self.io.next()).await.expect("a message")
    }

    /// The text of the next message.
    pub(crate) async fn text(&mut self) -> String {
        match self.hear().await {
            Some(Ok(Message::Text(text))) => text.to_string(),
            other => panic!("not a text: {other:?}"),
        }
    }

    pub(crate) async fn event(&mut self) -> Value {
        serde_json::from_str(&self.text().await).unwrap()
    }

    /// The code with which the server says goodbye now, and then ends the connection in order.
    pub(crate) async fn goodbye(&mut self) -> CloseCode {
        let code = match self.hear().await {
            Some(Ok(Message::Close(Some(frame)))) => frame.code,
            other => panic!("no goodbye: {other:?}"),
        };
        let end = self.hear().await;
        assert!(end.is_none(), "{end:?}");
        code
    }

    /// Says goodbye, and awaits the server's.
    pub(crate) async fn close(mut self) {
        self.io.close(None).await.unwrap();
        while let Some(heard) = self.hear().await {
            heard.unwrap();
        }
    }

    /// The bytes below, for what is no WebSocket.
    pub(crate) fn raw(&mut self) -> &mut TokioIo<Upgraded> {
        self.io.get_mut()
    }
}

/// A text.
pub(crate) fn mk_text(text: impl Into<String>) -> Message {
    Message::Text(text.into().into())
}

/// A ping that is told from others.
pub(crate) fn mk_ping(payload: &'static str) -> Message {
    Message::Ping(Bytes::from_static(payload.as_bytes()))
}
