//! A caller of a node's claim gateway: it knows the agent by the SHA-256 of its certificate, and shows a token.

// clippy's own exemption for tests ends at their helpers. Several binaries use this file, not all of them all of it.
#![allow(clippy::unwrap_used, dead_code)]

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use sandbox_apiserver::{api::AgentEndpoint, feed::CertificatePin};
use serde_json::{Value, json};

use crate::tls_client::{self, Body};

/// A connection to an agent, and what is shown there.
#[derive(Clone)]
pub(crate) struct GatewayClient {
    sender: SendRequest<Body>,
    token: Option<String>,
}

impl GatewayClient {
    /// Connects to the agent that an inventory names.
    pub(crate) async fn connect(agent: &AgentEndpoint, token: Option<&str>) -> Self {
        let address: SocketAddr = agent.address.parse().unwrap();
        let pin: CertificatePin = agent.certificate_sha256.parse().unwrap();
        let stream = tls_client::connect(address, pin.client_config()).await;
        let stream = stream.unwrap();
        // A claim is two frames: the second waits for nothing.
        stream.get_ref().0.set_nodelay(true).unwrap();
        Self {
            sender: tls_client::http2(stream).await,
            token: token.map(str::to_owned),
        }
    }

    /// The same connection, with another token.
    pub(crate) fn showing(&self, token: Option<&str>) -> Self {
        Self {
            sender: self.sender.clone(),
            token: token.map(str::to_owned),
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
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::from(body).boxed()).unwrap();
        let mut sender = self.sender.clone();
        sender.ready().await.unwrap();
        let begun = Instant::now();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, bytes, begun.elapsed())
    }
}

fn order(namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "claimName": name, "warmPool": "pool"})
}
