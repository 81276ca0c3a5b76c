//! What the driver knows of the nodes, and what is to be done next: a state machine without I/O.
//!
//! The rules of a [`Members::step`]:
//!
//! - A node is asked what it has before it is told anything. One that shows pools the driver never wrote is left alone.
//! - Less goes out first. More goes out as far as the wanted sum minus all that nodes may still have leaves room for, so that
//!   the sum is never exceeded, not even while VMs move; what a node that does not answer may have counts in full.
//! - One call a node at a time. One that fails is tried again after a pause of its own, and nobody else waits for it.
//! - Nothing is told to a node before it is on record that the driver writes there.
//! - A pool that a node refused is others' to fill, until the node takes it with no VMs: a try costs nobody a warm VM.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::plan::Targets;
use crate::{
    api::{NodeAddress, NodeName, PoolKey},
    fleet::{Health, NodeState},
    sandboxd,
};

/// Calls to nodes under way at once.
const CALLS_AT_ONCE: usize = 64;
/// Pause after the first failure of a node; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A node that was told something is asked how far it is after this; the pause doubles up to the longest.
const FIRST_LOOK: Duration = Duration::from_millis(250);
const LONGEST_LOOK: Duration = Duration::from_secs(15);
/// Time between two questions to a node whose publication contradicts what it answered.
const DOUBTS_APART: Duration = Duration::from_secs(5);
/// How long a node is spared a pool that it refused, before it is asked to keep it with no VMs.
const SPARED_FOR: Duration = Duration::from_secs(300);
/// Nodes on record beyond which those that are gone are forgotten.
const RECORDED_NODES: usize = 10_000;

/// A call to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) node: NodeName,
    pub(super) address: NodeAddress,
    /// What is asked.
    pub(super) ask: Ask,
}

/// What a node is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// What it has.
    Read,
    /// To keep this, and nothing else.
    Put(Targets),
}

/// What a step leaves to be done.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub(super) calls: Vec<Call>,
    /// To be saved before those nodes can be told anything.
    pub(super) record: Option<Written>,
}

/// The pools that the driver wrote, by node.
pub(super) type Written = BTreeMap<NodeName, BTreeSet<PoolKey>>;

/// Every node.
#[derive(Debug)]
pub(super) struct Members {
    by_name: BTreeMap<NodeName, Member>,
    written: Written,
    /// What is being saved instead.
    saving: Option<Written>,
    takeover: bool,
    n_calls: usize,
}

/// One node.
#[derive(Debug)]
pub(super) struct Member {
    address: Option<NodeAddress>,
    /// Whether it is heard of. What is on a node that is not heard of cannot be claimed and does not count.
    fresh: bool,
    /// Whether it takes new sandboxes.
    pub(super) open: bool,
    stage: Stage,
    /// VMs that can be claimed, as the index knows them.
    pub(super) warm: Targets,
    /// What its publication shows differs from what it answered.
    contradicted: bool,
    under_way: Option<Ask>,
    /// What a call without an answer may have made of it.
    in_doubt: Option<Targets>,
    n_failures: u32,
    /// Not called before this.
    not_before: Instant,
    pub(super) last_error: Option<String>,
    look_pause: Duration,
    looked: Option<Instant>,
    /// Pools that it refused and has not taken since, and until when it is spared them.
    refused: BTreeMap<PoolKey, Instant>,
    /// It refused a set with several new pools: they are brought one by one, to find the one it minds.
    one_by_one: bool,
}

/// What is known of the pools on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing: it has to be asked first.
    Unread,
    /// It keeps this, and the driver may change it.
    Driven(Targets),
    /// It has pools that the driver never wrote, and is left alone.
    Foreign(Targets),
}

