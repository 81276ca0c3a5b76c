//! What a claim needs next: a state machine without I/O. The state is read from the world each time; nothing is remembered.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::Value;

use super::{
    order::{CLAIM_UID, order},
    status::{FINISHED, READY, bound, condition, delivery, unbound},
    validate::{Refusal, validate},
};
use crate::{
    api::{
        Binding, ClaimShutdownPolicy, Delivery, SandboxClaim, SandboxClaimStatus, SandboxTemplate,
        labels,
    },
    fleet::Sandbox,
    gateway::ClaimOrder,
    meta::UnixTime,
};

/// Keeps a claim until its sandbox is released.
pub(super) const FINALIZER: &str = labels::RELEASE;

/// Reason of Ready for a claim whose name is a sandbox's that is not its own.
const CONFLICT: &str = "AdoptionConflict";

/// Bounds of the pause between two tries to get a sandbox; it grows with the time waited so far.
const FIRST_TRY: Duration = Duration::from_millis(250);
const LAST_TRY: Duration = Duration::from_secs(5);

/// All that a claim's next step depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) claim: &'a SandboxClaim,
    /// The sandbox that is listed under the claim's name.
    pub(super) sandbox: Option<&'a Sandbox>,
    /// Those that ask for its name beside it.
    pub(super) contenders: &'a [Sandbox],
    /// The template of the claim's pool.
    pub(super) template: Result<&'a SandboxTemplate, &'a NoTemplate>,
    pub(super) now: Timestamp,
}

/// Why a claim has no template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoTemplate {
    NoPool(String),
    NoTemplate { pool: String, template: String },
}

/// Where a claim stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Being deleted, and nothing of it is left, or it was never touched.
    Over,
    /// Being deleted, and its sandbox, if it has one, not yet confirmed to be released.
    Releasing,
    /// Its end has come, and the claim is to go with its sandbox. Both policies of that kind are one: our finalizer lets the
    /// claim go last anyway, without the garbage collector, which waits for every API of the cluster.
    Ending,
    /// Its end has come, and the claim is kept.
    Expired,
    /// Neither bound nor refused; nothing protects a sandbox that it would get.
    Unprotected,
    /// It may be given a sandbox.
    Waiting,
    /// A node's gateway has handed its sandbox over, which no node reports yet, or any more. It is given no other.
    Delivered,
    /// A sandbox was claimed for it while a node's gateway handed over another one. Nobody was told of ours.
    Doubled(Delivery),
    /// It has a sandbox.
    Bound,
    /// A node handed its sandbox over, or did so to an earlier life of this server: the user's part is not known here. It is
    /// given that after the claim's status tells of it and not before, so that a sandbox with the claim's part that no status
    /// tells of is always one that was claimed here.
    Adopting,
    /// It had a sandbox.
    Missing,
    /// It cannot have one as things are.
    Refused(Refusal),
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Step {
    /// Write the finalizer.
    Protect,
    /// Take the finalizer away.
    Unprotect,
    /// Get a sandbox.
    Claim(Box<ClaimOrder>),
    /// Give the sandbox the claim's part.
    Adopt,
    /// Release the sandbox; then take the finalizer away or say that the claim is over.
    Release,
    /// Release this one, whatever its name.
    ReleaseDouble(Delivery),
    /// Delete the claim.
    Delete,
    /// Write this status.
    Say(Box<SandboxClaimStatus>),
    /// Nothing, until something changes or so much time has passed.
    Rest(Option<Duration>),
}

