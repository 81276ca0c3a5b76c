//! The gateway itself, and how a sandbox's node is found.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Error, GatewayMetrics, Result, joint::Joint, owed::Owed, renew::Renewals, snapshot::Snapshot,
};
use crate::{
    api::{ClaimId, NodeAddress, NodeName, SandboxKey},
    fleet::{Fleet, Now, Sandbox},
    inventory::Inventory,
    sandboxd::{self, Client, Node},
    store::Stored,
};

/// Claims whose nodes are asked for their outcome until the lease is over. Each costs a question in half a minute.
const LOST_ATTEMPTS: usize = 4_096;

/// How long nodes are waited for.
#[derive(Clone, Copy, Debug)]
pub struct GatewayOptions {
    /// One attempt at a claim. A warm VM is there in under a millisecond; a node that needs longer has none.
    pub claim_timeout: Duration,
    /// All attempts at a claim together.
    pub claim_budget: Duration,
    /// A release, a renewal, a question.
    pub call_timeout: Duration,
    /// How long a client waits for a call that takes time in proportion to memory before it is told that it goes on.
    pub patience: Duration,
    /// The longest such a call may take in all.
    pub long_call_timeout: Duration,
}

impl Default for GatewayOptions {
    /// 2 s an attempt and 15 s in all; 2 s a call; 30 s of patience with a pause or snapshot that may take 10 minutes.
    fn default() -> Self {
        Self {
            claim_timeout: Duration::from_secs(2),
            claim_budget: Duration::from_secs(15),
            call_timeout: Duration::from_secs(2),
            patience: Duration::from_secs(30),
            long_call_timeout: Duration::from_secs(600),
        }
    }
}

/// The way from a sandbox to its node. A clone is the same gateway.
#[derive(Clone)]
pub struct Gateway {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) fleet: Arc<Fleet>,
    pub(super) daemons: Client,
    pub(super) options: GatewayOptions,
    pub(super) metrics: GatewayMetrics,
    /// Everything that goes on without a client; waited for at the end.
    pub(super) tasks: TaskTracker,
    pub(super) shutdown: CancellationToken,
    /// Pauses and resumes, at most one of a sandbox.
    pub(super) phases: Joint<ClaimId, Arc<Stored<Sandbox>>>,
    pub(super) snapshots: Joint<(ClaimId, Option<String>), Snapshot>,
    pub(super) owed: Owed,
    pub(super) renewals: Renewals,
    /// Claims whose outcome nodes may leave open for long.
    pub(super) lost_attempts: Semaphore,
    pub(super) inventory: Inventory,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway to the nodes of `fleet`. Its own tasks run until `shutdown`.
    pub fn start(
        fleet: Arc<Fleet>,
        inventory: Inventory,
        daemons: Client,
        options: GatewayOptions,
        metrics: GatewayMetrics,
        shutdown: CancellationToken,
    ) -> Self {
        let inner = Arc::new(Inner {
            fleet,
            daemons,
            options,
            metrics,
            tasks: TaskTracker::new(),
            shutdown,
            phases: Joint::default(),
            snapshots: Joint::default(),
            owed: Owed::default(),
            renewals: Renewals::default(),
            lost_attempts: Semaphore::new(LOST_ATTEMPTS),
            inventory,
        });
        let gateway = Self { inner };
        gateway.spawn_until_shutdown(Self::collect_debts(gateway.clone()));
        gateway.spawn_until_shutdown(Self::renew_leases(gateway.clone()));
        gateway
    }

    /// Waits for what is under way, at most for `patience`: claims to be answered or released, lost answers to be settled.
    pub async fn finish(&self, patience: Duration) {
        self.inner.tasks.close();
        if tokio::time::timeout(patience, self.inner.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                tasks = self.inner.tasks.len(),
                "ending with calls to nodes under way"
            );
        }
    }

    fn spawn_until_shutdown(&self, task: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.inner.shutdown.clone();
        self.inner.tasks.spawn(async move {
            shutdown.run_until_cancelled(task).await;
        });
    }

    /// The daemon at `address`, for calls that answer at once.
    pub(super) fn daemon<'a>(&'a self, address: &'a NodeAddress) -> Node<'a> {
        self.inner
            .daemons
            .node(address, self.inner.options.call_timeout)
    }

    /// Notes that a node may be down if it did not say a word.
    pub(super) fn suspect_if_silent(&self, node: &NodeName, error: &sandboxd::Error) {
        if is_silence(error) {
            self.inner.fleet.suspect(node, Now::read());
        }
    }

    /// The address of the sandbox's node.
    pub(super) fn address_of(&self, sandbox: &Sandbox) -> Result<NodeAddress> {
        let address = self.inner.fleet.address(&sandbox.node);
        address.ok_or_else(|| Error::NoAddress {
            node: sandbox.node.clone(),
        })
    }
}

/// Whether a call failed as it does when the node is down.
pub(super) fn is_silence(error: &sandboxd::Error) -> bool {
    matches!(
        error,
        sandboxd::Error::Silent { .. } | sandboxd::Error::Unreachable(_)
    )
}

pub(super) fn key_of(sandbox: &Sandbox) -> SandboxKey {
    SandboxKey::new(sandbox.namespace.clone(), sandbox.name.clone())
}