impl Members {
    /// No members. `written` is what is on record.
    pub(super) fn new(written: Written, takeover: bool) -> Self {
        Self {
            by_name: BTreeMap::new(),
            written,
            saving: None,
            takeover,
            n_calls: 0,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&NodeName, &Member)> {
        self.by_name.iter()
    }

    /// Takes over which nodes there are and how they are.
    pub(super) fn observe(&mut self, nodes: &[NodeState], now: Instant) {
        let names: BTreeSet<_> = nodes.iter().map(|node| &node.name).collect();
        // A call that is under way reports to its member.
        self.by_name
            .retain(|name, member| names.contains(name) || member.under_way.is_some());
        for node in nodes {
            self.by_name
                .entry(node.name.clone())
                .or_insert_with(|| Member::new(now))
                .observe(node, now);
        }
        for (_, member) in self.by_name.iter_mut().filter(|(n, _)| !names.contains(n)) {
            (member.fresh, member.open) = (false, false);
        }
    }

    /// What is to be done now, on the way to `wanted`: what every node should keep, and the keys that are wanted at all.
    pub(super) fn step(
        &mut self,
        wanted: &BTreeMap<NodeName, Targets>,
        keys: &BTreeSet<PoolKey>,
        now: Instant,
    ) -> Steps {
        let mut steps = Steps::default();
        let mut room = self.room(wanted, now);
        let nothing = Targets::new();
        for member in self.by_name.values_mut() {
            member.refused.retain(|key, _| keys.contains(key));
        }
        let names: Vec<_> = self.by_name.keys().cloned().collect();
        for name in names {
            if self.n_calls >= CALLS_AT_ONCE {
                break;
            }
            let goal = wanted.get(&name).unwrap_or(&nothing);
            let Some(ask) = self.next_ask(&name, goal, keys, &mut room, now) else {
                continue;
            };
            if let Ask::Put(targets) = &ask
                && !self.is_recorded(&name, targets)
            {
                let record = steps.record.get_or_insert_with(|| self.written.clone());
                record
                    .entry(name)
                    .or_default()
                    .extend(targets.keys().cloned());
                continue;
            }
            steps.calls.extend(self.begin(&name, ask, now));
        }
        // One save at a time; what it lacks goes into the next.
        steps.record = steps.record.take().filter(|_| self.saving.is_none());
        if let Some(record) = &mut steps.record {
            self.prune(record, keys);
            self.saving = Some(record.clone());
        }
        steps
    }

    /// The record of the last step was saved, or nobody knows whether it was.
    pub(super) fn recorded(&mut self, is_saved: bool) {
        let Some(saved) = self.saving.take() else {
            return;
        };
        if is_saved {
            self.written = saved;
            return;
        }
        // Whichever of the two is on record, this is.
        for (node, written) in &mut self.written {
            let kept = saved.get(node);
            written.retain(|key| kept.is_some_and(|kept| kept.contains(key)));
        }
    }

    /// A node answered with what it has.
    pub(super) fn answered(&mut self, call: &Call, has: Targets, now: Instant) {
        let written = self.written.get(&call.node);
        let foreign = has
            .keys()
            .any(|key| !written.is_some_and(|written| written.contains(key)));
        let stage = match foreign && !self.takeover {
            true => Stage::Foreign(has),
            false => Stage::Driven(has),
        };
        if let Some(member) = self.end(call) {
            member.answered(stage, now);
        }
    }

    /// A call failed.
    pub(super) fn failed(&mut self, call: &Call, error: &sandboxd::Error, now: Instant) {
        if let Some(member) = self.end(call) {
            member.failed(error, now);
        }
    }

    /// Ends a call. Gives the member that its outcome is about: none when its daemon is elsewhere by now, for then the
    /// outcome says nothing of the one that is there.
    fn end(&mut self, call: &Call) -> Option<&mut Member> {
        self.n_calls -= 1;
        let member = self.by_name.get_mut(&call.node)?;
        if member.address.as_ref() != Some(&call.address) {
            member.under_way = None;
            return None;
        }
        Some(member)
    }

    /// How many more VMs of each key may be asked for: what is wanted, less what nodes may have. `None` while a node that is
    /// heard of has not been read yet.
    fn room(&self, wanted: &BTreeMap<NodeName, Targets>, now: Instant) -> Option<Room> {
        let mut room = Room::default();
        for targets in wanted.values() {
            for (key, target) in targets {
                *room.left.entry(key.clone()).or_default() += i64::from(*target);
            }
        }
        for (name, member) in self.by_name.iter().filter(|(_, member)| member.fresh) {
            if member.stage == Stage::Unread && member.n_failures == 0 {
                return None;
            }
            let goal = wanted.get(name);
            let held = member.may_have();
            let due = member.under_way.is_some() || member.not_before <= now;
            for (key, held) in held {
                let goal = goal.and_then(|goal| goal.get(&key)).copied().unwrap_or(0);
                *room.left.entry(key.clone()).or_default() -= i64::from(held);
                if held > goal && due {
                    room.shrinking.insert(key);
                }
            }
        }
        Some(room)
    }

    fn next_ask(
        &self,
        name: &NodeName,
        goal: &Targets,
        keys: &BTreeSet<PoolKey>,
        room: &mut Option<Room>,
        now: Instant,
    ) -> Option<Ask> {
        let member = self.by_name.get(name)?;
        let idle = member.fresh && member.under_way.is_none() && member.not_before <= now;
        if !idle || member.address.is_none() {
            return None;
        }
        match &member.stage {
            Stage::Unread => Some(Ask::Read),
            Stage::Foreign(_) => member.wants_look(now).then_some(Ask::Read),
            Stage::Driven(has) => {
                let next = member.next_set(has, goal, keys, room.as_mut(), now);
                match next != *has || member.in_doubt.is_some() {
                    true => Some(Ask::Put(next)),
                    false => member.wants_look(now).then_some(Ask::Read),
                }
            }
        }
    }

    /// Whether it is on record that the driver writes `targets`, and will be when what is being saved is.
    fn is_recorded(&self, node: &NodeName, targets: &Targets) -> bool {
        let mut records = [Some(&self.written), self.saving.as_ref()]
            .into_iter()
            .flatten();
        records.all(|record| {
            let written = record.get(node);
            let mut keys = targets.keys();
            keys.all(|key| written.is_some_and(|written| written.contains(key)))
        })
    }

    fn begin(&mut self, node: &NodeName, ask: Ask, now: Instant) -> Option<Call> {
        let member = self.by_name.get_mut(node)?;
        let address = member.address.clone()?;
        member.under_way = Some(ask.clone());
        member.looked = Some(now);
        self.n_calls += 1;
        Some(Call {
            node: node.clone(),
            address,
            ask,
        })
    }
}

impl Members {
    /// Takes out of a record that is written anyway what is neither wanted nor on the node any more, and, when there are too
    /// many, nodes that nobody knows.
    fn prune(&self, record: &mut Written, keys: &BTreeSet<PoolKey>) {
        for (node, written) in record.iter_mut() {
            if let Some(member) = self.by_name.get(node)
                && matches!(member.stage, Stage::Driven(_))
            {
                let may_have = member.may_have();
                written.retain(|key| keys.contains(key) || may_have.contains_key(key));
            }
        }
        let crowded = record.len() > RECORDED_NODES;
        record.retain(|node, written| {
            !written.is_empty() && (!crowded || self.by_name.contains_key(node))
        });
    }
}

/// How many more VMs may be asked for.
#[derive(Debug, Default)]
struct Room {
    left: BTreeMap<PoolKey, i64>,
    /// Keys of which some node is about to keep less: the room grows by itself.
    shrinking: BTreeSet<PoolKey>,
}

impl Room {
    /// As much of `more` as there is room for. Nothing while waiting brings all of it, so that a node is told once.
    fn take(&mut self, key: &PoolKey, more: u32) -> u32 {
        let left = self.left.entry(key.clone()).or_default();
        let granted = i64::from(more).min((*left).max(0));
        if granted < i64::from(more) && self.shrinking.contains(key) {
            return 0;
        }
        *left -= granted;
        u32::try_from(granted).unwrap_or(0)
    }
}

impl Member {
    fn new(now: Instant) -> Self {
        Self {
            address: None,
            fresh: false,
            open: false,
            stage: Stage::Unread,
            warm: Targets::new(),
            contradicted: false,
            under_way: None,
            in_doubt: None,
            n_failures: 0,
            not_before: now,
            last_error: None,
            look_pause: LONGEST_LOOK,
            looked: None,
            refused: BTreeMap::new(),
            one_by_one: false,
        }
    }

    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Whether it gets a part of what is wanted.
    pub(super) fn takes_part(&self) -> bool {
        self.open && !matches!(self.stage, Stage::Foreign(_))
    }

