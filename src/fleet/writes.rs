//! What this server did, visible to every reader before the caller gets its answer.

use std::sync::Arc;

use compact_str::CompactString;

use super::{
    NameReservation, Now, Phase, Sandbox, Usage,
    index::{Fleet, State, place_of},
    naming::uid_of,
    node::{End, Node, Reading},
};
use crate::{
    api::{ClaimId, NodeName, PoolKey, SandboxKey, UserPart},
    meta::UnixTime,
    store::{Change, Stored},
};

/// The node granted a claim whose name another one got meanwhile: the grant has to be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another sandbox took the name meanwhile")]
pub struct ClaimLost;

/// A claim as its node granted it.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The node.
    pub node: NodeName,
    /// The daemon's id.
    pub claim: ClaimId,
    /// What it was made from.
    pub pool: Option<PoolKey>,
    /// Where it is reached, when the node says.
    pub address: CompactString,
    /// The checkpoint it was started from.
    pub from_checkpoint: Option<Box<str>>,
    /// When the node made it.
    pub claimed_at: UnixTime,
    /// End of the granted lease.
    pub deadline: Option<UnixTime>,
    /// What it does now.
    pub phase: Phase,
    /// What the user sent.
    pub user: Option<Arc<UserPart>>,
}

/// A direct read of a node that is under way; at most one a node. Dropped without an answer it leaves no trace.
#[derive(Debug)]
pub struct ReadGuard<'a> {
    fleet: &'a Fleet,
    node: NodeName,
    number: u64,
}

impl ReadGuard<'_> {
    /// The node that is asked.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Which read it is: a node of the same name may have come in place of the one that is asked.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.fleet.lock().nodes.get_mut(&self.node) {
            node.end_read(self.number);
        }
    }
}

impl Fleet {
    /// Lists a granted claim under its reserved name. It stays listed until the node lists it or denies having it.
    ///
    /// One that its node had listed before, and that was released since, is not listed again: it was created, and deleted, before
    /// its own answer came. Its last state is returned.
    ///
    /// `asked` are nodes that may have granted the same claim before: what one of them has listed under the name meanwhile is
    /// listed under its id from now on.
    ///
    /// # Errors
    /// [`ClaimLost`] when a claim made elsewhere came to have the name meanwhile; the grant is not listed.
    pub fn granted(
        &self,
        name: &NameReservation,
        granted: Granted,
        asked: &[NodeName],
        now: Now,
    ) -> Result<Arc<Stored<Sandbox>>, ClaimLost> {
        let mut state = self.lock();
        let key = &name.key;
        if state.is_released(&granted.node, &granted.claim) {
            let released = state.reserved.get(key).into_iter().flatten();
            let mut own = released.filter(|record| {
                record.value.claim == granted.claim && record.value.node == granted.node
            });
            let listed = own.next().ok_or(ClaimLost)?;
            // As its creator sent it, which its node need not have told.
            return Ok(Arc::new(Stored {
                version: listed.version,
                value: Sandbox {
                    user: granted.user,
                    deadline: granted.deadline,
                    ..listed.value.clone()
                },
            }));
        }
        // A publication may have listed our own claim before its answer reached us.
        let holder = self.store().get(&key.namespace, &key.name);
        let other = holder.filter(|holder| {
            holder.value.claim != granted.claim || holder.value.node != granted.node
        });
        if let Some(other) = other {
            if !asked.contains(&other.value.node) {
                return Err(ClaimLost);
            }
            state.store.commit([Change::Delete(place_of(&other.value))]);
            state.list_under_id(other.value.clone(), key.clone());
        }
        state.grant(key, granted, now);
        self.store().get(&key.namespace, &key.name).ok_or(ClaimLost)
    }

    /// Lists a granted claim that has no reserved name, as a fork's child; under its id when `wanted` is another one's. `None`: its
    /// node had listed it before, and it was released since.
    pub fn granted_unnamed(
        &self,
        wanted: Option<SandboxKey>,
        granted: Granted,
        now: Now,
    ) -> Option<Arc<Stored<Sandbox>>> {
        let mut state = self.lock();
        let (node, claim) = (granted.node.clone(), granted.claim.clone());
        if state.is_released(&node, &claim) {
            return None;
        }
        if state.node_mut(&node, now).claims.get(&claim).is_none() {
            let sandbox = state.sandbox_of(SandboxKey::new("default", ""), granted, now);
            state.list(sandbox, wanted);
            state
                .node_mut(&node, now)
                .hold(&claim, now.instant, |hold| hold.unlisted = true);
        }
        state.node_mut(&node, now).claims.get(&claim).cloned()
    }

    /// The node acknowledged the release: takes the sandbox off the list for good, or, if a finalizer holds the object,
    /// notes that the object is all that is left. Returns the last state.
    pub fn released(
        &self,
        node: &NodeName,
        claim: &ClaimId,
        now: Now,
    ) -> Option<Arc<Stored<Sandbox>>> {
        let mut state = self.lock();
        let known = state.nodes.get_mut(node)?;
        let record = known.claims.get(claim).cloned();
        match record {
            Some(record) if record.value.has_finalizers() => {
                known.bury(claim, End::Released);
                state.keep_for_finalizers(&record.value, now.wall);
                state.nodes.get(node)?.claims.get(claim).cloned()
            }
            _ => state.unlist(node, claim, End::Released),
        }
    }

