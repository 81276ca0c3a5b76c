//! The nodes themselves, to read: for whoever decides what a node should hold.

use super::{Fleet, Health, Pool};
use crate::api::{NodeAddress, NodeName, SandboxKey};

/// A node as the index knows it.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// Its name.
    pub name: NodeName,
    /// Where its daemon is reached; `None` when no publication says.
    pub address: Option<NodeAddress>,
    /// Whether it is heard of.
    pub health: Health,
    /// Whether it says that it is draining.
    pub draining: bool,
    /// Whether an operator cordoned it.
    pub cordoned: bool,
    /// Its warm pools, in the order of their keys.
    pub pools: Vec<Pool>,
}

impl Fleet {
    /// Every node, in the order of their names. Copies all pools: for a round of work, not for a request.
    pub fn nodes(&self) -> Vec<NodeState> {
        let state = self.lock();
        let mut nodes: Vec<_> = state.nodes.values().map(NodeState::of).collect();
        drop(state);
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        nodes
    }

    /// Forgets where a node's daemon is: nothing is sent there until a publication says where it is now.
    pub fn withdraw_address(&self, node: &NodeName) {
        let mut state = self.lock();
        if let Some(known) = state.nodes.get_mut(node) {
            known.address = None;
            state.enlist_all(node);
        }
    }

    /// Whether another claim asks for the name of a sandbox that is listed, and nobody is about to settle it: no create of
    /// that name is under way any more.
    pub fn is_contested(&self, key: &SandboxKey) -> bool {
        let state = self.lock();
        state.losers.contains_key(key) && !state.reserved.contains_key(key)
    }

    /// The sandboxes that ask for the name of another one that is listed.
    pub fn contenders(&self, key: &SandboxKey) -> Vec<super::Sandbox> {
        let state = self.lock();
        let losers = state.losers.get(key).into_iter().flatten();
        let record = |(node, claim): &(_, _)| state.nodes.get(node)?.claims.get(claim).cloned();
        losers
            .filter_map(record)
            .map(|record| record.value.clone())
            .collect()
    }
}

impl NodeState {
    fn of(node: &super::node::Node) -> Self {
        let pools = node.pools.iter().map(|(key, pool)| Pool {
            key: key.clone(),
            warm: pool.warm,
            target: pool.target,
        });
        let mut pools: Vec<_> = pools.collect();
        pools.sort_by(|a, b| a.key.cmp(&b.key));
        Self {
            name: node.name.clone(),
            address: node.address.clone(),
            health: node.health,
            draining: node.draining,
            cordoned: node.cordoned,
            pools,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        api::PoolKey,
        fleet::{HealthLimits, Now, Phase, Report, Row},
        meta::{ResourceVersion, UnixTime},
        store::Limits,
    };

    fn mk_fleet() -> Arc<Fleet> {
        let start = ResourceVersion::first_of_epoch(1).unwrap();
        Arc::new(Fleet::new(
            start,
            Limits::default(),
            HealthLimits::default(),
        ))
    }

    fn mk_report(claim: &str, pools: &[&str]) -> Report {
        let pool = |template: &&str| Pool {
            key: PoolKey {
                template: (*template).into(),
                net: "none".into(),
                size: "small".into(),
            },
            warm: 1,
            target: 2,
        };
        Report {
            address: "10.0.0.1:7777".parse().ok(),
            rows: vec![Row {
                claim: claim.into(),
                claim_ref: "team/box".into(),
                phase: Phase::Running,
                deadline: None,
                claimed_at: Some(UnixTime::from_secs(1)),
                pool: None,
                address: "".into(),
                from_checkpoint: None,
                metadata: Default::default(),
            }],
            pools: Some(pools.iter().map(pool).collect()),
            complete: true,
            published_since: UnixTime::from_secs(0),
        }
    }

    #[test]
    fn nodes_and_pools_come_in_order() {
        let fleet = mk_fleet();
        for node in ["n2", "n1"] {
            let report = mk_report(&format!("sb_{node}"), &["b", "a"]);
            fleet.publish(&node.into(), &report, true, false, Now::read());
        }
        fleet.set_draining(&"n2".into(), true);
        fleet.set_cordoned(&"n1".into(), true);
        let shown: Vec<_> = fleet
            .nodes()
            .iter()
            .map(|node| {
                let keys: Vec<_> = node.pools.iter().map(|p| p.key.template.clone()).collect();
                (node.name.to_string(), node.draining, node.cordoned, keys)
            })
            .collect();
        let keys = || vec!["a".into(), "b".into()];
        assert_eq!(
            shown,
            [
                ("n1".to_owned(), false, true, keys()),
                ("n2".to_owned(), true, false, keys())
            ]
        );
    }

    #[test]
    fn a_name_is_contested_once_no_create_of_it_is_under_way() {
        let (fleet, key) = (mk_fleet(), SandboxKey::new("team", "box"));
        let under_way = fleet.reserve(key.clone()).unwrap();
        for node in ["n1", "n2"] {
            let report = mk_report(&format!("sb_{node}"), &[]);
            fleet.publish(&node.into(), &report, true, false, Now::read());
        }
        assert!(!fleet.is_contested(&key));
        drop(under_way);
        assert!(fleet.is_contested(&key));
        fleet.released(&"n1".into(), &"sb_n1".into(), Now::read());
        assert!(!fleet.is_contested(&key));
    }
}
