//! The lists of an inventory, an element at a time, so that a bad one costs itself only.

use std::{collections::HashSet, hash::DefaultHasher, hash::Hash as _, hash::Hasher as _};

use serde::{Deserialize, de::SeqAccess};

use super::{
    fields::{MAX_ADDRESS, MAX_REFERENCE, MAX_WORD, count, pool_key, text, time, word},
    lenient::{Fields, Scalar, Shape, Shaped},
    rejection::{Reason, Rejections},
};
use crate::{
    api::ClaimId,
    fleet::{Phase, Pool, Row},
};

/// Entries taken from one inventory. etcd's limit of 1.5 MiB an object leaves room for fewer.
const MAX_ENTRIES: usize = 32_768;
/// Pools taken from one report.
pub(super) const MAX_POOLS: usize = 1_024;

/// `entries`, the good ones.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) rows: Vec<Row>,
    /// How many were listed, good and bad.
    pub(super) listed: usize,
    pub(super) rejections: Rejections,
}

/// `pools`, the good ones.
#[derive(Default)]
pub(super) struct Pools {
    pub(super) pools: Vec<Pool>,
    pub(super) rejections: Rejections,
}

/// A hash of `releases`.
pub(super) struct Releases(pub(super) u64);

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entry {
    name: Scalar,
    id: Scalar,
    phase: Scalar,
    claim_ref: Scalar,
    addr: Scalar,
    deadline: Scalar,
    template: Scalar,
    net: Scalar,
    size: Scalar,
    claimed_at: Scalar,
    from_checkpoint: Scalar,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PoolEntry {
    template: Scalar,
    net: Scalar,
    size: Scalar,
    warm: Scalar,
    target: Scalar,
}

impl Fields for Entry {}
impl Fields for PoolEntry {}

impl<'de> Shape<'de> for Entries {
    fn of_seq<A: SeqAccess<'de>>(mut seq: A) -> Result<Shaped<Self>, A::Error> {
        let (mut entries, mut ids) = (Self::default(), HashSet::<ClaimId>::new());
        while let Some(entry) = seq.next_element::<Shaped<Entry>>()? {
            entries.listed += 1;
            let row = match entry {
                _ if entries.rows.len() == MAX_ENTRIES => Err(Reason::TooMany),
                Shaped::Is(entry) => entry.row(&mut entries.rejections),
                Shaped::Absent | Shaped::Other => Err(Reason::WrongType),
            };
            match row {
                Ok(row) if ids.insert(row.claim.clone()) => entries.rows.push(row),
                Ok(_) => entries.rejections.add(Reason::Duplicate),
                Err(reason) => entries.rejections.add(reason),
            }
        }
        Ok(Shaped::Is(entries))
    }
}

impl Entries {
    /// Whether these are all there are, by their own number and by `total`, the publisher's.
    pub(super) fn are_all_of(&self, total: &Scalar) -> bool {
        let counted = match total {
            Scalar::Absent => true,
            Scalar::Number(total) => usize::try_from(*total).is_ok_and(|t| t <= self.listed),
            _ => false,
        };
        counted && self.rows.len() == self.listed
    }
}

impl<'de> Shape<'de> for Pools {
    fn of_seq<A: SeqAccess<'de>>(mut seq: A) -> Result<Shaped<Self>, A::Error> {
        let mut pools = Self::default();
        while let Some(entry) = seq.next_element::<Shaped<PoolEntry>>()? {
            let pool = match entry {
                _ if pools.pools.len() == MAX_POOLS => Err(Reason::TooMany),
                Shaped::Is(entry) => entry.pool(),
                Shaped::Absent | Shaped::Other => Err(Reason::WrongType),
            };
            match pool {
                Ok(pool) => pools.pools.push(pool),
                Err(reason) => pools.rejections.add(reason),
            }
        }
        Ok(Shaped::Is(pools))
    }
}

impl<'de> Shape<'de> for Releases {
    fn of_seq<A: SeqAccess<'de>>(mut seq: A) -> Result<Shaped<Self>, A::Error> {
        let mut hasher = DefaultHasher::new();
        while let Some(id) = seq.next_element::<Scalar>()? {
            word(id, MAX_WORD).unwrap_or_default().hash(&mut hasher);
        }
        Ok(Shaped::Is(Self(hasher.finish())))
    }
}

impl Entry {
    fn row(self, rejections: &mut Rejections) -> Result<Row, Reason> {
        let claim = match word(self.id, MAX_WORD)? {
            id if id.is_empty() => return Err(Reason::NoId),
            id => ClaimId::from(id.as_str()),
        };
        // The name repeats the reference; a publisher may give either.
        let claim_ref = match text(self.claim_ref, MAX_REFERENCE)? {
            none if none.is_empty() => text(self.name, MAX_REFERENCE)?,
            claim_ref => claim_ref,
        };
        let from_checkpoint = word(self.from_checkpoint, MAX_WORD)?;
        Ok(Row {
            claim,
            claim_ref,
            phase: Phase::parse(&word(self.phase, MAX_WORD)?),
            deadline: time(&self.deadline, rejections),
            claimed_at: time(&self.claimed_at, rejections),
            pool: pool_key(self.template, self.net, self.size)?,
            address: word(self.addr, MAX_ADDRESS)?,
            from_checkpoint: (!from_checkpoint.is_empty()).then(|| from_checkpoint.as_str().into()),
            metadata: Default::default(),
        })
    }
}

impl PoolEntry {
    fn pool(self) -> Result<Pool, Reason> {
        Ok(Pool {
            key: pool_key(self.template, self.net, self.size)?.ok_or(Reason::NoId)?,
            warm: count(&self.warm)?,
            target: count(&self.target)?,
        })
    }
}
