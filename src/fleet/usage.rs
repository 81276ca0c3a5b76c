//! What a sandbox uses, as its node measured it lately.
//!
//! It is shown where a row of a table is made, as the age is, and is part of no version: what changes every minute for every
//! sandbox must not wake a watcher. So it stands in the record and is changed there, in one word.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use super::Fleet;
use crate::api::{ClaimId, NodeName};

/// Bits of each amount of memory in the word, in MiB: 16 TiB. The CPUs have what is left of it.
const MEMORY_BITS: u32 = 24;
const MEMORY_MASK: u64 = (1 << MEMORY_BITS) - 1;
const MEBIBYTE: u64 = 1 << 20;

/// Where a record keeps what its sandbox uses. Records are equal whatever it is.
#[derive(Default)]
pub struct Usage(AtomicU64);

/// What a sandbox has, and what it uses of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Number of CPUs.
    pub cpus: u16,
    /// Memory that it may use, in MiB.
    pub memory_total: u32,
    /// Memory that it uses, in MiB; `None` when there is no reading.
    pub memory_used: Option<u32>,
}

impl Used {
    /// From bytes, of which whole MiB are kept, rounded up. What is too much to be kept counts as the most that can be.
    pub fn of_bytes(cpus: u32, memory_total: u64, memory_used: Option<u64>) -> Self {
        let mebibytes = |bytes: u64| {
            // One less than there is room for: a used amount is kept as one more, since 0 says that there is none.
            let most = MEMORY_MASK - 1;
            u32::try_from(bytes.div_ceil(MEBIBYTE).min(most)).unwrap_or(u32::MAX)
        };
        Self {
            cpus: u16::try_from(cpus).unwrap_or(u16::MAX),
            memory_total: mebibytes(memory_total),
            memory_used: memory_used.map(mebibytes),
        }
    }
}

impl Usage {
    /// What it is now; `None` when nobody has said.
    pub fn get(&self) -> Option<Used> {
        let word = self.0.load(Ordering::Relaxed);
        let memory = |shift: u32| u32::try_from((word >> shift) & MEMORY_MASK).unwrap_or(0);
        let used = Used {
            cpus: u16::try_from(word >> (2 * MEMORY_BITS)).unwrap_or(u16::MAX),
            memory_total: memory(MEMORY_BITS),
            memory_used: memory(0).checked_sub(1),
        };
        (word != 0).then_some(used)
    }

    /// Makes it this. Of writers at the same moment one is the last.
    fn set(&self, used: Used) {
        let kept = used.memory_used.map_or(0, |used| u64::from(used) + 1);
        let word = u64::from(used.cpus) << (2 * MEMORY_BITS)
            | u64::from(used.memory_total) << MEMORY_BITS
            | kept;
        self.0.store(word, Ordering::Relaxed);
    }
}

impl Clone for Usage {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

impl PartialEq for Usage {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Usage {}

impl fmt::Debug for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl Fleet {
    /// Notes what a sandbox uses. Makes no version and wakes nobody; a sandbox that is not known is left out.
    pub fn used(&self, node: &NodeName, claim: &ClaimId, used: Used) {
        let state = self.lock();
        // Under the lock: a change that is under way may have copied the word already, and would undo this.
        let known = state.nodes.get(node);
        if let Some(record) = known.and_then(|node| node.claims.get(claim)) {
            record.value.usage.set(used);
        }
    }

    /// Notes that nobody tells any more what a node's sandboxes use.
    pub fn forget_used(&self, node: &NodeName) {
        let state = self.lock();
        let known = state.nodes.get(node).into_iter();
        for record in known.flat_map(|node| node.claims.iter()) {
            record.value.usage.0.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cpus: u32, total: u64, used: Option<u64>, expected: (u16, u32, Option<u32>)) {
        let usage = Usage::default();
        usage.set(Used::of_bytes(cpus, total, used));
        let Used {
            cpus,
            memory_total,
            memory_used,
        } = usage.get().unwrap();
        assert_eq!((cpus, memory_total, memory_used), expected);
        assert_eq!(usage.clone().get(), usage.get());
    }

    #[test]
    fn everything_fits_into_one_word() {
        assert_eq!(size_of::<Usage>(), 8);
        assert_eq!(Usage::default().get(), None);
        check(2, 2 << 30, Some(300 << 20), (2, 2_048, Some(300)));
        check(1, 512 << 20, None, (1, 512, None));
        check(0, 0, Some(0), (0, 0, Some(0)));
        check(4, 1 << 30, Some(1), (4, 1_024, Some(1)));
        let most = (1 << 24) - 2;
        check(
            u32::MAX,
            u64::MAX,
            Some(u64::MAX),
            (u16::MAX, most, Some(most)),
        );
    }

    #[test]
    fn records_are_equal_whatever_is_used() {
        let (none, some) = (Usage::default(), Usage::default());
        some.set(Used::of_bytes(1, 1, Some(1)));
        assert_eq!(none, some);
    }
}
