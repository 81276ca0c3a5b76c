//! The sandboxes of one node by claim id, a pointer each.

use std::{hash::BuildHasher, sync::Arc};

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};

use super::Sandbox;
use crate::{
    api::ClaimId,
    store::{Stored, Value},
};

type Record = Arc<Stored<Sandbox>>;

/// A set of records keyed by the claim id inside them, so that the id is not stored twice.
#[derive(Debug, Default)]
pub(super) struct Claims {
    table: HashTable<Record>,
    hasher: RandomState,
    /// Of the objects whose VM is gone.
    remnant_bytes: usize,
}

impl Claims {
    pub(super) fn get(&self, claim: &ClaimId) -> Option<&Record> {
        self.table.find(self.hasher.hash_one(claim), |record| {
            record.value.claim == *claim
        })
    }

    /// Adds the record, in place of an older one with the same claim id.
    pub(super) fn insert(&mut self, record: Record) {
        let Self {
            table,
            hasher,
            remnant_bytes,
        } = self;
        *remnant_bytes += bytes_if_remnant(&record);
        let hash = hasher.hash_one(&record.value.claim);
        let entry = table.entry(
            hash,
            |known| known.value.claim == record.value.claim,
            |known| hasher.hash_one(&known.value.claim),
        );
        match entry {
            Entry::Occupied(mut place) => {
                let older = std::mem::replace(place.get_mut(), record);
                *remnant_bytes -= bytes_if_remnant(&older);
            }
            Entry::Vacant(place) => drop(place.insert(record)),
        }
    }

    /// Bytes of the objects whose VM is gone.
    pub(super) fn remnant_bytes(&self) -> usize {
        self.remnant_bytes
    }

    pub(super) fn remove(&mut self, claim: &ClaimId) -> Option<Record> {
        let hash = self.hasher.hash_one(claim);
        let entry = self
            .table
            .find_entry(hash, |record| record.value.claim == *claim)
            .ok()?;
        let removed = entry.remove().0;
        self.remnant_bytes -= bytes_if_remnant(&removed);
        Some(removed)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.table.iter()
    }
}

fn bytes_if_remnant(record: &Record) -> usize {
    match record.value.gone {
        true => record.value.weight(),
        false => 0,
    }
}
