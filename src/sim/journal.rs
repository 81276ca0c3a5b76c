//! What became of a node's VMs: a line for each beginning and each end, so that a test can tell afterwards who did what.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::Serialize;

use super::claim::{Claim, Number};

/// One beginning or end of a VM.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalEntry {
    /// Place in the node's order of entries, from 0.
    pub sequence: u64,
    /// When it was, by the machine's clock, RFC 3339.
    pub at: String,
    /// What it was.
    pub event: JournalEvent,
    /// The sandbox's id.
    pub id: String,
    /// Its reference, as it was claimed.
    pub claim_ref: String,
    /// Its metadata, as it was claimed.
    pub metadata: std::collections::BTreeMap<String, String>,
}

/// What becomes of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum JournalEvent {
    /// A claim or a fork was granted.
    Granted,
    /// It was made behind everybody's back.
    Planted,
    /// A caller released it.
    Released,
    /// Its lease ended.
    Reaped,
    /// It was lost without a word.
    Lost,
}

/// The latest entries of a node. Lives behind the node's lock.
#[derive(Debug)]
pub(super) struct Journal {
    capacity: usize,
    next: u64,
    latest: VecDeque<JournalEntry>,
}

impl Journal {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            next: 0,
            latest: VecDeque::new(),
        }
    }

    pub(super) fn note(&mut self, event: JournalEvent, number: Number, claim: &Claim) {
        let sequence = self.next;
        self.next += 1;
        if self.capacity == 0 {
            return;
        }
        if self.latest.len() == self.capacity {
            self.latest.pop_front();
        }
        let extra = claim.extra.as_ref();
        self.latest.push_back(JournalEntry {
            sequence,
            at: Timestamp::now().to_string(),
            event,
            id: number.to_string(),
            claim_ref: claim.claim_ref.to_string(),
            metadata: extra.map_or_else(Default::default, |extra| extra.metadata.clone()),
        });
    }

    /// The entries from this place on, as far as they are remembered.
    pub(super) fn since(&self, sequence: u64) -> Vec<JournalEntry> {
        let entries = self.latest.iter();
        entries
            .skip_while(|entry| entry.sequence < sequence)
            .cloned()
            .collect()
    }
}
