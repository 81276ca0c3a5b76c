//! Which node is read directly next.
//!
//! However often a node gives cause for doubt, it is in the queue once, is read by one call at a time, and not again before
//! [`Options::reads_apart`]. Time is an argument.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Instant,
};

use super::Options;
use crate::{api::NodeName, fleet::Report};

/// Rows that wait for their node's answer, over all nodes. Beyond it no inventory is taken until some answers have come, so
/// that a fleet whose publishers date nothing is not held in memory twice.
const MAX_HELD_ROWS: usize = 100_000;

/// The queue of direct reads.
#[derive(Debug)]
pub(super) struct Reads {
    options: Options,
    slots: HashMap<NodeName, Slot>,
    due: VecDeque<NodeName>,
    /// Queued, but read too lately; looked at again by [`Reads::tick`].
    early: Vec<NodeName>,
    /// Nodes whose inventory does not list everything.
    cut: HashSet<NodeName>,
    /// Nodes whose agent is not heard.
    unfed: HashSet<NodeName>,
    n_under_way: usize,
    n_held_rows: usize,
}

/// A read to be made.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) node: NodeName,
    /// New rows that do not say when they were claimed, for the case that the node does not answer.
    pub(super) undated: Option<Report>,
}

#[derive(Debug, Default)]
struct Slot {
    queued: bool,
    under_way: bool,
    begun: Option<Instant>,
    undated: Option<Report>,
}

impl Reads {
    pub(super) fn new(options: Options) -> Self {
        Self {
            options,
            slots: HashMap::new(),
            due: VecDeque::new(),
            early: Vec::new(),
            cut: HashSet::new(),
            unfed: HashSet::new(),
            n_under_way: 0,
            n_held_rows: 0,
        }
    }

    /// Queues a node. Rows given earlier and still waiting are replaced: the later publication has them too, or has no more.
    pub(super) fn want(&mut self, node: &NodeName, undated: Option<Report>) {
        self.hold(node, undated);
        self.want_again(node);
    }

    /// Keeps rows for the node's next read, if there is one, in place of those that were given earlier.
    pub(super) fn hold(&mut self, node: &NodeName, undated: Option<Report>) {
        let slot = self.slots.entry(node.clone()).or_default();
        self.n_held_rows += n_rows(&undated);
        self.n_held_rows -= n_rows(&std::mem::replace(&mut slot.undated, undated));
    }

    /// Queues a node for what no publication said. Rows that wait for its answer go on waiting.
    pub(super) fn want_again(&mut self, node: &NodeName) {
        let slot = self.slots.entry(node.clone()).or_default();
        if !std::mem::replace(&mut slot.queued, true) {
            self.due.push_back(node.clone());
        }
    }

    /// Notes whether the node's inventory leaves something out, so that the node is read every
    /// [`Options::cut_reads_apart`].
    pub(super) fn set_cut(&mut self, node: &NodeName, cut: bool) {
        set(&mut self.cut, node, cut);
    }

    /// Notes whether nobody tells what becomes of the node's sandboxes although it has an agent, so that the node is read every
    /// [`Options::unfed_reads_apart`].
    pub(super) fn set_unfed(&mut self, node: &NodeName, unfed: bool) {
        set(&mut self.unfed, node, unfed);
    }

    /// The next read to begin, if there is one and not too many are under way. To be ended with [`Reads::end`].
    pub(super) fn next(&mut self, now: Instant) -> Option<Read> {
        while self.n_under_way < self.options.reads_at_once {
            let node = self.due.pop_front()?;
            // It may be that the node was forgotten.
            let Some(slot) = self.slots.get_mut(&node) else {
                continue;
            };
            let since = |begun| now.saturating_duration_since(begun);
            if slot.under_way
                || slot
                    .begun
                    .is_some_and(|begun| since(begun) < self.options.reads_apart)
            {
                self.early.push(node);
                continue;
            }
            (slot.queued, slot.under_way, slot.begun) = (false, true, Some(now));
            self.n_under_way += 1;
            let undated = slot.undated.take();
            return Some(Read { node, undated });
        }
        None
    }

    /// Notes that a read ended, however.
    pub(super) fn end(&mut self, read: &Read) {
        self.n_under_way -= 1;
        self.n_held_rows -= n_rows(&read.undated);
        if let Some(slot) = self.slots.get_mut(&read.node) {
            slot.under_way = false;
        }
    }

    /// Ends a read that could not be made, and queues it again unless a newer one waits.
    pub(super) fn put_back(&mut self, read: Read) {
        self.end(&read);
        if self.slots.get(&read.node).is_some_and(|slot| !slot.queued) {
            self.want(&read.node, read.undated);
        }
    }

