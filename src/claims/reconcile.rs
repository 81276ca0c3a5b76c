//! One claim, brought to rest: step after step, each from what the last one left.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::{
        controller::Action,
        events::{Event, EventType},
        reflector::ObjectRef,
    },
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    Error, Result,
    controller::Room,
    order::key_of,
    state::{FINALIZER, Facts, NoTemplate, Step, adopted},
    status::{READY, condition, delivery},
};
use crate::{
    admission::{Counted, Exceeded, QuotaReservation, Wanted},
    api::{Delivery, GROUP, SandboxClaim, SandboxClaimStatus, SandboxTemplate, SandboxWarmPool},
    controller::within,
    fleet::Sandbox,
    gateway::{self, ClaimOrder, Released},
    store::Key,
};

/// How long kube-apiserver may take for one call.
const CALL_WITHIN: Duration = Duration::from_secs(5);
/// Steps of one claim in a row; it takes four from nothing to bound.
const MAX_STEPS: usize = 12;
/// How long a sandbox that a node has handed over may take to be reported here, before the name is believed to be free.
const FEED_ROUND: Duration = Duration::from_millis(25);
/// Pause between two looks at a release that its node has not confirmed.
const RELEASE_POLL: Duration = Duration::from_secs(2);

/// A claim in work.
struct Work<'a> {
    room: &'a Room,
    api: Api<SandboxClaim>,
    claim: SandboxClaim,
    /// Whether the claim is as kube-apiserver gave it just now, and not as a watch told of it some time ago.
    live: bool,
    begun: Instant,
}

/// The sandbox of a claim's name, those that ask for it, and the claim's template.
struct View {
    sandbox: Option<Sandbox>,
    contenders: Vec<Sandbox>,
    unsettled: bool,
    told: bool,
    template: Result<Arc<SandboxTemplate>, NoTemplate>,
    now: Timestamp,
}

/// Whether there is more to do.
enum Next {
    Step,
    Done(Action),
}

pub(super) async fn reconcile(claim: Arc<SandboxClaim>, room: Arc<Room>) -> Result<Action> {
    // Errors mean that the watches are gone, and with them the caller.
    let _ = tokio::join!(
        room.pools.wait_until_ready(),
        room.templates.wait_until_ready()
    );
    let namespace = claim.namespace().unwrap_or_default();
    let mut work = Work {
        api: Api::namespaced(room.writer.clone(), &namespace),
        room: &room,
        claim: (*claim).clone(),
        live: false,
        begun: Instant::now(),
    };
    for _ in 0..MAX_STEPS {
        if let Next::Done(action) = work.step().await? {
            return Ok(action);
        }
    }
    Err(Error::Restless)
}

