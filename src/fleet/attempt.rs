//! Which of two claims of one create is the one that its client got.

use std::{collections::BTreeMap, num::NonZeroU16};

use uuid::Uuid;

use crate::api::labels;

/// A claim's place among those of one create, as its node keeps it.
///
/// A create goes on to another node only when the one before did not say what it did. So of two grants the later was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Half of the create's own word: for comparing, and random enough.
    create: u64,
    node: NonZeroU16,
}

impl Attempt {
    /// What the metadata of a claim says; `None` for a claim that was not made by a create of this API, or by an older server.
    pub(super) fn of(metadata: &BTreeMap<String, String>) -> Option<Self> {
        let create = Uuid::try_parse(metadata.get(labels::ATTEMPT)?).ok()?;
        let node = metadata.get(labels::ATTEMPT_NODE)?.parse().ok()?;
        let (create, _) = create.as_u64_pair();
        Some(Self { create, node })
    }

    /// Whether this claim was answered and not the other one; `None` when they are of different creates, or are one.
    pub(super) fn outdoes(self, other: Self) -> Option<bool> {
        let comparable = self.create == other.create && self.node != other.node;
        comparable.then_some(self.node > other.node)
    }
}
