//! What nodes say, taken into the index.

use std::{collections::HashSet, sync::Arc, time::Duration};

use compact_str::CompactString;

use super::{
    Attempt, Health, Now, Phase, ReadGuard, Report, Row, Sandbox, Usage,
    index::{Fleet, State},
    naming::{id_name, key_of_claim_ref, namespace_of_claim_ref, uid_of},
    node::{End, Hold, Node, Reading},
};
use crate::{
    api::{ClaimId, NodeAddress, NodeName, PoolKey, SandboxKey, ShutdownPolicy, UserPart, labels},
    meta::{UnixTime, validate_label_value, validate_qualified_name},
};

/// By how much two reports of one lease may differ, as clocks make it.
const CLOCKS_APART: Duration = Duration::from_secs(10);

/// What a publication left open and a direct read of the node would settle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    /// Sandboxes that the publication does not list any more.
    pub absent: usize,
    /// Sandboxes that are not listed yet: it does not say when they were claimed, or the node said that it does not have them; and
    /// those of which the node said something else a moment ago.
    pub unlisted: usize,
}

impl Doubt {
    /// Whether there is anything to ask.
    pub fn is_some(self) -> bool {
        self != Self::default()
    }
}

impl Fleet {
    /// Takes over a node's publication.
    ///
    /// `watched`: it was published while this server looked on, so the node is alive; one that merely lay in etcd at the
    /// start says nothing about that. `admit_undated`: nobody can be asked when new sandboxes were claimed, so the
    /// publication's own age is taken.
    pub fn publish(
        &self,
        node: &NodeName,
        report: &Report,
        watched: bool,
        admit_undated: bool,
        now: Now,
    ) -> Doubt {
        let mut state = self.lock();
        let known = state.node_mut(node, now);
        if report.address.is_some() {
            known.address.clone_from(&report.address);
        }
        if let Some(pools) = &report.pools {
            state.set_pools(node, pools);
        }
        if watched {
            state.heard(node, now);
        }
        state.enlist_all(node);
        let mut doubt = Doubt::default();
        let mut listed = HashSet::with_capacity(report.rows.len());
        for row in &report.rows {
            if listed.insert(&row.claim) {
                let fallback = admit_undated.then_some(report.published_since);
                doubt.unlisted +=
                    usize::from(!state.merge_row(node, row, Source::Publication { fallback }, now));
            }
        }
        if report.complete {
            doubt.absent = state.absent(node, &listed);
        }
        doubt
    }

    /// Takes over what a node answered to the question for all its sandboxes, and gives whether that settled everything.
    ///
    /// What this server or an agent changed since the question was sent is left as it is. What the node does not list is gone. Where
    /// a publication that came meanwhile says otherwise, one of the two is older, and nobody can tell which: then it is left open,
    /// and the node is to be asked again.
    #[must_use = "what is left open is to be asked for again"]
    pub fn read(&self, read: ReadGuard<'_>, rows: &[Row], now: Now) -> bool {
        let node = read.node().clone();
        let mut state = self.lock();
        let known = state.nodes.get_mut(&node);
        let ended = known.and_then(|known| {
            let reading = known.end_read(read.number())?;
            (known.unread, known.told) = (false, Some(now.instant));
            Some(reading)
        });
        // A node that was forgotten meanwhile stays forgotten.
        let Some(Reading {
            touched, published, ..
        }) = ended
        else {
            return true;
        };
        state.heard(&node, now);
        let (mut listed, mut settled) = (HashSet::with_capacity(rows.len()), true);
        for row in rows {
            if !listed.insert(&row.claim) || touched.contains(&row.claim) {
                continue;
            }
            if published.contains(&row.claim) && state.differs(&node, row, now.wall) {
                settled = false;
                continue;
            }
            state.merge_row(&node, row, Source::Node, now);
        }
        for claim in state.missing(&node, &listed) {
            if published.contains(&claim) {
                settled = false;
            } else if !touched.contains(&claim) {
                state.vanish(&node, &claim, now.wall);
            }
        }
        settled
    }