impl Facts<'_> {
    pub(super) fn state(&self) -> State {
        let meta = &self.claim.metadata;
        let protected = meta
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == FINALIZER);
        if meta.deletion_timestamp.is_some() {
            return match protected {
                true => State::Releasing,
                false => State::Over,
            };
        }
        if self.end().is_some_and(|end| end <= self.wall()) {
            return match self.policy() {
                ClaimShutdownPolicy::Retain => State::Expired,
                ClaimShutdownPolicy::Delete | ClaimShutdownPolicy::DeleteForeground => {
                    State::Ending
                }
            };
        }
        if let Some(double) = self.double() {
            return State::Doubled(delivery(double));
        }
        match self.sandbox {
            Some(sandbox) if !self.is_ours(sandbox) => State::Refused(Refusal::new(
                CONFLICT,
                "a sandbox of this name exists that was not made for this claim",
            )),
            Some(_) if !protected => State::Unprotected,
            Some(sandbox) if self.was_bound() && !self.owns(sandbox) => State::Adopting,
            Some(_) => State::Bound,
            None if self.was_bound() => State::Missing,
            None if self.claim.is_delivered() && !protected => State::Unprotected,
            None if self.claim.is_delivered() => State::Delivered,
            None => match self.refusal() {
                Some(refusal) => State::Refused(refusal),
                None if !protected => State::Unprotected,
                None => State::Waiting,
            },
        }
    }

    pub(super) fn step(&self) -> Step {
        match self.state() {
            State::Over => Step::Rest(None),
            State::Releasing | State::Expired if self.own_sandbox().is_some() => Step::Release,
            State::Releasing => Step::Unprotect,
            State::Expired => {
                let refusal = Refusal::new("ClaimExpired", "the claim's end has come");
                self.say(unbound(self.claim, &refusal, false, self.now))
            }
            State::Ending => Step::Delete,
            State::Unprotected => Step::Protect,
            State::Waiting => match self.order() {
                Ok(order) => Step::Claim(Box::new(order)),
                Err(refusal) => self.say(unbound(self.claim, &refusal, false, self.now)),
            },
            State::Delivered => {
                let message = "no node reports the sandbox that was handed over for the claim";
                let refusal = Refusal::new("SandboxMissing", message);
                self.say(unbound(self.claim, &refusal, false, self.now))
            }
            State::Doubled(double) => Step::ReleaseDouble(double),
            State::Adopting => Step::Adopt,
            State::Bound => match self.sandbox {
                Some(sandbox) => self.say(bound(self.claim, sandbox, self.now)),
                None => Step::Rest(None),
            },
            State::Missing => {
                let refusal = Refusal::new("SandboxMissing", "the sandbox is gone");
                self.say(unbound(self.claim, &refusal, true, self.now))
            }
            State::Refused(refusal) => self.say(unbound(self.claim, &refusal, false, self.now)),
        }
    }

    /// The step of a claim that got no sandbox now, for `reason`.
    pub(super) fn pending(&self, reason: &'static str, message: &str) -> (Step, Duration) {
        let refusal = Refusal::new(reason, message);
        let since = condition(self.claim, READY).map_or(self.now, |c| c.last_transition_time.0);
        let waited = self.now.duration_since(since).unsigned_abs();
        let pause = (waited / 4).clamp(FIRST_TRY, LAST_TRY);
        (
            self.say(unbound(self.claim, &refusal, false, self.now)),
            pause,
        )
    }

    /// The sandbox, if it is this claim's to release: one that only a node knows of counts when the claim was bound to it or
    /// protected for it.
    pub(super) fn own_sandbox(&self) -> Option<&Sandbox> {
        self.sandbox.filter(|sandbox| self.is_ours(sandbox))
    }

    /// The sandbox that was claimed for this claim although it has another one, as long as the claim's status tells of neither:
    /// what somebody was told of is never a double.
    fn double(&self) -> Option<&Sandbox> {
        if self.was_bound() {
            return None;
        }
        let made = |sandbox: &&Sandbox| self.owns(sandbox) && sandbox.deleted_at.is_none();
        let binding = |sandbox: &Sandbox| self.claim.binding(&delivery(sandbox));
        let listed = self.sandbox.filter(made);
        let listed = listed.filter(|sandbox| binding(sandbox) == Binding::Another);
        let others = || self.contenders.iter().filter(made);
        listed.or_else(|| others().find(|sandbox| binding(sandbox) != Binding::This))
    }

    /// Writes a status that says something new; else nothing, until the claim's end.
    fn say(&self, status: SandboxClaimStatus) -> Step {
        if self.claim.status.as_ref() == Some(&status) {
            let end = self.end().filter(|end| *end > self.wall());
            return Step::Rest(end.map(|end| end.since(self.wall())));
        }
        Step::Say(Box::new(status))
    }

    fn wall(&self) -> UnixTime {
        UnixTime::from_secs(self.now.as_second())
    }

    fn order(&self) -> Result<ClaimOrder, Refusal> {
        let template = self.template.map_err(NoTemplate::refusal)?;
        order(self.claim, template, self.wall())
    }

    fn refusal(&self) -> Option<Refusal> {
        match self.template {
            Err(missing) => Some(missing.refusal()),
            Ok(template) => validate(self.claim, template).err(),
        }
    }

    fn was_bound(&self) -> bool {
        let status = self.claim.status.as_ref();
        status.is_some_and(|status| status.sandbox.as_ref().is_some_and(|s| s.name.is_some()))
    }

    /// Whether the sandbox may be this claim's: this claim made it, or nobody knows whose object did. A claim that was told of
    /// a conflict does not get the sandbox because a new life of this server knows less.
    fn is_ours(&self, sandbox: &Sandbox) -> bool {
        let Some(user) = &sandbox.user else {
            return !self.is_in_conflict();
        };
        // Of what a sandbox says only its labels outlive this server, on nodes that keep them.
        if let Some(uid) = user.labels.get(CLAIM_UID) {
            return Some(uid.as_str()) == self.claim.metadata.uid.as_deref();
        }
        let unknown = user.spec.is_empty() && user.owner_references.is_empty();
        self.owns(sandbox) || (unknown && !self.is_in_conflict())
    }

    fn owns(&self, sandbox: &Sandbox) -> bool {
        let owners = sandbox
            .user
            .as_ref()
            .map_or("", |user| &user.owner_references);
        let owners: Vec<Value> = serde_json::from_str(owners).unwrap_or_default();
        let uid = self.claim.metadata.uid.as_deref();
        owners
            .iter()
            .any(|owner| owner["uid"].as_str() == uid && uid.is_some())
    }

    fn is_in_conflict(&self) -> bool {
        condition(self.claim, READY).is_some_and(|ready| ready.reason == CONFLICT)
    }

    fn policy(&self) -> ClaimShutdownPolicy {
        let lifecycle = self.claim.spec.lifecycle.as_ref();
        lifecycle.map_or(ClaimShutdownPolicy::Retain, |lifecycle| {
            lifecycle.shutdown_policy
        })
    }

    /// When the claim ends: its time, or so long after it finished, whichever is first.
    fn end(&self) -> Option<UnixTime> {
        let lifecycle = self.claim.spec.lifecycle.as_ref()?;
        let finished = condition(self.claim, FINISHED).filter(|c| c.status == "True");
        let after = finished.and_then(|finished| {
            let seconds = u64::try_from(lifecycle.ttl_seconds_after_finished?).ok()?;
            let finished = UnixTime::from_secs(finished.last_transition_time.0.as_second());
            Some(finished.after(Duration::from_secs(seconds)))
        });
        lifecycle.shutdown_time.into_iter().chain(after).min()
    }
}