    /// The pools that it does not get.
    pub(super) fn refuses(&self) -> impl Iterator<Item = &PoolKey> {
        self.refused.keys()
    }

    fn observe(&mut self, node: &NodeState, now: Instant) {
        let fresh = node.health == Health::Fresh && node.address.is_some();
        if node.address != self.address || (fresh && !self.fresh) {
            // Another daemon, or one that may have been restarted.
            self.stage = Stage::Unread;
            (self.n_failures, self.in_doubt, self.not_before) = (0, None, now);
            self.refused.values_mut().for_each(|until| *until = now);
        }
        self.address = node.address.clone();
        self.fresh = fresh;
        self.open = fresh && !node.draining && !node.cordoned;
        let pools = node.pools.iter();
        self.warm = pools
            .clone()
            .map(|pool| (pool.key.clone(), pool.warm))
            .collect();
        let shown = pools.map(|pool| (&pool.key, &pool.target));
        self.contradicted = match &self.stage {
            Stage::Unread => false,
            Stage::Driven(has) | Stage::Foreign(has) => !shown.eq(has.iter()),
        };
    }

    /// The most that it may keep of each pool.
    fn may_have(&self) -> Targets {
        let mut most = match &self.stage {
            Stage::Driven(has) => has.clone(),
            // Not ours to count: what is wanted is wanted beside it.
            Stage::Unread | Stage::Foreign(_) => Targets::new(),
        };
        let put = match &self.under_way {
            Some(Ask::Put(targets)) => Some(targets),
            _ => None,
        };
        for (key, target) in put.into_iter().chain(&self.in_doubt).flatten() {
            let known = most.entry(key.clone()).or_default();
            *known = (*known).max(*target);
        }
        most
    }