    /// Takes over what a node's agent tells of one sandbox. It may have seen that before this server's last write.
    ///
    /// An unknown node is one that was forgotten meanwhile: it stays so.
    pub fn observe(&self, node: &NodeName, row: &Row, now: Now) {
        let mut state = self.lock();
        if state.nodes.contains_key(node) {
            state.merge_row(node, row, Source::Feed, now);
            // Also if it is as it was known.
            state.node_mut(node, now).touch(&row.claim);
        }
    }

    /// Takes over that a node, asked for this one sandbox with a working token, does not have it.
    pub fn confirmed_absent(&self, node: &NodeName, claim: &ClaimId, now: Now) {
        self.lock().vanish(node, claim, now.wall);
    }

    /// Forgets a node whose publication was deleted, and everything on it.
    pub fn forget_node(&self, node: &NodeName) {
        let mut state = self.lock();
        state.set_pools(node, &[]);
        let Some(gone) = state.nodes.remove(node) else {
            return;
        };
        state.finalizing.retain(|(of, _)| of != node);
        for record in gone.claims.iter() {
            state.delete(&record.value);
        }
    }
}

/// Who says it.
#[derive(Clone, Copy)]
enum Source {
    /// A publication: late, maybe replayed. `fallback`: creation time of what it does not date.
    Publication { fallback: Option<UnixTime> },
    /// The node's agent: as of a moment ago.
    Feed,
    /// The node itself, asked after this server's last write.
    Node,
}

impl Source {
    /// Whether a sandbox that this source lists on `node` is out of reach.
    fn is_lost(self, node: &Node) -> bool {
        matches!(self, Self::Publication { .. }) && node.health == Health::Lost
    }
}

impl State {
    /// Takes one row over. False: it was left out, and the node itself is to be asked.
    fn merge_row(&mut self, name: &NodeName, row: &Row, source: Source, now: Now) -> bool {
        let was_touched = self.node_mut(name, now).is_touched(&row.claim);
        let is_dated = self.take_row(name, row, source, now);
        if matches!(source, Source::Publication { .. }) && !was_touched {
            self.node_mut(name, now).was_published(&row.claim);
        }
        is_dated
    }

    fn take_row(&mut self, name: &NodeName, row: &Row, source: Source, now: Now) -> bool {
        let node = self.node_mut(name, now);
        match (node.dead.get(&row.claim), source) {
            (None, _) => {}
            (Some(End::Absent), Source::Feed | Source::Node) => node.dead.revive(&row.claim),
            (Some(End::Absent), Source::Publication { .. }) => return false,
            (Some(End::Released), _) => return true,
        }
        if let Some(known) = node.claims.get(&row.claim).cloned() {
            let hold = settle(node, row, source, now);
            let is_older =
                matches!(source, Source::Publication { .. }) && node.told_lately(now.instant);
            let mut merged = merge(&known.value, row, hold.as_ref(), now.wall);
            merged.daemon = node.daemon();
            merged.pool = node.merged_pool(known.value.pool.as_ref(), row.pool.as_ref());
            merged.node_lost = source.is_lost(node) && !merged.is_over();
            if is_older && contradicts(&merged, &known.value, now.wall) {
                return false;
            }
            let state_of = |sandbox: &Sandbox| (sandbox.phase, sandbox.node_lost, sandbox.gone);
            if state_of(&merged) != state_of(&known.value) {
                merged.changed = now.wall;
            }
            let learnt = (merged.attempt != known.value.attempt).then(|| merged.clone());
            if merged != known.value {
                self.put(merged);
            }
            if let Some(learnt) = learnt {
                self.contest(&learnt);
            }
            return true;
        }
        let created = match (row.claimed_at, source) {
            (Some(claimed_at), _) => claimed_at,
            (
                None,
                Source::Publication {
                    fallback: Some(fallback),
                },
            ) => fallback,
            (None, Source::Publication { fallback: None }) => return false,
            (None, Source::Feed | Source::Node) => now.wall,
        };
        let mut sandbox = first_seen(node, row, created, now.wall);
        sandbox.node_lost = source.is_lost(node) && !sandbox.is_over();
        self.list(sandbox, wanted_key(row));
        true
    }

