//! Forks: running copies of a sandbox, on its node.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{Error, Gateway, Result, claim::address, lease, lifecycle::conflict};
use crate::{
    api::{SandboxKey, Token},
    fleet::{Granted, Now, Phase, Sandbox, id_name},
    sandboxd::{ClaimReply, ForkRequest},
    store::Stored,
};

/// How long a fork may take: it copies memory.
const FORK_TIMEOUT: Duration = Duration::from_secs(25);

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
    /// Makes copies of a sandbox, all or none, and lists them. Children whose client has left are released.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn fork(&self, order: ForkOrder) -> Result<Vec<ForkedSandbox>> {
        let parent = &order.parent.value;
        match parent.phase {
            Phase::Running | Phase::Paused | Phase::Unknown => {}
            Phase::Archived => {
                return Err(conflict(
                    "an archived sandbox must be resumed before it is forked",
                ));
            }
            Phase::Failed => return Err(conflict("a failed sandbox cannot be forked")),
            Phase::Expired => return Err(conflict("the sandbox has expired")),
        }
        if parent.deleted_at.is_some() {
            return Err(conflict("the sandbox is being deleted"));
        }
        let (answer_tx, answer_rx) = oneshot::channel();
        self.inner
            .tasks
            .spawn(self.clone().run_fork(order, answer_tx));
        answer_rx.await.unwrap_or(Err(Error::Ending))
    }

    async fn run_fork(
        self,
        order: ForkOrder,
        answer_tx: oneshot::Sender<Result<Vec<ForkedSandbox>>>,
    ) {
        let answer = self.call_fork(&order).await;
        self.inner.metrics.called("fork", answer.is_ok());
        let listed = answer.map(|children| {
            let listed = children
                .into_iter()
                .map(|child| self.list_child(&order, child));
            listed.collect::<Vec<_>>()
        });
        if let Err(Ok(children)) = answer_tx.send(listed) {
            for child in children {
                self.inner.metrics.abandoned_claims.inc();
                let _ = self.release(child.record).await;
            }
        }
    }

    async fn call_fork(&self, order: &ForkOrder) -> Result<Vec<ClaimReply>> {
        let parent = &order.parent.value;
        let address = self.address_of(parent)?;
        let request = ForkRequest {
            count: order.count,
            ttl_seconds: lease::ttl_seconds(order.ttl),
            claim_ref_prefix: format!("{}/{}", parent.namespace, order.name_prefix),
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

    fn list_child(&self, order: &ForkOrder, child: ClaimReply) -> ForkedSandbox {
        let parent = &order.parent.value;
        let name = [order.name_prefix.as_str(), &id_name(&child.id)].concat();
        let claimed_at = lease::claimed_at(&child, order.ttl);
        let granted = Granted {
            node: parent.node.clone(),
            claim: child.id.clone(),
            pool: parent.pool.clone(),
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
            .granted_unnamed(Some(key), granted, Now::read());
        ForkedSandbox {
            record,
            token: child.token,
        }
    }
}
