//! Which node a new sandbox goes to.

use std::collections::HashMap;

use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IteratorRandom};

use super::{Fleet, Pool, index::State, node::NodePool};
use crate::api::{NodeAddress, NodeName, PoolKey};

/// A node chosen for a claim; its warm count is lowered already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The node.
    pub node: NodeName,
    /// Where its daemon is reached.
    pub address: NodeAddress,
}

/// The nodes that have warm VMs of each pool, for a draw in constant time.
#[derive(Debug)]
pub(super) struct Candidates {
    by_pool: HashMap<PoolKey, Vec<NodeName>>,
    rng: SmallRng,
}

impl Default for Candidates {
    fn default() -> Self {
        Self {
            by_pool: HashMap::new(),
            rng: SmallRng::from_os_rng(),
        }
    }
}

impl Fleet {
    /// Draws two nodes that have warm VMs of `pool`, takes the one with more, and counts one of its VMs as gone.
    ///
    /// Nodes in `tried` are passed over. `None`: no other node is known to have one.
    pub fn place(&self, pool: &PoolKey, tried: &[NodeName]) -> Option<Placement> {
        let mut state = self.lock();
        let node = state.draw(pool, tried)?;
        let address = state.nodes.get(&node)?.address.clone()?;
        state.add_warm(&node, pool, -1);
        Some(Placement { node, address })
    }

    /// Takes a placement back: its VM was not touched.
    pub fn give_back(&self, pool: &PoolKey, node: &NodeName) {
        self.lock().add_warm(node, pool, 1);
    }

    /// Notes that a node had nothing warm of `pool` after all.
    pub fn found_empty(&self, pool: &PoolKey, node: &NodeName) {
        self.lock().add_warm(node, pool, i64::MIN);
    }

    /// Nodes that keep VMs of `pool` ready but are not known to have one now: `limit` of them, drawn, and none of those in `tried`.
    pub fn keepers(&self, pool: &PoolKey, tried: &[NodeName], limit: usize) -> Vec<NodeName> {
        let mut state = self.lock();
        let State {
            nodes, candidates, ..
        } = &mut *state;
        let keeps = |node: &&super::node::Node| {
            node.takes_claims() && node.pools.get(pool).is_some_and(|p| p.target > 0)
        };
        let keepers = nodes.values().filter(keeps).map(|node| &node.name);
        let keepers = keepers.filter(|node| !tried.contains(node));
        let drawn = keepers.choose_multiple(&mut candidates.rng, limit);
        drawn.into_iter().cloned().collect()
    }

    /// Whether any node speaks of a pool with this template, of whatever net and size.
    pub fn knows_template(&self, template: &str) -> bool {
        let state = self.lock();
        state
            .nodes
            .values()
            .any(|node| node.pools.keys().any(|pool| pool.template == template))
    }

    /// Whether any node takes claims at all.
    pub fn has_ready_node(&self) -> bool {
        self.lock()
            .nodes
            .values()
            .any(super::node::Node::takes_claims)
    }
}

impl State {
    fn draw(&mut self, pool: &PoolKey, tried: &[NodeName]) -> Option<NodeName> {
        let Candidates { by_pool, rng } = &mut self.candidates;
        let nodes = by_pool.get(pool)?;
        let pick = |rng: &mut SmallRng| nodes.get(rng.random_range(0..nodes.len().max(1)));
        let drawn = [pick(rng), pick(rng)]
            .into_iter()
            .flatten()
            .filter(|node| !tried.contains(node));
        let warm = |node: &&NodeName| {
            self.nodes
                .get(*node)
                .and_then(|n| n.pools.get(pool))
                .map_or(0, |pool| pool.warm)
        };
        // After a few failed attempts both draws may be nodes that were tried: then look at all, which is rare.
        drawn
            .max_by_key(warm)
            .or_else(|| nodes.iter().find(|node| !tried.contains(node)))
            .cloned()
    }

    /// Changes a warm count, and whether the node is drawn for the pool.
    fn add_warm(&mut self, node: &NodeName, pool: &PoolKey, change: i64) {
        let Some(known) = self
            .nodes
            .get_mut(node)
            .and_then(|node| node.pools.get_mut(pool))
        else {
            return;
        };
        let had = known.warm > 0;
        known.warm =
            u32::try_from(i64::from(known.warm).saturating_add(change).max(0)).unwrap_or(u32::MAX);
        let has = known.warm > 0;
        if had != has {
            self.enlist(node, pool);
        }
    }

    /// Takes over what a node says of its pools.
    pub(super) fn set_pools(&mut self, name: &NodeName, pools: &[Pool]) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let mut gone = std::mem::take(&mut node.pools);
        for pool in pools {
            gone.remove(&pool.key);
            node.pools.insert(
                pool.key.clone(),
                NodePool {
                    warm: pool.warm,
                    target: pool.target,
                },
            );
        }
        for key in gone.keys().chain(pools.iter().map(|pool| &pool.key)) {
            self.enlist(name, key);
        }
    }

    /// Brings a node's place among all its pools' candidates up to date, after its own state changed.
    pub(super) fn enlist_all(&mut self, name: &NodeName) {
        let keys: Vec<_> = self
            .nodes
            .get(name)
            .into_iter()
            .flat_map(|node| node.pools.keys().cloned())
            .collect();
        for key in keys {
            self.enlist(name, &key);
        }
    }

    fn enlist(&mut self, name: &NodeName, pool: &PoolKey) {
        let node = self.nodes.get(name).filter(|node| node.takes_claims());
        let eligible = node
            .and_then(|node| node.pools.get(pool))
            .is_some_and(|pool| pool.warm > 0);
        let by_pool = &mut self.candidates.by_pool;
        let listed = by_pool
            .get(pool)
            .and_then(|nodes| nodes.iter().position(|known| known == name));
        match (eligible, listed) {
            (true, None) => by_pool.entry(pool.clone()).or_default().push(name.clone()),
            (false, Some(place)) => {
                let nodes = by_pool.get_mut(pool).expect("the node was found in it");
                nodes.swap_remove(place);
                if nodes.is_empty() {
                    by_pool.remove(pool);
                }
            }
            _ => {}
        }
    }
}
