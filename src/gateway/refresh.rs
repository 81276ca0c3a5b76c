//! Fresh warm counts, asked for when the known ones say that nothing is left: a publication may be half a minute old, and a
//! pool refills in less.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Gateway;
use crate::{
    api::{NodeName, PoolKey},
    fleet::{Now, Placement, Pool},
};

/// Nodes asked for one claim.
const ASKED: usize = 4;
/// A node is asked at most once in this time, whoever wants to know.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long a node may take.
const TIMEOUT: Duration = Duration::from_millis(500);

/// When each node was asked last. Bounded by the number of nodes.
#[derive(Debug, Default)]
pub(super) struct Refresher {
    // Held for one look-up. The inner lock is held over the question, so that those who come meanwhile wait for its answer.
    asked: Mutex<HashMap<NodeName, Arc<tokio::sync::Mutex<Option<Instant>>>>>,
}

impl Gateway {
    /// Asks some of the nodes that keep VMs of `pool` how many are warm.
    pub(super) async fn refresh(&self, pool: &PoolKey) {
        let keepers = self.inner.fleet.keepers(pool, ASKED);
        futures::future::join_all(keepers.iter().map(|keeper| self.ask_warm(keeper))).await;
    }

    async fn ask_warm(&self, keeper: &Placement) {
        let asked = self
            .inner
            .refresher
            .asked
            .lock()
            .entry(keeper.node.clone())
            .or_default()
            .clone();
        let mut last = asked.lock().await;
        if last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        *last = Some(Instant::now());
        match self
            .inner
            .daemons
            .node(&keeper.address, TIMEOUT)
            .info()
            .await
        {
            Ok(info) => {
                let pools = info.pools.into_iter().map(|pool| Pool {
                    key: pool.key,
                    warm: pool.warm,
                    target: pool.target,
                });
                self.inner.fleet.informed(
                    &keeper.node,
                    &pools.collect::<Vec<_>>(),
                    info.draining,
                    Now::read(),
                );
            }
            Err(error) => {
                tracing::debug!(node = %keeper.node, error = &error as &dyn std::error::Error, "a node does not say what is warm")
            }
        }
    }
}