    /// The set to put next: less at once, more as far as there is room.
    fn next_set(
        &self,
        has: &Targets,
        goal: &Targets,
        keys: &BTreeSet<PoolKey>,
        mut room: Option<&mut Room>,
        now: Instant,
    ) -> Targets {
        let mut next = Targets::new();
        let mut brings_new = false;
        for (key, target) in goal {
            let known = has.get(key).copied();
            let base = known.unwrap_or(0).min(*target);
            if known.is_none() && self.one_by_one && brings_new {
                continue;
            }
            let more = match &mut room {
                Some(room) => room.take(key, target - base),
                None => 0,
            };
            // A pool that has to wait for all of its VMs waits as a whole: its image is not made for nothing.
            if known.is_some() || base + more > 0 || *target == 0 {
                brings_new |= known.is_none();
                next.insert(key.clone(), base + more);
            }
        }
        let due = self.refused.iter();
        let due = due.filter(|(_, until)| self.open && **until <= now);
        for (key, _) in due {
            if has.contains_key(key) || !(self.one_by_one && brings_new) {
                brings_new |= !has.contains_key(key);
                next.entry(key.clone()).or_insert(0);
            }
        }
        if !self.open {
            // It is to come back: what it has of a pool that is still wanted keeps its image, and no VM.
            let kept = has.keys().filter(|key| keys.contains(*key));
            for key in kept {
                next.entry(key.clone()).or_insert(0);
            }
        }
        next
    }

    /// Whether it should be asked how far it is, or what it has after all.
    fn wants_look(&self, now: Instant) -> bool {
        let since = self.looked.map_or(Duration::MAX, |looked| {
            now.saturating_duration_since(looked)
        });
        let filling = match &self.stage {
            Stage::Driven(has) => has
                .iter()
                .any(|(key, target)| self.warm.get(key).copied().unwrap_or(0) < *target),
            _ => false,
        };
        (self.contradicted && since >= DOUBTS_APART) || (filling && since >= self.look_pause)
    }

    fn answered(&mut self, stage: Stage, now: Instant) {
        match self.under_way.take() {
            Some(Ask::Put(told)) => {
                self.look_pause = FIRST_LOOK;
                (self.in_doubt, self.one_by_one) = (None, false);
                self.refused.retain(|key, _| !told.contains_key(key));
            }
            _ => self.look_pause = (self.look_pause * 2).min(LONGEST_LOOK),
        }
        self.stage = stage;
        (self.n_failures, self.last_error) = (0, None);
        self.not_before = now;
    }

    fn failed(&mut self, error: &sandboxd::Error, now: Instant) {
        self.last_error = Some(error.to_string());
        let Some(ask) = self.under_way.take() else {
            return;
        };
        if let (Ask::Put(targets), Stage::Driven(has)) = (&ask, &self.stage) {
            if error.outcome_unknown() {
                let mut most = self.in_doubt.take().unwrap_or_default();
                for (key, target) in targets {
                    let known = most.entry(key.clone()).or_default();
                    *known = (*known).max(*target);
                }
                self.in_doubt = Some(most);
            }
            let refused = matches!(
                error,
                sandboxd::Error::BadRequest { .. } | sandboxd::Error::Conflict { .. }
            );
            let new: Vec<_> = targets
                .keys()
                .filter(|key| !has.contains_key(*key))
                .collect();
            match (refused, new.as_slice()) {
                (true, [minded]) => {
                    self.refused.insert((*minded).clone(), now + SPARED_FOR);
                    return;
                }
                (true, [_, _, ..]) => {
                    self.one_by_one = true;
                    return;
                }
                _ => {}
            }
        }
        self.n_failures += 1;
        let pause = FIRST_PAUSE
            .saturating_mul(1 << (self.n_failures - 1).min(16))
            .min(LONGEST_PAUSE);
        self.not_before = now + pause;
    }
}

#[cfg(test)]
mod tests;
