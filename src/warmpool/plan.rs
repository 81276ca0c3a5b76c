//! How many warm VMs of each pool each node should keep: pure, deterministic, without memory.
//!
//! Each pool is divided by Jefferson's divisor method: one VM after the other goes to the node with the largest weight per VM
//! that it would then have. What that gives, and other ways of rounding do not:
//!
//! - The sum is exact, and nodes of one weight differ by at most one.
//! - A node that joins only takes from others and one that leaves only gives to others; more VMs take none away. So no VM is
//!   moved that need not be, although nothing is remembered of the last plan.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use crate::api::{NodeName, PoolKey};

/// What one node should keep warm.
pub type Targets = BTreeMap<PoolKey, u32>;

/// A number of warm VMs, wanted over some nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Which VMs. Demands of one key add up.
    pub key: PoolKey,
    /// How many. 0 keeps the pool and its image, and no VM.
    pub replicas: u32,
    /// Labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
}

/// A node that may keep warm VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub name: NodeName,
    /// Its labels; `None` when nobody knows them, and then every selector is taken to match.
    pub labels: Option<BTreeMap<String, String>>,
    /// Its size relative to that of the other nodes; `None` when unknown, and then it counts as one of the middle.
    pub weight: Option<u32>,
    /// Pools that it cannot keep.
    pub refuses: BTreeSet<PoolKey>,
}

/// What each demand should have on each node. `shares[i]` belongs to `demands[i]`; nodes that match and get nothing are there
/// with 0 only when the demand itself is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number of VMs by demand and node.
    pub shares: Vec<BTreeMap<NodeName, u32>>,
}

impl Plan {
    /// The whole set of each node that gets anything.
    pub fn targets(&self, demands: &[Demand]) -> BTreeMap<NodeName, Targets> {
        let mut targets: BTreeMap<NodeName, Targets> = BTreeMap::new();
        for (demand, share) in demands.iter().zip(&self.shares) {
            for (node, n_vms) in share {
                let set = targets.entry(node.clone()).or_default();
                let target = set.entry(demand.key.clone()).or_default();
                *target = target.saturating_add(*n_vms);
            }
        }
        targets
    }
}

impl Candidate {
    fn matches(&self, demand: &Demand) -> bool {
        let selects = |labels: &BTreeMap<String, String>| {
            let mut selector = demand.node_selector.iter();
            selector.all(|(key, value)| labels.get(key) == Some(value))
        };
        self.labels.as_ref().is_none_or(selects) && !self.refuses.contains(&demand.key)
    }
}

/// Divides every demand over the nodes that match it. The order of either list does not matter. A demand that no node matches
/// gets nothing.
pub fn plan(demands: &[Demand], candidates: &[Candidate]) -> Plan {
    let shares = demands.iter().map(|demand| {
        let matching: Vec<_> = candidates
            .iter()
            .filter(|candidate| candidate.matches(demand))
            .collect();
        divide(demand, &matching)
    });
    Plan {
        shares: shares.collect(),
    }
}

/// One demand over its nodes. One of unknown size counts as one of the middle: that a single Node object goes moves few VMs.
fn divide(demand: &Demand, matching: &[&Candidate]) -> BTreeMap<NodeName, u32> {
    let mut known: Vec<_> = matching.iter().filter_map(|one| one.weight).collect();
    known.sort_unstable();
    let middle = known.get(known.len() / 2).copied().unwrap_or(1);
    let weight = |candidate: &Candidate| u64::from(candidate.weight.unwrap_or(middle).max(1));
    let total: u64 = matching.iter().map(|candidate| weight(candidate)).sum();
    let replicas = u64::from(demand.replicas);
    // Jefferson's method gives no node less than its exact share rounded down, so the count may begin there; what is left is
    // less than one VM a node.
    let mut heap: BinaryHeap<Seat> = matching
        .iter()
        .map(|candidate| Seat {
            weight: weight(candidate),
            n_vms: replicas * weight(candidate) / total,
            rank: rank(&demand.key, &candidate.name),
            node: &candidate.name,
        })
        .collect();
    let given: u64 = heap.iter().map(|seat| seat.n_vms).sum();
    for _ in given..replicas {
        let Some(mut first) = heap.peek_mut() else {
            break;
        };
        first.n_vms += 1;
    }
    heap.into_iter()
        .filter(|seat| seat.n_vms > 0 || replicas == 0)
        .map(|seat| {
            (
                seat.node.clone(),
                u32::try_from(seat.n_vms).unwrap_or(u32::MAX),
            )
        })
        .collect()
}

