//! The server in this process, asked without a connection.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use sandbox_apiserver::{
    admission::{Namespaces, Quotas},
    api::Token,
    apiserver::{ApiServer, Body, Builder, ProductInfo},
    auth::{Authenticator, Authorizer, UserInfo},
    fleet::{Fleet, HealthLimits},
    gateway::{Gateway, GatewayMetrics, GatewayOptions},
    inventory::{Inventory, InventoryMetrics, Options},
    meta::ResourceVersion,
    resources::{KUBERNETES_VERSION, Sandboxes, sandbox_definition},
    sandboxd::{Client, ClientOptions, TokenSource},
    serving::Connection,
    store::Limits,
    telemetry::{Metrics, Readiness},
};
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

const TOKEN: &str = "robust";

/// A server of sandboxes whose nodes are told about by the test.
pub(super) struct House {
    pub(super) fleet: Arc<Fleet>,
    /// Changes that the server remembers.
    pub(super) history: u64,
    server: Arc<ApiServer>,
    connection: Arc<Connection>,
    /// Ends the gateway's tasks.
    _ends: DropGuard,
}

/// An answer that is there as a whole.
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        let text = std::str::from_utf8(&self.body).expect("an answer is text");
        text.parse().expect("an answer is JSON")
    }
}

impl House {
    pub(super) fn new(history: u64) -> Self {
        let (metrics, shutdown) = (Metrics::new(), CancellationToken::new());
        let limits = Limits {
            events: usize::try_from(history).unwrap(),
            ..Limits::default()
        };
        let first = ResourceVersion::first_of_epoch(7).unwrap();
        let fleet = Arc::new(Fleet::new(first, limits, HealthLimits::default()));
        let daemons = Client::new(ClientOptions {
            token: TokenSource::Fixed(Token::from("nodes".to_owned())),
            ca_file: None,
        });
        let daemons = daemons.unwrap();
        let inventory = Inventory::new(
            fleet.clone(),
            daemons.clone(),
            Options::default(),
            InventoryMetrics::register(&metrics),
        );
        let gateway = Gateway::start(
            fleet.clone(),
            inventory,
            daemons,
            GatewayOptions::default(),
            GatewayMetrics::register(&metrics),
            shutdown.clone(),
        );
        let definition = sandbox_definition().unwrap();
        let sandboxes = Arc::new(Sandboxes::new(definition, fleet.clone(), gateway));
        let user = UserInfo::new("admin", &["system:masters"]);
        let builder = Builder {
            product: ProductInfo {
                name: "sandbox-apiserver",
                version: "0.0.0",
                kubernetes: KUBERNETES_VERSION,
            },
            authenticator: Authenticator::fixed([(TOKEN.to_owned(), user)], true),
            authorizer: Authorizer::always_allow().into(),
            namespaces: Namespaces::every(),
            quotas: Quotas::none(),
            metrics,
            readiness: Readiness::new(),
            shutdown: shutdown.clone(),
            fixed: Default::default(),
            goaway_chance: Default::default(),
        };
        let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
        Self {
            fleet,
            history,
            server: Arc::new(builder.serve(sandboxes).unwrap()),
            connection: Connection::new(peer, Vec::new()),
            _ends: shutdown.drop_guard(),
        }
    }

    /// The answer's head, as soon as it is there.
    pub(super) async fn open(
        &self,
        method: &str,
        path: &str,
        accept: &str,
        body: String,
    ) -> Response<Body> {
        let content_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {TOKEN}"))
            .header("accept", accept)
            .header("content-type", content_type)
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let server = self.server.clone();
        server.handle(self.connection.clone(), request).await
    }

    pub(super) async fn ask(&self, method: &str, path: &str, accept: &str, body: String) -> Answer {
        let (head, body) = self.open(method, path, accept, body).await.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        Answer {
            code: head.status.as_u16(),
            body,
        }
    }

    /// The version of the newest change.
    pub(super) fn head(&self) -> u64 {
        self.fleet.store().head().as_u64()
    }
}
