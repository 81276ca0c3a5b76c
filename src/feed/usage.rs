//! What sandboxes use: measured by the agent, told beside the changes.
//!
//! It rides on heartbeats, so that it has no number among the changes, wakes no listener, and is nothing to a reader who
//! does not know of it. A listener that comes later is told all of it, and one that is slow only what is newest.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Bound,
};

use serde::{Deserialize, Serialize};

use super::{Board, State};
use crate::api::{ClaimId, PoolKey};

/// What one sandbox has, and uses of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Use {
    /// Claim id.
    pub id: ClaimId,
    /// Number of CPUs.
    pub cpu_count: u32,
    /// Memory that it may use.
    pub mem_total_bytes: u64,
    /// Memory that it uses; `None` when there is no reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_used_bytes: Option<u64>,
}

/// The newest of each sandbox, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Uses {
    last: u64,
    by_claim: HashMap<ClaimId, (u64, Use)>,
    order: BTreeMap<u64, ClaimId>,
}

impl Uses {
    fn put(&mut self, news: Use) {
        let known = self.by_claim.get(&news.id);
        if let Some((number, known)) = known {
            if *known == news {
                return;
            }
            self.order.remove(number);
        }
        self.last += 1;
        self.order.insert(self.last, news.id.clone());
        self.by_claim.insert(news.id.clone(), (self.last, news));
    }

    /// At most `max` that came after number `told`, and the number of the last of them.
    pub(super) fn after(&self, told: u64, max: usize) -> (u64, Vec<Use>) {
        let behind = (Bound::Excluded(told), Bound::Unbounded);
        let numbers = self.order.range(behind).take(max);
        let mut last = told;
        let uses = numbers.filter_map(|(number, claim)| {
            last = *number;
            self.by_claim.get(claim).map(|(_, found)| found.clone())
        });
        let uses = uses.collect();
        (last, uses)
    }

    fn retain(&mut self, listed: &HashSet<ClaimId>) {
        let order = &mut self.order;
        self.by_claim.retain(|claim, (number, _)| {
            let stays = listed.contains(claim);
            if !stays {
                order.remove(number);
            }
            stays
        });
    }
}

impl Board {
    /// Takes over what a sandbox uses. Listeners are told with the next sign of life, unless it is as it was.
    pub fn used(&self, news: Use) {
        self.0.uses.lock().put(news);
    }

    /// Takes over what a sandbox has, as long as nothing is known of what it uses.
    pub fn sized(&self, news: Use) {
        let mut uses = self.0.uses.lock();
        if !uses.by_claim.contains_key(&news.id) {
            uses.put(news);
        }
    }

    /// The sandboxes on the board whose VM runs, and their pools. What others used is forgotten when they are gone.
    pub fn running(&self) -> Vec<(ClaimId, PoolKey)> {
        let state = self.0.state.lock();
        let listed = state.entries.keys().cloned().collect();
        let entries = state.entries.values().map(|entry| &entry.row);
        let running = entries
            .filter(|row| row.state == State::Running)
            .map(|row| (row.id.clone(), row.pool.clone()))
            .collect();
        drop(state);
        self.0.uses.lock().retain(&listed);
        running
    }

    /// What a sandbox used when it was last measured.
    pub fn memory_used(&self, claim: &ClaimId) -> Option<u64> {
        let uses = self.0.uses.lock();
        uses.by_claim.get(claim)?.1.mem_used_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_use(id: &str, used: u64) -> Use {
        Use {
            id: id.into(),
            cpu_count: 1,
            mem_total_bytes: 100,
            mem_used_bytes: Some(used),
        }
    }

    #[track_caller]
    fn check(uses: &Uses, told: u64, max: usize, expected: &[(&str, u64)]) -> u64 {
        let (last, found) = uses.after(told, max);
        let expected: Vec<_> = expected
            .iter()
            .map(|(id, used)| mk_use(id, *used))
            .collect();
        assert_eq!(found, expected);
        last
    }

    #[test]
    fn a_listener_is_told_the_newest_of_each_sandbox_once() {
        let mut uses = Uses::default();
        for (id, used) in [("a", 1), ("b", 1), ("a", 2), ("b", 1)] {
            uses.put(mk_use(id, used));
        }
        let told = check(&uses, 0, 9, &[("b", 1), ("a", 2)]);
        check(&uses, told, 9, &[]);
        uses.put(mk_use("b", 3));
        check(&uses, told, 9, &[("b", 3)]);
        // In parts as well, whatever is news meanwhile.
        let told = check(&uses, 0, 1, &[("a", 2)]);
        uses.put(mk_use("a", 4));
        check(&uses, told, 9, &[("b", 3), ("a", 4)]);
    }

    #[test]
    fn what_is_gone_is_told_to_nobody() {
        let mut uses = Uses::default();
        uses.put(mk_use("a", 1));
        uses.put(mk_use("b", 1));
        uses.retain(&HashSet::from(["b".into()]));
        check(&uses, 0, 9, &[("b", 1)]);
        assert_eq!((uses.by_claim.len(), uses.order.len()), (1, 1));
    }
}
