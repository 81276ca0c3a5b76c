//! The loop: objects in, calls to nodes and statuses out.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream, FuturesUnordered},
};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        events::{Event, EventType, Recorder, Reporter},
        reflector::{ObjectRef, Store},
    },
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    Result, WarmPoolMetrics,
    engine::{Engine, Intent},
    members::{Members, Written},
    objects::{NoDemand, PlannedNode, demand},
    record::Record,
    status::{Progress, Stock, status},
    statuses::{Statuses, is_filling, uid},
};
use crate::{
    api::{SandboxTemplate, SandboxWarmPool, SandboxWarmPoolStatus},
    controller::{self, CallError, within},
    fleet::Fleet,
    sandboxd,
    sequencer::Tenure,
    telemetry::Readiness,
};

/// The controller's name in events.
const CONTROLLER: &str = "sandbox-apiserver-warm-pools";
/// Time between two looks at the index, which tells of nodes that come, go and fill.
const ROUND: Duration = Duration::from_millis(250);
/// How long kube-apiserver may take for a status or an event.
const WRITE_WITHIN: Duration = Duration::from_secs(5);
/// Statuses and events under way at once.
const WRITES_AT_ONCE: usize = 32;
/// Pause before the record is asked for again.
const RETRY: Duration = Duration::from_secs(2);

/// How the driver works.
#[derive(Clone, Debug)]
pub struct DriverOptions {
    /// Namespace of the record of what was written.
    pub namespace: String,
    /// Whether nodes with pools that the driver never wrote are taken over instead of left alone.
    pub takeover: bool,
}

/// Drives the nodes' warm pools from the cluster's objects.
pub struct Driver {
    fleet: Arc<Fleet>,
    daemons: sandboxd::Client,
    reader: Client,
    writer: Client,
    options: DriverOptions,
    tenure: Tenure,
    metrics: WarmPoolMetrics,
}

/// A write to kube-apiserver that ended.
enum Ended {
    Status {
        uid: String,
        result: Result<(), CallError>,
    },
    Record {
        is_saved: bool,
    },
    Event(Result<(), CallError>),
}

/// The driver at work.
struct Work {
    writer: Client,
    tenure: Tenure,
    recorder: Recorder,
    record: Record,
    pools: Store<SandboxWarmPool>,
    templates: Store<SandboxTemplate>,
    nodes: Store<PlannedNode>,
    engine: Engine,
    statuses: Statuses,
    writes: FuturesUnordered<BoxFuture<'static, Ended>>,
    metrics: WarmPoolMetrics,
    /// Whether the objects have changed since the last intent.
    changed: bool,
    intent: Intent,
    wants: Vec<Want>,
    record_error: Option<String>,
}

/// A pool, and its place among the demands or why it has none.
struct Want {
    pool: Arc<SandboxWarmPool>,
    demand: Result<usize, NoDemand>,
}

impl Driver {
    /// Does nothing yet; [`Driver::run`] does. `reader` watches, `writer` must send every request once. Nothing is written while
    /// `tenure` does not hold, as in a process that was stopped for a while.
    pub fn new(
        fleet: Arc<Fleet>,
        daemons: sandboxd::Client,
        reader: Client,
        writer: Client,
        options: DriverOptions,
        tenure: Tenure,
        metrics: WarmPoolMetrics,
    ) -> Self {
        Self {
            fleet,
            daemons,
            reader,
            writer,
            options,
            tenure,
            metrics,
        }
    }

    /// Drives until `shutdown`, from when the server is ready: before, the index does not know all nodes.
    ///
    /// `shutdown` must come no later than the loss of the Lease. What is missing in the cluster (CRDs, permissions) is waited
    /// for.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn run(self, readiness: Readiness, shutdown: CancellationToken) {
        let work = async {
            controller::until_served(&readiness).await;
            let record = Record::new(self.writer.clone(), &self.options.namespace);
            let written = load(&record).await;
            self.work(record, written).await;
        };
        shutdown.run_until_cancelled(work).await;
    }

    async fn work(self, record: Record, written: Written) {
        let (pools, pool_events) = follow::<SandboxWarmPool>(&self.reader, |_| ());
        let (templates, template_events) = follow::<SandboxTemplate>(&self.reader, |_| ());
        let (nodes, node_events) = follow(&self.reader, PlannedNode::slim);
        let reporter = Reporter {
            controller: CONTROLLER.to_owned(),
            instance: None,
        };
        let members = Members::new(written, self.options.takeover);
        let work = Work {
            recorder: Recorder::new(self.writer.clone(), reporter),
            writer: self.writer,
            tenure: self.tenure,
            record,
            pools,
            templates,
            nodes,
            engine: Engine::new(self.fleet, self.daemons, members, self.metrics.clone()),
            statuses: Statuses::default(),
            writes: FuturesUnordered::new(),
            metrics: self.metrics,
            changed: true,
            intent: Intent::default(),
            wants: Vec::new(),
            record_error: None,
        };
        let events = stream::select_all([pool_events, template_events, node_events]);
        work.run(events).await;
    }
}

