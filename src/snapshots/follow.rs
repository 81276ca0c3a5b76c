//! Asking the nodes.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use prometheus_client::metrics::gauge::Gauge;
use rand::Rng as _;
use tokio::time::Instant;

use super::Snapshots;
use crate::{
    api::{NodeAddress, NodeName},
    meta::UnixTime,
    sandboxd::{Client, Error},
};

/// Time between two questions to a node, give or take a quarter, so that the nodes of a fleet are asked spread out.
const PERIOD: Duration = Duration::from_secs(60);
/// How often it is looked whether a node has come.
const TICK: Duration = Duration::from_millis(500);
/// How long a node may take to answer.
const WITHIN: Duration = Duration::from_secs(2);
/// Nodes asked at a time.
const AT_ONCE: usize = 64;
/// How often a node is asked again at once because something was done there meanwhile.
const AGAIN: usize = 3;

impl Snapshots {
    /// Keeps the index in agreement with the nodes, until dropped.
    pub async fn follow(self: Arc<Self>, daemons: Client, unattributed: Gauge) -> Infallible {
        let mut next: HashMap<NodeName, Instant> = HashMap::new();
        // A node that takes its time holds up nobody but those who wait for its place.
        let mut asking = FuturesUnordered::new();
        let mut asked: HashSet<NodeName> = HashSet::new();
        loop {
            let names = self.fleet.node_names();
            next.retain(|node, _| names.contains(node));
            self.forget_others(&names);
            let now = Instant::now();
            for (node, address) in self.fleet.addresses() {
                let is_due = self.is_due(&node) || next.get(&node).is_none_or(|next| *next <= now);
                if !is_due || asked.len() >= AT_ONCE || !asked.insert(node.clone()) {
                    continue;
                }
                let apart = PERIOD.mul_f64(rand::rng().random_range(0.75..1.25));
                next.insert(node.clone(), now + apart);
                asking.push(self.ask(&daemons, node, address));
            }
            let tick = tokio::time::sleep(TICK);
            tokio::pin!(tick);
            loop {
                tokio::select! {
                    Some(node) = asking.next() => {
                        asked.remove(&node);
                    }
                    () = &mut tick => break,
                    () = self.asked_for.notified() => break,
                }
            }
            let n_unattributed = self.n_unattributed();
            unattributed.set(i64::try_from(n_unattributed).unwrap_or(i64::MAX));
        }
    }

    /// Asks one node, and gives its name back.
    async fn ask(&self, daemons: &Client, node: NodeName, address: NodeAddress) -> NodeName {
        for _ in 0..AGAIN {
            let question = self.question(&node);
            let records = match daemons.node(&address, WITHIN).checkpoints().await {
                Ok(records) => records,
                // A daemon without the route has no checkpoints. One that had some is merely starting, behind something else.
                Err(Error::RouteMissing) if !self.holds_any(&node) => Vec::new(),
                Err(error) => {
                    tracing::debug!(%node, error = &error as &dyn std::error::Error, "a node does not tell its checkpoints");
                    self.unanswered(&question);
                    return node;
                }
            };
            if self.answered(&question, &records, UnixTime::now()) {
                return node;
            }
        }
        self.ask_soon(&node);
        node
    }
}
