//! The nodes: what they really hold, and what they said at other times.

use std::collections::{BTreeMap, BTreeSet};

use sandbox_apiserver::{
    api::{ClaimId, NodeName, PoolKey},
    fleet::{Phase, Report, Row, uid_of},
    meta::UnixTime,
};

use super::record::{Dead, Looks};

pub(super) const N_NODES: usize = 3;
/// Names are few, so that claims of different nodes want the same one.
pub(super) const NAMES: [&str; 5] = ["v", "w", "x", "y", "z"];
/// One is the beginning of the other, and names of the first sort around it.
pub(super) const NAMESPACES: [&str; 2] = ["a", "a-b"];
pub(super) const COLORS: [&str; 3] = ["red", "green", "blue"];

pub(super) fn name(node: usize) -> NodeName {
    format!("node-{node}").into()
}

/// A sandbox on its node.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) id: ClaimId,
    pub(super) claim_ref: String,
    pub(super) phase: Phase,
    pub(super) claimed_at: Option<UnixTime>,
    pub(super) deadline: UnixTime,
    /// Its lease may end while the schedule goes on.
    pub(super) short: bool,
    /// The phase that the server gave it and the node has not confirmed yet.
    pub(super) disputed: Option<Phase>,
    pub(super) color: Option<&'static str>,
    /// A user gave it another color, of which its node does not know.
    pub(super) recolored: bool,
}

/// A node as it really is.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) claims: BTreeMap<String, Claim>,
    /// How often the cluster forgot it.
    pub(super) n_forgotten: u32,
    /// What it published, oldest first.
    pub(super) published: Vec<Vec<Claim>>,
    /// The id and uid of every claim that it ever had.
    pub(super) ids: BTreeMap<String, String>,
    /// Uids that must be listed, since the node told of them and nobody of their end.
    pub(super) shown: BTreeSet<String>,
    /// Uids that an answer told of which came late. The server may have taken it for old news or not.
    pub(super) told_late: BTreeSet<String>,
    /// Those of them that the node denied since: if the server knew them they ended, and if not they are still to come.
    pub(super) unsure: BTreeSet<String>,
    /// Claims that ended as the server knows for sure, by id. No publication may bring one back.
    pub(super) dead: BTreeMap<String, Dead>,
    /// Those of them whose release the node acknowledged: it never has them again.
    pub(super) released: BTreeSet<String>,
}

pub(super) fn uid(node: usize, id: &str) -> String {
    uid_of(&name(node), &id.into()).to_string()
}

impl Claim {
    pub(super) fn row(&self) -> Row {
        let color = self
            .color
            .map(|color| ("color".to_owned(), color.to_owned()));
        Row {
            claim: self.id.clone(),
            claim_ref: self.claim_ref.as_str().into(),
            phase: self.phase,
            deadline: Some(self.deadline),
            claimed_at: self.claimed_at,
            pool: Some(pool()),
            address: "10.0.0.1:80".into(),
            from_checkpoint: None,
            metadata: color.into_iter().collect(),
        }
    }

    /// What is to be seen of it.
    pub(super) fn looks(&self, node: usize) -> Looks {
        Looks {
            node: name(node).to_string(),
            claim_ref: self.claim_ref.clone(),
            id_name: self.id.as_str().replace('_', "-"),
            color: (!self.recolored).then_some(self.color),
        }
    }

    pub(super) fn uid(&self, node: usize) -> String {
        uid(node, self.id.as_str())
    }
}

impl Node {
    pub(super) fn add(&mut self, node: usize, claim: Claim) {
        self.ids.insert(claim.id.to_string(), claim.uid(node));
        self.claims.insert(claim.id.to_string(), claim);
    }

    /// What the node says of these settles what was disputed: all of it if it was asked itself, else what it confirms.
    pub(super) fn settle(&mut self, claims: &[Claim], was_asked: bool) {
        for said in claims {
            if let Some(claim) = self.claims.get_mut(said.id.as_str()) {
                claim
                    .disputed
                    .take_if(|phase| was_asked || *phase == said.phase);
            }
        }
    }

    /// The `pick`th of the claims, if there is any.
    pub(super) fn pick(&self, pick: u32) -> Option<&Claim> {
        let count = self.claims.len().max(1);
        self.claims.values().nth(pick as usize % count)
    }
}

/// Without an address: a server that cannot ask the node has to live with what is said.
pub(super) fn report(claims: &[Claim], complete: bool) -> Report {
    Report {
        address: None,
        rows: claims.iter().map(Claim::row).collect(),
        pools: None,
        complete,
        published_since: UnixTime::from_secs(1_000),
    }
}

pub(super) fn pool() -> PoolKey {
    PoolKey {
        template: "python:3.12".into(),
        net: PoolKey::DEFAULT_NET.into(),
        size: PoolKey::DEFAULT_SIZE.into(),
    }
}
