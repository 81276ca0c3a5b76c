//! Which of a node's claims one attempt made: told by a word of its own in the claim's metadata.

use std::collections::BTreeMap;

use crate::{
    api::{
        UserPart,
        labels::{self, ATTEMPT, ATTEMPT_NODE},
    },
    sandboxd::{self, Node, SandboxRow},
};

/// What a daemon keeps of a claim's metadata: pairs, and bytes of all of them as JSON.
const MAX_METADATA: usize = 16;
const MAX_METADATA_BYTES: usize = 4_096;

/// How a claim says whose it is. A claim of a checkpoint has no reference of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reference<'a> {
    OfItsOwn(&'a str),
    InMetadata(&'a str),
}

impl Reference<'_> {
    /// The node's claims under this reference.
    pub(super) async fn claims(self, daemon: Node<'_>) -> sandboxd::Result<Vec<SandboxRow>> {
        match self {
            Self::OfItsOwn(claim_ref) => daemon.sandboxes_of(claim_ref).await,
            Self::InMetadata(claim_ref) => {
                daemon.sandboxes_with(labels::CLAIM_REF, claim_ref).await
            }
        }
    }
}

/// What goes with the claim for daemons that keep metadata: the labels, as many as fit, and which attempt it is.
pub(super) fn metadata(user: &UserPart, reference: Reference<'_>) -> BTreeMap<String, String> {
    let attempt = uuid::Uuid::new_v4().simple().to_string();
    let mut metadata = BTreeMap::from([
        (ATTEMPT.to_owned(), attempt),
        (ATTEMPT_NODE.to_owned(), "1".to_owned()),
    ]);
    let mut bytes = 192;
    if let Reference::InMetadata(claim_ref) = reference {
        bytes += 128 + claim_ref.len();
        metadata.insert(labels::CLAIM_REF.to_owned(), claim_ref.to_owned());
    }
    for (key, value) in &user.labels {
        bytes += key.len() + value.len() + 6;
        if metadata.len() >= MAX_METADATA
            || bytes > MAX_METADATA_BYTES
            || key.len() > 128
            || key.starts_with(labels::PREFIX)
        {
            continue;
        }
        metadata.insert(key.to_string(), value.to_string());
    }
    metadata
}

/// Of a node's claims under one reference, those that one attempt made.
///
/// A reference is not unique: somebody else's claim may carry it. A daemon that keeps metadata says of each which attempt made
/// it. One that keeps none leaves the reference to go by, which is ours while we hold the name, and only then.
pub(super) fn made_by(
    attempt: &str,
    mut rows: Vec<SandboxRow>,
    holds_name: bool,
) -> Vec<SandboxRow> {
    let of_later_daemon = |row: &SandboxRow| !row.metadata.is_empty() || row.on_expire.is_some();
    let keeps_metadata = rows.iter().any(of_later_daemon);
    rows.retain(|row| match row.metadata.get(ATTEMPT) {
        Some(known) => known == attempt,
        None => holds_name && !keeps_metadata,
    });
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_the_attempt_made_is_its_own() {
        let row = |id: &str, metadata: &[(&str, &str)]| -> SandboxRow {
            let metadata: std::collections::BTreeMap<_, _> = metadata.iter().copied().collect();
            let key = json!({"template": "t", "net": "none", "size": "small"});
            let row = json!({"id": id, "key": key, "hibernated": false, "metadata": metadata});
            serde_json::from_value(row).unwrap()
        };
        let check = |rows: &[SandboxRow], expected: &[&str]| {
            let ids = |holds_name| -> Vec<String> {
                let ours = made_by("mine", rows.to_vec(), holds_name).into_iter();
                ours.map(|row| row.id.to_string()).collect()
            };
            assert_eq!(ids(true), expected);
            // Without the name, only what says so itself.
            let says_so = |row: &&SandboxRow| row.metadata.contains_key(ATTEMPT);
            let told: Vec<_> = rows
                .iter()
                .filter(says_so)
                .map(|row| row.id.to_string())
                .collect();
            assert!(ids(false).iter().all(|id| told.contains(id)));
        };
        let (mine, other) = (
            row("sb_1", &[(ATTEMPT, "mine")]),
            row("sb_2", &[(ATTEMPT, "another")]),
        );
        let (bare, labelled) = (row("sb_3", &[]), row("sb_4", &[("team", "a")]));
        check(std::slice::from_ref(&bare), &["sb_3"]);
        check(&[bare.clone(), mine.clone()], &["sb_1"]);
        check(&[other.clone(), mine], &["sb_1"]);
        check(&[other], &[]);
        check(&[labelled, bare], &[]);
    }
}
