//! What `serve` and `dev` have in common: the server over a fleet, and its orderly end.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use ipnet::IpNet;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    admission::Namespaces,
    apiserver::{Builder, Entrance, ProductInfo},
    auth::{Authenticator, Authorizer},
    feed::Credential,
    fleet::Fleet,
    gateway::{Gateway, GatewayMetrics, GatewayOptions},
    inventory::{Inventory, InventoryMetrics, Options, Source},
    resources::{KUBERNETES_VERSION, Sandboxes, sandbox_definition},
    sandboxd::Client,
    serving::{self, ServeOptions, ServingMetrics, TlsMaterial, Transport},
    telemetry::{Check, Metrics, Readiness, Tasks},
};

/// How long calls to nodes that are under way may take at the end.
const GATEWAY_PATIENCE: Duration = Duration::from_secs(20);

const PRODUCT: ProductInfo = ProductInfo {
    name: env!("CARGO_PKG_NAME"),
    version: env!("CARGO_PKG_VERSION"),
    kubernetes: KUBERNETES_VERSION,
};

/// The process around a server: what is there before the fleet is known, and ends after it.
pub(super) struct Process {
    pub(super) metrics: Metrics,
    pub(super) readiness: Readiness,
    /// Cancelled when the process is asked to end.
    pub(super) asked: CancellationToken,
    /// Cancelled when new requests are refused and streams end.
    pub(super) closing: CancellationToken,
    /// Cancelled when the listener ends.
    ending: CancellationToken,
    entrance: Entrance,
    /// Passes last, and is there from the first moment: until then the server is not ready, whatever else is.
    nodes_known: Check,
    listener: tokio::task::JoinHandle<()>,
}

/// Who may do what, for the server.
pub(super) struct Access {
    pub(super) authenticator: Authenticator,
    pub(super) authorizer: Authorizer,
    pub(super) namespaces: Namespaces,
    /// Answers for core discovery paths, for a server that stands alone.
    pub(super) fixed: std::collections::HashMap<String, serde_json::Value>,
}

impl Process {
    /// Opens the door: from here on probes are answered.
    pub(super) fn start(
        listener: TcpListener,
        tls: Arc<TlsMaterial>,
        asked: CancellationToken,
        metrics: Metrics,
        serving_metrics: ServingMetrics,
    ) -> Self {
        let readiness = Readiness::new();
        let nodes_known = readiness.check("inventory");
        let entrance = Entrance::new(readiness.clone());
        let ending = CancellationToken::new();
        let options = ServeOptions {
            metrics: serving_metrics,
            ..ServeOptions::default()
        };
        let door = entrance.clone();
        let app = move |connection, request| door.clone().handle(connection, request);
        let listener = tokio::spawn(serving::run(
            listener,
            Transport::Tls(tls),
            app,
            options,
            ending.clone(),
        ));
        Self {
            metrics,
            readiness,
            asked,
            closing: CancellationToken::new(),
            ending,
            entrance,
            nodes_known,
            listener,
        }
    }

    /// Puts the server behind the door.
    pub(super) fn open(
        &self,
        access: Access,
        fleet: Arc<Fleet>,
        gateway: Gateway,
    ) -> anyhow::Result<()> {
        let definition = sandbox_definition().context("describing the resources")?;
        let builder = Builder {
            product: PRODUCT,
            authenticator: access.authenticator,
            authorizer: access.authorizer.into(),
            namespaces: access.namespaces,
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            shutdown: self.closing.clone(),
            fixed: access.fixed,
        };
        let server = builder.serve(Arc::new(Sandboxes::new(definition, fleet, gateway)));
        self.entrance
            .open(server.context("building the API documents")?);
        Ok(())
    }

    /// A gateway whose own tasks run until requests are refused.
    pub(super) fn gateway(
        &self,
        fleet: Arc<Fleet>,
        inventory: Inventory,
        daemons: Client,
    ) -> Gateway {
        let metrics = GatewayMetrics::register(&self.metrics);
        Gateway::start(
            fleet,
            inventory,
            daemons,
            GatewayOptions::default(),
            metrics,
            self.closing.clone(),
        )
    }

    /// Follows the nodes until the process ends.
    pub(super) fn follow(&self, inventory: &Inventory, source: Source, tasks: &mut Tasks) {
        let ready = self.nodes_known.clone();
        tasks.spawn(
            "inventory",
            inventory.clone().run(source, ready, self.asked.clone()),
        );
    }

    /// The nodes as the inventories tell of them.
    pub(super) fn inventory(
        &self,
        fleet: Arc<Fleet>,
        daemons: Client,
        node_address_cidrs: Vec<IpNet>,
        agent_credential: Option<Credential>,
    ) -> Inventory {
        let options = Options {
            node_address_cidrs,
            agent_credential,
            ..Options::default()
        };
        Inventory::new(
            fleet,
            daemons,
            options,
            InventoryMetrics::register(&self.metrics),
        )
    }

    /// Waits until the process is asked to end, then ends in order: readiness goes first and is given time to be seen, then
    /// requests are refused and streams end, then what is in flight is finished.
    pub(super) async fn end(self, shutdown_delay: Duration, gateway: Gateway) {
        self.asked.cancelled().await;
        self.readiness.shutting_down();
        tracing::info!(delay = ?shutdown_delay, "ending");
        tokio::time::sleep(shutdown_delay).await;
        self.closing.cancel();
        gateway.finish(GATEWAY_PATIENCE).await;
        self.ending.cancel();
        if let Err(error) = self.listener.await {
            tracing::error!(%error, "the listener did not end in order");
        }
    }
}
