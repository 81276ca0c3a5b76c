//! The loop: which claims to look at, and what they are looked at with.

use std::{sync::Arc, time::Duration};

use futures::{
    FutureExt, StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::{
        Predicate as _, WatchStreamExt,
        controller::{Action, Config, applier},
        events::{Recorder, Reporter},
        predicates,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::{ClaimMetrics, Error, reconcile::reconcile, status::delivery};
use crate::{
    admission::Quotas,
    api::{Binding, SandboxClaim, SandboxTemplate, SandboxWarmPool},
    controller,
    fleet::{Fleet, Sandbox},
    gateway::Gateway,
    telemetry::Readiness,
};

/// The controller's name in events.
const CONTROLLER: &str = "sandbox-apiserver-claims";
/// Claims that are worked on at once.
const AT_ONCE: u16 = 64;
/// Changes of sandboxes taken in at once.
const CHANGES: usize = 1_000;
/// Pause after a step that failed, and after one that was made from an old copy.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_STALE: Duration = Duration::from_millis(100);

/// Binds SandboxClaims to sandboxes.
pub struct Controller {
    fleet: Arc<Fleet>,
    gateway: Gateway,
    quotas: Quotas,
    reader: Client,
    writer: Client,
    metrics: ClaimMetrics,
}

/// What every claim is looked at with.
pub(super) struct Room {
    pub(super) fleet: Arc<Fleet>,
    pub(super) gateway: Gateway,
    pub(super) quotas: Quotas,
    pub(super) writer: Client,
    pub(super) recorder: Recorder,
    pub(super) pools: Store<SandboxWarmPool>,
    pub(super) templates: Store<SandboxTemplate>,
    pub(super) metrics: ClaimMetrics,
}

type Refs = BoxStream<'static, Result<ObjectRef<SandboxClaim>, watcher::Error>>;

impl Controller {
    /// Does nothing yet; [`Controller::run`] does. `reader` watches, `writer` must send every request once.
    pub fn new(
        fleet: Arc<Fleet>,
        gateway: Gateway,
        quotas: Quotas,
        reader: Client,
        writer: Client,
        metrics: ClaimMetrics,
    ) -> Self {
        Self {
            fleet,
            gateway,
            quotas,
            reader,
            writer,
            metrics,
        }
    }

    /// Binds claims until `shutdown`, from when the server is ready: before, the index does not know all sandboxes.
    ///
    /// `shutdown` must come no later than the loss of the Lease.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn run(self, readiness: Readiness, shutdown: CancellationToken) {
        let work = async {
            controller::until_served(&readiness).await;
            self.work().await;
        };
        shutdown.run_until_cancelled(work).await;
    }

    async fn work(self) {
        let (claims, claim_events) = follow::<SandboxClaim>(&self.reader);
        let (pools, pool_events) = follow::<SandboxWarmPool>(&self.reader);
        let (templates, template_events) = follow::<SandboxTemplate>(&self.reader);
        let queue = stream::select_all([
            claim_events.map_ok(|claim| ObjectRef::from(&claim)).boxed(),
            waiting_for(
                &claims,
                pool_events.predicate_filter(predicates::generation, Default::default()),
                |claim, pool| claim.spec.warm_pool_ref.name == pool.name_any(),
            ),
            waiting_for(
                &claims,
                // Size and network of its VMs are annotations.
                template_events.predicate_filter(
                    predicates::generation.combine(predicates::annotations),
                    Default::default(),
                ),
                |_, _| true,
            ),
            touched(self.fleet.clone(), claims.clone()),
        ]);
        let reporter = Reporter {
            controller: CONTROLLER.to_owned(),
            instance: None,
        };
        let room = Arc::new(Room {
            fleet: self.fleet,
            gateway: self.gateway,
            quotas: self.quotas,
            recorder: Recorder::new(self.writer.clone(), reporter),
            writer: self.writer,
            pools,
            templates,
            metrics: self.metrics,
        });
        let config = Config::default().concurrency(AT_ONCE);
        let reconciled = applier(
            |claim, room| reconcile(claim, room).boxed(),
            retry,
            room,
            claims,
            queue,
            config,
        );
        // Failures were told where they happened.
        reconciled.for_each(async |_| {}).await;
    }
}

fn retry(claim: Arc<SandboxClaim>, error: &Error, _room: Arc<Room>) -> Action {
    if error.is_stale() {
        return Action::requeue(RETRY_STALE);
    }
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    tracing::warn!(%namespace, %name, error = error as &dyn std::error::Error, "claims: a step failed");
    Action::requeue(RETRY)
}

/// The objects of a kind, and those that change.
fn follow<K>(reader: &Client) -> (Store<K>, BoxStream<'static, Result<K, watcher::Error>>)
where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, events) = controller::follow(Api::<K>::all(reader.clone()), CONTROLLER, |_| ());
    let changed = events.touched_objects();
    // The watch goes on after an error by itself.
    let changed = changed.filter_map(async |changed| changed.ok().map(Ok));
    (store, changed.boxed())
}

