//! The one task that takes everything in, in order: inventories, Nodes, answers, and the passing of time.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt;
use rand::Rng;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    ClusterNode, Error, Publication, Source, Update, address,
    complaints::Complaints,
    daemons::{Daemons, ReadOutcome},
    lenient::Scalar,
    publication::Edition,
    reads::{Read, Reads},
    rejection::{Reason, Rejections},
};
use crate::{
    api::{NodeAddress, NodeName},
    fleet::{Now, Report},
    meta::UnixTime,
    telemetry::Check,
};

const TICK: Duration = Duration::from_secs(1);
/// How long the start waits for the Nodes' own addresses. Without them only the configured networks count.
const NODES_WITHIN: Duration = Duration::from_secs(5);

/// The state of the task.
pub(super) struct Follower {
    daemons: Arc<Daemons>,
    ready: Check,
    phase: Phase,
    known: HashMap<NodeName, Known>,
    nodes: HashMap<NodeName, ClusterNode>,
    reads: Reads,
    probing: HashSet<NodeName>,
    probe_slots: Arc<Semaphore>,
    /// Reads and probes. Aborted on drop.
    tasks: JoinSet<Done>,
    complaints: Complaints,
    n_name_conflicts: usize,
}

/// How far the start has come.
enum Phase {
    /// The Nodes' addresses are awaited; no inventory is taken.
    AwaitingNodes { until: Instant },
    /// The first list comes in, and each node with an address is read once.
    Starting {
        listed: bool,
        unread: HashSet<NodeName>,
    },
    /// Everything that can be known is, and the server is ready.
    Live,
}

/// What is kept of a node's inventory beside the index.
struct Known {
    /// When this server saw it first.
    since: UnixTime,
    edition: Edition,
    /// The address as published, to be judged again when the Node changes.
    address: Scalar,
}

enum Done {
    Read(Read, ReadOutcome),
    Probe(NodeName),
}

