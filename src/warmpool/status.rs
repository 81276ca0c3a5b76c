//! What a pool's status says.

use std::{collections::BTreeMap, fmt::Write as _};

use jiff::Timestamp;

use super::{
    members::{Members, Stage},
    objects::replicas,
    plan::Targets,
};
use crate::{
    api::{NodeName, PoolKey, SandboxWarmPool, SandboxWarmPoolStatus},
    controller::Said,
    meta::fnv1a,
};

/// Nodes that a message names; the numbers speak of all.
const NAMED_NODES: usize = 10;

/// Reasons of Ready for a pool that is carried out.
pub(super) const FILLED: &str = "Filled";
pub(super) const FILLING: &str = "Filling";

/// Upstream's label of a pool's members, that the scale subresource's selector selects by.
const POOL_HASH: &str = "agents.x-k8s.io/warm-pool-sandbox";

/// How much of what the nodes have is not yet given to a pool: two pools of one key share the VMs of a node.
#[derive(Debug, Default)]
pub(super) struct Stock {
    nodes: BTreeMap<NodeName, (Targets, Targets)>,
}

/// A pool on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) node: NodeName,
    /// VMs that it should keep, that it was told to keep, and that can be claimed.
    pub(super) wanted: u32,
    pub(super) kept: u32,
    pub(super) ready: u32,
    /// Why the last call failed.
    pub(super) error: Option<String>,
}

/// How a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It cannot be carried out at all.
    Refused {
        reason: &'static str,
        message: String,
    },
    /// It is divided over these nodes.
    Divided(Vec<Part>),
}

impl Stock {
    /// All that the driven nodes have.
    pub(super) fn of(members: &Members) -> Self {
        let members = members.iter().map(|(name, member)| {
            let kept = match member.stage() {
                Stage::Driven(has) if member.open => has.clone(),
                _ => Targets::new(),
            };
            (name.clone(), (kept, member.warm.clone()))
        });
        Self {
            nodes: members.collect(),
        }
    }

    /// A pool's part of it.
    pub(super) fn take(
        &mut self,
        members: &Members,
        key: &PoolKey,
        share: &BTreeMap<NodeName, u32>,
    ) -> Vec<Part> {
        let errors: BTreeMap<_, _> = members
            .iter()
            .filter(|(name, _)| share.contains_key(*name))
            .filter_map(|(name, member)| Some((name, member.last_error.clone()?)))
            .collect();
        let parts = share.iter().map(|(node, wanted)| {
            let (kept, ready) = self.take_of(node, key, *wanted);
            Part {
                node: node.clone(),
                wanted: *wanted,
                kept,
                ready,
                error: errors.get(node).cloned(),
            }
        });
        parts.collect()
    }

    fn take_of(&mut self, node: &NodeName, key: &PoolKey, wanted: u32) -> (u32, u32) {
        let Some((kept, warm)) = self.nodes.get_mut(node) else {
            return (0, 0);
        };
        let take = |from: &mut Targets, most: u32| {
            let left = from.entry(key.clone()).or_default();
            let taken = (*left).min(most);
            *left -= taken;
            taken
        };
        let kept = take(kept, wanted);
        (kept, take(warm, kept))
    }
}

/// The status of `pool`; times of conditions that say the same as before stay. `foreign` are the nodes that are left alone.
pub(super) fn status(
    pool: &SandboxWarmPool,
    progress: &Progress,
    foreign: &[NodeName],
    now: Timestamp,
) -> SandboxWarmPoolStatus {
    let generation = pool.metadata.generation;
    let known = pool.status.as_ref().map_or(&[][..], |s| &s.conditions);
    let parts = match progress {
        Progress::Refused { .. } => &[][..],
        Progress::Divided(parts) => parts,
    };
    let sum = |count: fn(&Part) -> u32| {
        let sum: u64 = parts.iter().map(|part| u64::from(count(part))).sum();
        i32::try_from(sum).unwrap_or(i32::MAX)
    };
    let said = [
        Some(ready(pool, progress)),
        failing(parts),
        foreign_pools(foreign),
    ];
    let conditions = said.into_iter().flatten();
    let conditions = conditions.map(|said| said.condition(known, generation, now));
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    SandboxWarmPoolStatus {
        conditions: conditions.collect(),
        observed_generation: generation,
        ready_replicas: Some(sum(|part| part.ready)),
        replicas: Some(sum(|part| part.kept)),
        selector: Some(format!("{POOL_HASH}={:08x}", fnv1a(name.as_bytes()))),
    }
}

fn ready(pool: &SandboxWarmPool, progress: &Progress) -> Said {
    let said = |status, reason, message| Said {
        kind: "Ready",
        status,
        reason,
        message,
    };
    let parts = match progress {
        Progress::Refused { reason, message } => return said("False", reason, message.clone()),
        Progress::Divided(parts) => parts,
    };
    let wanted = replicas(pool);
    if parts.is_empty() && wanted > 0 {
        let message = "no node that takes sandboxes matches the template".to_owned();
        return said("False", "NoMatchingNode", message);
    }
    let ready: u64 = parts.iter().map(|part| u64::from(part.ready)).sum();
    let count = format!("{ready} of {wanted} ready on {} nodes", parts.len());
    match ready == u64::from(wanted) {
        true => said("True", FILLED, count),
        false => said("False", FILLING, count + &behind(parts)),
    }
}

