//! What `serve` and `dev` have in common: the server over a fleet, and its orderly end.
//!
//! What ends on which of the four moments of the end, in their order; a test of `serve` adds up the longest times:
//!
//! | Moment | What ends | At most |
//! |---|---|---|
//! | `asked`: a signal, a task that panicked, the Lease lost | readiness; controllers; waiting for the Lease and for the records of the ledger | `--shutdown-delay-seconds` |
//! | `closing` | new requests (429) and watches; the gateway's own tasks: debts, renewals, questions after lost answers; 15 s later commands and files in sandboxes | 20 s |
//! | `ending` | the listener: no new connection, and the open ones as soon as they are answered | 30 s |
//! | `served`: every answer is given | the inventory with its feeds, over which a write's user part reaches its node; the agents of `dev` | |
//!
//! `serve` then lets the ledger write its last record (5 s), gives the Lease back (5 s), and drops what only reads from
//! kube-apiserver: namespaces, quotas, trust, certificate.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use ipnet::IpNet;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    admission::{Namespaces, Quotas},
    apiserver::{Builder, Entrance, GoawayChance, ProductInfo},
    auth::{Authenticator, Authorizer},
    dataplane::{DataPlane, DataPlaneMetrics},
    feed::Credential,
    fleet::Fleet,
    gateway::{Gateway, GatewayMetrics, GatewayOptions},
    inventory::{Inventory, InventoryMetrics, Options, Source},
    resources::{
        KUBERNETES_VERSION, SandboxSnapshots, Sandboxes, sandbox_definition, snapshot_definition,
    },
    sandboxd::Client,
    serving::{self, ServeOptions, ServingMetrics, TlsMaterial, Transport},
    telemetry::{Check, Metrics, Readiness, Tasks},
};

/// How long calls to nodes that are under way may take at the end.
pub(super) const GATEWAY_PATIENCE: Duration = Duration::from_secs(20);

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
    /// Cancelled when the listener has ended.
    pub(super) served: CancellationToken,
    entrance: Entrance,
    /// Passes last, and is there from the first moment: until then the server is not ready, whatever else is.
    nodes_known: Check,
}

/// Who may do what, for the server.
pub(super) struct Access {
    pub(super) authenticator: Authenticator,
    pub(super) authorizer: Authorizer,
    pub(super) namespaces: Namespaces,
    pub(super) quotas: Quotas,
    /// Answers for core discovery paths, for a server that stands alone.
    pub(super) fixed: std::collections::HashMap<String, serde_json::Value>,
}

impl Process {
    /// Opens the door: from here on probes are answered. The process ends when the shutdown token of `tasks` is cancelled.
    pub(super) fn start(
        listener: TcpListener,
        tls: Arc<TlsMaterial>,
        metrics: Metrics,
        serving_metrics: ServingMetrics,
        tasks: &mut Tasks,
    ) -> Self {
        let readiness = Readiness::new();
        let nodes_known = readiness.check("inventory");
        let entrance = Entrance::new(readiness.clone());
        let (ending, served) = (CancellationToken::new(), CancellationToken::new());
        let options = ServeOptions {
            metrics: serving_metrics,
            ..ServeOptions::default()
        };
        let door = entrance.clone();
        let app = move |connection, request| door.clone().handle(connection, request);
        let run = serving::run(listener, Transport::Tls(tls), app, options, ending.clone());
        let ended = served.clone().drop_guard();
        tasks.spawn("listener", async move {
            let _ended = ended;
            run.await;
        });
        Self {
            metrics,
            readiness,
            asked: tasks.shutdown().clone(),
            closing: CancellationToken::new(),
            ending,
            served,
            entrance,
            nodes_known,
        }
    }

    /// Puts the server behind the door.
    pub(super) fn open(
        &self,
        access: Access,
        fleet: Arc<Fleet>,
        gateway: Gateway,
        goaway_chance: GoawayChance,
    ) -> anyhow::Result<()> {
        let definition = sandbox_definition().context("describing the resources")?;
        let builder = Builder {
            product: PRODUCT,
            authenticator: access.authenticator,
            authorizer: access.authorizer.into(),
            namespaces: access.namespaces,
            quotas: access.quotas,
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            shutdown: self.closing.clone(),
            goaway_chance,
            fixed: access.fixed,
        };
        let snapshots = snapshot_definition().context("describing the resources")?;
        let snapshots = SandboxSnapshots::new(snapshots, fleet.clone(), gateway.clone());
        let data_plane = DataPlane::new(
            fleet.clone(),
            gateway.clone(),
            DataPlaneMetrics::register(&self.metrics),
            self.closing.clone(),
        );
        let server = builder.serve(Arc::new(Sandboxes::new(definition, fleet, gateway)));
        let server = server.and_then(|server| server.with(Arc::new(snapshots)));
        let server = server.context("building the API documents")?;
        self.entrance.open(server.beside(data_plane));
        Ok(())
    }

    /// A gateway whose own tasks run until requests are refused. One that panics ends the process.
    pub(super) fn gateway(
        &self,
        fleet: Arc<Fleet>,
        inventory: Inventory,
        daemons: Client,
        tasks: &mut Tasks,
    ) -> Gateway {
        let metrics = GatewayMetrics::register(&self.metrics);
        let gateway = Gateway::start(
            fleet,
            inventory,
            daemons,
            GatewayOptions::default(),
            metrics,
            self.closing.clone(),
        );
        let (watched, asked, served) = (gateway.clone(), self.asked.clone(), self.served.clone());
        tasks.spawn("gateway", async move {
            if served.run_until_cancelled(watched.broken()).await.is_some() {
                tracing::error!("a task of the gateway panicked: shutting down");
                asked.cancel();
            }
        });
        gateway
    }

    /// Follows the nodes until every answer is given: a write that is still acknowledged needs the live feed, over which the
    /// node's agent keeps its user part.
    pub(super) fn follow(&self, inventory: &Inventory, source: Source, tasks: &mut Tasks) {
        let ready = self.nodes_known.clone();
        tasks.spawn(
            "inventory",
            inventory.clone().run(source, ready, self.served.clone()),
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
    /// requests are refused and streams end, then what is in flight is finished, then nodes are not followed any more.
    pub(super) async fn end(self, shutdown_delay: Duration, gateway: Gateway) {
        self.asked.cancelled().await;
        self.readiness.shutting_down();
        tracing::info!(delay = ?shutdown_delay, "ending");
        tokio::time::sleep(shutdown_delay).await;
        self.closing.cancel();
        gateway.finish(GATEWAY_PATIENCE).await;
        self.ending.cancel();
        self.served.cancelled().await;
    }
}
