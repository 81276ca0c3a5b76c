//! NodeInventories of a large fleet, as its agents publish them.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sandbox_apiserver::{
    api::{InventoryEntry, InventoryPool, NodeInventory},
    meta::UnixTime,
};

use crate::{options::Options, stage::TEMPLATE};

/// One sandbox in so many changes in a round: 1 %.
const ONE_IN: usize = 100;
/// Longer than any measurement, so that no lease ends in one.
const LEASE: Duration = Duration::from_secs(86_400);
/// Between two publications of a node.
const PERIOD: Duration = Duration::from_secs(30);

/// What all nodes publish, round by round. In round 0 every sandbox runs; in each later one 1 % of them are paused, each time others.
pub(super) struct Inventories {
    n_nodes: usize,
    n_sandboxes: usize,
    namespaces: Vec<String>,
    begun: UnixTime,
}

impl Inventories {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            n_nodes: options.scale_nodes,
            n_sandboxes: options.scale_sandboxes,
            namespaces: (0..options.namespaces)
                .map(|it| format!("bench-{it}"))
                .collect(),
            begun: UnixTime::now(),
        }
    }

    pub(super) fn n_sandboxes(&self) -> usize {
        self.n_sandboxes
    }

    /// The inventories of one round, in JSON.
    pub(super) fn of_round(&self, round: usize) -> impl Iterator<Item = Vec<u8>> {
        (0..self.n_nodes).map(move |node| self.json(node, round))
    }

    /// Namespace and name of a sandbox.
    pub(super) fn key(&self, number: usize) -> (&str, String) {
        let namespace = &self.namespaces[self.turn(number) % self.namespaces.len()];
        (namespace, format!("sb-{number:07}"))
    }

    /// How many sandboxes change in a round.
    pub(super) fn n_changed(&self, round: usize) -> usize {
        let numbers = 0..self.n_sandboxes;
        numbers
            .filter(|number| self.changes_in(*number) == round)
            .count()
    }

    /// Whether the sandbox of this name is one that changes in a round.
    pub(super) fn is_changed(&self, name: &str, round: usize) -> bool {
        let number = name.strip_prefix("sb-").and_then(|it| it.parse().ok());
        number.is_some_and(|number| self.changes_in(number) == round)
    }

    fn json(&self, node: usize, round: usize) -> Vec<u8> {
        serde_json::to_vec(&self.inventory(node, round)).expect("an inventory is plain JSON")
    }

    fn inventory(&self, node: usize, round: usize) -> NodeInventory {
        // Names of all nodes lie between each other in the order of lists, as those of users do.
        let numbers = (node..self.n_sandboxes).step_by(self.n_nodes);
        let entries: Vec<_> = numbers.map(|number| self.entry(number, round)).collect();
        let round = u32::try_from(round).expect("there are few rounds");
        NodeInventory {
            metadata: ObjectMeta {
                name: Some(format!("node-{node:04}")),
                resource_version: Some((round + 1).to_string()),
                ..ObjectMeta::default()
            },
            node: format!("node-{node:04}"),
            observed_at: Some(self.begun.after(PERIOD * round).to_string()),
            total: i64::try_from(entries.len()).ok(),
            warm: Some(100),
            entries,
            pools: vec![InventoryPool {
                template: TEMPLATE.to_owned(),
                net: "none".to_owned(),
                size: "small".to_owned(),
                warm: 100,
                target: 100,
            }],
            // No address, so that nobody is asked anything: how long a daemon takes to answer is not the server's.
            ..NodeInventory::default()
        }
    }

    fn entry(&self, number: usize, round: usize) -> InventoryEntry {
        let (namespace, name) = self.key(number);
        let claim_ref = format!("{namespace}/{name}");
        let is_paused = (1..=round).contains(&self.changes_in(number));
        InventoryEntry {
            name: claim_ref.clone(),
            id: format!("sb_{number:016x}"),
            phase: if is_paused { "Hibernated" } else { "Running" }.to_owned(),
            claim_ref,
            addr: format!("10.1.{}.{}:8080", number / 256 % 256, number % 256),
            deadline: Some(self.begun.after(LEASE).to_string()),
            template: TEMPLATE.to_owned(),
            net: "none".to_owned(),
            size: "small".to_owned(),
            claimed_at: Some(self.begun.to_string()),
            from_checkpoint: String::new(),
        }
    }

    /// The round that the sandbox is paused in, if there are so many.
    fn changes_in(&self, number: usize) -> usize {
        self.turn(number) % ONE_IN
    }

    /// Its place on its node.
    fn turn(&self, number: usize) -> usize {
        number / self.n_nodes
    }
}
