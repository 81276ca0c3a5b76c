//! The sandboxes of one node by claim id, a pointer each.

use std::{hash::BuildHasher, sync::Arc};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::Sandbox;
use crate::{api::ClaimId, store::Stored};

type Record = Arc<Stored<Sandbox>>;

/// A set of records keyed by the claim id inside them, so that the id is not stored twice.
#[derive(Debug, Default)]
pub(super) struct Claims {
    table: HashTable<Record>,
    hasher: RandomState,
}

impl Claims {
    pub(super) fn get(&self, claim: &ClaimId) -> Option<&Record> {
        self.table.find(self.hasher.hash_one(claim), |record| {
            record.value.claim == *claim
        })
    }

    /// Adds the record, in place of an older one with the same claim id.
    pub(super) fn insert(&mut self, record: Record) {
        let Self { table, hasher } = self;
        let hash = hasher.hash_one(&record.value.claim);
        let entry = table.entry(
            hash,
            |known| known.value.claim == record.value.claim,
            |known| hasher.hash_one(&known.value.claim),
        );
        entry.insert(record);
    }

    pub(super) fn remove(&mut self, claim: &ClaimId) -> Option<Record> {
        let hash = self.hasher.hash_one(claim);
        let entry = self
            .table
            .find_entry(hash, |record| record.value.claim == *claim)
            .ok()?;
        Some(entry.remove().0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.table.iter()
    }
}
