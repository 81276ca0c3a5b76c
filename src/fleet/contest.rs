//! Names that more than one sandbox asks for: who has it by right, and who waits.

use std::sync::Arc;

use super::{
    Sandbox,
    index::{State, place_of},
};
use crate::{
    api::{ClaimId, NodeName, SandboxKey},
    meta::UnixTime,
    store::{Change, Stored},
};

type Record = Arc<Stored<Sandbox>>;

/// Whether the two are claims of one create, and this is the one that was answered.
pub(super) fn outdoes(one: &Sandbox, other: &Sandbox) -> bool {
    let attempts = one.attempt.zip(other.attempt);
    attempts.and_then(|(one, other)| one.outdoes(other)) == Some(true)
}

/// Whether `one` has the better right to a name that both ask for.
pub(super) fn precedes(one: &Sandbox, other: &Sandbox) -> bool {
    outdoes(one, other) || !outdoes(other, one) && right(one) < right(other)
}

/// Which of `claimants` has the name that all ask for, whatever order they came in: of several claims of one create only the one
/// that was answered may, and of those that may the earliest does.
fn best<'a>(claimants: impl Iterator<Item = &'a Sandbox> + Clone) -> Option<&'a Sandbox> {
    let others = claimants.clone();
    let is_outdone = |one: &Sandbox| others.clone().any(|other| outdoes(other, one));
    let entitled = claimants.filter(|claimant| !is_outdone(claimant));
    entitled.min_by(|one, other| right(one).cmp(&right(other)))
}

fn right(sandbox: &Sandbox) -> (UnixTime, &ClaimId, &NodeName) {
    (sandbox.created, &sandbox.claim, &sandbox.node)
}

impl State {
    /// Those that wait for the name.
    pub(super) fn waiting(&self, key: &SandboxKey) -> Vec<Record> {
        let losers = self.losers.get(key).into_iter().flatten();
        let known = losers.filter_map(|(node, claim)| self.nodes.get(node)?.claims.get(claim));
        known.cloned().collect()
    }

    /// Whether a create of the name is not settled yet: whoever else asks for it may be a double of what it makes.
    pub(super) fn is_kept(&self, key: &SandboxKey) -> bool {
        self.reserved.contains_key(key) || self.kept.contains_key(key)
    }

    /// Decides again about the name that this sandbox has or waits for: it is known by now to be of a create.
    pub(super) fn contest(&mut self, sandbox: &Sandbox) {
        let waits = |losers: &[(NodeName, ClaimId)]| {
            let mut losers = losers.iter();
            losers.any(|(node, claim)| *claim == sandbox.claim && *node == sandbox.node)
        };
        let key = match sandbox.name_taken {
            true => self.losers.iter().find(|(_, losers)| waits(losers)),
            false => self.losers.get_key_value(&SandboxKey::new(
                sandbox.namespace.clone(),
                sandbox.name.clone(),
            )),
        };
        let key = key.map(|(key, _)| key.clone());
        if let Some(key) = key.filter(|key| !self.is_kept(key)) {
            self.decide(key);
        }
    }

    /// Takes the name from a claim whose client got another one, for whoever has it by right.
    pub(super) fn decide(&mut self, key: SandboxKey) {
        let Some(holder) = self.store.get(&key.namespace, &key.name) else {
            return self.promote(key);
        };
        let waiting = self.waiting(&key);
        let waiting = waiting.iter().map(|record| &record.value);
        // Somebody who came too late stays so, however early it was claimed: what was answered keeps its name.
        if !waiting.clone().any(|one| outdoes(one, &holder.value)) {
            return;
        }
        let Some(heir) = best(waiting) else { return };
        self.store.commit([Change::Delete(place_of(&holder.value))]);
        self.inherit(heir, key.clone());
        self.list_under_id(holder.value.clone(), key);
    }

    /// Gives a free name to the claim that has the best right to it.
    pub(super) fn promote(&mut self, key: SandboxKey) {
        let waiting = self.waiting(&key);
        match best(waiting.iter().map(|record| &record.value)) {
            Some(heir) => self.inherit(heir, key),
            None => drop(self.losers.remove(&key)),
        }
    }

    /// Moves a sandbox to the name that it waits for, which is free.
    fn inherit(&mut self, heir: &Sandbox, key: SandboxKey) {
        self.waits_no_more(heir);
        self.store.commit([Change::Delete(place_of(heir))]);
        self.put(Sandbox {
            namespace: key.namespace,
            name: key.name,
            name_taken: false,
            ..heir.clone()
        });
    }

    /// Notes that a sandbox waits for no name any more.
    pub(super) fn waits_no_more(&mut self, sandbox: &Sandbox) {
        self.losers.retain(|_, losers| {
            losers.retain(|(node, claim)| *claim != sandbox.claim || *node != sandbox.node);
            !losers.is_empty()
        });
    }
}