impl Work<'_> {
    async fn step(&mut self) -> Result<Next> {
        let view = self.view().await?;
        let step = view.facts(&self.claim).step();
        tracing::debug!(key = %key_of(&self.claim), ?step, "claims: next");
        match step {
            Step::Rest(pause) => {
                let action = pause.map_or_else(Action::await_change, Action::requeue);
                return Ok(Next::Done(action));
            }
            Step::Protect => self.protect(view.sandbox.is_some()).await?,
            Step::Unprotect => return self.unprotect().await,
            Step::Claim(_) | Step::ReleaseDouble(_) if !self.live => self.refresh().await?,
            Step::Claim(order) => return self.get_sandbox(&view, *order).await,
            Step::Adopt(delivery) => self.adopt(&view, &delivery),
            Step::Release(own) => return self.release(&own).await,
            Step::ReleaseUnreported(own) => return self.release_unreported(&own).await,
            Step::ReleaseDouble(double) => self.release_double(&double).await?,
            Step::Delete => return self.delete().await,
            Step::Say(status) => self.say(*status).await?,
        }
        Ok(Next::Step)
    }

    async fn view(&self) -> Result<View> {
        let key = key_of(&self.claim);
        // First: what is settled afterwards is looked at again.
        let unsettled = self.room.fleet.is_unsettled(&key);
        let delivered = self.claim.delivered();
        // First as well: what is listed afterwards is seen.
        let fleet = &self.room.fleet;
        let told = delivered.is_none_or(|of| fleet.has_told(&of.node) || !fleet.knows(&of.node));
        let record = self.room.fleet.store().get(&key.namespace, &key.name);
        let sandbox = record.map(|record| record.value.clone());
        let template = match &sandbox {
            // What is bound needs its template no more; the copy at hand will do.
            Some(_) => self.known_template(),
            None => self.template().await?,
        };
        Ok(View {
            sandbox,
            contenders: self.room.fleet.contenders(&key),
            unsettled,
            told,
            template,
            now: Timestamp::now(),
        })
    }

    fn known_template(&self) -> Result<Arc<SandboxTemplate>, NoTemplate> {
        let namespace = self.claim.namespace().unwrap_or_default();
        let name = &self.claim.spec.warm_pool_ref.name;
        let pool = self
            .room
            .pools
            .get(&ObjectRef::new(name).within(&namespace));
        let pool = pool.ok_or_else(|| NoTemplate::NoPool(name.clone()))?;
        let template = &pool.spec.sandbox_template_ref.name;
        let known = ObjectRef::new(template).within(&namespace);
        self.room
            .templates
            .get(&known)
            .ok_or_else(|| NoTemplate::NoTemplate {
                pool: name.clone(),
                template: template.clone(),
            })
    }

    /// The template; kube-apiserver itself is asked for what the watches have not told of, since a client may give up for good
    /// on a pool that is not there.
    async fn template(&self) -> Result<Result<Arc<SandboxTemplate>, NoTemplate>> {
        let missing = match self.known_template() {
            Ok(template) => return Ok(Ok(template)),
            Err(missing) => missing,
        };
        let namespace = self.claim.namespace().unwrap_or_default();
        let name = &self.claim.spec.warm_pool_ref.name;
        let pools: Api<SandboxWarmPool> = Api::namespaced(self.room.writer.clone(), &namespace);
        let Some(pool) = within(CALL_WITHIN, pools.get_opt(name)).await? else {
            return Ok(Err(NoTemplate::NoPool(name.clone())));
        };
        let template = &pool.spec.sandbox_template_ref.name;
        let templates: Api<SandboxTemplate> = Api::namespaced(self.room.writer.clone(), &namespace);
        let found = within(CALL_WITHIN, templates.get_opt(template)).await?;
        Ok(found.map(Arc::new).ok_or(match missing {
            known @ NoTemplate::NoTemplate { .. } => known,
            NoTemplate::NoPool(pool) => NoTemplate::NoTemplate {
                pool,
                template: template.clone(),
            },
        }))
    }

    async fn refresh(&mut self) -> Result<()> {
        let name = self.claim.name_any();
        self.claim = within(CALL_WITHIN, self.api.get(&name)).await?;
        self.live = true;
        Ok(())
    }

    /// Writes the finalizer. A claim that waits for a sandbox then waits for what nodes may have to report of it.
    async fn protect(&mut self, has_sandbox: bool) -> Result<()> {
        let mut finalizers = self.claim.finalizers().to_vec();
        finalizers.push(FINALIZER.to_owned());
        self.patch_finalizers(&finalizers).await?;
        if !has_sandbox {
            sleep(FEED_ROUND).await;
        }
        Ok(())
    }

    async fn unprotect(&mut self) -> Result<Next> {
        let mut finalizers = self.claim.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        self.patch_finalizers(&finalizers).await?;
        Ok(Next::Done(Action::await_change()))
    }

    async fn patch_finalizers(&mut self, finalizers: &[String]) -> Result<()> {
        let version = &self.claim.metadata.resource_version;
        let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
        let name = self.claim.name_any();
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        self.claim = within(CALL_WITHIN, self.api.patch(&name, &params, &patch)).await?;
        self.live = true;
        Ok(())
    }

    async fn get_sandbox(&mut self, view: &View, order: ClaimOrder) -> Result<Next> {
        let key = order.key.clone();
        let quota = match self.admitted(&order) {
            Ok(quota) => quota,
            Err(exceeded) => {
                let refused = exceeded.to_string();
                return self
                    .wait(view, "quota_exceeded", "QuotaExceeded", &refused)
                    .await;
            }
        };
        let error = match self.room.gateway.claim(order, quota).await {
            Ok(claimed) => {
                let took = self.begun.elapsed();
                self.room.metrics.bind_duration.observe(took.as_secs_f64());
                if !self.room.fleet.is_contested(&key) {
                    self.room.metrics.outcome("bound");
                    return Ok(Next::Step);
                }
                // A node has handed over another one meanwhile, which somebody may use already. Nobody knows of ours yet.
                self.room.metrics.doubles_released.inc();
                let released = self.room.gateway.release(claimed.record).await;
                released.map_err(Error::NotReleased)?;
                return Ok(Next::Step);
            }
            Err(error) => error,
        };
        let (outcome, reason) = match &error {
            gateway::Error::NoWarmCapacity { .. } => ("no_warm_capacity", "SandboxCreatePending"),
            gateway::Error::NoToken(_) | gateway::Error::TokenRefused { .. } => {
                ("error", "ReconcilerError")
            }
            _ => ("error", "SandboxCreatePending"),
        };
        tracing::debug!(key = %key_of(&self.claim), error = &error as &dyn std::error::Error, "claims: no sandbox");
        self.wait(view, outcome, reason, &told(&error)).await
    }

    /// Asks the quotas of the namespace, as a create of the sandbox would.
    fn admitted(&self, order: &ClaimOrder) -> Result<QuotaReservation, Exceeded> {
        let counted = Counted {
            group: GROUP,
            plural: "sandboxes",
        };
        let key = Key::new(order.key.namespace.clone(), order.key.name.clone());
        let (quotas, store) = (&self.room.quotas, self.room.fleet.store());
        quotas.admit(counted, &key, Wanted::New, store)
    }

    /// Says why there is no sandbox yet, and comes back ever later.
    async fn wait(
        &mut self,
        view: &View,
        outcome: &'static str,
        reason: &'static str,
        message: &str,
    ) -> Result<Next> {
        self.room.metrics.outcome(outcome);
        let (step, pause) = view.facts(&self.claim).pending(reason, message);
        if let Step::Say(status) = step {
            self.say(*status).await?;
        }
        Ok(Next::Done(Action::requeue(pause)))
    }

    /// Gives a sandbox that only its node knew of what the claim says. Somebody who was faster is believed at the next look.
    fn adopt(&self, view: &View, of: &Delivery) {
        let mut sandboxes = view.sandbox.iter().chain(&view.contenders);
        let Some(sandbox) = sandboxes.find(|sandbox| delivery(sandbox) == *of) else {
            return;
        };
        let mut user = adopted(&self.claim, view.template.as_deref().ok());
        if let Some(known) = &sandbox.user {
            user.take_over(known);
        }
        let user = Arc::new(user);
        if self.room.fleet.set_user_after(sandbox, user).is_ok() {
            self.room.metrics.outcome("adopted");
        }
    }

    async fn release(&self, own: &Delivery) -> Result<Next> {
        let Some(record) = self.room.fleet.by_claim(&own.node, &own.claim) else {
            return Ok(Next::Step);
        };
        match self.room.gateway.release(record).await {
            Ok(Released::Gone(_)) => Ok(Next::Step),
            Ok(Released::Pending(_)) => Ok(Next::Done(Action::requeue(RELEASE_POLL))),
            Err(error) => Err(Error::NotReleased(error)),
        }
    }

    async fn release_unreported(&mut self, own: &Delivery) -> Result<Next> {
        let key = key_of(&self.claim);
        match self.room.gateway.release_unreported(&key, own).await {
            true => self.unprotect().await,
            false => Ok(Next::Done(Action::requeue(RELEASE_POLL))),
        }
    }

    /// Releases what was claimed here while a node handed over another one, exactly that.
    async fn release_double(&self, double: &Delivery) -> Result<()> {
        let found = self.room.fleet.by_claim(&double.node, &double.claim);
        let Some(record) = found else {
            return Ok(());
        };
        self.room.metrics.doubles_released.inc();
        let released = self.room.gateway.release(record).await;
        released.map(drop).map_err(Error::NotReleased)
    }

    async fn delete(&self) -> Result<Next> {
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: self.claim.uid(),
            resource_version: None,
        });
        let name = self.claim.name_any();
        within(CALL_WITHIN, self.api.delete(&name, &params)).await?;
        Ok(Next::Done(Action::await_change()))
    }

    async fn say(&mut self, status: SandboxClaimStatus) -> Result<()> {
        let version = &self.claim.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "status": merged(&status)});
        let (name, params) = (self.claim.name_any(), PatchParams::default());
        let patch = Patch::Merge(&patch);
        let said = within(CALL_WITHIN, self.api.patch_status(&name, &params, &patch)).await?;
        let before = std::mem::replace(&mut self.claim, said);
        self.live = true;
        self.announce(&before).await;
        Ok(())
    }

    /// An event for what somebody has to do something about, once.
    async fn announce(&self, before: &SandboxClaim) {
        let reason = |claim| condition(claim, READY).map(|ready| ready.reason.clone());
        let Some(ready) = condition(&self.claim, READY) else {
            return;
        };
        let plain = matches!(
            ready.reason.as_str(),
            "DependenciesReady" | "SandboxCreatePending" | "SandboxSuspended"
        );
        if plain || reason(before).as_ref() == Some(&ready.reason) {
            return;
        }
        let event = Event {
            type_: match ready.reason.as_str() {
                "ClaimExpired" => EventType::Normal,
                _ => EventType::Warning,
            },
            reason: ready.reason.clone(),
            note: Some(ready.message.clone()),
            action: "Bind".to_owned(),
            secondary: None,
        };
        let regarding = self.claim.object_ref(&());
        let published = self.room.recorder.publish(&event, &regarding);
        if let Err(error) = within(CALL_WITHIN, published).await {
            tracing::info!(
                error = &error as &dyn std::error::Error,
                "claims: publishing an event"
            );
        }
    }
}

