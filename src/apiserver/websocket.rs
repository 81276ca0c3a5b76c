//! A stream of lines over WebSocket, one text message a line, for clients that cannot read an answer while it comes.
//!
//! The handshake is that of kube-apiserver: one subprotocol may be offered and is echoed, whatever it is, as a browser breaks
//! off when its only one is not; of several, none can be told to be meant. Any `Origin` is good there, and here also none,
//! which kube-apiserver refuses: a header that every client can set to anything keeps nobody out, and what a request may is
//! decided by its credential. What the client says is not listened to, beside pings and its goodbye.
//!
//! The frames are tungstenite's, without its handshake: that part is a few lines over headers which hyper has parsed, and
//! would bring a second parser of HTTP.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Buf, Bytes};
use futures::{SinkExt, Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use sha1_smol::Sha1;
use tokio::{io::AsyncWriteExt, time::timeout};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message, Result,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    Body, Status,
    body::{Interrupted, status_response},
    negotiate::error_media_type,
};
use crate::serving::{Upgrade, UpgradedStream};

/// The version of RFC 6455, and what its server appends to the client's key.
const VERSION: HeaderValue = HeaderValue::from_static("13");
const KEY_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Largest message of a client, which has nothing to say.
const MAX_HEARD: usize = 64 << 10;
/// Bytes that are read at once, and bytes that are written at once.
const READ_BUFFER: usize = 4 << 10;
const WRITE_BUFFER: usize = 64 << 10;
/// How long a client may take to return our goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

type Socket = WebSocketStream<UpgradedStream>;

/// Whether a request wants to go on as a WebSocket. Other protocols are not spoken, and who asks for them is answered as if
/// they had not.
pub(super) fn is_asked(headers: &HeaderMap) -> bool {
    let upgrades = headers.get(header::UPGRADE);
    upgrades.is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && words(headers, header::CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade"))
}

/// The answer to a request of which [`is_asked`] is true: 101 with `chunks`, each of whole lines, or 400. `shutdown` tells why
/// they end.
pub(super) fn answer(
    headers: &HeaderMap,
    chunks: impl Stream<Item = Result<Bytes, Interrupted>> + Send + 'static,
    shutdown: CancellationToken,
) -> Response<Body> {
    match Handshake::read(headers) {
        Ok(handshake) => {
            handshake.accept(Upgrade::new(move |stream| speak(stream, chunks, shutdown)))
        }
        Err(status) => {
            let mut refusal = status_response(&status, error_media_type(headers));
            let headers = refusal.headers_mut();
            headers.insert(header::SEC_WEBSOCKET_VERSION, VERSION);
            refusal
        }
    }
}

/// What the client has to be answered.
struct Handshake {
    accept: HeaderValue,
    protocol: Option<HeaderValue>,
}

impl Handshake {
    fn read(headers: &HeaderMap) -> Result<Self, Status> {
        if headers.get(header::SEC_WEBSOCKET_VERSION) != Some(&VERSION) {
            return Err(Status::bad_request(
                "only version 13 of WebSocket is spoken",
            ));
        }
        let key = headers.get(header::SEC_WEBSOCKET_KEY);
        let key = key
            .filter(|key| !key.is_empty())
            .ok_or_else(|| Status::bad_request("the header Sec-WebSocket-Key is missing"))?;
        let mut offered = words(headers, header::SEC_WEBSOCKET_PROTOCOL);
        let protocol = offered
            .next()
            .and_then(|protocol| HeaderValue::from_str(protocol).ok());
        if offered.next().is_some() {
            return Err(Status::bad_request(
                "of several WebSocket subprotocols none can be chosen: offer one, or none",
            ));
        }
        Ok(Self {
            accept: accept(key.as_bytes()),
            protocol,
        })
    }

    fn accept(self, upgrade: Upgrade) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, self.accept);
        if let Some(protocol) = self.protocol {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        response.extensions_mut().insert(upgrade);
        response
    }
}

