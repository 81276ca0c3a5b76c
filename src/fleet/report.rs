//! What a node says, in the words of the index: parsed, checked and moved to this machine's clock by the caller, taken as it is
//! here.

use std::{collections::BTreeMap, time::Instant};

use compact_str::CompactString;

use super::Phase;
use crate::{
    api::{ClaimId, NodeAddress, PoolKey},
    meta::UnixTime,
};

/// The time of a call: this machine's steady clock for ages, its wall clock for what users see.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Steady clock.
    pub instant: Instant,
    /// Wall clock.
    pub wall: UnixTime,
}

impl Now {
    /// Both clocks, read. For the callers of the index; the index itself never calls it.
    pub fn read() -> Self {
        Self {
            instant: Instant::now(),
            wall: UnixTime::now(),
        }
    }
}

/// One sandbox, as its node reports it.
#[derive(Clone, Debug)]
pub struct Row {
    /// The daemon's id.
    pub claim: ClaimId,
    /// `<namespace>/<name>` or `<name>`; empty for a claim made without one.
    pub claim_ref: CompactString,
    /// State of the machine.
    pub phase: Phase,
    /// End of the lease; `None` when the reporter does not say or the lease never ends.
    pub deadline: Option<UnixTime>,
    /// When it was claimed; `None` when the reporter does not say.
    pub claimed_at: Option<UnixTime>,
    /// What it was made from; `None` when the reporter does not say.
    pub pool: Option<PoolKey>,
    /// Where it is reached; empty when the reporter does not say.
    pub address: CompactString,
    /// The checkpoint it was started from.
    pub from_checkpoint: Option<Box<str>>,
    /// Metadata given at claim time, where the daemon keeps it.
    pub metadata: BTreeMap<String, String>,
}

/// A warm pool, as its node reports it.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Which VMs.
    pub key: PoolKey,
    /// How many are ready.
    pub warm: u32,
    /// How many the node keeps ready.
    pub target: u32,
}

/// A publication of one node.
#[derive(Clone, Debug)]
pub struct Report {
    /// Where the daemon is reached; `None` when the publication names no usable address.
    pub address: Option<NodeAddress>,
    /// The sandboxes.
    pub rows: Vec<Row>,
    /// The warm pools; `None` when the report does not speak of them.
    pub pools: Option<Vec<Pool>>,
    /// Whether a sandbox that is not among the rows may be missing on the node.
    pub complete: bool,
    /// When the node was first published: the creation time of sandboxes of which nobody knows better.
    pub published_since: UnixTime,
}
