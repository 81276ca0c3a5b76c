//! Forks: running copies of a sandbox, on its node.

use std::{sync::Arc, time::Duration};

use dashmap::DashSet;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{
    Error, Gateway, Result,
    claim::address,
    lease,
    lifecycle::{check_copyable, conflict},
    settle::SETTLED_AFTER,
};
use crate::{
    admission::{Exceeded, QuotaReservation},
    api::{SandboxKey, Token},
    fleet::{Granted, Now, Phase, Sandbox, id_name},
    sandboxd::{ClaimReply, ForkRequest, SandboxRow},
    store::Stored,
};

/// How long a fork may take: it copies memory.
const FORK_TIMEOUT: Duration = Duration::from_secs(25);

/// Time between the first two questions whether it is done; each further pause is twice as long, to the longest.
const ASKED_APART: Duration = Duration::from_millis(500);
const LONGEST_APART: Duration = Duration::from_secs(8);

/// What is forked.
#[derive(Clone, Debug)]
pub struct ForkOrder {
    /// The parent.
    pub parent: Arc<Stored<Sandbox>>,
    /// Number of children.
    pub count: u32,
    /// Lease of each; `None`: the daemon's default.
    pub ttl: Option<Duration>,
    /// What their names begin with; their ids follow.
    pub name_prefix: String,
    /// Whether the prefix is of this fork alone, so that a repeated order is known by it.
    pub once: bool,
}

/// What became of an order.
#[derive(Debug)]
pub enum Forked {
    /// The children were made.
    Now(Vec<ForkedSandbox>),
    /// An order like this was carried out before: those of its children that are left.
    Before(Vec<Arc<Stored<Sandbox>>>),
}

/// Forks that are made once and are under way: parent and prefix. Bounded by the number of requests in flight.
pub(super) type ForksUnderWay = Arc<DashSet<(Uuid, String)>>;

/// A place among them, given back when dropped.
struct UnderWay {
    forks: ForksUnderWay,
    key: (Uuid, String),
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.forks.remove(&self.key);
    }
}

/// A child.
#[derive(Debug)]
pub struct ForkedSandbox {
    /// The sandbox, listed.
    pub record: Arc<Stored<Sandbox>>,
    /// Its credential, which nothing else keeps.
    pub token: Token,
}

