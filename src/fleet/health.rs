//! What the passing of time changes: nodes that fall silent, leases that end.

use std::time::Duration;

use super::{Fleet, Health, Now, Phase, Pool, Sandbox, index::State, node::Node};
use crate::{
    api::{NodeAddress, NodeName},
    meta::UnixTime,
};

/// How long after the end of its lease a sandbox may outlive it on the node.
pub const REAP_GRACE: Duration = Duration::from_secs(30);
/// The same for a lost node, which is asked meanwhile; and what is added for one that was never heard, whose clock may be far
/// behind ours: the longest lease there is.
const LOST_GRACE: Duration = Duration::from_secs(3_600);
const UNHEARD_GRACE: Duration = Duration::from_secs(86_400);
/// Time between two reads of a node that leaves something open.
const QUESTIONS_APART: Duration = Duration::from_secs(30);

/// After how long a silence a node is what.
#[derive(Clone, Copy, Debug)]
pub struct HealthLimits {
    /// A node silent for longer is asked whether it is there.
    pub fresh: Duration,
    /// A node silent for longer gets no new sandboxes.
    pub stale: Duration,
    /// The sandboxes of a node silent for longer are shown as unknown.
    pub lost: Duration,
    /// Time between two questions to a silent node.
    pub probe_interval: Duration,
}

impl Default for HealthLimits {
    /// 60 s, 90 s and 120 s, asked every 30 s: two, three and four publications of the default period.
    fn default() -> Self {
        Self {
            fresh: Duration::from_secs(60),
            stale: Duration::from_secs(90),
            lost: Duration::from_secs(120),
            probe_interval: Duration::from_secs(30),
        }
    }
}

/// What a tick leaves to be done.
#[derive(Debug, Default)]
pub struct Attention {
    /// Nodes to ask whether they are there.
    pub probe: Vec<(NodeName, NodeAddress)>,
    /// Nodes to read: one did not confirm what this server did to a claim, did not say that a claim went with its lease, or did
    /// not answer when it was read and is heard of again.
    pub read: Vec<NodeName>,
}

impl Fleet {
    /// Brings the index to `now`. To be called about once a second.
    pub fn tick(&self, now: Now) -> Attention {
        let mut state = self.lock();
        let names: Vec<_> = state.nodes.keys().cloned().collect();
        let mut attention = Attention::default();
        for name in &names {
            state.judge(name, now);
            state.expire(name, now.wall);
            state.reap(name, now.wall);
            attention.probe.extend(state.due_probe(name, now));
            attention.read.extend(state.due_read(name, now));
        }
        state.drop_remnants(now.wall);
        attention
    }

    /// Notes that a node answered, or published while this server watched.
    pub fn heard(&self, node: &NodeName, now: Now) {
        self.lock().heard(node, now);
    }

    /// Notes that a node did not answer when it was read: what that was to settle stays open until it is heard of again. One that
    /// was never heard of is stale, whatever its publication says.
    pub fn not_heard(&self, node: &NodeName, now: Now) {
        let mut state = self.lock();
        if let Some(known) = state.nodes.get_mut(node) {
            known.unread = true;
        }
        state.judge(node, now);
    }

    /// Takes over what a node answered about itself: that it is there, its pools, whether it is draining.
    pub fn informed(&self, node: &NodeName, pools: &[Pool], draining: bool, now: Now) {
        let mut state = self.lock();
        let Some(known) = state.nodes.get_mut(node) else {
            return;
        };
        known.draining = draining;
        state.set_pools(node, pools);
        state.heard(node, now);
        state.enlist_all(node);
    }

    /// Notes that a node did not answer: it gets no new sandboxes until it is heard of again.
    ///
    /// It is not lost for that: what it holds is shown as it was until its silence has lasted.
    pub fn suspect(&self, node: &NodeName, now: Now) {
        let mut state = self.lock();
        if let Some(known) = state.nodes.get_mut(node) {
            known.suspected = true;
            state.judge(node, now);
        }
    }

    /// Whether the last call to a node failed and nothing was heard of it since.
    pub fn is_suspected(&self, node: &NodeName) -> bool {
        let state = self.lock();
        state.nodes.get(node).is_some_and(|node| node.suspected)
    }

    /// Notes whether a node says that it is draining.
    pub fn set_draining(&self, node: &NodeName, draining: bool) {
        self.set_closed(node, |known| &mut known.draining, draining);
    }

    /// Notes whether an operator cordoned a node.
    pub fn set_cordoned(&self, node: &NodeName, cordoned: bool) {
        self.set_closed(node, |known| &mut known.cordoned, cordoned);
    }

    fn set_closed(&self, name: &NodeName, reason: fn(&mut Node) -> &mut bool, closed: bool) {
        let mut state = self.lock();
        let Some(known) = state.nodes.get_mut(name) else {
            return;
        };
        if std::mem::replace(reason(known), closed) != closed {
            state.enlist_all(name);
        }
    }
}