    /// Whether the row says of a known claim what only one of two reports can be right about.
    fn differs(&self, node: &NodeName, row: &Row, now: UnixTime) -> bool {
        let node = self.nodes.get(node);
        let known = node.and_then(|node| node.claims.get(&row.claim));
        known.is_some_and(|known| {
            let deadline = row.deadline.or(known.value.deadline);
            (known.value.phase, known.value.deadline)
                != (effective(row.phase, deadline, now), deadline)
        })
    }

    /// How many claims of the node `listed` leaves out although no hold protects them.
    fn absent(&self, node: &NodeName, listed: &HashSet<&ClaimId>) -> usize {
        let node = self.nodes.get(node);
        let missing = node.into_iter().flat_map(|node| node.missing(listed));
        let is_held = |sandbox: &Sandbox| {
            let hold = node.and_then(|node| node.holds.get(&sandbox.claim));
            // A claim that ended before it was ever listed never will be.
            hold.is_some_and(|hold| hold.unlisted) && sandbox.phase != Phase::Expired
        };
        missing.filter(|sandbox| !is_held(sandbox)).count()
    }

    /// The claims of the node that `listed` leaves out.
    fn missing(&self, node: &NodeName, listed: &HashSet<&ClaimId>) -> Vec<ClaimId> {
        let node = self.nodes.get(node);
        let missing = node.into_iter().flat_map(|node| node.missing(listed));
        missing.map(|sandbox| sandbox.claim.clone()).collect()
    }

    /// The node does not have the claim any more.
    pub(super) fn vanish(&mut self, name: &NodeName, claim: &ClaimId, now: UnixTime) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        node.bury(claim, End::Absent);
        let there = node.claims.get(claim).filter(|record| !record.value.gone);
        let Some(record) = there.cloned() else {
            return;
        };
        let expired = record
            .value
            .deadline
            .is_some_and(|deadline| deadline <= now);
        let is_deleted = record.value.deleted_at.is_some();
        let outlives = expired && record.value.is_retained();
        match record.value.has_finalizers() {
            true if is_deleted => self.keep_for_finalizers(&record.value, now),
            false if is_deleted || !outlives => {
                self.unlist(name, claim, End::Absent);
            }
            _ => self.retain(record.value.clone(), now),
        }
    }
}

impl Node {
    fn missing<'a>(&'a self, listed: &'a HashSet<&ClaimId>) -> impl Iterator<Item = &'a Sandbox> {
        let there = self.claims.iter().map(|record| &record.value);
        there.filter(|sandbox| !sandbox.gone && !listed.contains(&sandbox.claim))
    }

    /// Where the daemon is reached, shared by its sandboxes.
    pub(super) fn daemon(&mut self) -> Option<Arc<NodeAddress>> {
        if self.daemon.as_deref() != self.address.as_ref() {
            self.daemon = self.address.clone().map(Arc::new);
        }
        self.daemon.clone()
    }

    fn merged_pool(
        &mut self,
        known: Option<&Arc<PoolKey>>,
        reported: Option<&PoolKey>,
    ) -> Option<Arc<PoolKey>> {
        match reported {
            Some(reported) if known.is_none_or(|known| **known != *reported) => {
                Some(self.pool_keys.share(reported))
            }
            _ => known.cloned(),
        }
    }
}

/// Lets go of what the row confirms; the node's own word also settles what it contradicts. Returns what still holds.
fn settle(node: &mut Node, row: &Row, source: Source, now: Now) -> Option<Hold> {
    let hold = node.holds.get_mut(&row.claim)?;
    let outweighed = match source {
        Source::Publication { .. } => false,
        Source::Feed => hold.is_old(now.instant),
        Source::Node => true,
    };
    hold.unlisted = false;
    hold.phase
        .take_if(|phase| outweighed || *phase == row.phase);
    hold.deadline
        .take_if(|deadline| outweighed || Some(*deadline) == row.deadline);
    if hold.is_settled() {
        return node.holds.remove(&row.claim);
    }
    Some(hold.clone())
}

