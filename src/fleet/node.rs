//! What is known of one node.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{claims::Claims, pool_keys::PoolKeys};
use crate::{
    api::{ClaimId, NodeAddress, NodeName, PoolKey},
    meta::UnixTime,
};

/// Dead claim ids kept for each node. A publication that lists one of these is late; a daemon has to release this many
/// more before such a publication could bring one back.
const DEAD_IDS: usize = 4_096;

/// Whether a node is heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It was heard of lately.
    Fresh,
    /// It was not: it gets no new sandboxes.
    Stale,
    /// It was not for so long that nobody can say whether its sandboxes run.
    Lost,
}

/// How long a hold outweighs what a feed tells. An agent tells what it saw at a look that may have begun before our write: it
/// gives a look 5 s, and each one that follows in a fraction of that.
const FEED_LAG: Duration = Duration::from_secs(10);

/// How long what a node itself told outweighs what was published of it: longer than a publication is on its way.
const PUBLICATION_LAG: Duration = Duration::from_secs(60);

/// What this server did to a claim and the node has not confirmed yet.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    /// When this server did it last.
    pub(super) since: Instant,
    /// Claimed by us and not listed yet.
    pub(super) unlisted: bool,
    /// The phase we gave it.
    pub(super) phase: Option<super::Phase>,
    /// The lease we gave it.
    pub(super) deadline: Option<UnixTime>,
}

impl Hold {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            unlisted: false,
            phase: None,
            deadline: None,
        }
    }

    /// Whether whatever the node's agent says by now, it says of a later look than our write.
    pub(super) fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= FEED_LAG
    }

    pub(super) fn is_settled(&self) -> bool {
        !self.unlisted && self.phase.is_none() && self.deadline.is_none()
    }
}

/// A warm pool on the node.
#[derive(Clone, Debug, Default)]
pub(super) struct NodePool {
    /// VMs that can still be claimed: as last reported, less what was placed since.
    pub(super) warm: u32,
    /// VMs the node keeps ready.
    pub(super) target: u32,
}

/// How a claim id ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The node acknowledged our release. Nothing brings it back.
    Released,
    /// The node stopped listing it. Only the node itself brings it back, as after a restart that took a while.
    Absent,
}

/// The ids that ended, the newest [`DEAD_IDS`] of them.
#[derive(Debug, Default)]
pub(super) struct Dead {
    ends: HashMap<ClaimId, End>,
    order: VecDeque<ClaimId>,
}

impl Dead {
    pub(super) fn insert(&mut self, claim: ClaimId, end: End) {
        match self.ends.get_mut(&claim) {
            // A node that lacks what it released says nothing new.
            Some(End::Released) => return,
            Some(known) => *known = end,
            None => {
                self.ends.insert(claim.clone(), end);
                self.order.push_back(claim);
            }
        }
        while self.order.len() > DEAD_IDS {
            if let Some(oldest) = self.order.pop_front() {
                self.ends.remove(&oldest);
            }
        }
    }

    pub(super) fn get(&self, claim: &ClaimId) -> Option<End> {
        self.ends.get(claim).copied()
    }

    pub(super) fn revive(&mut self, claim: &ClaimId) {
        if self.ends.remove(claim).is_some() {
            self.order.retain(|known| known != claim);
        }
    }
}

/// A direct read that is under way, and the claims that changed since it was sent: its answer says nothing about them.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Which read it is.
    pub(super) number: u64,
    /// Those that this server changed, or an agent told of.
    pub(super) touched: HashSet<ClaimId>,
    /// Those that only a publication changed, which may be older than the answer, or newer.
    pub(super) published: HashSet<ClaimId>,
}