    /// Queues what has become due by the mere passing of time. To be called about once a second.
    pub(super) fn tick(&mut self, now: Instant) {
        self.due.extend(self.early.drain(..));
        let is_due = |node: &&NodeName, apart| {
            let begun = self.slots.get(*node).and_then(|slot| slot.begun);
            begun.is_none_or(|begun| now.saturating_duration_since(begun) >= apart)
        };
        let (cut, unfed) = (&self.cut, &self.unfed);
        let cut = cut.iter();
        let cut = cut.filter(|node| is_due(node, self.options.cut_reads_apart));
        let unfed = unfed.iter();
        let unfed = unfed.filter(|node| is_due(node, self.options.unfed_reads_apart));
        for node in cut.chain(unfed).cloned().collect::<Vec<_>>() {
            self.want_again(&node);
        }
    }

    /// Forgets a node. A read of it that is under way is still to be ended.
    pub(super) fn forget(&mut self, node: &NodeName) {
        self.cut.remove(node);
        self.unfed.remove(node);
        if let Some(slot) = self.slots.remove(node) {
            self.n_held_rows -= n_rows(&slot.undated);
        }
    }

    /// Whether so many rows wait for an answer that no inventory should be taken.
    pub(super) fn is_full(&self) -> bool {
        self.n_held_rows >= MAX_HELD_ROWS
    }
}

fn set(nodes: &mut HashSet<NodeName>, node: &NodeName, is_in: bool) {
    match is_in {
        true => nodes.insert(node.clone()),
        false => nodes.remove(node),
    };
}

fn n_rows(report: &Option<Report>) -> usize {
    report.as_ref().map_or(0, |report| report.rows.len())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        fleet::{Phase, Row},
        meta::UnixTime,
    };

    fn mk_reads(reads_at_once: usize) -> Reads {
        Reads::new(Options {
            reads_at_once,
            ..Options::default()
        })
    }

    fn mk_undated(n_rows: usize) -> Option<Report> {
        let row = Row {
            claim: "sb_1".into(),
            claim_ref: "".into(),
            phase: Phase::Running,
            deadline: None,
            claimed_at: None,
            pool: None,
            address: "".into(),
            from_checkpoint: None,
            metadata: Default::default(),
        };
        Some(Report {
            address: None,
            rows: vec![row; n_rows],
            pools: None,
            complete: false,
            published_since: UnixTime::from_secs(0),
        })
    }

    #[test]
    fn a_node_is_read_once_at_a_time_and_not_again_at_once() {
        let (mut reads, now) = (mk_reads(8), Instant::now());
        reads.want(&"a".into(), None);
        reads.want(&"a".into(), None);
        let read = reads.next(now).unwrap();
        assert!(reads.next(now).is_none());
        reads.want(&"a".into(), None);
        assert!(reads.next(now).is_none());
        reads.end(&read);
        let second = now + Duration::from_secs(1);
        assert!(reads.next(second).is_none(), "the next tick looks again");
        reads.tick(now);
        assert!(reads.next(now).is_none());
        reads.tick(second);
        assert!(reads.next(second).is_some());
        reads.tick(second);
        assert!(reads.next(second).is_none());
    }

    #[test]
    fn only_so_many_at_once() {
        let (mut reads, now) = (mk_reads(2), Instant::now());
        for node in ["a", "b", "c"] {
            reads.want(&node.into(), None);
        }
        let first = reads.next(now).unwrap();
        assert!(reads.next(now).is_some() && reads.next(now).is_none());
        reads.end(&first);
        assert_eq!(reads.next(now).unwrap().node, "c".into());
    }

    #[test]
    fn a_cut_inventory_is_completed_every_half_minute() {
        let (mut reads, now) = (mk_reads(2), Instant::now());
        reads.set_cut(&"a".into(), true);
        reads.tick(now);
        let read = reads.next(now).unwrap();
        reads.end(&read);
        reads.tick(now + Duration::from_secs(29));
        assert!(reads.next(now + Duration::from_secs(29)).is_none());
        reads.tick(now + Duration::from_secs(30));
        assert!(reads.next(now + Duration::from_secs(30)).is_some());
        reads.set_cut(&"a".into(), false);
        reads.tick(now + Duration::from_secs(90));
        assert!(reads.next(now + Duration::from_secs(90)).is_none());
    }

    #[test]
    fn rows_in_wait_are_counted_until_their_read_ends_or_their_node_goes() {
        let (mut reads, now) = (mk_reads(2), Instant::now());
        reads.want(&"a".into(), mk_undated(MAX_HELD_ROWS));
        assert!(reads.is_full());
        reads.want(&"a".into(), mk_undated(3));
        assert_eq!(reads.n_held_rows, 3);
        let read = reads.next(now).unwrap();
        reads.want(&"a".into(), mk_undated(2));
        reads.want(&"b".into(), mk_undated(1));
        assert_eq!(reads.n_held_rows, 6);
        reads.forget(&"b".into());
        reads.end(&read);
        assert_eq!(reads.n_held_rows, 2);
        reads.forget(&"a".into());
        reads.want(&"a".into(), None);
        assert_eq!(reads.n_held_rows, 0);
        assert!(
            reads.next(now).is_some(),
            "a node that came back is a new one"
        );
    }
}
