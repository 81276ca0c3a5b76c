//! Remnants: objects whose VM is gone. They tell that it expired, or wait for their finalizers; few at once, and of few bytes.

use std::{sync::Arc, time::Duration};

use super::{Phase, Sandbox, index::State, node::End};
use crate::{
    api::{ClaimId, NodeName},
    meta::UnixTime,
    store::{Stored, Value},
};

/// Expired objects kept at once, and as many that wait for finalizers. Beyond it the oldest go first.
const AT_ONCE: usize = 10_000;
/// Bytes of both kinds together. A user may say half a MiB of each.
pub(super) const BYTES: usize = 64 << 20;
/// How long an expired object is kept.
const RETAINED_FOR: Duration = Duration::from_secs(3_600);

impl State {
    /// Keeps an expired object whose VM is gone, for a while.
    pub(super) fn retain(&mut self, sandbox: Sandbox, now: UnixTime) {
        self.retained.push_back((
            now.after(RETAINED_FOR),
            sandbox.node.clone(),
            sandbox.claim.clone(),
        ));
        self.put(Sandbox {
            phase: Phase::Expired,
            gone: true,
            changed: now,
            ..sandbox
        });
    }

    /// Keeps an object whose VM is gone, as deleted, until its last finalizer is taken away. Beyond the bound the oldest goes
    /// with its finalizers.
    pub(super) fn keep_for_finalizers(&mut self, sandbox: &Sandbox, now: UnixTime) {
        if sandbox.gone && sandbox.deleted_at.is_some() {
            return;
        }
        let place = (sandbox.node.clone(), sandbox.claim.clone());
        self.finalizing.push_back(place);
        self.put(Sandbox {
            gone: true,
            deleted_at: sandbox.deleted_at.or(Some(now)),
            changed: now,
            ..sandbox.clone()
        });
        while self.finalizing.len() > AT_ONCE {
            self.drop_finalizing();
        }
    }

    /// Drops what was kept long enough, and the oldest of what is too much. The bytes are counted here alone and not with each
    /// write, since what a second can bring is bounded by the writes that are served.
    pub(super) fn drop_remnants(&mut self, now: UnixTime) {
        while let Some((until, ..)) = self.retained.front()
            && (*until <= now || self.retained.len() > AT_ONCE)
        {
            self.drop_retained(now);
        }
        let nodes = self.nodes.values();
        let mut bytes: usize = nodes.map(|node| node.claims.remnant_bytes()).sum();
        while bytes > BYTES {
            let freed = match self.retained.is_empty() {
                false => self.drop_retained(now),
                true => self.drop_finalizing(),
            };
            // Without either there is nothing that could go.
            let Some(freed) = freed else { return };
            bytes -= freed;
        }
    }

    /// Drops the oldest expired object, unless finalizers keep it. Gives the bytes that it had.
    fn drop_retained(&mut self, now: UnixTime) -> Option<usize> {
        let (_, node, claim) = self.retained.pop_front()?;
        let Some(record) = self.remnant(&node, &claim) else {
            return Some(0);
        };
        if record.value.has_finalizers() {
            self.keep_for_finalizers(&record.value, now);
            return Some(0);
        }
        self.unlist(&node, &claim, End::Absent);
        Some(record.value.weight())
    }

    /// Drops the oldest object that finalizers keep. Gives the bytes that it had.
    fn drop_finalizing(&mut self) -> Option<usize> {
        let (node, claim) = self.finalizing.pop_front()?;
        let Some(record) = self.remnant(&node, &claim) else {
            return Some(0);
        };
        self.unlist(&node, &claim, End::Absent);
        Some(record.value.weight())
    }

    /// The object of a claim whose VM is gone.
    fn remnant(&self, node: &NodeName, claim: &ClaimId) -> Option<Arc<Stored<Sandbox>>> {
        let record = self.nodes.get(node)?.claims.get(claim)?;
        record.value.gone.then(|| record.clone())
    }
}