impl Gateway {
    /// Makes copies of a sandbox, all or none, and lists them. Children whose client has left are released. Of an order that is
    /// carried out once, the children that are there are given again.
    ///
    /// `admit` is asked once it is sure that there are to be children. What it gives is kept until they are listed, or can come no more.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn fork(
        &self,
        order: ForkOrder,
        admit: impl FnOnce() -> Result<QuotaReservation, Exceeded>,
    ) -> Result<Forked> {
        let parent = &order.parent.value;
        if parent.deleted_at.is_some() {
            return Err(conflict("the sandbox is being deleted"));
        }
        let under_way = match order.once {
            true => Some(self.begin_once(&order)?),
            false => None,
        };
        if order.once {
            // Whatever has become of the parent since.
            let children = self.made_before(&order).await?;
            if !children.is_empty() {
                return Ok(Forked::Before(children));
            }
        }
        check_copyable(parent, "it is forked", "a failed sandbox cannot be forked")?;
        self.check_open(parent)?;
        let quota = admit()?;
        // A prefix may have copies of earlier orders.
        let least = match order.once {
            true => 1,
            false => self.n_copies(&order) + order.count as usize,
        };
        let (answer_tx, answer_rx) = oneshot::channel();
        let (gateway, left_open) = (self.clone(), order.clone());
        let run = self.clone().run_fork(order, quota, answer_tx);
        self.inner.tasks.spawn(async move {
            if let Some(quota) = run.await
                && (under_way.is_some() || quota.is_counted())
            {
                // The daemon may still be at it: one that is asked again would make it twice, and what it makes counts.
                let node = gateway.clone();
                gateway.spawn_until_shutdown(async move {
                    let _held = (under_way, quota);
                    let _ = tokio::time::timeout(SETTLED_AFTER, node.until_made(&left_open, least))
                        .await;
                });
            }
        });
        let children = answer_rx.await.unwrap_or(Err(Error::Ending));
        children.map(Forked::Now)
    }

    /// Keeps out others with the same order.
    fn begin_once(&self, order: &ForkOrder) -> Result<UnderWay> {
        let key = (order.parent.value.uid, order.name_prefix.clone());
        let forks = self.inner.forks.clone();
        match forks.insert(key.clone()) {
            true => Ok(UnderWay { forks, key }),
            false => Err(conflict("a fork of this id is under way")),
        }
    }

    /// Sandboxes on the parent's node whose names begin with the prefix.
    fn n_copies(&self, order: &ForkOrder) -> usize {
        let parent = &order.parent.value;
        let is_copy = |it: &Sandbox| {
            it.namespace == parent.namespace && it.name.starts_with(&order.name_prefix)
        };
        self.inner.fleet.count_on(&parent.node, is_copy)
    }

    /// Returns when the node has so many children of the order's prefix and all of them are listed.
    async fn until_made(&self, order: &ForkOrder, least: usize) {
        let (prefix, mut apart) = (reference_prefix(order), ASKED_APART);
        loop {
            tokio::time::sleep(apart).await;
            apart = (apart * 2).min(LONGEST_APART);
            let rows = match self.address_of(&order.parent.value) {
                Ok(address) => self.daemon(&address).sandboxes().await,
                Err(_) => continue,
            };
            let Ok(rows) = rows else {
                continue;
            };
            let node = &order.parent.value.node;
            let children: Vec<_> = rows.iter().filter(|row| is_child(&prefix, row)).collect();
            let is_listed = |row: &&SandboxRow| self.inner.fleet.by_claim(node, &row.id).is_some();
            if children.len() >= least && children.iter().all(is_listed) {
                return;
            }
        }
    }

    /// The children that an earlier order with the same prefix left. The node is asked, since its answer may have been lost.
    async fn made_before(&self, order: &ForkOrder) -> Result<Vec<Arc<Stored<Sandbox>>>> {
        let parent = &order.parent.value;
        let address = self.address_of(parent)?;
        let rows = match self.daemon(&address).sandboxes().await {
            Ok(rows) => rows,
            Err(error) => return Err(self.refused(parent, &address, error).await),
        };
        let prefix = reference_prefix(order);
        let children = rows.iter().filter(|row| is_child(&prefix, row)).map(|row| {
            let record = self.inner.fleet.by_claim(&parent.node, &row.id);
            record.ok_or_else(|| {
                conflict("the copies of this id are on their node and not listed yet")
            })
        });
        let children = children.collect::<Result<Vec<_>>>()?;
        let is_left = |child: &Arc<Stored<Sandbox>>| child.value.deleted_at.is_none();
        let mut children: Vec<_> = children.into_iter().filter(is_left).collect();
        children.sort_by(|one, other| one.value.name.cmp(&other.value.name));
        Ok(children)
    }

    /// Gives `quota` back unless the node did not say what it did.
    async fn run_fork(
        self,
        order: ForkOrder,
        quota: QuotaReservation,
        answer_tx: oneshot::Sender<Result<Vec<ForkedSandbox>>>,
    ) -> Option<QuotaReservation> {
        let answer = self.call_fork(&order).await;
        self.inner.metrics.called("fork", answer.is_ok());
        let is_known = !matches!(answer, Err(Error::OutcomeUnknown { .. }));
        let listed = answer.map(|children| {
            let listed = children
                .into_iter()
                .filter_map(|child| self.list_child(&order, &quota, child));
            listed.collect::<Vec<_>>()
        });
        // Before the client hears of it, so that its next create is not refused on account of this fork.
        let open = (!is_known).then_some(quota);
        if let Err(Ok(children)) = answer_tx.send(listed) {
            for child in children {
                self.inner.metrics.abandoned_claims.inc();
                let _ = self.release(child.record).await;
            }
        }
        open
    }

    async fn call_fork(&self, order: &ForkOrder) -> Result<Vec<ClaimReply>> {
        let parent = &order.parent.value;
        let address = self.address_of(parent)?;
        let request = ForkRequest {
            count: order.count,
            ttl_seconds: lease::ttl_seconds(order.ttl),
            claim_ref_prefix: reference_prefix(order),
        };
        match self
            .inner
            .daemons
            .node(&address, FORK_TIMEOUT)
            .fork(&parent.claim, &request)
            .await
        {
            Ok(children) => Ok(children),
            Err(error) => Err(self.refused(parent, &address, error).await),
        }
    }

    /// `None`: the child was seen on its node, and deleted, before the fork was answered.
    fn list_child(
        &self,
        order: &ForkOrder,
        quota: &QuotaReservation,
        child: ClaimReply,
    ) -> Option<ForkedSandbox> {
        let parent = &order.parent.value;
        let name = [order.name_prefix.as_str(), &id_name(&child.id)].concat();
        quota.name(&name);
        let claimed_at = lease::claimed_at(&child, order.ttl);
        let granted = Granted {
            node: parent.node.clone(),
            claim: child.id.clone(),
            pool: parent.pool.as_deref().cloned(),
            address: address(child.owner_addr),
            from_checkpoint: child.from_checkpoint.as_ref().map(|id| id.as_str().into()),
            claimed_at,
            deadline: child.deadline,
            phase: Phase::Running,
            user: None,
        };
        let key = SandboxKey::new(parent.namespace.clone(), name);
        let record = self
            .inner
            .fleet
            .granted_unnamed(Some(key), granted, Now::read())?;
        Some(ForkedSandbox {
            record,
            token: child.token,
        })
    }
}

/// Whether a node's claim is a child of the order with this [`reference_prefix`].
fn is_child(prefix: &str, row: &SandboxRow) -> bool {
    row.claim_ref.strip_prefix(prefix) == Some(row.id.as_str())
}

/// What the node writes down of each child, in front of its id.
fn reference_prefix(order: &ForkOrder) -> String {
    format!("{}/{}", order.parent.value.namespace, order.name_prefix)
}
