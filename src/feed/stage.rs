//! A feed's lines in their order, and what they amount to.

use std::collections::HashMap;

use super::{
    Error, Event, NodeState, Result, Sandbox,
    wire::{Message, Part},
};
use crate::api::ClaimId;

/// Sandboxes, and bytes of them, that one feed may tell of, in its snapshot and afterwards.
const MAX_SANDBOXES: usize = 100_000;
const MAX_BYTES: usize = 256 << 20;

/// How far a feed has come.
#[derive(Default)]
pub(super) enum Stage {
    /// Nothing was said.
    #[default]
    Silent,
    /// The snapshot comes.
    Told(Telling),
    /// Changes come; the last was `seq`.
    Following { seq: u64, tally: Tally },
}

#[derive(Default)]
pub(super) struct Telling {
    epoch: u64,
    sandboxes: Vec<Sandbox>,
    node: NodeState,
    tally: Tally,
}

/// The sandboxes that the agent told of and did not take back, for the listener keeps as many.
#[derive(Default)]
pub(super) struct Tally {
    /// The length of the longest line about each: one without the user's part takes back nothing.
    by_claim: HashMap<ClaimId, usize>,
    bytes: usize,
}

impl Stage {
    /// Takes a message in its place. Gives what it amounts to, if it does by itself.
    pub(super) fn step(&mut self, message: Message, length: usize) -> Result<Option<Event>> {
        match (&mut *self, message) {
            (Self::Silent, Message::Hello { epoch, .. }) => {
                *self = Self::Told(Telling {
                    epoch,
                    ..Telling::default()
                });
                Ok(None)
            }
            (Self::Told(telling), Message::Part(part)) => telling.take(part, length).map(|()| None),
            (Self::Told(telling), Message::SnapshotEnd { seq, sandboxes }) => {
                if telling.sandboxes.len() != sandboxes {
                    return Err(malformed("a snapshot of another size than its end says"));
                }
                let told = std::mem::take(telling);
                let tally = told.tally;
                *self = Self::Following { seq, tally };
                Ok(Some(Event::Snapshot {
                    epoch: told.epoch,
                    sandboxes: told.sandboxes,
                    node: told.node,
                }))
            }
            // Of what it uses it is told again once the sandbox is there.
            (
                Self::Told(_),
                Message::Heartbeat {
                    daemon_answers,
                    clock,
                    ..
                },
            ) => Ok(Some(Event::Heartbeat {
                daemon_answers,
                clock,
                uses: Vec::new(),
            })),
            (Self::Following { seq, tally }, Message::Change { seq: found, part }) => {
                in_order(seq.wrapping_add(1), found)?;
                *seq = found;
                tally.take(&part, length)?;
                Ok(Some(match part {
                    Part::Sandbox(sandbox) if sandbox.row_repeats => {
                        let Some(user) = sandbox.user else {
                            return Ok(None);
                        };
                        Event::User(sandbox.row.id, Box::new(user))
                    }
                    Part::Sandbox(sandbox) => Event::Sandbox(sandbox),
                    Part::Removed(id) => Event::Removed(id),
                    Part::Node(node) => Event::Node(node),
                }))
            }
            (
                Self::Following { seq, .. },
                Message::Heartbeat {
                    seq: found,
                    daemon_answers,
                    clock,
                    uses,
                },
            ) => {
                in_order(*seq, found)?;
                Ok(Some(Event::Heartbeat {
                    daemon_answers,
                    clock,
                    uses,
                }))
            }
            _ => Err(malformed("a line out of its place")),
        }
    }
}

impl Telling {
    fn take(&mut self, part: Part, length: usize) -> Result<()> {
        self.tally.take(&part, length)?;
        match part {
            Part::Sandbox(_) if self.tally.by_claim.len() == self.sandboxes.len() => {
                return Err(malformed("a sandbox twice in a snapshot"));
            }
            Part::Sandbox(sandbox) => self.sandboxes.push(*sandbox),
            Part::Node(node) => self.node = node,
            Part::Removed(_) => return Err(malformed("a removal in a snapshot")),
        }
        Ok(())
    }
}

impl Tally {
    fn take(&mut self, part: &Part, length: usize) -> Result<()> {
        match part {
            Part::Sandbox(sandbox) => {
                let longest = self.by_claim.entry(sandbox.row.id.clone()).or_default();
                let more = length.saturating_sub(*longest);
                *longest += more;
                self.bytes += more;
            }
            Part::Removed(id) => self.bytes -= self.by_claim.remove(id).unwrap_or(0),
            Part::Node(_) => {}
        }
        match self.by_claim.len() <= MAX_SANDBOXES && self.bytes <= MAX_BYTES {
            true => Ok(()),
            false => Err(malformed("more than a node may have")),
        }
    }
}

fn in_order(expected: u64, found: u64) -> Result<()> {
    if expected == found {
        Ok(())
    } else {
        Err(Error::Gap { expected, found })
    }
}

