//! The gateway itself, and how a sandbox's node is found.

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::{
    Error, GatewayMetrics, Result, fork::ForksUnderWay, joint::Joint, long::LongCalls, owed::Owed,
    release::DENIALS, renew::Renewals,
};
use crate::{
    api::{NodeAddress, NodeName, PoolKey, SandboxKey},
    fleet::{Fleet, Now, Sandbox},
    inventory::Inventory,
    sandboxd::{self, Client, Node},
    snapshots::{Snapshot, Snapshots},
    store::{Key, Stored},
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
    /// Cancelled when a task that runs until `shutdown` has ended before.
    broken: CancellationToken,
    // By the sandbox's uid: claim ids are a node's own, and two nodes may give the same.
    /// Pauses and resumes, at most one of a sandbox.
    pub(super) phases: Joint<Uuid, Arc<Stored<Sandbox>>>,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) checkpoints: Joint<(Uuid, Key), Arc<Stored<Snapshot>>>,
    pub(super) copies: LongCalls,
    pub(super) turns: LongCalls,
    pub(super) promotions: Joint<(Uuid, String), PoolKey>,
    pub(super) forks: ForksUnderWay,
    pub(super) owed: Owed,
    pub(super) renewals: Renewals,
    /// Claims whose outcome nodes may leave open for long.
    pub(super) lost_attempts: Semaphore,
    /// What nodes denied when it was to be released.
    pub(super) denials: Arc<Semaphore>,
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
        let snapshots = Arc::new(Snapshots::new(fleet.clone()));
        let inner = Arc::new(Inner {
            fleet,
            daemons,
            options,
            metrics,
            tasks: TaskTracker::new(),
            shutdown,
            broken: CancellationToken::new(),
            phases: Joint::default(),
            snapshots,
            checkpoints: Joint::default(),
            copies: LongCalls::copies(),
            turns: LongCalls::turns(),
            promotions: Joint::default(),
            forks: ForksUnderWay::default(),
            owed: Owed::default(),
            renewals: Renewals::default(),
            lost_attempts: Semaphore::new(LOST_ATTEMPTS),
            denials: Arc::new(Semaphore::new(DENIALS)),
            inventory,
        });
        let gateway = Self { inner };
        gateway.spawn_duty(Self::collect_debts(gateway.clone()));
        gateway.spawn_duty(Self::renew_leases(gateway.clone()));
        let (snapshots, daemons) = (gateway.inner.snapshots.clone(), &gateway.inner.daemons);
        let unattributed = gateway.inner.metrics.unattributed_snapshots.clone();
        gateway.spawn_duty(snapshots.follow(daemons.clone(), unattributed));
        gateway
    }

    /// The snapshots that the nodes hold.
    pub fn snapshots(&self) -> &Arc<Snapshots> {
        &self.inner.snapshots
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

    /// Runs one of the gateway's own duties until requests are refused. One that panics breaks the gateway.
    fn spawn_duty(&self, duty: impl Future<Output = Infallible> + Send + 'static) {
        let shutdown = self.inner.shutdown.clone();
        let broken = self.inner.broken.clone().drop_guard();
        self.inner.tasks.spawn(async move {
            shutdown.run_until_cancelled(duty).await;
            // Not come to by a panic.
            broken.disarm();
        });
    }

    /// Runs a task to its end, or until requests are refused.
    pub(super) fn spawn_until_shutdown(&self, task: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.inner.shutdown.clone();
        self.inner.tasks.spawn(async move {
            shutdown.run_until_cancelled(task).await;
        });
    }

    /// Returns when one of the gateway's own tasks has panicked: owed releases or long leases are not seen to any more.
    pub async fn broken(&self) {
        self.inner.broken.cancelled().await;
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

/// Whether an answer began and did not end, so that the node is there to be asked.
pub(super) fn breaks_off(error: &sandboxd::Error) -> bool {
    matches!(
        error,
        sandboxd::Error::Interrupted(_) | sandboxd::Error::Malformed { .. }
    )
}

pub(super) fn key_of(sandbox: &Sandbox) -> SandboxKey {
    SandboxKey::new(sandbox.namespace.clone(), sandbox.name.clone())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        fleet::HealthLimits,
        inventory::{InventoryMetrics, Options},
        meta::ResourceVersion,
        sandboxd::{ClientOptions, TokenSource},
        store::Limits,
    };

    pub(in crate::gateway) fn mk_gateway() -> Gateway {
        let first = ResourceVersion::first_of_epoch(1).unwrap();
        let fleet = Fleet::new(first, Limits::default(), HealthLimits::default());
        let (fleet, token) = (Arc::new(fleet), TokenSource::Absent);
        let ca_file = None;
        let daemons = Client::new(ClientOptions { token, ca_file }).unwrap();
        let (of_fleet, counters) = (fleet.clone(), InventoryMetrics::default());
        let inventory = Inventory::new(of_fleet, daemons.clone(), Options::default(), counters);
        let (options, metrics) = (GatewayOptions::default(), GatewayMetrics::default());
        let shutdown = CancellationToken::new();
        Gateway::start(fleet, inventory, daemons, options, metrics, shutdown)
    }

    #[tokio::test]
    async fn a_task_that_panics_is_told_and_one_that_ends_or_is_stopped_is_not() {
        let gateway = mk_gateway();
        gateway.spawn_until_shutdown(std::future::ready(()));
        gateway.inner.shutdown.cancel();
        gateway.finish(Duration::from_secs(10)).await;
        assert!(!gateway.inner.broken.is_cancelled());

        let gateway = mk_gateway();
        gateway.spawn_duty(async { panic!("on purpose") });
        let broken = tokio::time::timeout(Duration::from_secs(10), gateway.broken());
        broken.await.expect("it is told");
    }
}
