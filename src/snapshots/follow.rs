//! Asking the nodes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
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
    pub async fn follow(self: Arc<Self>, daemons: Client) {
        let mut next: HashMap<NodeName, Instant> = HashMap::new();
        loop {
            let nodes = self.fleet.addresses();
            let names: HashSet<NodeName> = self.fleet.node_names();
            next.retain(|node, _| names.contains(node));
            self.forget_others(&names);
            let now = Instant::now();
            let due = nodes.into_iter().filter(|(node, _)| {
                self.is_due(node) || next.get(node).is_none_or(|next| *next <= now)
            });
            let due: Vec<_> = due.collect();
            for (node, _) in &due {
                let apart = PERIOD.mul_f64(rand::rng().random_range(0.75..1.25));
                next.insert(node.clone(), now + apart);
            }
            let questions = futures::stream::iter(due);
            questions
                .for_each_concurrent(AT_ONCE, |(node, address)| self.ask(&daemons, node, address))
                .await;
            let _ = tokio::time::timeout(TICK, self.asked_for.notified()).await;
        }
    }

    async fn ask(&self, daemons: &Client, node: NodeName, address: NodeAddress) {
        for _ in 0..AGAIN {
            let question = self.question(&node);
            let records = match daemons.node(&address, WITHIN).checkpoints().await {
                Ok(records) => records,
                // A daemon without the route has no checkpoints.
                Err(Error::RouteMissing) => Vec::new(),
                Err(error) => {
                    tracing::debug!(%node, error = &error as &dyn std::error::Error, "a node does not tell its checkpoints");
                    return self.unanswered(&question);
                }
            };
            if self.answered(&question, &records, UnixTime::now()) {
                return;
            }
        }
    }
}