pub(super) fn malformed(reason: impl Into<String>) -> Error {
    Error::Malformed {
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the lines amount to: an event each, or the error that ends the feed.
    fn events(lines: &[&str]) -> Vec<String> {
        let mut stage = Stage::Silent;
        let mut shown = Vec::new();
        for line in lines {
            let message = Message::decode(line.as_bytes()).unwrap();
            match stage.step(message, line.len()) {
                Ok(None) => {}
                Ok(Some(event)) => shown.push(format!("{event:?}")),
                Err(error) => {
                    shown.push(error.to_string());
                    break;
                }
            }
        }
        shown
    }

    const HELLO: &str = r#"{"hello":{"epoch":1,"seq":5}}"#;
    const END: &str = r#"{"snapshotEnd":{"seq":5,"sandboxes":0}}"#;
    const SIX: &str = r#"{"change":{"seq":6,"part":{"removed":"sb_1"}}}"#;

    #[test]
    fn changes_follow_the_snapshot_one_by_one() {
        let alive = r#"{"heartbeat":{"seq":6,"daemonAnswers":true}}"#;
        let shown = events(&[HELLO, END, SIX, alive]);
        assert!(shown[0].starts_with("Snapshot { epoch: 1"), "{shown:?}");
        assert!(shown[1].starts_with("Removed"), "{shown:?}");
        let alive = "Heartbeat { daemon_answers: true, clock: None, uses: [] }";
        assert_eq!(shown[2], alive);
    }

    #[track_caller]
    fn ends_with(lines: &[&str], reason: &str) {
        let shown = events(lines);
        assert!(shown.last().unwrap().contains(reason), "{shown:?}");
    }

    #[test]
    fn a_gap_ends_the_feed() {
        ends_with(
            &[HELLO, END, &SIX.replace('6', "7")],
            "change 7 came where 6 was due",
        );
        ends_with(&[HELLO, END, SIX, SIX], "change 6 came where 7 was due");
        let beat = r#"{"heartbeat":{"seq":9,"daemonAnswers":true}}"#;
        ends_with(&[HELLO, END, beat], "change 9 came where 5 was due");
    }

    fn mk_change(seq: u64, id: &str, more: &str) -> String {
        format!(
            r#"{{"change":{{"seq":{seq},"part":{{"sandbox":{{"row":{{"id":"{id}","pool":{{"template":"t"}}}}{more}}}}}}}}}"#
        )
    }

    #[test]
    fn what_is_told_after_the_snapshot_is_bounded_too() {
        let step = |stage: &mut Stage, line: &str, length| {
            stage.step(Message::decode(line.as_bytes()).unwrap(), length)
        };
        let following = || {
            let mut stage = Stage::Silent;
            step(&mut stage, HELLO, 0).unwrap();
            step(&mut stage, END, 0).unwrap();
            stage
        };
        // New sandboxes, each with as much of its user as a line holds.
        let (mut stage, mut seq, line) = (following(), 5, 2 << 20);
        let last = loop {
            seq += 1;
            assert!(seq < 1_000, "never over");
            let change = mk_change(seq, &format!("sb_{seq}"), "");
            if let Err(error) = step(&mut stage, &change, line) {
                break error.to_string();
            }
        };
        assert!(last.contains("more than a node may have"), "{last}");
        assert_eq!(seq, 5 + 128 + 1);
        // New sandboxes without anything.
        let (mut stage, mut seq) = (following(), 5);
        while step(&mut stage, &mk_change(seq + 1, &format!("sb_{seq}"), ""), 9).is_ok() {
            seq += 1;
        }
        assert_eq!(seq, 5 + 100_000);
        // The same ones again and again, and those that go, take no more room.
        let mut stage = following();
        for seq in 6..1_000 {
            let change = mk_change(seq, &format!("sb_{}", seq % 4), "");
            let gone = format!(r#"{{"change":{{"seq":{seq},"part":{{"removed":"sb_3"}}}}}}"#);
            let change = if seq % 5 == 0 { &gone } else { &change };
            step(&mut stage, change, line).unwrap();
        }
        let Stage::Following { tally, .. } = &stage else {
            panic!("it follows");
        };
        assert_eq!(tally.bytes, tally.by_claim.values().sum::<usize>());
    }

    #[test]
    fn a_row_that_is_repeated_is_no_news() {
        let user = mk_change(6, "sb_1", r#","user":{"generation":2},"rowRepeats":true"#);
        let none = mk_change(7, "sb_1", r#","rowRepeats":true"#);
        let both = mk_change(8, "sb_1", r#","user":{"generation":2}"#);
        let shown = events(&[HELLO, END, &user, &none, &both]);
        assert!(shown[1].starts_with(r#"User(ClaimId("sb_1")"#), "{shown:?}");
        assert!(shown[2].starts_with("Sandbox("), "{shown:?}");
        assert_eq!(shown.len(), 3);
    }

    #[test]
    fn lines_out_of_their_place_end_the_feed() {
        ends_with(&[SIX], "out of its place");
        ends_with(&[HELLO, SIX], "out of its place");
        ends_with(&[HELLO, END, HELLO], "out of its place");
        ends_with(&[HELLO, r#"{"part":{"removed":"sb_1"}}"#], "a removal");
        ends_with(&[HELLO, &END.replace(":0", ":1")], "another size");
        let twice = r#"{"part":{"sandbox":{"row":{"id":"sb_1","pool":{"template":"t"}}}}}"#;
        ends_with(&[HELLO, twice, twice], "twice");
    }
}
