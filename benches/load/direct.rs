//! Claims without a server between: a node's daemon asked by a client that keeps its connection, as the server keeps one.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use sandbox_apiserver::api::NodeAddress;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::stage::{NODE_TOKEN, TEMPLATE};

/// A connection to a daemon.
pub(crate) struct Daemon {
    sender: SendRequest<Full<Bytes>>,
    authority: String,
}

/// A sandbox that no API server knows of yet.
pub(crate) struct Claim {
    pub(crate) id: String,
    pub(crate) latency: Duration,
}

impl Daemon {
    pub(crate) async fn connect(address: &NodeAddress) -> anyhow::Result<Self> {
        let authority = address.authority();
        let stream = TcpStream::connect(&authority).await?;
        stream.set_nodelay(true)?;
        Self::over(stream, authority).await
    }

    /// A daemon, or what stands for it, at the other end of a connection.
    pub(crate) async fn over<S>(stream: S, authority: String) -> anyhow::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, authority })
    }

    /// What is asked for.
    pub(crate) fn order() -> Value {
        json!({"template": TEMPLATE, "net": "none", "size": "small", "no_redirect": true})
    }

    pub(crate) async fn claim(&mut self) -> anyhow::Result<Claim> {
        let order = Self::order().to_string();
        let begun = Instant::now();
        let reply = self.post("/v1/claim", order.into()).await?;
        let latency = begun.elapsed();
        let reply: Value = serde_json::from_slice(&reply)?;
        let id = reply["id"].as_str();
        Ok(Claim {
            id: id
                .with_context(|| format!("a claim without an id: {reply}"))?
                .to_owned(),
            latency,
        })
    }

    pub(crate) async fn release(&mut self, id: &str) -> anyhow::Result<()> {
        self.post(&format!("/v1/sandboxes/{id}/release"), Bytes::new())
            .await?;
        Ok(())
    }

    pub(crate) async fn post(&mut self, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        let request = Request::post(path)
            .header(header::HOST, &self.authority)
            .header(header::AUTHORIZATION, format!("Bearer {NODE_TOKEN}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(
            status.is_success(),
            "{path}: {status}: {}",
            String::from_utf8_lossy(&body)
        );
        Ok(body)
    }
}
