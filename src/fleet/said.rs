//! What users say of a sandbox, taken in if it was said of what is there.

use std::sync::Arc;

use compact_str::CompactString;

use super::{
    Now, Sandbox,
    index::{Fleet, State},
    node::End,
};
use crate::{
    api::{ClaimId, NodeName, UserPart},
    meta::ResourceVersion,
    store::Stored,
};

/// The sandbox is not the one any more that a change was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox has changed meanwhile")]
pub struct Overtaken;

impl Fleet {
    /// Replaces the user's part of a sandbox that is still at `version`. One that only a finalizer held goes when the last is
    /// taken away; its last state is returned then.
    ///
    /// # Errors
    /// [`Overtaken`] when the sandbox has changed since, or is gone.
    pub fn set_user(
        &self,
        node: &NodeName,
        claim: &ClaimId,
        version: ResourceVersion,
        user: Arc<UserPart>,
    ) -> Result<Arc<Stored<Sandbox>>, Overtaken> {
        let mut state = self.lock();
        let record = state.record(node, claim).ok_or(Overtaken)?;
        if record.version != version {
            return Err(Overtaken);
        }
        state.put_said(Sandbox {
            user: Some(user),
            ..record.value.clone()
        })
    }

    /// The same for a user's part that was made from `old`, after this server has done to the machine what it asks for: that
    /// made new versions, which do not matter as long as nobody has said anything else meanwhile.
    ///
    /// # Errors
    /// [`Overtaken`] when somebody has, or the sandbox is gone.
    pub fn set_user_after(
        &self,
        old: &Sandbox,
        user: Arc<UserPart>,
    ) -> Result<Arc<Stored<Sandbox>>, Overtaken> {
        let mut state = self.lock();
        let record = state.record(&old.node, &old.claim).ok_or(Overtaken)?;
        let now = &record.value;
        let counted = now.user.as_ref().map_or(0, |user| user.generation);
        let is_same = now.deleted_at == old.deleted_at
            && counted <= user.generation
            && says_the_same(now.user.as_deref(), old.user.as_deref());
        if !is_same {
            return Err(Overtaken);
        }
        state.put_said(Sandbox {
            user: Some(user),
            ..now.clone()
        })
    }

    /// Changes the finalizers of a sandbox that is to be deleted; with `exact` also marks it as deleted, if it is still what it
    /// is in `record`. The mark is then what the deletion counts from, whatever comes until the node has released it.
    ///
    /// # Errors
    /// [`Overtaken`] when it must be exact and is not; [`None`] when it is gone.
    pub fn begin_delete(
        &self,
        record: &Stored<Sandbox>,
        exact: bool,
        finalizers: impl FnOnce(&[CompactString]) -> Vec<CompactString>,
        now: Now,
    ) -> Result<Option<Arc<Stored<Sandbox>>>, Overtaken> {
        let mut state = self.lock();
        let newest = state.record(&record.value.node, &record.value.claim);
        if exact
            && newest
                .as_ref()
                .is_none_or(|it| it.version != record.version)
        {
            return Err(Overtaken);
        }
        let Some(newest) = newest else {
            return Ok(None);
        };
        let mut changed = newest.value.clone();
        if exact {
            changed.deleted_at = changed.deleted_at.or(Some(now.wall));
        }
        let known = changed.user.as_ref().map_or(&[][..], |it| &it.finalizers);
        let finalizers = finalizers(known);
        if known != finalizers {
            let user = changed.user.as_deref().cloned().unwrap_or_default();
            changed.user = Some(Arc::new(UserPart { finalizers, ..user }));
        }
        if changed == newest.value {
            return Ok(Some(newest));
        }
        state.put_said(changed).map(Some)
    }
}

impl State {
    fn record(&self, node: &NodeName, claim: &ClaimId) -> Option<Arc<Stored<Sandbox>>> {
        self.nodes.get(node)?.claims.get(claim).cloned()
    }

    /// Makes this the state of a sandbox of which a user has said something. One that only a finalizer held goes with the last.
    fn put_said(&mut self, changed: Sandbox) -> Result<Arc<Stored<Sandbox>>, Overtaken> {
        let (node, claim) = (changed.node.clone(), changed.claim.clone());
        let ends = changed.gone && changed.deleted_at.is_some() && !changed.has_finalizers();
        self.put(changed);
        let stored = self.record(&node, &claim).ok_or(Overtaken)?;
        if ends {
            self.unlist(&node, &claim, End::Absent);
            self.finalizing
                .retain(|kept| *kept != (node.clone(), claim.clone()));
        }
        Ok(stored)
    }
}

/// Whether users say the same but for the count of their changes.
fn says_the_same(one: Option<&UserPart>, other: Option<&UserPart>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => {
            let generation = one.generation;
            *one == UserPart {
                generation,
                ..other.clone()
            }
        }
        (one, other) => one.is_none() && other.is_none(),
    }
}
