//! Questions to the nodes' daemons, their answers taken into the index.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::{
    InventoryMetrics, Options, answers, live::LiveFeeds, rejection::Rejections, roster::Roster,
};
use crate::{
    api::{NodeAddress, NodeName},
    fleet::{Fleet, Now, Row},
    sandboxd::{self, ClockOffset},
};

/// The fleet and the way to its nodes.
pub(super) struct Daemons {
    pub(super) fleet: Arc<Fleet>,
    pub(super) options: Options,
    pub(super) metrics: InventoryMetrics,
    pub(super) roster: Roster,
    pub(super) feeds: LiveFeeds,
    pub(super) client: sandboxd::Client,
    // Held for a look-up, never over an await.
    asked: Mutex<HashMap<NodeName, Asked>>,
}

/// How a direct read ended.
#[derive(Debug)]
pub(super) enum ReadOutcome {
    /// The node's list is in the index. `settled`: no publication that came meanwhile says otherwise.
    Merged {
        rejections: Rejections,
        settled: bool,
    },
    /// Another direct read of the node is under way, which may have begun before what this one was to settle; or the node
    /// has another address since this one began.
    Busy,
    /// The node did not answer, or not with a list: nothing is known.
    Failed(sandboxd::Error),
    /// There is no address to ask at.
    Unaddressed,
}

/// A question for `GET /v1/info` that others may share.
struct Asked {
    begun: Instant,
    answered: Arc<OnceCell<bool>>,
}

impl Daemons {
    pub(super) fn new(
        fleet: Arc<Fleet>,
        client: sandboxd::Client,
        options: Options,
        metrics: InventoryMetrics,
    ) -> Self {
        Self {
            fleet,
            options,
            metrics,
            roster: Roster::default(),
            feeds: LiveFeeds::default(),
            client,
            asked: Mutex::default(),
        }
    }

    /// How far a node's clock is ahead of ours. `None`: the node has an address and has not answered there yet, so nobody
    /// knows; where nobody can be asked the clock counts as right.
    pub(super) fn clock_offset(&self, node: &NodeName) -> Option<ClockOffset> {
        match self.fleet.address(node) {
            Some(address) => self.client.clock_offset(&address),
            None => Some(ClockOffset::default()),
        }
    }

    /// Lets a node's daemon show what its clock shows. Takes as long as a question for what is warm. Gives where it was asked.
    pub(super) async fn hear_clock(&self, node: &NodeName) -> Option<NodeAddress> {
        let address = self.fleet.address(node)?;
        // Whatever it answers has a date, and what it does not answer says nothing.
        let daemon = self.client.node(&address, self.options.info_within);
        let _ = daemon.healthz().await;
        Some(address)
    }

    /// Asks a node for all its sandboxes.
    pub(super) async fn read(&self, node: &NodeName, within: Duration) -> ReadOutcome {
        let Some(address) = self.fleet.address(node) else {
            return ReadOutcome::Unaddressed;
        };
        let Some(read) = self.fleet.begin_read(node) else {
            return ReadOutcome::Busy;
        };
        let answer = self.client.node(&address, within).sandboxes().await;
        self.metrics.read(answer.is_ok());
        if !self.is_at(node, &address) {
            return ReadOutcome::Busy;
        }
        match answer {
            Ok(rows) => {
                let mut rejections = Rejections::default();
                let rows: Vec<Row> = rows
                    .into_iter()
                    .map(|row| answers::row(row, &mut rejections))
                    .collect();
                let merge = || self.fleet.read(read, &rows, Now::read());
                let settled = self.roster.if_present(node, merge);
                ReadOutcome::Merged {
                    rejections,
                    settled: settled.unwrap_or(true),
                }
            }
            Err(error) => ReadOutcome::Failed(error),
        }
    }

    /// Asks a node whether it is there and what is warm; with whoever asks too, and not if it was asked just now.
    pub(super) async fn ask(&self, node: &NodeName) -> bool {
        let Some(address) = self.fleet.address(node) else {
            return false;
        };
        let answered = self.question(node);
        *answered.get_or_init(|| self.info(node, &address)).await
    }

    fn question(&self, node: &NodeName) -> Arc<OnceCell<bool>> {
        let now = Instant::now();
        let mut asked = self.asked.lock();
        let shared = asked
            .get(node)
            .filter(|asked| self.is_recent(asked, now) || !asked.answered.initialized());
        if let Some(shared) = shared {
            return shared.answered.clone();
        }
        let answered = Arc::new(OnceCell::new());
        let question = Asked {
            begun: now,
            answered: answered.clone(),
        };
        asked.insert(node.clone(), question);
        answered
    }

    /// Forgets what was asked too long ago to be of use. To be called about once a second.
    pub(super) fn sweep(&self, now: Instant) {
        let in_use = |asked: &Asked| Arc::strong_count(&asked.answered) > 1;
        let mut asked = self.asked.lock();
        asked.retain(|_, asked| in_use(asked) || self.is_recent(asked, now));
    }

    fn is_recent(&self, asked: &Asked, now: Instant) -> bool {
        now.saturating_duration_since(asked.begun) < self.options.infos_apart
    }

    /// Whether the node's daemon is still there: what another one says, says nothing of the node.
    fn is_at(&self, node: &NodeName, address: &NodeAddress) -> bool {
        self.fleet.address(node).as_ref() == Some(address)
    }

    async fn info(&self, node: &NodeName, address: &NodeAddress) -> bool {
        let within = self.options.info_within;
        let answer = self.client.node(address, within).info().await;
        self.metrics.asked(answer.is_ok());
        let Ok(info) = answer else {
            return false;
        };
        if self.is_at(node, address) {
            let draining = info.draining;
            self.fleet
                .informed(node, &answers::pools(info), draining, Now::read());
        }
        true
    }
}
