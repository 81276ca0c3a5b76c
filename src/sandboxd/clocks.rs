//! The clocks of all nodes, as their answers show them.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use http::{HeaderMap, header};
use jiff::Timestamp;
use parking_lot::Mutex;

use super::clock::{Bounds, ClockOffset};
use crate::api::NodeAddress;

/// Clocks that are known at once; a fleet has one a node. Beyond it the one that was heard longest ago is forgotten, and has to
/// be heard again.
const MAX_CLOCKS: usize = 32_768;

/// The clocks of the nodes that have answered.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    // Held for a look-up or one change, never over an await.
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    by_node: HashMap<NodeAddress, Clock>,
    /// Those whose offset changed since somebody asked which.
    changed: HashSet<NodeAddress>,
}

#[derive(Debug)]
struct Clock {
    offset: ClockOffset,
    heard: Instant,
}

impl Clocks {
    /// Takes in the head of an answer, which had taken so long from its request on. A node that tells no date has the right
    /// time, as far as anybody can say.
    pub(super) fn hear(&self, node: &NodeAddress, head: &HeaderMap, took: Duration) {
        let date = head.get(header::DATE);
        let bounds = date.and_then(|date| Bounds::of(date, took, Timestamp::now()));
        self.heard.lock().hear(node, bounds, Instant::now());
    }

    /// The offset of a node's clock; `None` before its first answer.
    pub(super) fn offset(&self, node: &NodeAddress) -> Option<ClockOffset> {
        let heard = self.heard.lock();
        heard.by_node.get(node).map(|clock| clock.offset)
    }

    pub(super) fn has_any_off(&self) -> bool {
        let heard = self.heard.lock();
        heard.by_node.values().any(|clock| !clock.offset.is_zero())
    }

    /// The nodes whose offset has changed since the last call.
    pub(super) fn take_changed(&self) -> Vec<(NodeAddress, ClockOffset)> {
        let mut heard = self.heard.lock();
        let changed = std::mem::take(&mut heard.changed).into_iter();
        let offset = |node| Some((heard.by_node.get(&node)?.offset, node));
        let changed = changed.filter_map(offset);
        changed.map(|(offset, node)| (node, offset)).collect()
    }
}

impl Heard {
    fn hear(&mut self, node: &NodeAddress, bounds: Option<Bounds>, now: Instant) {
        if !self.by_node.contains_key(node) {
            self.make_room();
            let clock = Clock {
                offset: ClockOffset::default(),
                heard: now,
            };
            self.by_node.insert(node.clone(), clock);
        }
        let clock = self.by_node.get_mut(node).expect("inserted above");
        clock.heard = now;
        if bounds.is_some_and(|bounds| clock.offset.learn(bounds)) {
            self.changed.insert(node.clone());
        }
    }

    fn make_room(&mut self) {
        if self.by_node.len() < MAX_CLOCKS {
            return;
        }
        let oldest = self.by_node.iter().min_by_key(|(_, clock)| clock.heard);
        if let Some(oldest) = oldest.map(|(node, _)| node.clone()) {
            self.by_node.remove(&oldest);
            self.changed.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: usize) -> NodeAddress {
        format!("10.{}.{}.{}:1", n >> 16, n >> 8 & 255, n & 255)
            .parse()
            .unwrap()
    }

    fn mk_head(ahead: i64) -> HeaderMap {
        let shown = Timestamp::now() + jiff::SignedDuration::from_secs(ahead);
        let date = jiff::fmt::rfc2822::DateTimePrinter::new();
        let date = date.timestamp_to_rfc9110_string(&shown).unwrap();
        HeaderMap::from_iter([(header::DATE, date.try_into().unwrap())])
    }

    #[test]
    fn a_change_is_told_once() {
        let (clocks, node) = (Clocks::default(), address(1));
        assert_eq!(clocks.offset(&node), None);
        clocks.hear(&node, &mk_head(0), Duration::ZERO);
        assert_eq!(clocks.offset(&node), Some(ClockOffset::default()));
        assert!(clocks.take_changed().is_empty(), "it is right");
        clocks.hear(&node, &mk_head(3_600), Duration::ZERO);
        clocks.hear(&node, &mk_head(3_601), Duration::ZERO);
        let offset = clocks.offset(&node).unwrap();
        assert!((3_599..=3_601).contains(&offset.as_secs()), "{offset:?}");
        assert_eq!(clocks.take_changed(), [(node.clone(), offset)]);
        assert!(clocks.take_changed().is_empty());
        clocks.hear(&node, &HeaderMap::new(), Duration::ZERO);
        assert_eq!(clocks.offset(&node), Some(offset), "it says nothing");
    }

    #[test]
    fn clocks_are_bounded_in_number() {
        let (mut heard, begun) = (Heard::default(), Instant::now());
        for n in 0..MAX_CLOCKS + 3 {
            let now = begun + Duration::from_millis(n as u64);
            heard.hear(&address(n), None, now);
        }
        assert_eq!(heard.by_node.len(), MAX_CLOCKS);
        assert!(!heard.by_node.contains_key(&address(2)));
        assert!(heard.by_node.contains_key(&address(3)));
    }
}
