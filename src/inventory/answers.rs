//! A daemon's answers in the words of the index.

use super::{
    entries::MAX_POOLS,
    fields::MAX_REFERENCE,
    rejection::{Reason, Rejections},
};
use crate::{
    fleet::{Phase, Pool, Row},
    sandboxd::{Info, SandboxRow},
};

/// Pairs of metadata, and bytes of them, that are looked at; a daemon takes 16 pairs and 4 KiB.
const MAX_METADATA: (usize, usize) = (64, 16 << 10);

/// The row for the index.
pub(super) fn row(row: SandboxRow, rejections: &mut Rejections) -> Row {
    let phase = match &row {
        row if row.failed.is_some() => Phase::Failed,
        row if row.archived => Phase::Archived,
        row if row.hibernated => Phase::Paused,
        _ => Phase::Running,
    };
    let row = Row {
        claim: row.id,
        claim_ref: row.claim_ref,
        phase,
        deadline: row.deadline,
        claimed_at: row.claimed_at,
        pool: Some(row.key),
        address: Default::default(),
        from_checkpoint: row.from_checkpoint.map(|id| id.as_str().into()),
        metadata: row.metadata,
    };
    sound_row(row, rejections)
}

/// What is out of all proportion is left out of a row, never the row: the id stands for itself.
pub(super) fn sound_row(mut row: Row, rejections: &mut Rejections) -> Row {
    let metadata = row.metadata.iter();
    let metadata_bytes: usize = metadata.map(|(key, value)| key.len() + value.len()).sum();
    let mut is_cut = |too_long: bool| {
        if too_long {
            rejections.add(Reason::TooLong);
        }
        too_long
    };
    if is_cut(row.claim_ref.len() > MAX_REFERENCE) {
        row.claim_ref = Default::default();
    }
    if is_cut(row.pool.as_ref().is_some_and(|key| !key.is_sound())) {
        row.pool = None;
    }
    if is_cut(row.metadata.len() > MAX_METADATA.0 || metadata_bytes > MAX_METADATA.1) {
        row.metadata = Default::default();
    }
    row
}

/// The pools for the index.
pub(super) fn pools(info: Info) -> Vec<Pool> {
    let pools = info.into_pools().into_iter().map(|pool| Pool {
        key: pool.key,
        warm: pool.warm,
        target: pool.target,
    });
    pools.collect()
}

/// The pools that are not out of all proportion.
pub(super) fn sound(pools: impl Iterator<Item = Pool>) -> Vec<Pool> {
    let sound = pools.filter(|pool| pool.key.is_sound());
    sound.take(MAX_POOLS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn mk_row(fields: Value) -> (Row, Rejections) {
        let mut wire = json!({"id": "sb_1", "key": {"template": "t"}, "hibernated": false});
        wire.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let mut rejections = Rejections::default();
        let row = row(serde_json::from_value(wire).unwrap(), &mut rejections);
        (row, rejections)
    }

    #[test]
    fn the_gravest_state_is_the_phase() {
        let phase = |fields| mk_row(fields).0.phase;
        assert_eq!(phase(json!({})), Phase::Running);
        assert_eq!(phase(json!({"hibernated": true})), Phase::Paused);
        assert_eq!(
            phase(json!({"hibernated": true, "archived": true})),
            Phase::Archived
        );
        assert_eq!(
            phase(json!({"archived": true, "failed": "vmm died"})),
            Phase::Failed
        );
    }

    #[test]
    fn what_is_out_of_proportion_is_left_out_but_the_row_stays() {
        let (row, rejections) = mk_row(json!({
            "claim_ref": "x".repeat(1_000), "key": {"template": "t".repeat(1_000)}, "metadata": {"k": "v".repeat(100_000)}}));
        assert_eq!(
            (row.claim_ref.as_str(), row.pool, row.metadata.len()),
            ("", None, 0)
        );
        assert_eq!(
            rejections.iter().collect::<Vec<_>>(),
            [(Reason::TooLong, 3)]
        );
        let (row, rejections) =
            mk_row(json!({"claim_ref": "a/b", "metadata": {"k": "v"}, "from_checkpoint": "ck_1"}));
        assert_eq!(
            (row.claim_ref.as_str(), row.metadata["k"].as_str()),
            ("a/b", "v")
        );
        assert_eq!(
            (row.from_checkpoint.as_deref(), rejections),
            (Some("ck_1"), Rejections::default())
        );
    }
}