impl NoTemplate {
    pub(super) fn refusal(&self) -> Refusal {
        match self {
            Self::NoPool(pool) => Refusal::new(
                "WarmPoolNotFound",
                format!("there is no SandboxWarmPool {pool:?} in the namespace"),
            ),
            Self::NoTemplate { pool, template } => Refusal::new(
                "TemplateNotFound",
                format!(
                    "there is no SandboxTemplate {template:?}, which SandboxWarmPool {pool:?} names"
                ),
            ),
        }
    }
}

/// The user's part that a claim's sandbox should have.
pub(super) fn adopted(
    claim: &SandboxClaim,
    template: Option<&SandboxTemplate>,
) -> Arc<crate::api::UserPart> {
    Arc::new(super::order::user_part(claim, template))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        api::UserPart,
        claims::status::condition,
        fleet::{Phase, uid_of},
    };

    const NOW: i64 = 1_000_000;

    /// A claim, and the world around it.
    struct Case {
        claim: SandboxClaim,
        sandbox: Option<Sandbox>,
        contenders: Vec<Sandbox>,
        template: Result<SandboxTemplate, NoTemplate>,
    }

    impl Case {
        fn new() -> Self {
            let claim = json!({
                "metadata": {"name": "box", "namespace": "team", "uid": "u-1", "generation": 1},
                "spec": {"warmPoolRef": {"name": "p"}}});
            let pod = json!({"spec": {"containers": [{"name": "c", "image": "python:3.12"}]}});
            Self {
                claim: serde_json::from_value(claim).unwrap(),
                sandbox: None,
                contenders: Vec::new(),
                template: Ok(
                    serde_json::from_value(json!({"spec": {"podTemplate": pod}})).unwrap(),
                ),
            }
        }

        fn protected(mut self) -> Self {
            self.claim.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
            self
        }

        fn deleted(mut self) -> Self {
            let at = Timestamp::from_second(NOW).unwrap();
            self.claim.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));
            self
        }

        /// As after a restart of the server: of what the user sent only labels are known, and those of some nodes only.
        fn forgotten(mut self, labels: &[(&str, &str)]) -> Self {
            let labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into()));
            let user = UserPart {
                labels: labels.collect(),
                ..UserPart::default()
            };
            self.sandbox.as_mut().unwrap().user = Some(Arc::new(user));
            self
        }

        /// With a sandbox that only its node knows of, or that the object with this uid owns.
        fn with_sandbox(mut self, phase: Phase, owner: Option<&str>) -> Self {
            let user = |owner| UserPart {
                owner_references: json!([{"uid": owner}]).to_string().into(),
                ..UserPart::default()
            };
            self.sandbox = Some(Sandbox {
                namespace: "team".into(),
                name: "box".into(),
                claim: "sb_1".into(),
                node: "n1".into(),
                address: "10.0.0.7:7777".into(),
                daemon: None,
                pool: None,
                from_checkpoint: None,
                uid: uid_of(&"n1".into(), &"sb_1".into()),
                created: UnixTime::from_secs(NOW),
                changed: UnixTime::from_secs(NOW),
                deadline: None,
                deleted_at: None,
                phase,
                gone: false,
                node_lost: false,
                attempt: None,
                name_taken: false,
                user: owner.map(user).map(Arc::new),
            });
            self
        }

        fn ending(mut self, policy: &str, after: i64) -> Self {
            let end = UnixTime::from_secs(NOW + after).to_string();
            let lifecycle = json!({"shutdownTime": end, "shutdownPolicy": policy});
            self.claim.spec.lifecycle = serde_json::from_value(lifecycle).unwrap();
            self
        }

        fn without_template(mut self, missing: NoTemplate) -> Self {
            self.template = Err(missing);
            self
        }

        fn facts(&self) -> Facts<'_> {
            Facts {
                claim: &self.claim,
                sandbox: self.sandbox.as_ref(),
                contenders: &self.contenders,
                template: self.template.as_ref(),
                now: Timestamp::from_second(NOW).unwrap(),
            }
        }

        /// What is said until there is nothing more to say.
        fn said(mut self) -> Self {
            if let Step::Say(status) = self.facts().step() {
                self.claim.status = Some(*status);
            }
            self
        }

        /// The next step in short.
        #[track_caller]
        fn then(self, expected: &str) -> Self {
            let shown = match self.facts().step() {
                Step::Protect => "protect".to_owned(),
                Step::Unprotect => "unprotect".to_owned(),
                Step::Claim(order) => format!("claim {} from {}", order.key, order.pool),
                Step::Adopt => "adopt".to_owned(),
                Step::Release => "release".to_owned(),
                Step::ReleaseDouble(double) => format!("release {}", double.claim),
                Step::Delete => "delete".to_owned(),
                Step::Say(status) => {
                    let ready = status.conditions.iter().find(|c| c.type_ == READY).unwrap();
                    let name = status.sandbox.and_then(|sandbox| sandbox.name);
                    format!("say {} {} {name:?}", ready.status, ready.reason)
                }
                Step::Rest(pause) => format!("rest {:?}", pause.map(|pause| pause.as_secs())),
            };
            assert_eq!(shown, expected);
            self
        }
    }

    #[test]
    fn a_new_claim_is_protected_before_a_vm_is_taken() {
        Case::new().then("protect");
        Case::new()
            .protected()
            .then("claim team/box from python:3.12|none|small");
        Case::new()
            .protected()
            .with_sandbox(Phase::Running, Some("u-1"))
            .then("say True DependenciesReady Some(\"box\")")
            .said()
            .then("rest None");
    }

    #[test]
    fn what_a_node_handed_over_wins_until_the_status_tells_of_another() {
        let delivered = |message: &str| {
            json!({"conditions": [{"type": "Bound", "status": "True", "reason": "Delivered",
                "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        };
        let other = || delivered("node n2 handed over sb_2");
        let says = |mut case: Case, status: Value| {
            case.claim.status = serde_json::from_value(status).unwrap();
            case
        };
        // Ours, which nobody was told of.
        let ours = || {
            Case::new()
                .protected()
                .with_sandbox(Phase::Running, Some("u-1"))
        };
        says(ours(), other()).then("release sb_1");
        says(ours(), delivered("node n1 handed over sb_1"))
            .then("say True DependenciesReady Some(\"box\")");
        // Ours, which lost its name to the one that was handed over.
        let mut lost = Case::new().protected().with_sandbox(Phase::Running, None);
        let mut beside = ours().sandbox.unwrap();
        beside.claim = "sb_7".into();
        lost.contenders = vec![beside];
        let mut lost = lost.then("release sb_7");
        lost.contenders.clear();
        lost.then("say True DependenciesReady Some(\"box\")");
        // Once the status tells of ours, nothing is released.
        let told = ours().said();
        let mut status = serde_json::to_value(&told.claim.status).unwrap();
        status["conditions"][1] = other()["conditions"][0].clone();
        says(told, status).then("rest None");
        // What is not ours is not released, whoever else was faster.
        let theirs = Case::new().protected().with_sandbox(Phase::Running, None);
        says(theirs, other()).then("say True DependenciesReady Some(\"box\")");
        // What was handed over and is not reported is waited for.
        let mut made = Case::new().protected();
        let annotations = [(labels::CLAIM_ID.to_owned(), "sb_2".to_owned())];
        made.claim.metadata.annotations = Some(annotations.into());
        made.then("say False SandboxMissing None")
            .said()
            .then("rest None");
        says(Case::new(), other()).then("protect");
    }

    #[test]
    fn one_write_tells_name_addresses_and_conditions() {
        let case = Case::new()
            .protected()
            .with_sandbox(Phase::Failed, Some("u-1"))
            .said();
        let status = case.claim.status.as_ref().unwrap();
        assert_eq!(status.sandbox.as_ref().unwrap().pod_ips, ["10.0.0.7"]);
        let finished = condition(&case.claim, FINISHED).unwrap();
        assert_eq!(
            (finished.status.as_str(), finished.reason.as_str()),
            ("True", "PodFailed")
        );
    }

    #[test]
    fn what_a_node_handed_over_is_bound_and_nothing_is_claimed() {
        Case::new()
            .with_sandbox(Phase::Running, None)
            .then("protect");
        Case::new()
            .protected()
            .with_sandbox(Phase::Running, None)
            .then("say True DependenciesReady Some(\"box\")")
            .said()
            .then("adopt");
    }

    #[test]
    fn a_sandbox_of_somebody_else_is_neither_bound_nor_released() {
        let others = |case: Case| case.with_sandbox(Phase::Running, Some("u-2"));
        others(Case::new()).then("say False AdoptionConflict None");
        others(Case::new().protected().deleted()).then("unprotect");
        others(Case::new().protected().ending("Retain", -1)).then("say False ClaimExpired None");
    }

    #[test]
    fn a_label_tells_whose_a_sandbox_is_after_a_restart() {
        let bound = |case: Case| case.protected().with_sandbox(Phase::Running, None);
        let deleted = |uid| bound(Case::new().deleted()).forgotten(&[(CLAIM_UID, uid)]);
        deleted("u-1").then("release");
        deleted("u-2").then("unprotect");
        let alive = |labels: &[_]| bound(Case::new()).forgotten(labels);
        alive(&[(CLAIM_UID, "u-1")]).said().then("adopt");
        alive(&[]).said().then("adopt");
        alive(&[(CLAIM_UID, "u-2")]).then("say False AdoptionConflict None");
        // The conflict outlives the knowledge of it.
        let conflict = Case::new()
            .with_sandbox(Phase::Running, Some("u-2"))
            .said()
            .forgotten(&[]);
        conflict.then("rest None");
    }

    #[test]
    fn what_is_missing_is_said_before_anything_is_done() {
        let pool = || NoTemplate::NoPool("p".to_owned());
        Case::new()
            .without_template(pool())
            .then("say False WarmPoolNotFound None")
            .said()
            .then("rest None");
        let template = NoTemplate::NoTemplate {
            pool: "p".to_owned(),
            template: "t".to_owned(),
        };
        Case::new()
            .without_template(template)
            .then("say False TemplateNotFound None");
        Case::new()
            .protected()
            .without_template(pool())
            .with_sandbox(Phase::Running, Some("u-1"))
            .then("say True DependenciesReady Some(\"box\")");
    }

    #[test]
    fn a_bound_claim_never_gets_a_second_sandbox() {
        let mut case = Case::new()
            .protected()
            .with_sandbox(Phase::Running, Some("u-1"))
            .said();
        case.sandbox = None;
        case.then("say False SandboxMissing Some(\"box\")")
            .said()
            .then("rest None");
    }

    #[test]
    fn a_deleted_claim_stays_until_its_sandbox_is_released() {
        let deleted = || Case::new().protected().deleted();
        deleted()
            .with_sandbox(Phase::Running, Some("u-1"))
            .then("release");
        deleted().with_sandbox(Phase::Running, None).then("release");
        deleted().then("unprotect");
        Case::new().deleted().then("rest None");
    }

    #[test]
    fn a_claim_ends_as_its_policy_says() {
        let ended = |policy| Case::new().protected().ending(policy, 0);
        ended("Delete").then("delete");
        ended("DeleteForeground").then("delete");
        ended("Retain")
            .with_sandbox(Phase::Running, Some("u-1"))
            .then("release");
        ended("Retain")
            .then("say False ClaimExpired None")
            .said()
            .then("rest None");
        Case::new()
            .protected()
            .ending("Delete", 90)
            .with_sandbox(Phase::Running, Some("u-1"))
            .said()
            .then("rest Some(90)");
    }

    #[test]
    fn a_finished_claim_ends_after_its_time() {
        let mut case = Case::new()
            .protected()
            .with_sandbox(Phase::Failed, Some("u-1"))
            .said();
        let mut ttl = |seconds: i32| {
            let lifecycle = json!({"ttlSecondsAfterFinished": seconds, "shutdownPolicy": "Delete"});
            case.claim.spec.lifecycle = serde_json::from_value(lifecycle).unwrap();
            format!("{:?}", case.facts().step())
        };
        assert_eq!(ttl(30), "Rest(Some(30s))");
        assert_eq!(ttl(0), "Delete");
    }

    #[test]
    fn waiting_for_capacity_takes_longer_the_longer_it_has_taken() {
        let mut case = Case::new().protected();
        let pending = |case: &Case, after: i64| {
            let facts = Facts {
                now: Timestamp::from_second(NOW + after).unwrap(),
                ..case.facts()
            };
            facts.pending("SandboxCreatePending", "no warm sandbox").1
        };
        assert_eq!(pending(&case, 0), FIRST_TRY);
        case.claim.status = match case.facts().pending("SandboxCreatePending", "").0 {
            Step::Say(status) => Some(*status),
            other => panic!("{other:?}"),
        };
        assert_eq!(pending(&case, 8), Duration::from_secs(2));
        assert_eq!(pending(&case, 60), LAST_TRY);
    }
}
