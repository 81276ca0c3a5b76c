//! Leases longer than a daemon gives at once, renewed until the user's shutdown time.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{Error, Gateway, Result, route::key_of};
use crate::{
    api::{ClaimId, NodeName},
    fleet::Sandbox,
    meta::UnixTime,
    store::Stored,
};

/// Time between two looks at the leases.
const ROUND: Duration = Duration::from_secs(10);
/// How long before its end a lease is renewed: long enough to outlast a node's outage.
const MARGIN: Duration = Duration::from_secs(3_600);
/// Pause before a renewal that failed is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// When each lease is due, earliest first. Bounded by the sandboxes whose shutdown time is beyond their lease.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    // Held to push or pop one entry, never over an await.
    due: Mutex<BinaryHeap<Reverse<(UnixTime, NodeName, ClaimId)>>>,
}

impl Gateway {
    /// Sees to it that the lease reaches the user's shutdown time.
    pub fn renew_if_needed(&self, sandbox: &Sandbox) {
        let shutdown = sandbox.user.as_ref().and_then(|user| user.shutdown_time);
        if let (Some(deadline), Some(shutdown)) = (sandbox.deadline, shutdown)
            && shutdown > deadline
        {
            let margin = i64::try_from(MARGIN.as_secs()).unwrap_or(0);
            let at = UnixTime::from_secs(
                (deadline.as_secs() - margin).max(UnixTime::now().as_secs() + 1),
            );
            self.push(at, sandbox);
        }
    }

    /// Makes the lease end at `until`, or as late as the node grants; the rest of the way is renewed in time.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn renew_until(
        &self,
        record: Arc<Stored<Sandbox>>,
        until: UnixTime,
    ) -> Result<Arc<Stored<Sandbox>>> {
        let sandbox = &record.value;
        let address = self.address_of(sandbox)?;
        let renewed = self
            .daemon(&address)
            .renew(&sandbox.claim, until.since(UnixTime::now()))
            .await;
        self.inner.metrics.called("renew", renewed.is_ok());
        match renewed {
            Ok(deadline) => {
                let renewed =
                    self.inner
                        .fleet
                        .set_deadline(&sandbox.node, &sandbox.claim, deadline);
                renewed.ok_or_else(|| Error::Gone {
                    node: sandbox.node.clone(),
                    key: key_of(sandbox),
                })
            }
            Err(error) => Err(self.refused(sandbox, &address, error).await),
        }
    }

    fn push(&self, at: UnixTime, sandbox: &Sandbox) {
        self.inner.renewals.due.lock().push(Reverse((
            at,
            sandbox.node.clone(),
            sandbox.claim.clone(),
        )));
    }

    fn pop_due(&self, now: UnixTime) -> Option<(NodeName, ClaimId)> {
        let mut due = self.inner.renewals.due.lock();
        let Reverse((at, _, _)) = due.peek()?;
        if *at > now {
            return None;
        }
        due.pop().map(|Reverse((_, node, claim))| (node, claim))
    }

    pub(super) async fn renew_leases(self) {
        loop {
            tokio::time::sleep(ROUND).await;
            while let Some((node, claim)) = self.pop_due(UnixTime::now()) {
                if let Some(record) = self.inner.fleet.by_claim(&node, &claim) {
                    self.renew(&record.value).await;
                }
            }
        }
    }

    async fn renew(&self, sandbox: &Sandbox) {
        let now = UnixTime::now();
        let Some(shutdown) = sandbox.user.as_ref().and_then(|user| user.shutdown_time) else {
            return;
        };
        if sandbox.gone || sandbox.deleted_at.is_some() || shutdown <= now {
            return;
        }
        let renewed = match self.address_of(sandbox) {
            Ok(address) => self
                .daemon(&address)
                .renew(&sandbox.claim, shutdown.since(now))
                .await
                .ok(),
            Err(_) => None,
        };
        let Some(deadline) = renewed else {
            tracing::warn!(node = %sandbox.node, claim = %sandbox.claim, "a lease could not be renewed yet");
            return self.push(now.after(RETRY), sandbox);
        };
        self.inner.metrics.lease_renewals.inc();
        if let Some(record) = self
            .inner
            .fleet
            .set_deadline(&sandbox.node, &sandbox.claim, deadline)
        {
            self.renew_if_needed(&record.value);
        }
    }
}
