//! Names that are spoken for although nobody has them yet, or although somebody else may come to ask for them.

use std::{collections::hash_map::Entry, sync::Arc};

use super::Fleet;
use crate::api::SandboxKey;

/// The right to create the sandbox of one name. While it lives nobody else gets it.
#[derive(Debug)]
pub struct NameReservation {
    fleet: Arc<Fleet>,
    pub(super) key: SandboxKey,
}

/// The name belongs to another sandbox, or to a create that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name is taken")]
pub struct NameTaken {
    /// Whether the sandbox that has it is being deleted.
    pub terminating: bool,
}

/// While it lives, the sandbox that has a name keeps it, even from one that was claimed earlier.
#[derive(Debug)]
pub struct KeptName {
    fleet: Arc<Fleet>,
    key: SandboxKey,
}

impl NameReservation {
    /// The name.
    pub fn key(&self) -> &SandboxKey {
        &self.key
    }

    /// From now on, and when the reservation is long over, whoever has the name keeps it: what is still to turn up is not
    /// what anybody asked for.
    pub fn keep(&self) -> KeptName {
        let mut state = self.fleet.lock();
        *state.kept.entry(self.key.clone()).or_default() += 1;
        KeptName {
            fleet: self.fleet.clone(),
            key: self.key.clone(),
        }
    }
}

impl Drop for NameReservation {
    fn drop(&mut self) {
        self.fleet.lock().reserved.remove(&self.key);
    }
}

impl Drop for KeptName {
    fn drop(&mut self) {
        let mut state = self.fleet.lock();
        if let Entry::Occupied(mut reasons) = state.kept.entry(self.key.clone()) {
            *reasons.get_mut() -= 1;
            if *reasons.get() == 0 {
                reasons.remove();
            }
        }
    }
}

impl Fleet {
    /// Reserves a name for a create.
    ///
    /// # Errors
    /// [`NameTaken`] when a sandbox has it or another create is under way for it.
    pub fn reserve(self: &Arc<Self>, key: SandboxKey) -> Result<NameReservation, NameTaken> {
        let mut state = self.lock();
        if let Some(holder) = self.store().get(&key.namespace, &key.name) {
            return Err(NameTaken {
                terminating: holder.value.deleted_at.is_some(),
            });
        }
        match state.reserved.entry(key.clone()) {
            Entry::Vacant(place) => drop(place.insert(Vec::new())),
            Entry::Occupied(_) => return Err(NameTaken { terminating: false }),
        }
        Ok(NameReservation {
            fleet: self.clone(),
            key,
        })
    }
}
