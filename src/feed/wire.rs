//! The lines of a feed.

use std::collections::BTreeMap;

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

use super::Use;
use crate::{
    api::{ClaimId, PoolKey, UserPart, labels},
    sandboxd::NodeTime,
};

/// Longest line that is read. A row has some hundred bytes; what a user sends may have as many as one object may.
pub(super) const MAX_LINE: usize = 2 << 20;
/// Longest claim id.
pub(super) const MAX_ID: usize = 128;

/// What a claim's machine does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// The VM runs.
    #[default]
    Running,
    /// The memory is on the node, the VM is stopped.
    Hibernated,
    /// The memory is in the checkpoint store, the VM is gone.
    Archived,
    /// The VM died.
    Failed,
    /// A word of a later version.
    #[serde(other)]
    Unknown,
}

/// One sandbox as its daemon lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Claim id.
    pub id: ClaimId,
    /// The claim's reference, empty without one.
    #[serde(default, skip_serializing_if = "CompactString::is_empty")]
    pub claim_ref: CompactString,
    /// What the machine does.
    #[serde(default)]
    pub state: State,
    /// End of the lease; none without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<NodeTime>,
    /// When it was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<NodeTime>,
    /// The pool that it came from.
    pub pool: PoolKey,
    /// The checkpoint that it was started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_checkpoint: Option<CompactString>,
    /// Metadata given with the claim, where the daemon keeps it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

impl Row {
    /// What the claim refers to. A daemon takes a claim of a checkpoint without a reference, so that it is in the metadata.
    pub fn reference(&self) -> &str {
        match self.claim_ref.as_str() {
            "" => self
                .metadata
                .get(labels::CLAIM_REF)
                .map_or("", String::as_str),
            claim_ref => claim_ref,
        }
    }
}

/// One sandbox: what its daemon says, and what the agent keeps for its user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// The daemon's row.
    pub row: Row,
    /// The user's part, if one was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserPart>,
    /// Only the user's part is news. The row repeats the last look at the daemon, for readers who do not know this field; it
    /// may be older than what they did since.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) row_repeats: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A warm pool of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Which VMs.
    pub key: PoolKey,
    /// How many are ready.
    pub warm: u32,
    /// How many the node keeps ready.
    pub target: u32,
}

/// What a daemon says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// The warm pools. A node that is full has nothing warm.
    pub pools: Vec<Pool>,
    /// Whether it takes no new claims.
    #[serde(default)]
    pub draining: bool,
}

/// What a listener is told.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Everything that there is, as the daemon told it after the feed was asked for. Comes once, before any change.
    Snapshot {
        /// The agent's life: another number, another process.
        epoch: u64,
        /// The sandboxes, every one.
        sandboxes: Vec<Sandbox>,
        /// The node.
        node: NodeState,
    },
    /// A sandbox is new or has changed.
    Sandbox(Box<Sandbox>),
    /// What the agent keeps for a sandbox's user has changed. Says nothing of the sandbox itself.
    User(ClaimId, Box<UserPart>),
    /// A sandbox is gone.
    Removed(ClaimId),
    /// The node has changed.
    Node(NodeState),
    /// Nothing has changed. Also before the snapshot, while the daemon does not answer.
    Heartbeat {
        /// Whether the daemon answers the agent.
        daemon_answers: bool,
        /// What the node's clock shows; `None` from an older agent.
        clock: Option<NodeTime>,
        /// What sandboxes use that were measured again.
        uses: Vec<Use>,
    },
}

/// One line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum Message {
    Hello {
        epoch: u64,
        seq: u64,
    },
    Part(Part),
    SnapshotEnd {
        seq: u64,
        sandboxes: usize,
    },
    Change {
        seq: u64,
        part: Part,
    },
    Heartbeat {
        seq: u64,
        daemon_answers: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clock: Option<NodeTime>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        uses: Vec<Use>,
    },
}

/// One thing that is told.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Part {
    Sandbox(Box<Sandbox>),
    Removed(ClaimId),
    Node(NodeState),
}

/// The same as [`Part::Sandbox`], to be written without a copy.
#[derive(Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum PartOf<'a> {
    Sandbox {
        row: &'a Row,
        #[serde(skip_serializing_if = "Option::is_none")]
        user: Option<&'a UserPart>,
        #[serde(skip_serializing_if = "is_false")]
        row_repeats: bool,
    },
}

impl Message {
    /// Reads a line.
    pub(super) fn decode(line: &[u8]) -> Result<Self, String> {
        let message: Self = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let id = match &message {
            Self::Part(part) | Self::Change { part, .. } => part.id(),
            _ => None,
        };
        match id.map(|id| id.as_str().len()) {
            None | Some(1..=MAX_ID) => Ok(message),
            Some(length) => Err(format!("a claim id of {length} bytes")),
        }
    }
}

impl Part {
    fn id(&self) -> Option<&ClaimId> {
        match self {
            Self::Sandbox(sandbox) => Some(&sandbox.row.id),
            Self::Removed(id) => Some(id),
            Self::Node(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn reads(line: &str, expected: Option<Message>) {
        assert_eq!(Message::decode(line.as_bytes()).ok(), expected, "{line}");
    }

    #[test]
    fn lines_of_this_and_of_later_versions_are_read() {
        let row = Row {
            id: "sb_1".into(),
            claim_ref: "".into(),
            state: State::Unknown,
            deadline: None,
            claimed_at: None,
            pool: PoolKey {
                template: "t".into(),
                net: "none".into(),
                size: "small".into(),
            },
            from_checkpoint: None,
            metadata: BTreeMap::new(),
        };
        let sandbox = Box::new(Sandbox {
            row,
            user: None,
            row_repeats: false,
        });
        reads(
            r#"{"change": {"seq": 7, "later": 1, "part": {"sandbox": {"later": 1, "row":
                {"id": "sb_1", "state": "molten", "pool": {"template": "t"}}}}}}"#,
            Some(Message::Change {
                seq: 7,
                part: Part::Sandbox(sandbox),
            }),
        );
        reads(
            r#"{"heartbeat": {"seq": 1, "daemonAnswers": true}}"#,
            Some(Message::Heartbeat {
                seq: 1,
                daemon_answers: true,
                clock: None,
                uses: Vec::new(),
            }),
        );
        reads(
            r#"{"heartbeat": {"seq": 1, "daemonAnswers": true, "uses": [{"id": "sb_1", "cpuCount": 2, "memTotalBytes": 9, "later": 1}]}}"#,
            Some(Message::Heartbeat {
                seq: 1,
                daemon_answers: true,
                clock: None,
                uses: vec![Use {
                    id: "sb_1".into(),
                    cpu_count: 2,
                    mem_total_bytes: 9,
                    mem_used_bytes: None,
                }],
            }),
        );
    }

    #[test]
    fn what_is_no_line_of_a_feed_is_refused() {
        reads("{}", None);
        reads("[]", None);
        reads(r#"{"hello": {"epoch": -1, "seq": 0}}"#, None);
        reads(r#"{"part": {"removed": ""}}"#, None);
        reads(
            &format!(r#"{{"part": {{"removed": "{}"}}}}"#, "x".repeat(129)),
            None,
        );
    }
}
