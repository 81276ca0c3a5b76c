//! A node that keeps what it is asked.

use std::{
    convert::Infallible,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::{net::TcpListener, task::JoinHandle};

use crate::conformance::subject::Subject;

type Asked = Arc<Mutex<Vec<String>>>;

/// A daemon that fails at everything, published with one sandbox of the check's namespace. Named after the namespace.
pub(super) struct ListeningNode {
    asked: Asked,
    listener: JoinHandle<()>,
}

impl ListeningNode {
    pub(super) const SANDBOX: &str = "held-there";
    /// The id of the sandbox's claim.
    pub(super) const CLAIM: &str = "claim-held-there";

    pub(super) async fn start(subject: &Subject) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Asked::default();
        let node = Self {
            listener: tokio::spawn(accept(listener, asked.clone())),
            asked,
        };
        let name = format!("{}/{}", subject.namespace, Self::SANDBOX);
        let inventory = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "NodeInventory",
            "metadata": {"name": subject.namespace},
            "node": subject.namespace,
            "address": address.to_string(),
            "observedAt": k8s_openapi::jiff::Timestamp::now().to_string(),
            "total": 1,
            "entries": [{
                "name": name, "claimRef": name, "id": Self::CLAIM, "phase": "Running",
                "template": "listening:1", "net": "none", "size": "small",
            }],
        });
        let create = ["create", "--filename=-"];
        let kubectl = subject.control_plane.kubectl();
        kubectl
            .stdout_with_input(&create, &inventory.to_string())
            .await;
        node
    }

    /// Every request so far: its line, headers and body.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Takes back what was published.
    pub(super) async fn forget(self, subject: &Subject) {
        let delete = ["delete", "nodeinventory", &subject.namespace];
        subject.control_plane.kubectl().stdout(&delete).await;
    }
}

impl Drop for ListeningNode {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn accept(listener: TcpListener, asked: Asked) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let asked = asked.clone();
        let service = service_fn(move |request| refuse(asked.clone(), request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn refuse(
    asked: Asked,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes());
    let text = format!(
        "{} {} {:?} {}",
        head.method,
        head.uri,
        head.headers,
        String::from_utf8_lossy(&body.unwrap_or_default())
    );
    asked.lock().unwrap().push(text);
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    Ok(answer)
}