impl State {
    pub(super) fn heard(&mut self, name: &NodeName, now: Now) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.heard = Some(now.instant);
            node.suspected = false;
            self.judge(name, now);
        }
    }

    /// Derives a node's health from its silence; a change reaches its place in the draw and its sandboxes.
    fn judge(&mut self, name: &NodeName, now: Now) {
        let limits = self.limits;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let silence = now
            .instant
            .saturating_duration_since(node.heard.unwrap_or(node.known_since));
        let health = match silence {
            silence if silence >= limits.lost => Health::Lost,
            silence if silence >= limits.stale => Health::Stale,
            _ if node.suspected || node.heard.is_none() => Health::Stale,
            _ => Health::Fresh,
        };
        let before = std::mem::replace(&mut node.health, health);
        if before == health {
            return;
        }
        let lost = health == Health::Lost;
        let differ = node
            .claims
            .iter()
            .filter(|record| record.value.node_lost != lost && !record.value.is_over());
        let changed: Vec<_> = differ.map(|record| record.value.clone()).collect();
        for sandbox in changed {
            self.put(Sandbox {
                node_lost: lost,
                changed: now.wall,
                ..sandbox
            });
        }
        self.enlist_all(name);
    }

    fn due_probe(&mut self, name: &NodeName, now: Now) -> Option<(NodeName, NodeAddress)> {
        let limits = self.limits;
        let node = self.nodes.get_mut(name)?;
        let since = |then| now.instant.saturating_duration_since(then);
        let silent = node.suspected || node.heard.is_none_or(|heard| since(heard) >= limits.fresh);
        let due = node
            .probed
            .is_none_or(|probed| since(probed) >= limits.probe_interval);
        if !(silent && due) {
            return None;
        }
        node.probed = Some(now.instant);
        Some((name.clone(), node.address.clone()?))
    }

    /// Whether the node leaves something open that it would have told by now. One comparison for a node that does not.
    fn due_read(&mut self, name: &NodeName, now: Now) -> Option<NodeName> {
        let node = self.nodes.get_mut(name)?;
        let since = |then| now.instant.saturating_duration_since(then);
        let lately = node
            .questioned
            .is_some_and(|questioned| since(questioned) < QUESTIONS_APART);
        if lately || node.address.is_none() {
            return None;
        }
        let is_over = |reaped_by: UnixTime| reaped_by <= now.wall;
        if node.reaped_by.is_some_and(is_over) {
            let over = node.claims.iter().map(|record| &record.value);
            let over = over.filter(|over| over.phase == Phase::Expired && !over.gone);
            let first = over.filter_map(|over| over.deadline).min();
            node.reaped_by = first.map(|ended| ended.after(REAP_GRACE));
        }
        let open = (node.unread && node.health == Health::Fresh)
            || node.reaped_by.is_some_and(is_over)
            || node.holds.values().any(|hold| hold.is_old(now.instant));
        open.then(|| {
            node.questioned = Some(now.instant);
            name.clone()
        })
    }

    /// Lets go what the daemon of a lost node must have reaped, if it is there at all: nobody can be asked, and a node that was
    /// taken away for good has names that others may want.
    fn reap(&mut self, name: &NodeName, now: UnixTime) {
        let Some(node) = self.nodes.get(name) else {
            return;
        };
        let is_due = node.reaped_by.is_some_and(|reaped_by| reaped_by <= now);
        if node.health != Health::Lost || !is_due {
            return;
        }
        let grace = match node.heard {
            Some(_) => LOST_GRACE,
            None => LOST_GRACE + UNHEARD_GRACE,
        };
        let over = node.claims.iter().map(|record| &record.value);
        let over = over.filter(|over| over.phase == Phase::Expired && !over.gone);
        let reaped =
            over.filter(|over| over.deadline.is_some_and(|ended| ended.after(grace) <= now));
        let reaped: Vec<_> = reaped.map(|over| over.claim.clone()).collect();
        for claim in reaped {
            self.vanish(name, &claim, now);
        }
    }

    /// Marks the sandboxes whose lease is over. Looks at a node's sandboxes only when one of its leases may have ended,
    /// which costs a quiet node one comparison and no memory for a queue.
    fn expire(&mut self, name: &NodeName, now: UnixTime) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if node.next_deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        let (mut over, mut next) = (Vec::new(), None);
        for record in node.claims.iter().filter(|record| !record.value.is_over()) {
            match record.value.deadline {
                Some(deadline) if deadline <= now => over.push(record.value.clone()),
                deadline => next = super::index::earlier(next, deadline),
            }
        }
        node.next_deadline = next;
        for sandbox in over {
            self.put(Sandbox {
                phase: Phase::Expired,
                node_lost: false,
                changed: now,
                ..sandbox
            });
        }
    }
}