/// One node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: NodeName,
    pub(super) address: Option<NodeAddress>,
    /// The same, shared by the sandboxes; see [`Node::daemon`].
    pub(super) daemon: Option<Arc<NodeAddress>>,
    pub(super) claims: Claims,
    pub(super) holds: HashMap<ClaimId, Hold>,
    pub(super) dead: Dead,
    pub(super) pools: HashMap<PoolKey, NodePool>,
    pub(super) pool_keys: PoolKeys,
    pub(super) health: Health,
    pub(super) draining: bool,
    pub(super) cordoned: bool,
    /// Whether a call to it failed since it was last heard of.
    pub(super) suspected: bool,
    /// When the node was last heard of; `None`: never since this server started.
    pub(super) heard: Option<Instant>,
    /// When it was last asked whether it is there.
    pub(super) probed: Option<Instant>,
    /// When it was last to be read because of what it left open.
    pub(super) questioned: Option<Instant>,
    /// Whether it did not answer when it was last read.
    pub(super) unread: bool,
    /// When it last told all that it has.
    pub(super) told: Option<Instant>,
    /// Since when it is known at all.
    pub(super) known_since: Instant,
    /// The direct read under way.
    pub(super) reading: Option<Reading>,
    /// No lease on the node ends before this.
    pub(super) next_deadline: Option<UnixTime>,
    /// When the daemon must have reaped the first of the sandboxes whose lease is over.
    pub(super) reaped_by: Option<UnixTime>,
}

impl Node {
    pub(super) fn new(name: NodeName, now: Instant) -> Self {
        Self {
            name,
            address: None,
            daemon: None,
            claims: Claims::default(),
            holds: HashMap::new(),
            dead: Dead::default(),
            pools: HashMap::new(),
            pool_keys: PoolKeys::default(),
            health: Health::Stale,
            draining: false,
            cordoned: false,
            suspected: false,
            heard: None,
            probed: None,
            questioned: None,
            unread: false,
            told: None,
            known_since: now,
            reading: None,
            next_deadline: None,
            reaped_by: None,
        }
    }

    /// Whether a publication that comes now may be older than what the node told itself, and the node can be asked again.
    pub(super) fn told_lately(&self, now: Instant) -> bool {
        let since = |told| now.saturating_duration_since(told);
        self.address.is_some() && self.told.is_some_and(|told| since(told) < PUBLICATION_LAG)
    }

    /// Notes that our knowledge of `claim` is newer than a read that is under way.
    pub(super) fn touch(&mut self, claim: &ClaimId) {
        if let Some(reading) = &mut self.reading {
            reading.published.remove(claim);
            reading.touched.insert(claim.clone());
        }
    }

    /// Whether the read under way says nothing about the claim, for another reason than a publication.
    pub(super) fn is_touched(&self, claim: &ClaimId) -> bool {
        let reading = self.reading.as_ref();
        reading.is_some_and(|reading| reading.touched.contains(claim))
    }

    /// Notes that what touched the claim just now was a publication.
    pub(super) fn was_published(&mut self, claim: &ClaimId) {
        if let Some(reading) = &mut self.reading
            && let Some(claim) = reading.touched.take(claim)
        {
            reading.published.insert(claim);
        }
    }

    /// Ends the direct read of that number, if it is the one under way, and gives what changed since it was sent.
    pub(super) fn end_read(&mut self, number: u64) -> Option<Reading> {
        self.reading.take_if(|reading| reading.number == number)
    }

    /// Holds something of `claim` from `now` on.
    pub(super) fn hold(&mut self, claim: &ClaimId, now: Instant, change: impl FnOnce(&mut Hold)) {
        let hold = self.holds.entry(claim.clone());
        let hold = hold.or_insert_with(|| Hold::new(now));
        hold.since = now;
        change(hold);
    }

    /// Notes that a claim is no more.
    pub(super) fn bury(&mut self, claim: &ClaimId, end: End) {
        self.dead.insert(claim.clone(), end);
        self.touch(claim);
        self.holds.remove(claim);
    }

    /// Whether new sandboxes may be placed here.
    pub(super) fn takes_claims(&self) -> bool {
        self.health == Health::Fresh && !self.cordoned && !self.draining && self.address.is_some()
    }
}