/// An error as a status tells it: without the node, which is another one with each try. Each text that is new is a write.
fn told(error: &gateway::Error) -> String {
    use gateway::Error;
    match error {
        Error::TokenRefused { .. } => "the nodes refuse the server's token".to_owned(),
        Error::Refused { .. } => "the node that was asked refused the request".to_owned(),
        Error::NodeDown { .. } => "the node that was asked is unreachable".to_owned(),
        Error::OutcomeUnknown { .. } => {
            "the node that was asked did not say what it did".to_owned()
        }
        Error::TooOld { .. } => {
            "the daemon of the node that was asked is too old for this".to_owned()
        }
        Error::AtCapacity { .. } => "the node that was asked is at capacity".to_owned(),
        other => other.to_string(),
    }
}

impl View {
    fn facts<'a>(&'a self, claim: &'a SandboxClaim) -> Facts<'a> {
        Facts {
            claim,
            sandbox: self.sandbox.as_ref(),
            contenders: &self.contenders,
            unsettled: self.unsettled,
            told: self.told,
            template: self.template.as_deref(),
            now: self.now,
        }
    }
}

/// The status as a merge patch: what is not there any more has to be named.
fn merged(status: &SandboxClaimStatus) -> Value {
    let sandbox = status.sandbox.as_ref().map(|sandbox| {
        let ips = Some(&sandbox.pod_ips).filter(|ips| !ips.is_empty());
        json!({"name": sandbox.name, "podIPs": ips})
    });
    json!({"conditions": status.conditions, "sandbox": sandbox})
}