    /// Notes a phase that the node acknowledged; it holds until the node reports the same. `turns`: it is the user's wish, and
    /// `spec.operatingMode` another one than it was before, which counts as a change of the spec.
    pub fn set_phase(
        &self,
        node: &NodeName,
        claim: &ClaimId,
        phase: Phase,
        turns: bool,
        now: Now,
    ) -> Option<Arc<Stored<Sandbox>>> {
        self.change(node, claim, |node, known| {
            let mut changed = match turns {
                true => known.turned(),
                false => known.clone(),
            };
            // What the node has said already needs no holding on to.
            if known.phase != phase {
                node.hold(claim, now.instant, |hold| hold.phase = Some(phase));
                (changed.phase, changed.changed) = (phase, now.wall);
            }
            changed
        })
    }

    /// Notes a lease that the node granted; it holds until the node reports the same.
    pub fn set_deadline(
        &self,
        node: &NodeName,
        claim: &ClaimId,
        deadline: UnixTime,
        now: Now,
    ) -> Option<Arc<Stored<Sandbox>>> {
        self.change(node, claim, |node, known| {
            if known.deadline == Some(deadline) {
                return known.clone();
            }
            node.hold(claim, now.instant, |hold| hold.deadline = Some(deadline));
            Sandbox {
                deadline: Some(deadline),
                ..known.clone()
            }
        })
    }

    /// Notes that a deletion was asked for and is not done yet. Repeated, the first time stays.
    pub fn set_deleted(
        &self,
        node: &NodeName,
        claim: &ClaimId,
        now: Now,
    ) -> Option<Arc<Stored<Sandbox>>> {
        self.change(node, claim, |_, known| Sandbox {
            deleted_at: known.deleted_at.or(Some(now.wall)),
            ..known.clone()
        })
    }

    /// Begins a direct read of a node; `None` while another one is under way, or for an unknown node.
    pub fn begin_read(&self, node: &NodeName) -> Option<ReadGuard<'_>> {
        let mut state = self.lock();
        let number = state.n_reads + 1;
        let known = state
            .nodes
            .get_mut(node)
            .filter(|node| node.reading.is_none())?;
        known.reading = Some(Reading {
            number,
            ..Reading::default()
        });
        state.n_reads = number;
        Some(ReadGuard {
            fleet: self,
            node: node.clone(),
            number,
        })
    }

    fn change(
        &self,
        node: &NodeName,
        claim: &ClaimId,
        change: impl FnOnce(&mut Node, &Sandbox) -> Sandbox,
    ) -> Option<Arc<Stored<Sandbox>>> {
        let mut state = self.lock();
        let known = state.nodes.get_mut(node)?;
        let record = known.claims.get(claim).cloned()?;
        known.touch(claim);
        let changed = change(known, &record.value);
        if changed == record.value {
            return Some(record);
        }
        state.put(changed);
        state.nodes.get(node)?.claims.get(claim).cloned()
    }
}

impl State {
    /// Whether a claim is over for good and nothing is left of its object.
    fn is_released(&self, node: &NodeName, claim: &ClaimId) -> bool {
        let node = self.nodes.get(node);
        node.is_some_and(|node| {
            node.dead.get(claim) == Some(End::Released) && node.claims.get(claim).is_none()
        })
    }

    fn grant(&mut self, key: &SandboxKey, granted: Granted, now: Now) {
        let (node, claim) = (granted.node.clone(), granted.claim.clone());
        let listed = self.node_mut(&node, now).claims.get(&claim).cloned();
        match listed {
            Some(record) => {
                // It waits for the name if a double was listed before it.
                if record.value.name_taken {
                    self.waits_no_more(&record.value);
                    self.store.commit([Change::Delete(place_of(&record.value))]);
                }
                // What users said of it since it was deleted, such as who holds it up, is not taken back.
                let user = match record.value.deleted_at {
                    Some(_) => record.value.user.clone(),
                    None => granted.user,
                };
                self.put(Sandbox {
                    namespace: key.namespace.clone(),
                    name: key.name.clone(),
                    name_taken: false,
                    user,
                    deadline: granted.deadline,
                    ..record.value.clone()
                });
            }
            None => {
                let sandbox = self.sandbox_of(key.clone(), granted, now);
                self.put(sandbox);
                self.node_mut(&node, now)
                    .hold(&claim, now.instant, |hold| hold.unlisted = true);
            }
        }
    }

    fn sandbox_of(&mut self, key: SandboxKey, granted: Granted, now: Now) -> Sandbox {
        let node = self.node_mut(&granted.node, now);
        Sandbox {
            namespace: key.namespace,
            name: key.name,
            uid: uid_of(&granted.node, &granted.claim),
            // As long as this server lives the name is kept for it otherwise.
            attempt: None,
            daemon: node.daemon(),
            claim: granted.claim,
            node: granted.node,
            address: granted.address,
            pool: granted.pool.map(|pool| node.pool_keys.share(&pool)),
            from_checkpoint: granted.from_checkpoint,
            created: granted.claimed_at,
            changed: granted.claimed_at,
            deadline: granted.deadline,
            deleted_at: None,
            phase: granted.phase,
            gone: false,
            node_lost: false,
            name_taken: false,
            user: granted.user,
            usage: Usage::default(),
        }
    }
}