/// What is on record. Without it no node may be told anything.
async fn load(record: &Record) -> Written {
    loop {
        match record.load().await {
            Ok(written) => return written,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "warm pools: reading the record"
                );
                sleep(RETRY).await;
            }
        }
    }
}

/// The objects of a kind, and a stream that yields whenever they change.
fn follow<K>(reader: &Client, slim: fn(&mut K)) -> (Store<K>, BoxStream<'static, ()>)
where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, events) = controller::follow(Api::<K>::all(reader.clone()), CONTROLLER, slim);
    let events = events.filter_map(async |event| event.ok().map(drop));
    (store, events.boxed())
}

impl Work {
    async fn run(mut self, mut events: impl StreamExt<Item = ()> + Unpin) {
        let (pools, templates, nodes) = (
            self.pools.clone(),
            self.templates.clone(),
            self.nodes.clone(),
        );
        let mut complete = std::pin::pin!(async move {
            // An error means that the watch is gone, which ends only with this.
            let _ = tokio::join!(
                pools.wait_until_ready(),
                templates.wait_until_ready(),
                nodes.wait_until_ready()
            );
        });
        let mut is_complete = false;
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut is_round = false;
            tokio::select! {
                () = &mut complete, if !is_complete => is_complete = true,
                Some(()) = events.next() => {
                    while let Some(Some(())) = events.next().now_or_never() {}
                    self.changed = true;
                }
                () = self.engine.next() => {}
                Some(ended) = self.writes.next(), if !self.writes.is_empty() => self.ended(ended),
                _ = rounds.tick() => is_round = true,
            }
            if is_complete && self.tenure.holds() {
                self.advance();
                if is_round {
                    self.tell();
                }
            }
        }
    }

    fn advance(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.read_intent();
        }
        let Some(written) = self.engine.advance(&self.intent) else {
            return;
        };
        self.metrics.record_writes.inc();
        let record = self.record.clone();
        self.writes.push(
            async move {
                match record.save(&written).await {
                    Ok(()) => Ended::Record { is_saved: true },
                    Err(error) => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "warm pools: saving the record"
                        );
                        sleep(RETRY).await;
                        Ended::Record { is_saved: false }
                    }
                }
            }
            .boxed(),
        );
    }

    /// Reads what the objects want. Pools that are being deleted want nothing any more.
    fn read_intent(&mut self) {
        let mut pools = self.pools.state();
        pools.retain(|pool| pool.metadata.deletion_timestamp.is_none());
        pools.sort_by_cached_key(|pool| (pool.namespace(), pool.name_any()));
        self.intent.demands.clear();
        self.wants.clear();
        for pool in pools {
            let name = &pool.spec.sandbox_template_ref.name;
            let key = ObjectRef::new(name).within(&pool.namespace().unwrap_or_default());
            let demand = demand(&pool, self.templates.get(&key).as_deref()).map(|demand| {
                self.intent.demands.push(demand);
                self.intent.demands.len() - 1
            });
            self.wants.push(Want { pool, demand });
        }
        let nodes = self.nodes.state().into_iter();
        let nodes: HashMap<_, _> = nodes.map(|node| (node.name_any(), node)).collect();
        self.intent.nodes = Arc::new(nodes);
        let wanted: i64 = self
            .intent
            .demands
            .iter()
            .map(|d| i64::from(d.replicas))
            .sum();
        self.metrics.wanted.set(wanted);
    }

    /// Writes the statuses that say something new.
    fn tell(&mut self) {
        let now = Instant::now();
        let foreign = self.engine.foreign();
        let failing = self.engine.members.iter();
        let failing = failing.filter(|(_, member)| member.last_error.is_some());
        self.metrics.nodes_failing.set(count(failing.count()));
        self.metrics.nodes_foreign.set(count(foreign.len()));
        let mut stock = Stock::of(&self.engine.members);
        let uids: HashSet<&str> = self.wants.iter().map(|want| uid(&want.pool)).collect();
        self.statuses.keep(&uids);
        let mut told = Vec::new();
        for want in &self.wants {
            let progress = self.progress(want, &mut stock);
            let pool = self.statuses.overlay(&want.pool);
            let status = status(&pool, &progress, &foreign, Timestamp::now());
            if self.writes.len() + told.len() < WRITES_AT_ONCE
                && self.statuses.begin(&pool, &status, now)
            {
                told.push((pool, status));
            }
        }
        for (pool, status) in told {
            self.write(&pool, status);
        }
    }

    fn progress(&self, want: &Want, stock: &mut Stock) -> Progress {
        let refused = |reason, message| Progress::Refused { reason, message };
        match &want.demand {
            Err(error @ NoDemand::TemplateNotFound(_)) => {
                refused("TemplateNotFound", error.to_string())
            }
            Err(error @ NoDemand::InvalidTemplate(_)) => {
                refused("InvalidTemplate", error.to_string())
            }
            Ok(index) => {
                let demand = &self.intent.demands[*index];
                let shares = self.engine.shares().get(*index);
                let share = shares.cloned().unwrap_or_default();
                let parts = stock.take(&self.engine.members, &demand.key, &share);
                match &self.record_error {
                    Some(error) if parts.iter().any(|part| part.kept < part.wanted) => {
                        refused("RecordNotSaved", error.clone())
                    }
                    _ => Progress::Divided(parts),
                }
            }
        }
    }

    fn write(&mut self, pool: &SandboxWarmPool, status: SandboxWarmPoolStatus) {
        self.metrics.status_writes.inc();
        self.announce(pool, &status);
        let namespace = pool.namespace().unwrap_or_default();
        let api: Api<SandboxWarmPool> = Api::namespaced(self.writer.clone(), &namespace);
        let (name, uid) = (pool.name_any(), uid(pool).to_owned());
        self.writes.push(
            async move {
                let patch = Patch::Merge(json!({ "status": status }));
                let params = PatchParams::default();
                let written = api.patch_status(&name, &params, &patch);
                let result = within(WRITE_WITHIN, written).await.map(drop);
                Ended::Status { uid, result }
            }
            .boxed(),
        );
    }

    /// An event for each condition that is new and asks for somebody's attention.
    fn announce(&mut self, pool: &SandboxWarmPool, status: &SandboxWarmPoolStatus) {
        let known = pool.status.as_ref().map_or(&[][..], |s| &s.conditions);
        for condition in &status.conditions {
            let repeats = known.iter().any(|known| {
                (&known.type_, &known.status, &known.reason)
                    == (&condition.type_, &condition.status, &condition.reason)
            });
            if repeats || is_filling(&condition.reason) {
                continue;
            }
            let event = Event {
                type_: EventType::Warning,
                reason: match condition.type_.as_str() {
                    "Ready" => condition.reason.clone(),
                    kind => kind.to_owned(),
                },
                note: Some(condition.message.chars().take(1_000).collect()),
                action: "Fill".to_owned(),
                secondary: None,
            };
            let (recorder, regarding) = (self.recorder.clone(), pool.object_ref(&()));
            self.writes.push(
                async move {
                    let published = recorder.publish(&event, &regarding);
                    Ended::Event(within(WRITE_WITHIN, published).await)
                }
                .boxed(),
            );
        }
    }

    fn ended(&mut self, ended: Ended) {
        match ended {
            Ended::Record { is_saved } => {
                self.record_error = (!is_saved).then(|| {
                    "what is to be written to the nodes could not be put on record".to_owned()
                });
                self.engine.members.recorded(is_saved);
            }
            Ended::Status { uid, result } => {
                if let Err(error) = &result {
                    tracing::warn!(
                        error = error as &dyn std::error::Error,
                        "warm pools: writing a status"
                    );
                }
                self.statuses.ended(&uid, result.is_ok());
            }
            Ended::Event(Err(error)) => {
                tracing::info!(
                    error = &error as &dyn std::error::Error,
                    "warm pools: publishing an event"
                );
            }
            Ended::Event(Ok(())) => {}
        }
    }
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
