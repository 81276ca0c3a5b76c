//! What nodes tell, moved from their clocks to ours.

use super::{
    follow::{Done, Follower, Startup},
    publication::PublishedAgent,
    take_in::addressed,
};
use crate::{
    api::{NodeAddress, NodeName},
    fleet::{Now, Report},
    meta::UnixTime,
    sandboxd::{ClockOffset, NodeTime},
};

/// Rows of publications whose nodes are being asked for the first time. Beyond it no inventory is taken until some have
/// answered, so that a fleet is not held in memory twice at the start.
const MAX_UNHEARD_ROWS: usize = 100_000;

/// A publication on its way into the index.
pub(super) struct Taken {
    pub(super) report: Report,
    /// Whether its publisher wrote it while this server looked on.
    pub(super) watched: bool,
    /// Whether its sandboxes and pools were taken over before, as they are here.
    pub(super) is_repeated: bool,
    /// Whether it was known before where the daemon is.
    pub(super) had_address: bool,
}

impl Taken {
    /// The same by our clock, when the node's is so far ahead of it.
    pub(super) fn by_our_clock(mut self, offset: ClockOffset) -> Self {
        let ours = |told: &mut Option<UnixTime>| {
            *told = told.map(|told| offset.ours(NodeTime::told(told)));
        };
        for row in &mut self.report.rows {
            ours(&mut row.deadline);
            ours(&mut row.claimed_at);
        }
        self
    }
}

impl Follower {
    /// How far the clock is ahead that a report is told by. `None`: its node has an address and has not answered there yet.
    pub(super) fn clock_of(&self, node: &NodeName, report: &Report) -> Option<ClockOffset> {
        match &report.address {
            Some(address) => self.daemons.client.clock_offset(address),
            None => self.daemons.clock_offset(node),
        }
    }

    /// Asks a node what its clock shows, and takes its publication over afterwards: until then its sandboxes might be listed as
    /// expired, or as claimed before others of their names.
    pub(super) fn hear_first(
        &mut self,
        node: &NodeName,
        mut taken: Taken,
        agent: Option<PublishedAgent>,
    ) {
        let (daemons, now) = (self.daemons.clone(), Now::read());
        let fleet = &daemons.fleet;
        fleet.publish(node, &addressed(&taken.report), taken.watched, false, now);
        fleet.set_cordoned(node, self.is_cordoned(node));
        self.follow_agent(node, agent);
        if let Startup::Starting { unread, .. } = &mut self.startup {
            unread.insert(node.clone());
        }
        // Both are done: the sign of life was taken in now, and until its rows are, the address may become another node's.
        (taken.watched, taken.report.address) = (false, None);
        let asked = self.unheard.remove(node);
        taken.had_address &= asked.as_ref().is_none_or(|asked| asked.had_address);
        taken.is_repeated &= asked.is_none();
        self.unheard.insert(node.clone(), taken);
        if asked.is_none() {
            self.ask_for_clock(node);
        }
    }

    fn ask_for_clock(&mut self, node: &NodeName) {
        let daemons = self.daemons.clone();
        let (slots, node) = (self.probe_slots.clone(), node.clone());
        self.tasks.spawn(async move {
            let _slot = slots.acquire().await;
            let asked = daemons.hear_clock(&node).await;
            Done::Heard(node, asked)
        });
    }

    /// Takes over what waited for a node's first answer, which was asked for at the address `asked`. The clock of one that gave
    /// none counts as right until it does.
    pub(super) fn heard_first(&mut self, node: &NodeName, asked: Option<&NodeAddress>) {
        if !self.unheard.contains_key(node) {
            return;
        }
        if self.daemons.fleet.address(node).as_ref() != asked {
            // It moved, or was made anew, and nobody has been asked there.
            return self.ask_for_clock(node);
        }
        let Some(taken) = self.end_hearing(node) else {
            return;
        };
        let offset = self.daemons.clock_offset(node).unwrap_or_default();
        let agent = self.known.get(node).and_then(|known| known.agent.clone());
        self.take_over(node, taken.by_our_clock(offset), agent);
    }

    /// The publication that waits for a node's first answer, to be taken over now or replaced by a later one. Whether the node is
    /// to be read is decided then.
    pub(super) fn end_hearing(&mut self, node: &NodeName) -> Option<Taken> {
        let taken = self.unheard.remove(node)?;
        if let Startup::Starting { unread, .. } = &mut self.startup {
            unread.remove(node);
        }
        Some(taken)
    }

    pub(super) fn holds_too_much_unheard(&self) -> bool {
        let rows = self.unheard.values().map(|taken| taken.report.rows.len());
        rows.sum::<usize>() >= MAX_UNHEARD_ROWS
    }

    /// Reads the nodes again whose clock is off by more or less than was known: what they said before counts from another moment.
    pub(super) fn follow_clocks(&mut self, now: Now) {
        for (address, offset) in self.daemons.client.take_changed_clocks() {
            let Some(node) = self.daemons.fleet.node_at(&address) else {
                continue;
            };
            self.report_clock(&node, offset, now);
            // A live feed sees it itself, and begins again.
            if !(self.feeds.is_awaited(&node) || self.daemons.feeds.is_live(&node)) {
                self.want_read(&node, None);
                // If that fails it is read again from time to time, as one is that did not list everything, until it publishes
                // again.
                self.reads.set_cut(&node, true);
            }
        }
        self.show_clocks();
    }

    fn report_clock(&mut self, node: &NodeName, offset: ClockOffset, now: Now) {
        let offset_seconds = offset.as_secs();
        let subject = format!("{node} {offset_seconds}");
        if !self.complaints.is_due(&subject, "clock", now.instant) {
            return;
        }
        match offset.is_zero() {
            true => tracing::info!(%node, "the node's clock is right again"),
            false => {
                tracing::warn!(%node, offset_seconds, "the node's clock is off: its times are moved to this one's")
            }
        }
    }

    fn show_clocks(&self) {
        let off = self.daemons.client.has_clocks_off();
        let nodes = match off {
            true => self.daemons.fleet.addresses(),
            false => Vec::new(),
        };
        let offset = |(_, address)| self.daemons.client.clock_offset(&address);
        let offsets = nodes
            .into_iter()
            .filter_map(offset)
            .map(ClockOffset::as_secs);
        self.daemons.metrics.show_clocks(offsets);
    }
}
