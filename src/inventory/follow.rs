//! The one task that takes everything in, in order: inventories, Nodes, answers, and the passing of time.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::{
    ClusterNode, Options, Source,
    clocks::Taken,
    complaints::Complaints,
    daemons::{Daemons, ReadOutcome},
    feeds::{Feeds, News},
    lenient::Scalar,
    publication::{Edition, PublishedAgent},
    reads::{Read, Reads},
    rejection::{Reason, Rejections},
};
use crate::{
    api::{NodeAddress, NodeName},
    fleet::Now,
    meta::UnixTime,
    telemetry::Check,
};

const TICK: Duration = Duration::from_secs(1);
/// How long the start waits at least for the Nodes' own addresses when there are no others, so that without Nodes no node can
/// be asked anything: longer than a watch pauses after failures.
const NEEDED_NODES_WITHIN: Duration = Duration::from_secs(35);

/// The state of the task.
pub(super) struct Follower {
    pub(super) daemons: Arc<Daemons>,
    pub(super) ready: Check,
    pub(super) startup: Startup,
    pub(super) known: HashMap<NodeName, Known>,
    pub(super) nodes: HashMap<NodeName, ClusterNode>,
    pub(super) nodes_listed: bool,
    pub(super) reads: Reads,
    /// Publications of nodes that are asked for the first time, so that it is known what their times mean.
    pub(super) unheard: HashMap<NodeName, Taken>,
    pub(super) feeds: Feeds,
    pub(super) probing: HashSet<NodeName>,
    pub(super) probe_slots: Arc<Semaphore>,
    /// Reads and probes. Aborted on drop.
    pub(super) tasks: JoinSet<Done>,
    pub(super) complaints: Complaints,
    pub(super) n_name_conflicts: usize,
}

/// How far the start has come.
pub(super) enum Startup {
    /// The Nodes' addresses are awaited; no inventory is taken.
    AwaitingNodes { until: Instant },
    /// The first list comes in, and each node with an address is read once.
    Starting {
        listed: bool,
        unread: HashSet<NodeName>,
        /// Those that the start has waited for: it does once for each, whatever the node publishes meanwhile.
        asked: HashSet<NodeName>,
    },
    /// Everything that can be known is, and the server is ready.
    Live,
}

/// What is kept of a node's inventory beside the index.
pub(super) struct Known {
    /// When this server saw it first.
    pub(super) since: UnixTime,
    pub(super) edition: Edition,
    /// The address as published, to be judged again when the Node changes.
    pub(super) address: Scalar,
    /// The agent as published, likewise.
    pub(super) agent: Option<PublishedAgent>,
}

pub(super) enum Done {
    Read(Read, ReadOutcome),
    Probe(NodeName),
    /// With the address that was asked at, if there was any.
    Heard(NodeName, Option<NodeAddress>),
}

impl Startup {
    pub(super) fn awaiting_nodes(options: &Options) -> Self {
        let within = match options.node_address_cidrs.is_empty() {
            true => options.nodes_within.max(NEEDED_NODES_WITHIN),
            false => options.nodes_within,
        };
        Self::AwaitingNodes {
            until: Instant::now() + within,
        }
    }
}

impl Follower {
    pub(super) fn new(daemons: Arc<Daemons>, ready: Check) -> Self {
        Self {
            startup: Startup::awaiting_nodes(&daemons.options),
            known: HashMap::new(),
            nodes: HashMap::new(),
            nodes_listed: false,
            reads: Reads::new(daemons.options.clone()),
            unheard: HashMap::new(),
            feeds: Feeds::new(),
            probing: HashSet::new(),
            probe_slots: Arc::new(Semaphore::new(daemons.options.probes_at_once)),
            tasks: JoinSet::new(),
            complaints: Complaints::default(),
            n_name_conflicts: 0,
            ready,
            daemons,
        }
    }

    pub(super) async fn run(mut self, source: Source, shutdown: CancellationToken) {
        let mut streams = source.into_streams();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.begin_reads();
            self.become_ready();
            let takes_inventories = self.takes_inventories();
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(done) = self.tasks.join_next() => match done {
                    Ok(done) => self.done(done),
                    Err(failed) => std::panic::resume_unwind(failed.into_panic()),
                },
                Some((node, news)) = self.feeds.news_rx.recv() => self.feed_news(&node, news),
                Some(update) = streams.nodes.next() => self.node_update(update),
                Some(update) = streams.inventories.next(), if takes_inventories => self.inventory_update(update),
                _ = ticks.tick() => self.tick(Now::read()),
            }
        }
    }

    fn takes_inventories(&self) -> bool {
        let is_full = self.reads.is_full() || self.holds_too_much_unheard();
        !matches!(self.startup, Startup::AwaitingNodes { .. }) && !is_full
    }

    fn become_ready(&mut self) {
        let Startup::Starting {
            listed: true,
            unread,
            ..
        } = &self.startup
        else {
            return;
        };
        if unread.is_empty() {
            self.daemons.fleet.store().forget_history();
            self.ready.pass();
            self.startup = Startup::Live;
            tracing::info!(nodes = self.known.len(), "every node is known");
        }
    }

    fn tick(&mut self, now: Now) {
        if let Startup::AwaitingNodes { until } = self.startup
            && until <= now.instant
        {
            self.stop_awaiting_nodes();
        }
        let attention = self.daemons.fleet.tick(now);
        // At the start every node is silent and is about to be read anyway.
        if matches!(self.startup, Startup::Live) {
            for (node, _) in attention.probe {
                self.probe(node);
            }
            for node in &attention.read {
                self.reads.want_again(node);
            }
        }
        self.follow_clocks(now);
        self.feeds.restart(&self.daemons);
        for node in self.feeds.overdue(now.instant) {
            self.feed_news(&node, News::Lost);
        }
        self.reads.tick(now.instant);
        self.daemons.sweep(now.instant);
        self.show_counts();
    }

    fn show_counts(&mut self) {
        let counts = self.daemons.fleet.counts();
        let metrics = &self.daemons.metrics;
        metrics.show(&counts);
        metrics.show_feeds(self.daemons.feeds.len());
        let before = std::mem::replace(&mut self.n_name_conflicts, counts.name_conflicts);
        if counts.name_conflicts > before {
            tracing::warn!(
                sandboxes = counts.name_conflicts,
                "claims ask for names that others have: listed under their ids"
            );
        }
    }

    pub(super) fn left_out(&mut self, node: &NodeName, rejections: &Rejections) {
        self.daemons.metrics.rejected_entries(rejections);
        for (reason, n) in rejections.iter() {
            self.complain(node.as_str(), reason, &format!("{n} left out"));
        }
    }

    pub(super) fn complain(&mut self, subject: &str, reason: Reason, text: &str) {
        if self
            .complaints
            .is_due(subject, reason.as_str(), Instant::now())
        {
            tracing::warn!(
                subject,
                reason = reason.as_str(),
                text,
                "not taken from an inventory or a node"
            );
        }
    }
}
