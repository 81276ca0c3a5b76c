//! Leases longer than a daemon gives at once, renewed until the user's shutdown time.
//!
//! What is due is read off the index in every round, so that whatever brings a shutdown time or a lease there, this server's
//! start as well, has nothing to tell here. Nodes are renewed side by side; a silent one delays no other.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use futures::StreamExt;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{Error, Gateway, Result, lease, route::key_of};
use crate::{
    api::{ClaimId, NodeName},
    fleet::{Now, Sandbox},
    meta::UnixTime,
    store::Stored,
};

/// Time between two looks at the leases.
const ROUND: Duration = Duration::from_secs(5);
/// How long before its end a lease is renewed: long enough to outlast a node's outage.
const MARGIN: Duration = Duration::from_secs(3_600);
/// The least time between two renewals of one lease, whether the first failed or was granted hardly anything.
const RETRY: Duration = Duration::from_secs(30);
/// Nodes renewed at once in one round, and the part of a round that each gets.
const AT_ONCE: usize = 64;
const NODE_WITHIN: Duration = Duration::from_secs(10);

/// The leases that were renewed or tried lately. Bounded by the sandboxes whose lease ends within [`MARGIN`].
#[derive(Debug, Default)]
pub(super) struct Renewals {
    // Held to look up or change entries, never over an await.
    not_before: Mutex<HashMap<(NodeName, ClaimId), Instant>>,
}

type Record = Arc<Stored<Sandbox>>;

impl Gateway {
    /// Makes the lease end at `until`, or as late as the node grants; the rest of the way is renewed in time.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn renew_until(&self, record: Record, until: UnixTime) -> Result<Record> {
        let sandbox = &record.value;
        let address = self.address_of(sandbox)?;
        let ttl = until.since(UnixTime::now()).min(lease::LONGEST_ASKED);
        let renewed = self.daemon(&address).renew(&sandbox.claim, ttl).await;
        self.inner.metrics.called("renew", renewed.is_ok());
        match renewed {
            Ok(deadline) => {
                let (node, claim) = (&sandbox.node, &sandbox.claim);
                let fleet = &self.inner.fleet;
                let renewed = fleet.set_deadline(node, claim, deadline, Now::read());
                renewed.ok_or_else(|| Error::Gone {
                    node: node.clone(),
                    key: key_of(sandbox),
                })
            }
            Err(error) => {
                self.suspect_if_silent(&sandbox.node, &error);
                Err(self.refused(sandbox, &address, error).await)
            }
        }
    }

    pub(super) async fn renew_leases(self) -> Infallible {
        loop {
            tokio::time::sleep(ROUND).await;
            let by = UnixTime::now().after(MARGIN);
            let due = self.inner.fleet.leases_to_renew(by).into_iter();
            let nodes = due.map(|leases| timeout(NODE_WITHIN, self.renew_on_node(leases)));
            let renewals = futures::stream::iter(nodes).buffer_unordered(AT_ONCE);
            // What a node did not get to is due in the next round again.
            renewals.for_each(async |_| {}).await;
            let now = Instant::now();
            let mut not_before = self.inner.renewals.not_before.lock();
            not_before.retain(|_, until| *until > now);
        }
    }

    /// Renews leases of one node, one after the other, until it falls silent.
    async fn renew_on_node(&self, leases: Vec<Record>) {
        for record in leases {
            let sandbox = &record.value;
            // A probe finds out when it is there again.
            if self.inner.fleet.is_suspected(&sandbox.node) {
                return;
            }
            let place = (sandbox.node.clone(), sandbox.claim.clone());
            if self.inner.renewals.is_early(&place) {
                continue;
            }
            let pause = self.renew(&record).await;
            let mut not_before = self.inner.renewals.not_before.lock();
            not_before.insert(place, Instant::now() + pause);
        }
    }

    /// Renews one lease, and gives the time until it may be renewed again.
    async fn renew(&self, record: &Record) -> Duration {
        let sandbox = &record.value;
        let (now, wanted) = (UnixTime::now(), sandbox.user.as_ref());
        let Some(until) = wanted.and_then(|user| user.shutdown_time) else {
            return RETRY;
        };
        match self.renew_until(record.clone(), until).await {
            Ok(renewed) => {
                self.inner.metrics.lease_renewals.inc();
                let granted = renewed.value.deadline.map(|ends| ends.since(now));
                granted.map_or(RETRY, |granted| (granted / 2).max(RETRY))
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(node = %sandbox.node, claim = %sandbox.claim, error, "a lease could not be renewed yet");
                RETRY
            }
        }
    }
}

impl Renewals {
    fn is_early(&self, place: &(NodeName, ClaimId)) -> bool {
        let not_before = self.not_before.lock();
        not_before
            .get(place)
            .is_some_and(|until| *until > Instant::now())
    }
}
