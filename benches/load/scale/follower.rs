//! The server's room that takes inventories in, with the index behind it and nothing else of the server.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use sandbox_apiserver::{
    fleet::{Fleet, HealthLimits, Sandbox},
    inventory::{Inventory, InventoryMetrics, Options, Publication, Source, Update},
    meta::ResourceVersion,
    sandboxd::{Client, ClientOptions, TokenSource},
    store::{Limits, Scope, Store},
    telemetry::{Check, Readiness},
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// No node falls silent, which would be a change, however long this machine takes to make up its next inventory.
const PATIENCE: Duration = Duration::from_secs(86_400);

pub(super) struct Follower {
    fleet: Arc<Fleet>,
    inventories_tx: mpsc::Sender<Update<Publication>>,
    ready: Check,
    /// Ends with this.
    _task: JoinSet<()>,
}

impl Follower {
    /// Starts with nothing, in a runtime of one thread. There are no Nodes.
    pub(super) fn start() -> anyhow::Result<Self> {
        let start = ResourceVersion::first_of_epoch(1).context("epoch 1 exists")?;
        let health = HealthLimits {
            fresh: PATIENCE,
            stale: PATIENCE,
            lost: PATIENCE,
            probe_interval: PATIENCE,
        };
        let fleet = Arc::new(Fleet::new(start, Limits::default(), health));
        let client = Client::new(ClientOptions {
            token: TokenSource::Absent,
            ca_file: None,
        })?;
        let inventory = Inventory::new(
            fleet.clone(),
            client,
            Options::default(),
            InventoryMetrics::default(),
        );
        let (inventories_tx, inventories) = mpsc::channel(1);
        let (_, nodes) = mpsc::channel(1);
        let source = Source::InProcess { inventories, nodes };
        let ready = Readiness::new().check("inventory");
        let mut task = JoinSet::new();
        task.spawn(inventory.run(source, ready.clone(), CancellationToken::new()));
        Ok(Self {
            fleet,
            inventories_tx,
            ready,
            _task: task,
        })
    }

    pub(super) fn store(&self) -> &Store<Sandbox> {
        self.fleet.store()
    }

    /// Takes in an inventory of the first list.
    pub(super) async fn list(&self, json: &[u8]) -> anyhow::Result<()> {
        self.tell(Update::Listed(Publication::decode(json)?)).await
    }

    /// Ends the first list. Then the server is ready, for no node has an address that it would be read at before.
    pub(super) async fn end_list(&self, n_sandboxes: usize) -> anyhow::Result<()> {
        self.tell(Update::ListEnds).await?;
        ensure!(self.ready.passes(), "not ready after the first list");
        let listed = self.store().count(&Scope::All);
        ensure!(
            listed == n_sandboxes,
            "{listed} of {n_sandboxes} sandboxes are listed"
        );
        Ok(())
    }

    /// Takes in an inventory that was published again.
    pub(super) async fn apply(&self, json: &[u8]) -> anyhow::Result<()> {
        self.tell(Update::Applied(Publication::decode(json)?)).await
    }

    /// Tells the room something and waits until that is done with: there is room for the next when it has fetched this, and on one
    /// thread nobody sees that before it has nothing left to do.
    async fn tell(&self, update: Update<Publication>) -> anyhow::Result<()> {
        let ended = "the room has ended";
        self.inventories_tx.send(update).await.ok().context(ended)?;
        drop(self.inventories_tx.reserve().await.context(ended)?);
        Ok(())
    }
}
