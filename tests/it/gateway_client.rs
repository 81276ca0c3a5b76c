//! A caller of a node's claim gateway: it knows the agent by the SHA-256 of its certificate, and shows a token.

// clippy's own exemption for tests ends at their helpers. Several binaries use this file, not all of them all of it.
#![allow(clippy::unwrap_used, dead_code)]

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use sandbox_apiserver::{api::AgentEndpoint, feed::CertificatePin};
use serde_json::{Value, json};
use tokio::{net::TcpStream, sync::Mutex};
use tokio_rustls::client::TlsStream;

use crate::tls_client::{self, Body};

/// A connection to an agent, and what is shown there.
#[derive(Clone)]
pub(crate) struct GatewayClient {
    agent: AgentEndpoint,
    sender: Sender,
    token: Option<String>,
}

#[derive(Clone)]
enum Sender {
    /// One request at a time.
    Http1(Arc<Mutex<http1::SendRequest<Body>>>),
    Http2(http2::SendRequest<Body>),
}

impl GatewayClient {
    /// Connects to the agent that an inventory names.
    pub(crate) async fn connect(agent: &AgentEndpoint, token: Option<&str>) -> Self {
        Self {
            agent: agent.clone(),
            sender: Sender::Http2(tls_client::http2(dial(agent, "h2").await).await),
            token: token.map(str::to_owned),
        }
    }

    /// The same caller on a connection of its own, over which HTTP/1.1 is spoken.
    pub(crate) async fn over_http1(&self) -> Self {
        let sender = tls_client::http1(dial(&self.agent, "http/1.1").await).await;
        Self {
            sender: Sender::Http1(Arc::new(Mutex::new(sender))),
            ..self.clone()
        }
    }

    /// The same connection, with another token.
    pub(crate) fn showing(&self, token: Option<&str>) -> Self {
        Self {
            token: token.map(str::to_owned),
            ..self.clone()
        }
    }

    pub(crate) async fn claim(&self, namespace: &str, name: &str) -> (StatusCode, Value) {
        self.post(&order(namespace, name)).await
    }

    /// A claim as [`Self::claim`] makes it, with the time that it took.
    pub(crate) async fn timed_claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> (StatusCode, Bytes, Duration) {
        let body = order(namespace, name).to_string();
        self.exchange("POST", "/v1/claims", body).await
    }

    pub(crate) async fn post(&self, body: &Value) -> (StatusCode, Value) {
        self.send("POST", "/v1/claims", body.to_string()).await
    }

    pub(crate) async fn delete(&self, namespace: &str, id: &str) -> (StatusCode, Value) {
        let path = format!("/v1/claims/{id}?namespace={namespace}");
        self.send("DELETE", &path, String::new()).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: String) -> (StatusCode, Value) {
        let (status, bytes, _) = self.exchange(method, path, body).await;
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        (
            status,
            serde_json::from_slice(&bytes).unwrap_or_else(|_| text()),
        )
    }

    /// Sends a request; the answer, and how long it took from the first byte of the one to the last of the other.
    pub(crate) async fn exchange(
        &self,
        method: &str,
        path: &str,
        body: String,
    ) -> (StatusCode, Bytes, Duration) {
        let mut request = match self.sender {
            Sender::Http1(_) => Request::builder()
                .uri(path)
                .header(header::HOST, "localhost"),
            Sender::Http2(_) => Request::builder().uri(format!("https://localhost{path}")),
        };
        request = request.method(method);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::from(body).boxed()).unwrap();
        let (begun, response) = self.sender.send(request).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, bytes, begun.elapsed())
    }
}

impl Sender {
    /// The answer's head, and when the request began.
    async fn send(&self, request: Request<Body>) -> hyper::Result<(Instant, Response<Incoming>)> {
        match self {
            Self::Http1(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                let begun = Instant::now();
                Ok((begun, sender.send_request(request).await?))
            }
            Self::Http2(sender) => {
                let mut sender = sender.clone();
                sender.ready().await?;
                let begun = Instant::now();
                Ok((begun, sender.send_request(request).await?))
            }
        }
    }
}

async fn dial(agent: &AgentEndpoint, protocol: &str) -> TlsStream<TcpStream> {
    let address: SocketAddr = agent.address.parse().unwrap();
    let pin: CertificatePin = agent.certificate_sha256.parse().unwrap();
    let mut config = pin.client_config();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = tls_client::connect(address, config).await.unwrap();
    // A claim is two frames: the second waits for nothing.
    stream.get_ref().0.set_nodelay(true).unwrap();
    stream
}

fn order(namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "claimName": name, "warmPool": "pool"})
}