/// Whether only one of the two can be so: another phase, or a lease that ends earlier.
fn contradicts(said: &Sandbox, known: &Sandbox, now: UnixTime) -> bool {
    let ends_earlier = |(said, known): (UnixTime, UnixTime)| said.after(CLOCKS_APART) < known;
    said.phase != effective(known.phase, known.deadline, now)
        || said.deadline.zip(known.deadline).is_some_and(ends_earlier)
}

/// The known sandbox with what the row says of it. Creation time and name stay for the object's life.
fn merge(known: &Sandbox, row: &Row, hold: Option<&Hold>, now: UnixTime) -> Sandbox {
    let deadline = hold
        .and_then(|hold| hold.deadline)
        .or(row.deadline)
        .or(known.deadline);
    let phase = hold.and_then(|hold| hold.phase).unwrap_or(row.phase);
    Sandbox {
        address: if row.address.is_empty() {
            known.address.clone()
        } else {
            row.address.clone()
        },
        from_checkpoint: row
            .from_checkpoint
            .clone()
            .or_else(|| known.from_checkpoint.clone()),
        phase: effective(phase, deadline, now),
        deadline,
        // A publication does not say it.
        attempt: known.attempt.or_else(|| Attempt::of(&row.metadata)),
        gone: false,
        ..known.clone()
    }
}

/// A lease that is over outweighs whatever the machine still does.
fn effective(phase: Phase, deadline: Option<UnixTime>, now: UnixTime) -> Phase {
    match deadline {
        Some(deadline) if deadline <= now => Phase::Expired,
        _ => phase,
    }
}

fn first_seen(node: &mut Node, row: &Row, created: UnixTime, now: UnixTime) -> Sandbox {
    Sandbox {
        namespace: namespace_of_claim_ref(&row.claim_ref).into(),
        name: CompactString::default(),
        uid: uid_of(&node.name, &row.claim),
        attempt: Attempt::of(&row.metadata),
        claim: row.claim.clone(),
        node: node.name.clone(),
        address: row.address.clone(),
        daemon: node.daemon(),
        pool: node.merged_pool(None, row.pool.as_ref()),
        from_checkpoint: row.from_checkpoint.clone(),
        created,
        changed: created,
        deadline: row.deadline,
        deleted_at: None,
        phase: effective(row.phase, row.deadline, now),
        gone: false,
        node_lost: false,
        name_taken: false,
        user: restored_user_part(row),
        usage: Usage::default(),
    }
}

/// The labels that the daemon kept for us in the claim's metadata; what else the user sent is gone with the server that
/// knew it.
fn restored_user_part(row: &Row) -> Option<Arc<UserPart>> {
    let is_label = |(key, value): &(&String, &String)| {
        !key.starts_with(labels::PREFIX)
            && validate_qualified_name(key).is_ok()
            && validate_label_value(value).is_ok()
    };
    let restored = row.metadata.iter().filter(is_label);
    let labels: std::collections::BTreeMap<_, _> = restored
        .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
        .collect();
    let part = UserPart {
        labels,
        generation: 1,
        shutdown_policy: ShutdownPolicy::Delete,
        ..UserPart::default()
    };
    (!part.labels.is_empty()).then(|| Arc::new(part))
}

/// The key a claim asks for. A fork's child refers to itself by a prefix and its id, whose underscore no name may have.
fn wanted_key(row: &Row) -> Option<SandboxKey> {
    let claim_ref = match row.claim_ref.as_str() {
        "" => row.metadata.get(labels::CLAIM_REF)?.as_str(),
        claim_ref => claim_ref,
    };
    key_of_claim_ref(claim_ref).or_else(|| {
        let prefix = claim_ref.strip_suffix(row.claim.as_str())?;
        key_of_claim_ref(&[prefix, &id_name(&row.claim)].concat())
    })
}
