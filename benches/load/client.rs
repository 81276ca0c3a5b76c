//! A client as real ones are: one HTTP/2 connection over TLS, opened once, with a client certificate.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use rustls::ClientConfig;

use crate::tls_client::{self, Body};

/// Longer than any answer may take; a benchmark that waits longer has nothing to report.
const DEADLINE: Duration = Duration::from_secs(60);

/// A connection. A clone shares it.
#[derive(Clone)]
pub(crate) struct Client {
    sender: SendRequest<Body>,
}

/// An answer, read to its end.
pub(crate) struct Answer {
    pub(crate) body: Bytes,
    /// From the first byte of the question to the last of the answer.
    pub(crate) latency: Duration,
}

impl Client {
    /// On a connection that is there already.
    pub(crate) fn new(sender: SendRequest<Body>) -> Self {
        Self { sender }
    }

    pub(crate) async fn connect(port: u16, config: ClientConfig) -> anyhow::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = tls_client::connect(address, config)
            .await
            .with_context(|| format!("connecting to {address}"))?;
        stream.get_ref().0.set_nodelay(true)?;
        let sender = tls_client::http2(stream).await;
        Ok(Self { sender })
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.get_as(path, "application/json").await
    }

    /// A GET of this representation.
    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> anyhow::Result<Answer> {
        let request = request(Method::GET, path, accept, Bytes::new())?;
        self.answer(request, StatusCode::OK).await
    }

    /// A GET of what does not exist.
    pub(crate) async fn get_absent(&self, path: &str) -> anyhow::Result<Answer> {
        let request = request(Method::GET, path, "application/json", Bytes::new())?;
        self.answer(request, StatusCode::NOT_FOUND).await
    }

    pub(crate) async fn post(&self, path: &str, body: Bytes) -> anyhow::Result<Answer> {
        let request = request(Method::POST, path, "application/json", body)?;
        self.answer(request, StatusCode::CREATED).await
    }

    pub(crate) async fn delete(&self, path: &str) -> anyhow::Result<Answer> {
        let request = request(Method::DELETE, path, "application/json", Bytes::new())?;
        self.answer(request, StatusCode::OK).await
    }

    /// An answer that goes on, as soon as it begins.
    pub(crate) async fn stream(&self, path: &str) -> anyhow::Result<Incoming> {
        let request = request(Method::GET, path, "application/json", Bytes::new())?;
        let response = self.sender.clone().send_request(request);
        let response = tokio::time::timeout(DEADLINE, response).await??;
        ensure!(
            response.status().is_success(),
            "{path}: {}",
            response.status()
        );
        Ok(response.into_body())
    }

    /// Reads an answer to its end and keeps nothing of it.
    pub(crate) async fn skim(&self, path: &str) -> anyhow::Result<()> {
        let read = async {
            let mut body = self.stream(path).await?;
            while let Some(frame) = body.frame().await {
                drop(frame?);
            }
            Ok(())
        };
        tokio::time::timeout(DEADLINE, read).await?
    }

    async fn answer(&self, request: Request<Body>, expected: StatusCode) -> anyhow::Result<Answer> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let mut sender = self.sender.clone();
        let exchange = async {
            let begun = Instant::now();
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            anyhow::Ok((status, body, begun.elapsed()))
        };
        let exchange = tokio::time::timeout(DEADLINE, exchange).await;
        let (status, body, latency) = exchange
            .with_context(|| format!("{method} {path}: no answer in {DEADLINE:?}"))?
            .with_context(|| format!("{method} {path}"))?;
        ensure!(
            status == expected,
            "{method} {path}: {status}: {}",
            String::from_utf8_lossy(&body)
        );
        Ok(Answer { body, latency })
    }
}

fn request(method: Method, path: &str, accept: &str, body: Bytes) -> http::Result<Request<Body>> {
    Request::builder()
        .method(method)
        .uri(format!("https://localhost{path}"))
        .header(header::ACCEPT, accept)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body).boxed())
}