/// A node on its way to its share. The greatest one gets the next VM.
struct Seat<'a> {
    weight: u64,
    n_vms: u64,
    /// Breaks ties differently for each pool, so that the odd VMs of many small pools do not meet on one node.
    rank: u64,
    node: &'a NodeName,
}

impl Ord for Seat<'_> {
    /// By weight per VM that the node would then have, compared without division.
    fn cmp(&self, other: &Self) -> Ordering {
        let product = |weight: u64, n_vms: u64| u128::from(weight) * u128::from(n_vms + 1);
        product(self.weight, other.n_vms)
            .cmp(&product(other.weight, self.n_vms))
            .then(self.rank.cmp(&other.rank))
            .then_with(|| other.node.cmp(self.node))
    }
}

impl PartialOrd for Seat<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Seat<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Seat<'_> {}

/// A number that is the same on every server and in every version: 64-bit FNV-1a, its bits mixed, since names of nodes differ
/// only at their end.
fn rank(key: &PoolKey, node: &NodeName) -> u64 {
    let parts = [&key.template, &key.net, &key.size].map(|part| part.as_bytes());
    let text = parts.into_iter().chain([node.as_str().as_bytes()]);
    let hash = text
        .flat_map(|part| part.iter().chain(b"|"))
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::warmpool::tests::{mk_demand, mk_key};

    fn mk_nodes(weights: &[u32]) -> Vec<Candidate> {
        let node = |(index, weight): (usize, &u32)| Candidate {
            name: format!("node-{index:03}").into(),
            labels: None,
            weight: Some(*weight),
            refuses: BTreeSet::new(),
        };
        weights.iter().enumerate().map(node).collect()
    }

    fn share(demand: &Demand, nodes: &[Candidate]) -> BTreeMap<NodeName, u32> {
        let mut plan = plan(std::slice::from_ref(demand), nodes);
        plan.shares.remove(0)
    }

    fn sum(share: &BTreeMap<NodeName, u32>) -> u64 {
        share.values().map(|n_vms| u64::from(*n_vms)).sum()
    }

    fn demands() -> impl Strategy<Value = Demand> {
        let counts = prop_oneof![0..20_u32, 0..50_000_u32];
        ("[a-d]", counts).prop_map(|(template, replicas)| mk_demand(&template, replicas))
    }

    fn weights() -> impl Strategy<Value = Vec<u32>> {
        prop_oneof![
            prop::collection::vec(Just(1_u32), 1..60),
            prop::collection::vec(1..300_u32, 1..60)
        ]
    }

    proptest! {
        #[test]
        fn sums_are_exact(demand in demands(), weights in weights()) {
            prop_assert_eq!(sum(&share(&demand, &mk_nodes(&weights))), u64::from(demand.replicas));
        }

        #[test]
        fn equal_nodes_are_even_within_one(demand in demands(), n_nodes in 1..60_usize) {
            let nodes = mk_nodes(&vec![7; n_nodes]);
            let share = share(&demand, &nodes);
            let counts = nodes.iter().map(|node| share.get(&node.name).copied().unwrap_or(0));
            let (least, most) = (counts.clone().min().unwrap(), counts.max().unwrap());
            prop_assert!(most - least <= 1, "{least} to {most}");
        }

        #[test]
        fn nobody_gets_less_than_its_weight_is_worth(demand in demands(), weights in weights()) {
            let nodes = mk_nodes(&weights);
            let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
            let share = share(&demand, &nodes);
            for (node, weight) in nodes.iter().zip(&weights) {
                let worth = u64::from(demand.replicas) * u64::from(*weight) / total;
                prop_assert!(u64::from(share.get(&node.name).copied().unwrap_or(0)) >= worth);
            }
        }

        #[test]
        fn order_does_not_matter(demand in demands(), nodes in weights().prop_map(|w| mk_nodes(&w)).prop_shuffle()) {
            let mut sorted = nodes.clone();
            sorted.sort_by(|a, b| a.name.cmp(&b.name));
            prop_assert_eq!(share(&demand, &nodes), share(&demand, &sorted));
        }

        #[test]
        fn a_node_that_joins_only_takes(demand in demands(), weights in weights(), joining in 1..300_u32) {
            let known = mk_nodes(&weights);
            let before = share(&demand, &known);
            let mut nodes = known;
            nodes.push(Candidate { name: "joining".into(), labels: None, weight: Some(joining), refuses: BTreeSet::new() });
            let after = share(&demand, &nodes);
            for (node, n_vms) in &before {
                prop_assert!(after.get(node).copied().unwrap_or(0) <= *n_vms, "{node} has more than before");
            }
        }

        #[test]
        fn more_replicas_take_none_away(template in "[a-d]", replicas in 0..20_000_u32, more in 1..500_u32, weights in weights()) {
            let nodes = mk_nodes(&weights);
            let before = share(&mk_demand(&template, replicas), &nodes);
            let after = share(&mk_demand(&template, replicas + more), &nodes);
            for (node, n_vms) in &before {
                prop_assert!(after.get(node).copied().unwrap_or(0) >= *n_vms, "{node} has less than before");
            }
        }
    }

    #[test]
    fn only_nodes_with_the_selected_labels_count() {
        let mut demand = mk_demand("a", 5);
        demand.node_selector = BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]);
        let mut nodes = mk_nodes(&[1, 1, 1]);
        nodes[0].labels = Some(demand.node_selector.clone());
        nodes[1].labels = Some(BTreeMap::new());
        assert_eq!(sum(&share(&demand, &nodes)), 5);
        assert_eq!(share(&demand, &nodes).get("node-001"), None);
        nodes[2].labels = Some(BTreeMap::new());
        assert_eq!(share(&demand, &nodes).get("node-000"), Some(&5));
        nodes[0].refuses.insert(mk_key("a"));
        assert_eq!(share(&demand, &nodes), BTreeMap::new());
    }

    #[test]
    fn a_node_of_unknown_size_counts_as_one_of_the_middle() {
        let mut nodes = mk_nodes(&[1, 3, 3, 9]);
        let counts = |nodes: &[Candidate]| {
            let share = share(&mk_demand("a", 32), nodes);
            share.into_values().collect::<Vec<_>>()
        };
        assert_eq!(counts(&nodes), [2, 6, 6, 18]);
        nodes[1].weight = None;
        assert_eq!(counts(&nodes), [2, 6, 6, 18]);
        nodes.iter_mut().for_each(|node| node.weight = None);
        assert_eq!(counts(&nodes), [8; 4]);
    }

    #[test]
    fn a_demand_of_nothing_keeps_the_pool_everywhere() {
        let share = share(&mk_demand("a", 0), &mk_nodes(&[1, 1]));
        assert_eq!(share.into_values().collect::<Vec<_>>(), [0, 0]);
    }

    #[test]
    fn demands_of_one_key_add_up() {
        let demands = [mk_demand("a", 3), mk_demand("a", 4), mk_demand("b", 0)];
        let targets = plan(&demands, &mk_nodes(&[1])).targets(&demands);
        assert_eq!(
            targets["node-000"],
            BTreeMap::from([(mk_key("a"), 7), (mk_key("b"), 0)])
        );
    }

    #[test]
    fn odd_vms_of_many_pools_are_spread() {
        let nodes = mk_nodes(&[1; 10]);
        let demands: Vec<_> = (0..200)
            .map(|index| mk_demand(&format!("image-{index}"), 1))
            .collect();
        let targets = plan(&demands, &nodes).targets(&demands);
        let most = targets.values().map(BTreeMap::len).max().unwrap();
        assert!(most < 40, "{most} of 200 pools on one of 10 nodes");
    }
}
