//! What a claim needs next: a state machine without I/O. The state is read from the world each time; nothing is remembered.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::{
    order::{CLAIM_UID, order},
    status::{FINISHED, READY, bound, condition, delivery, released, unbound},
    validate::{Refusal, validate},
};
use crate::{
    api::{
        Binding, ClaimShutdownPolicy, Delivery, SandboxClaim, SandboxClaimStatus, SandboxTemplate,
        labels,
    },
    fleet::{REAP_GRACE, Sandbox},
    gateway::{ClaimOrder, LONGEST_LEASE},
    meta::UnixTime,
};

/// Keeps a claim until its sandbox is released.
pub(super) const FINALIZER: &str = labels::RELEASE;

/// Reason of Ready for a claim whose name is a sandbox's that is not its own.
const CONFLICT: &str = "AdoptionConflict";

/// Time between two looks whether a claim's node has told what it has, after a start of the server.
const TOLD_WITHIN: Duration = Duration::from_secs(30);

/// Bounds of the pause between two tries to get a sandbox; it grows with the time waited so far.
pub(super) const FIRST_TRY: Duration = Duration::from_millis(250);
pub(super) const LAST_TRY: Duration = Duration::from_secs(5);

/// All that a claim's next step depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) claim: &'a SandboxClaim,
    /// The sandbox that is listed under the claim's name.
    pub(super) sandbox: Option<&'a Sandbox>,
    /// Those that ask for its name beside it.
    pub(super) contenders: &'a [Sandbox],
    /// Whether a create of the name is not settled.
    pub(super) unsettled: bool,
    /// Whether the node that the claim's sandbox is of has told all that it has since this server started.
    pub(super) told: bool,
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
    /// A node's gateway has handed its sandbox over, which no node reports yet, or any more. It is given no other, also when
    /// another one has the name.
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
    /// Give this sandbox the claim's part.
    Adopt(Delivery),
    /// Release this sandbox; then look for more.
    Release(Delivery),
    /// Release this one, which no node reports; then take the finalizer away.
    ReleaseUnreported(Delivery),
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
        match self.chosen() {
            Some(sandbox) if !self.is_ours(sandbox) => State::Refused(Refusal::new(
                CONFLICT,
                "a sandbox of this name exists that was not made for this claim",
            )),
            Some(_) if !protected => State::Unprotected,
            Some(sandbox) if self.was_bound() && !self.owns(sandbox) => State::Adopting,
            Some(_) => State::Bound,
            // While another one has the name, the claim does not say it.
            None if self.was_bound() && self.sandbox.is_none() => State::Missing,
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
            State::Releasing => match (self.own(), self.unreported()) {
                (Some(own), _) => Step::Release(delivery(own)),
                (None, Some(unreported)) => Step::ReleaseUnreported(unreported),
                (None, None) => Step::Unprotect,
            },
            State::Expired => match self.own() {
                Some(own) => Step::Release(delivery(own)),
                None => {
                    let refusal = Refusal::new("ClaimExpired", "the claim's end has come");
                    let was_bound = self.was_bound();
                    // Without its node's word it may be there yet.
                    let is_gone = match was_bound {
                        true => self.told,
                        false => self.claim.is_released(),
                    };
                    self.say(match is_gone {
                        true => released(self.claim, &refusal, false, self.now),
                        false => unbound(self.claim, &refusal, was_bound, self.now),
                    })
                }
            },
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
            State::Adopting => {
                let adopt = |sandbox| Step::Adopt(delivery(sandbox));
                self.chosen().map_or(Step::Rest(None), adopt)
            }
            State::Bound => {
                let say = |sandbox| self.say(bound(self.claim, sandbox, self.now));
                self.chosen().map_or(Step::Rest(None), say)
            }
            State::Missing => {
                let is_gone = self.told || self.claim.is_released();
                let message = match is_gone {
                    true => "the sandbox is gone",
                    false => "the sandbox's node has not answered since the server started",
                };
                let refusal = Refusal::new("SandboxMissing", message);
                self.say(match is_gone {
                    true => released(self.claim, &refusal, true, self.now),
                    false => unbound(self.claim, &refusal, true, self.now),
                })
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

    /// The sandbox that the claim has or may have. The one that it is bound to is that under any name; one that has the claim's
    /// name is not, when the claim is bound to another; nor is one that may be what a create made whose answer was lost, which is
    /// released as nobody's, or one that is being released.
    fn chosen(&self) -> Option<&Sandbox> {
        let is_bound =
            |sandbox: &&Sandbox| self.binding(sandbox) == Binding::This && self.is_ours(sandbox);
        let not_another = |sandbox: &&Sandbox| {
            self.binding(sandbox) != Binding::Another || self.is_made_here(sandbox)
        };
        let stays = |sandbox: &&Sandbox| {
            self.owns(sandbox) || (sandbox.deleted_at.is_none() && !self.unsettled)
        };
        let bound = self.all().find(is_bound);
        bound.or_else(|| self.sandbox.filter(not_another).filter(stays))
    }

    /// A sandbox that is this claim's to release: that this claim was given here, or is bound to. One that only a node knows of
    /// counts by its name as long as the claim is bound to none: whoever has the name later was handed over to somebody else.
    /// One whose release is owed already comes last.
    fn own(&self) -> Option<&Sandbox> {
        let is_own = |sandbox: &&Sandbox| match self.binding(sandbox) {
            _ if self.is_made_here(sandbox) => true,
            Binding::This => self.is_ours(sandbox),
            Binding::Open => self.is_ours(sandbox) && !sandbox.name_taken,
            Binding::Another => false,
        };
        let own = self.all().filter(is_own);
        own.min_by_key(|sandbox| sandbox.deleted_at.is_some())
    }

    /// What was handed over for the claim and is not known to be gone: it was never listed, as far as the claim's status tells, or
    /// its node has not told yet what it has. What was listed once is listed until its node says that it is gone. In the end its
    /// lease is over, for nobody renews what is not listed.
    fn unreported(&self) -> Option<Delivery> {
        let is_gone = self.claim.is_released() || (self.was_bound() && self.told);
        let delivered = self.claim.delivered().filter(|_| !is_gone)?;
        let deleted = self.claim.metadata.deletion_timestamp.as_ref();
        let since = deleted.map_or(Duration::ZERO, |at| {
            self.now.duration_since(at.0).unsigned_abs()
        });
        let listed = self.all().any(|sandbox| delivery(sandbox) == delivered);
        (!listed && since < LONGEST_LEASE + REAP_GRACE).then_some(delivered)
    }

    /// The sandboxes that have the claim's name or ask for it.
    fn all(&self) -> impl Iterator<Item = &Sandbox> {
        self.sandbox.into_iter().chain(self.contenders)
    }

    fn binding(&self, sandbox: &Sandbox) -> Binding {
        self.claim.binding(&delivery(sandbox))
    }

    /// The sandbox that was claimed for this claim although it has another one, as long as the claim's status tells of neither:
    /// what somebody was told of is never a double.
    fn double(&self) -> Option<&Sandbox> {
        if self.was_bound() {
            return None;
        }
        let made = |sandbox: &&Sandbox| self.owns(sandbox) && sandbox.deleted_at.is_none();
        let listed = self.sandbox.filter(made);
        let listed = listed.filter(|sandbox| self.binding(sandbox) == Binding::Another);
        let others = || self.contenders.iter().filter(made);
        listed.or_else(|| others().find(|sandbox| self.binding(sandbox) != Binding::This))
    }

    /// Writes a status that says something new; else nothing, until the claim's end.
    fn say(&self, status: SandboxClaimStatus) -> Step {
        if self.claim.status.as_ref() == Some(&status) {
            let end = self.end().filter(|end| *end > self.wall());
            let end = end.map(|end| end.since(self.wall()));
            // That a node has told is no event.
            let is_open = !self.told && !self.claim.is_released();
            let told = is_open.then_some(TOLD_WITHIN);
            return Step::Rest(end.into_iter().chain(told).min());
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
        let unknown = user.spec.is_empty() && user.owner_references.is_empty();
        let labelled = user.labels.contains_key(CLAIM_UID);
        self.is_made_here(sandbox) || (unknown && !labelled && !self.is_in_conflict())
    }

    /// Whether the sandbox has this claim's part.
    fn is_made_here(&self, sandbox: &Sandbox) -> bool {
        // Of what a sandbox says only its labels outlive this server, on nodes that keep them.
        let user = sandbox.user.as_ref();
        match user.and_then(|user| user.labels.get(CLAIM_UID)) {
            Some(uid) => Some(uid.as_str()) == self.claim.metadata.uid.as_deref(),
            None => self.owns(sandbox),
        }
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
) -> crate::api::UserPart {
    super::order::user_part(claim, template)
}