impl Follower {
    pub(super) fn new(daemons: Arc<Daemons>, ready: Check) -> Self {
        Self {
            phase: Phase::AwaitingNodes {
                until: Instant::now() + NODES_WITHIN,
            },
            known: HashMap::new(),
            nodes: HashMap::new(),
            reads: Reads::new(daemons.options.clone()),
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
                Some(update) = streams.nodes.next() => self.node_update(update),
                Some(update) = streams.inventories.next(), if takes_inventories => self.inventory_update(update),
                _ = ticks.tick() => self.tick(Now::read()),
            }
        }
    }

    fn takes_inventories(&self) -> bool {
        !matches!(self.phase, Phase::AwaitingNodes { .. }) && !self.reads.is_full()
    }

    fn inventory_update(&mut self, update: Update<Publication>) {
        let metrics = &self.daemons.metrics;
        match update {
            Update::Listed(publication) => self.publish(publication, false),
            Update::Applied(publication) => self.publish(publication, true),
            Update::Deleted(node) => self.forget(&node),
            Update::ListEnds => {
                if let Phase::Starting { listed, .. } = &mut self.phase {
                    *listed = true;
                }
            }
            Update::Undecodable(reason) => {
                metrics.rejected(Reason::Undecodable);
                self.complain("NodeInventory", Reason::Undecodable, &reason);
            }
            Update::Interrupted(reason) => {
                metrics.interrupted("NodeInventory");
                tracing::warn!(
                    reason,
                    "NodeInventories cannot be watched: what is known stays"
                );
                if !matches!(self.phase, Phase::Live) {
                    self.ready
                        .fail(format!("NodeInventories cannot be watched: {reason}"));
                }
            }
        }
    }

    /// Takes an inventory over. `looked_on`: it was published while this server watched.
    fn publish(&mut self, publication: Publication, looked_on: bool) {
        let Some(node) = publication.node() else {
            self.daemons.metrics.rejected(Reason::Name);
            return self.complain("NodeInventory", Reason::Name, "its name is no node's");
        };
        let content = publication.content;
        self.left_out(&node, &content.rejections);
        let now = Now::read();
        let (since, is_news) = self.note(&node, &content.edition, &content.address, now);
        let address = self.judge(&node, content.address.clone());
        let report = Report {
            address,
            ..content.into_report(since)
        };
        let daemons = self.daemons.clone();
        daemons.metrics.applied.inc();
        daemons.roster.enter(&node);
        let fleet = &daemons.fleet;
        let had_address = fleet.address(&node).is_some();
        let doubt = fleet.publish(&node, &report, looked_on && is_news, false, now);
        fleet.set_cordoned(&node, self.is_cordoned(&node));
        self.reads.set_cut(&node, !report.complete);
        let undated = (doubt.undated > 0).then(|| undated_of(report));
        match fleet.address(&node) {
            None => self.admit(&node, undated.as_ref(), now),
            Some(_) if doubt.is_some() || !had_address => self.want_read(&node, undated),
            Some(_) => {}
        }
    }

    /// Notes what the next inventory of the node is compared with. Gives since when it is known, and whether its publisher
    /// wrote this one.
    fn note(
        &mut self,
        node: &NodeName,
        edition: &Edition,
        address: &Scalar,
        now: Now,
    ) -> (UnixTime, bool) {
        let (edition, address) = (edition.clone(), address.clone());
        match self.known.get_mut(node) {
            Some(known) => {
                let is_news = edition.is_news_after(&known.edition);
                (known.edition, known.address) = (edition, address);
                (known.since, is_news)
            }
            None => {
                let since = now.wall;
                let known = Known {
                    since,
                    edition,
                    address,
                };
                self.known.insert(node.clone(), known);
                (since, true)
            }
        }
    }

    /// Lists new sandboxes of which nobody can be asked when they were claimed.
    fn admit(&self, node: &NodeName, undated: Option<&Report>, now: Now) {
        if let Some(undated) = undated {
            self.daemons.fleet.publish(node, undated, false, true, now);
        }
    }

    fn forget(&mut self, node: &NodeName) {
        self.known.remove(node);
        self.reads.forget(node);
        if let Phase::Starting { unread, .. } = &mut self.phase {
            unread.remove(node);
        }
        let daemons = &self.daemons;
        daemons
            .roster
            .strike(node, || daemons.fleet.forget_node(node));
    }

    fn node_update(&mut self, update: Update<ClusterNode>) {
        match update {
            Update::Listed(node) | Update::Applied(node) => {
                let name = node.name();
                self.nodes.insert(name.clone(), node);
                self.reconsider(&name);
            }
            Update::Deleted(name) => {
                self.nodes.remove(&name);
                self.reconsider(&name);
            }
            Update::ListEnds => self.stop_awaiting_nodes(),
            Update::Undecodable(reason) => self.complain("Node", Reason::Undecodable, &reason),
            Update::Interrupted(reason) => {
                self.daemons.metrics.interrupted("Node");
                tracing::warn!(
                    reason,
                    "Nodes cannot be watched: addresses and cordons stay as they are known"
                );
                self.stop_awaiting_nodes();
            }
        }
    }

    fn stop_awaiting_nodes(&mut self) {
        if matches!(self.phase, Phase::AwaitingNodes { .. }) {
            self.phase = Phase::Starting {
                listed: false,
                unread: HashSet::new(),
            };
        }
    }

    /// Judges a node's address and cordon again after its Node changed.
    fn reconsider(&mut self, name: &NodeName) {
        let Some(published) = self.known.get(name).map(|known| known.address.clone()) else {
            return;
        };
        let daemons = self.daemons.clone();
        daemons.fleet.set_cordoned(name, self.is_cordoned(name));
        let known = daemons.fleet.address(name);
        let address = self.judge(name, published);
        if address.is_none() || address == known {
            return;
        }
        let now = Now::read();
        let report = Report {
            address,
            rows: Vec::new(),
            pools: None,
            complete: false,
            published_since: now.wall,
        };
        daemons.fleet.publish(name, &report, false, false, now);
        self.want_read(name, None);
    }

    fn is_cordoned(&self, name: &NodeName) -> bool {
        self.nodes.get(name).is_some_and(|node| node.cordoned)
    }

    fn judge(&mut self, name: &NodeName, published: Scalar) -> Option<NodeAddress> {
        let networks = &self.daemons.options.node_address_cidrs;
        let error = match address::judge(published, networks, self.nodes.get(name)) {
            Ok(address) => return Some(address),
            Err(error) => error,
        };
        let reason = match error {
            Error::ForeignAddress(_) => Reason::ForeignAddress,
            Error::InvalidAddress(_) | Error::NoAddress | Error::NotJson(_) => Reason::Address,
        };
        self.daemons.metrics.refused_address(reason);
        self.complain(name.as_str(), reason, &error.to_string());
        None
    }

    fn want_read(&mut self, node: &NodeName, undated: Option<Report>) {
        if let Phase::Starting { unread, .. } = &mut self.phase {
            unread.insert(node.clone());
        }
        self.reads.want(node, undated);
    }

    fn begin_reads(&mut self) {
        while let Some(read) = self.reads.next(Instant::now()) {
            let daemons = self.daemons.clone();
            let within = match self.phase {
                Phase::Live => daemons.options.read_within,
                _ => daemons.options.first_read_within,
            };
            self.tasks.spawn(async move {
                let outcome = daemons.read(&read.node, within).await;
                Done::Read(read, outcome)
            });
        }
    }

    fn become_ready(&mut self) {
        let Phase::Starting {
            listed: true,
            unread,
        } = &self.phase
        else {
            return;
        };
        if unread.is_empty() {
            self.daemons.fleet.store().forget_history();
            self.ready.pass();
            self.phase = Phase::Live;
            tracing::info!(nodes = self.known.len(), "every node is known");
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Probe(node) => {
                self.probing.remove(&node);
            }
            Done::Read(read, ReadOutcome::Busy) => self.reads.put_back(read),
            Done::Read(read, outcome) => {
                self.reads.end(&read);
                if let Phase::Starting { unread, .. } = &mut self.phase {
                    unread.remove(&read.node);
                }
                if self.known.contains_key(&read.node) {
                    self.read(&read, outcome);
                }
            }
        }
    }

    fn read(&mut self, read: &Read, outcome: ReadOutcome) {
        let now = Now::read();
        match outcome {
            ReadOutcome::Merged(rejections) => self.left_out(&read.node, &rejections),
            ReadOutcome::Busy | ReadOutcome::Unaddressed => {}
            ReadOutcome::Failed(error) => {
                self.daemons.fleet.not_heard(&read.node, now);
                self.admit(&read.node, read.undated.as_ref(), now);
                if self
                    .complaints
                    .is_due(read.node.as_str(), "direct_read", now.instant)
                {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(node = %read.node, error, "node cannot be read: its sandboxes stay as they are known");
                }
            }
        }
    }

    fn tick(&mut self, now: Now) {
        if let Phase::AwaitingNodes { until } = self.phase
            && until <= now.instant
        {
            self.stop_awaiting_nodes();
        }
        let attention = self.daemons.fleet.tick(now);
        // At the start every node is silent and is about to be read anyway.
        if matches!(self.phase, Phase::Live) {
            for (node, _) in attention.probe {
                self.probe(node);
            }
        }
        self.reads.tick(now.instant);
        self.daemons.sweep(now.instant);
        self.show_counts();
    }

    fn probe(&mut self, node: NodeName) {
        if !self.probing.insert(node.clone()) {
            return;
        }
        let (daemons, slots) = (self.daemons.clone(), self.probe_slots.clone());
        let jitter = daemons.options.probe_jitter.mul_f64(rand::rng().random());
        self.tasks.spawn(async move {
            sleep(jitter).await;
            let _slot = slots.acquire().await;
            daemons.ask(&node).await;
            Done::Probe(node)
        });
    }

    fn show_counts(&mut self) {
        let counts = self.daemons.fleet.counts();
        self.daemons.metrics.show(&counts);
        let before = std::mem::replace(&mut self.n_name_conflicts, counts.name_conflicts);
        if counts.name_conflicts > before {
            tracing::warn!(
                sandboxes = counts.name_conflicts,
                "claims ask for names that others have: listed under their ids"
            );
        }
    }

    fn left_out(&mut self, node: &NodeName, rejections: &Rejections) {
        self.daemons.metrics.rejected_entries(rejections);
        for (reason, n) in rejections.iter() {
            self.complain(node.as_str(), reason, &format!("{n} left out"));
        }
    }

    fn complain(&mut self, subject: &str, reason: Reason, text: &str) {
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

/// The rows that do not say when they were claimed.
fn undated_of(report: Report) -> Report {
    let mut rows = report.rows;
    rows.retain(|row| row.claimed_at.is_none());
    Report {
        address: None,
        rows,
        pools: None,
        complete: false,
        published_since: report.published_since,
    }
}