/// The words of a header that is a list.
fn words(headers: &HeaderMap, name: header::HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// The proof that the server has read the key and knows what it is for.
fn accept(key: &[u8]) -> HeaderValue {
    let mut digest = Sha1::from(key);
    digest.update(KEY_SUFFIX.as_bytes());
    let accept = STANDARD.encode(digest.digest().bytes());
    HeaderValue::try_from(accept).expect("base64 is a header's value")
}

/// Sends what comes until there is nothing more, or the client has said goodbye.
async fn speak(
    stream: UpgradedStream,
    chunks: impl Stream<Item = Result<Bytes, Interrupted>>,
    shutdown: CancellationToken,
) {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER)
        .max_message_size(Some(MAX_HEARD))
        .max_frame_size(Some(MAX_HEARD));
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let mut chunks = std::pin::pin!(chunks);
    let code = loop {
        tokio::select! {
            chunk = chunks.next() => match chunk {
                Some(Ok(lines)) => if send(&mut socket, lines).await.is_err() {
                    return;
                },
                Some(Err(_)) => break Some(CloseCode::Error),
                None if shutdown.is_cancelled() => break Some(CloseCode::Away),
                None => break Some(CloseCode::Normal),
            },
            // Also answers pings.
            heard = socket.next() => match heard {
                Some(Ok(Message::Close(_))) => break None,
                Some(Ok(_)) => {}
                Some(Err(Error::Capacity(_))) => break Some(CloseCode::Size),
                Some(Err(Error::Protocol(_) | Error::Utf8(_))) => break Some(CloseCode::Protocol),
                Some(Err(_)) | None => return,
            },
        }
    };
    // Without the last word the connection ends all the same.
    let _ = timeout(GOODBYE, end(&mut socket, code)).await;
}

async fn send(socket: &mut Socket, mut lines: Bytes) -> Result<()> {
    while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
        let line = lines.split_to(end);
        lines.advance(1);
        let text = line.try_into().expect("the machinery writes valid JSON");
        socket.feed(Message::Text(text)).await?;
    }
    socket.flush().await
}

/// Says goodbye, unless the client has, and waits until both have. An error in between is the end as well.
async fn end(socket: &mut Socket, code: Option<CloseCode>) {
    if let Some(code) = code {
        let reason = "".into();
        let _ = socket.close(Some(CloseFrame { code, reason })).await;
    }
    // What is heard now was sent before the client knew. An answer to its own goodbye goes out with the first look.
    while socket.next().await.is_some_and(|heard| heard.is_ok()) {}
    let _ = socket.get_mut().shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| {
                (
                    header::HeaderName::from_static(name),
                    value.parse().unwrap(),
                )
            })
            .collect()
    }

    #[test]
    fn only_both_headers_ask_for_a_websocket() {
        let check = |upgrade: &str, connection: &str, expected: bool| {
            let headers = mk_headers(&[("upgrade", upgrade), ("connection", connection)]);
            assert_eq!(is_asked(&headers), expected, "{upgrade} {connection}");
        };
        check("websocket", "Upgrade", true);
        check("WebSocket", "keep-alive, upgrade", true);
        check("websocket", "keep-alive", false);
        check("websocket", "upgrades", false);
        check("SPDY/3.1", "Upgrade", false);
        assert!(!is_asked(&HeaderMap::new()));
    }

    #[test]
    fn the_key_is_answered_as_in_the_rfc() {
        assert_eq!(
            accept(b"dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    #[test]
    fn one_subprotocol_is_echoed_and_several_are_refused() {
        let check = |offered: &str| {
            let headers = mk_headers(&[
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
                ("sec-websocket-protocol", offered),
            ]);
            Handshake::read(&headers).map(|handshake| handshake.protocol)
        };
        assert_eq!(check("").unwrap(), None);
        assert_eq!(check("a").unwrap().unwrap(), "a");
        assert_eq!(check("a, b").unwrap_err().code(), 400);
    }
}