/// The nodes that lack most, by name.
fn behind(parts: &[Part]) -> String {
    let mut behind: Vec<_> = parts
        .iter()
        .filter(|part| part.ready < part.wanted)
        .collect();
    behind.sort_by_key(|part| std::cmp::Reverse(part.wanted - part.ready));
    let mut text = String::new();
    for (index, part) in behind.iter().take(NAMED_NODES).enumerate() {
        let separator = if index == 0 { "; " } else { ", " };
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "{separator}{} {}/{}",
            part.node, part.ready, part.wanted
        );
    }
    text + &more(behind.len())
}

fn failing(parts: &[Part]) -> Option<Said> {
    let failing: Vec<_> = parts
        .iter()
        .filter_map(|part| Some(format!("{}: {}", part.node, part.error.as_ref()?)))
        .collect();
    (!failing.is_empty()).then(|| Said {
        kind: "NodesFailing",
        status: "True",
        reason: "CallsFailed",
        message: named(&failing, "; "),
    })
}

fn foreign_pools(nodes: &[NodeName]) -> Option<Said> {
    (!nodes.is_empty()).then(|| Said {
        kind: "ForeignPools",
        status: "True",
        reason: "PoolsNotOurs",
        message: format!(
            "left alone, since they have pools that this driver did not write (--warm-pool-takeover replaces them): {}",
            named(nodes, ", ")
        ),
    })
}

fn named<T: ToString>(all: &[T], separator: &str) -> String {
    let named: Vec<_> = all.iter().take(NAMED_NODES).map(T::to_string).collect();
    named.join(separator) + &more(all.len())
}

fn more(n_all: usize) -> String {
    match n_all.checked_sub(NAMED_NODES) {
        None | Some(0) => String::new(),
        Some(n_more) => format!(" and {n_more} more"),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
    use serde_json::json;

    use super::*;

    fn mk_pool(replicas: i32) -> SandboxWarmPool {
        let spec = json!({"replicas": replicas, "sandboxTemplateRef": {"name": "t"}});
        let object = json!({"metadata": {"name": "p", "generation": 3}, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    fn mk_part(node: &str, wanted: u32, ready: u32) -> Part {
        Part {
            node: node.into(),
            wanted,
            kept: wanted,
            ready,
            error: None,
        }
    }

    /// The conditions in short.
    fn shown(status: &SandboxWarmPoolStatus) -> Vec<String> {
        let show = |c: &Condition| format!("{}={} {}: {}", c.type_, c.status, c.reason, c.message);
        status.conditions.iter().map(show).collect()
    }

    #[test]
    fn a_pool_that_fills_names_who_is_behind() {
        let parts = vec![mk_part("a", 2, 2), mk_part("b", 2, 1), mk_part("c", 1, 0)];
        let status = status(
            &mk_pool(5),
            &Progress::Divided(parts),
            &[],
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(
            shown(&status),
            ["Ready=False Filling: 3 of 5 ready on 3 nodes; b 1/2, c 0/1"]
        );
        assert_eq!((status.replicas, status.ready_replicas), (Some(5), Some(3)));
        assert_eq!(status.observed_generation, Some(3));
        assert_eq!(
            status.selector.unwrap(),
            "agents.x-k8s.io/warm-pool-sandbox=f50c43ef"
        );
    }

    #[test]
    fn failures_and_foreign_nodes_have_conditions_of_their_own() {
        let mut part = mk_part("a", 1, 1);
        part.error = Some("node unreachable".to_owned());
        let foreign: Vec<NodeName> = (0..12).map(|n| format!("f{n}").into()).collect();
        let status = status(
            &mk_pool(1),
            &Progress::Divided(vec![part]),
            &foreign,
            Timestamp::UNIX_EPOCH,
        );
        let shown = shown(&status);
        assert_eq!(shown[0], "Ready=True Filled: 1 of 1 ready on 1 nodes");
        assert_eq!(
            shown[1],
            "NodesFailing=True CallsFailed: a: node unreachable"
        );
        assert!(
            shown[2].ends_with("f0, f1, f2, f3, f4, f5, f6, f7, f8, f9 and 2 more"),
            "{}",
            shown[2]
        );
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let mut pool = mk_pool(2);
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let divided = |ready| Progress::Divided(vec![mk_part("a", 2, ready)]);
        let time = |pool: &SandboxWarmPool| {
            let status = pool.status.as_ref().unwrap();
            status.conditions[0].last_transition_time.0.as_second()
        };
        for (now, ready, expected) in [(1, 0, 1), (2, 1, 1), (3, 2, 3), (4, 2, 3), (5, 1, 5)] {
            pool.status = Some(status(&pool, &divided(ready), &[], at(now)));
            assert_eq!(time(&pool), expected, "at {now}");
        }
    }

    #[test]
    fn a_pool_without_nodes_or_template_says_so() {
        let nowhere = Progress::Divided(Vec::new());
        let refused = Progress::Refused {
            reason: "TemplateNotFound",
            message: "gone".to_owned(),
        };
        let reason = |pool: &SandboxWarmPool, progress: &Progress| {
            let status = status(pool, progress, &[], Timestamp::UNIX_EPOCH);
            status.conditions[0].reason.clone()
        };
        assert_eq!(reason(&mk_pool(1), &nowhere), "NoMatchingNode");
        assert_eq!(reason(&mk_pool(0), &nowhere), "Filled");
        assert_eq!(reason(&mk_pool(1), &refused), "TemplateNotFound");
    }
}