/// The claims without a sandbox that a changed object may help.
fn waiting_for<K: Resource<DynamicType = ()> + Send + 'static>(
    claims: &Store<SandboxClaim>,
    changed: impl futures::Stream<Item = Result<K, watcher::Error>> + Send + 'static,
    concerns: fn(&SandboxClaim, &K) -> bool,
) -> Refs {
    let claims = claims.clone();
    let refs = changed.map_ok(move |object| {
        let mut waiting = claims.state_filter(|claim| {
            let status = claim.status.as_ref();
            let waits = status.is_none_or(|status| status.sandbox.is_none());
            waits && claim.namespace() == object.namespace() && concerns(claim, &object)
        });
        let refs = waiting.drain(..).map(|claim| Ok(ObjectRef::from(&*claim)));
        stream::iter(refs.collect::<Vec<_>>())
    });
    refs.try_flatten().boxed()
}

/// The claims whose sandboxes change, as they change.
fn touched(fleet: Arc<Fleet>, claims: Store<SandboxClaim>) -> Refs {
    let (head_rx, version) = (fleet.store().subscribe(), fleet.store().head());
    let batches = stream::unfold((head_rx, version), move |(mut head_rx, mut version)| {
        let (fleet, claims) = (fleet.clone(), claims.clone());
        async move {
            let store = fleet.store();
            loop {
                let refs: Vec<_> = match store.changes_after(version, CHANGES) {
                    Ok(changes) if changes.is_empty() => {
                        head_rx.changed().await.ok()?;
                        continue;
                    }
                    Ok(changes) => {
                        version = changes.last().map_or(version, |change| change.version());
                        let changed = changes.iter().map(|change| &change.object().value);
                        changed
                            .filter_map(|sandbox| claim_of(sandbox, &claims))
                            .collect()
                    }
                    // Too far behind to say which: look at all.
                    Err(_) => {
                        version = store.head();
                        claims
                            .state()
                            .iter()
                            .map(|claim| ObjectRef::from(&**claim))
                            .collect()
                    }
                };
                return Some((stream::iter(refs.into_iter().map(Ok)), (head_rx, version)));
            }
        }
    });
    batches.flatten().boxed()
}

/// The claim that a sandbox is of, as its name says. One that is listed under its id, since another has the name, is looked for
/// among all claims: there are few of those.
fn claim_of(sandbox: &Sandbox, claims: &Store<SandboxClaim>) -> Option<ObjectRef<SandboxClaim>> {
    if sandbox.name_taken {
        let delivery = delivery(sandbox);
        let bound = claims.find(|claim| {
            let namespace = claim.metadata.namespace.as_deref();
            namespace == Some(sandbox.namespace.as_str())
                && claim.binding(&delivery) == Binding::This
        });
        return bound.map(|claim| ObjectRef::from(&*claim));
    }
    let named = ObjectRef::new(&sandbox.name).within(&sandbox.namespace);
    claims.get(&named).map(|_| named)
}
