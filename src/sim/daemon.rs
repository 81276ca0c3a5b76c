//! One node, locked for one operation: finding a sandbox, and claiming one.
//!
//! Every method is one step of a daemon's work, taken when its delay is over; nothing here waits.

use parking_lot::MutexGuard;

use super::{
    Options, Refusal,
    body::{CheckpointClaimBody, ClaimBody},
    claim::{Claim, Extra, Millis, Number, OnExpire, Owner, Phase, lease},
    journal::JournalEvent,
    reply::{ClaimAnswer, Granted, Redirect},
    state::State,
    world::World,
};
use crate::api::PoolKey;

pub(super) struct Daemon<'a> {
    pub(super) world: &'a World,
    pub(super) index: usize,
    pub(super) now: Millis,
    pub(super) state: MutexGuard<'a, State>,
}

/// Where a claim's VM comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Warm,
    Clone,
    Cold,
    /// The image does not exist: the daemon finds out only by trying.
    Missing,
}

/// What a claim meets here.
pub(super) enum Placement {
    Here(Source),
    Elsewhere(Redirect),
}

impl Daemon<'_> {
    pub(super) fn options(&self) -> &Options {
        &self.world.options
    }

    /// The claim with this id.
    pub(super) fn find(&self, id: &str) -> Result<Number, Refusal> {
        id.parse()
            .ok()
            .filter(|number| self.state.claims.contains_key(number))
            .ok_or_else(Refusal::unknown_sandbox)
    }

    /// The claim with this id, if `token` is its own.
    pub(super) fn find_with_token(&self, id: &str, token: &str) -> Result<Number, Refusal> {
        let number = self.find(id)?;
        if self.world.sandbox_token(number) == token {
            Ok(number)
        } else {
            Err(Refusal::unknown_sandbox())
        }
    }

    pub(super) fn claim_of(&mut self, number: Number) -> Result<&mut Claim, Refusal> {
        self.state
            .claims
            .get_mut(&number)
            .ok_or_else(Refusal::unknown_sandbox)
    }

    /// Why no claim of `owner` is taken now, if none is.
    pub(super) fn capacity_reason(&self, owner: Owner, more: usize) -> Option<&'static str> {
        let over = |used: usize, limit: usize| limit > 0 && used + more > limit;
        if over(self.state.claims.len(), self.options().max_claims) {
            return Some("node is at max_claims");
        }
        let limit = self.options().tenants.get(owner.index()?)?.max_claims;
        let mine = self.state.claims.values().filter(|c| c.owner == owner);
        over(mine.count(), limit).then_some("tenant is at max_claims")
    }

    pub(super) fn admit(&self, owner: Owner, more: usize) -> Result<(), Refusal> {
        if self.state.draining {
            return Err(Refusal::full("node is draining"));
        }
        match self.capacity_reason(owner, more) {
            Some(reason) => Err(Refusal::full(reason)),
            None => Ok(()),
        }
    }

    /// Where a claim would be served, without taking anything.
    pub(super) fn place(
        &self,
        owner: Owner,
        key: &PoolKey,
        body: &ClaimBody,
    ) -> Result<Placement, Refusal> {
        self.check_lane(key, &body.on_expire)?;
        if self.state.draining {
            return Err(Refusal::full("node is draining"));
        }
        let promoted = self.state.templates.contains_key(key);
        if body.require_promoted {
            self.admit(owner, 1)?;
            return match promoted {
                true => Ok(Placement::Here(Source::Clone)),
                false => Err(Refusal::not_found("unknown template")),
            };
        }
        let full = self.capacity_reason(owner, 1);
        if full.is_none() && self.state.pools.get(key).is_some_and(|pool| pool.warm > 0) {
            return Ok(Placement::Here(Source::Warm));
        }
        if !body.no_redirect {
            let warm = self.world.warm_peers(self.index, key);
            if !warm.is_empty() {
                return Ok(elsewhere(warm, false));
            }
        }
        if let Some(reason) = full {
            return Err(Refusal::full(reason));
        }
        if promoted || self.state.pools.contains_key(key) {
            return Ok(Placement::Here(Source::Clone));
        }
        if !body.no_redirect {
            let promoted = self.world.promoted_peers(self.index, key);
            if !promoted.is_empty() {
                return Ok(elsewhere(promoted, true));
            }
        }
        Ok(Placement::Here(match self.options().latency.cold {
            Some(_) => Source::Cold,
            None => Source::Missing,
        }))
    }

    fn check_lane(&self, key: &PoolKey, on_expire: &str) -> Result<(), Refusal> {
        if key.net != "egress" {
            return Ok(());
        }
        if !self.options().egress {
            return Err(Refusal::conflict("node has no egress attachment"));
        }
        if on_expire == "archive" {
            return Err(Refusal::conflict("an egress sandbox cannot be archived"));
        }
        Ok(())
    }

    /// Takes a sandbox, from wherever one is to be had at this moment.
    pub(super) fn claim(
        &mut self,
        owner: Owner,
        key: &PoolKey,
        body: ClaimBody,
    ) -> Result<ClaimAnswer, Refusal> {
        let source = match self.place(owner, key, &body)? {
            Placement::Here(source) => source,
            Placement::Elsewhere(redirect) => {
                self.state.counters.redirects += 1;
                return Ok(ClaimAnswer::Redirect(redirect));
            }
        };
        self.provision(source, key)?;
        let extra = Extra {
            metadata: body.metadata,
            env: body.env,
            ..Extra::default()
        };
        let claim = Claim {
            claim_ref: body.claim_ref.into(),
            on_expire: OnExpire::parse(&body.on_expire),
            extra: extra.boxed(),
            ..self.mk_claim(owner, key, body.ttl_seconds)
        };
        Ok(ClaimAnswer::Granted(Box::new(self.grant(claim))))
    }

    /// A VM from `source`, counted with the time that it took.
    fn provision(&mut self, source: Source, key: &PoolKey) -> Result<(), Refusal> {
        let latency = self.options().latency;
        let counters = &mut self.state.counters;
        let (granted, took) = match source {
            Source::Warm => (&mut counters.claims_warm, latency.warm),
            Source::Clone => (&mut counters.claims_clone, latency.clone),
            Source::Cold => (&mut counters.claims_cold, latency.cold.unwrap_or_default()),
            Source::Missing => return Err(Refusal::failed("provisioning failed")),
        };
        *granted += 1;
        counters.claim_seconds += took.as_secs_f64();
        if source == Source::Warm {
            self.state.take_warm(key, self.now, latency.refill);
        }
        Ok(())
    }

    pub(super) fn mk_claim(&self, owner: Owner, key: &PoolKey, ttl_seconds: i64) -> Claim {
        let mut claim = Claim {
            claim_ref: "".into(),
            key: self.state.shared_key(key),
            claimed_at: self.now,
            deadline: self.now,
            lease_seconds: 0,
            owner,
            phase: Phase::Running,
            on_expire: OnExpire::default(),
            extra: None,
        };
        claim.set_lease(self.now, lease(ttl_seconds));
        claim
    }

    fn grant(&mut self, claim: Claim) -> Granted {
        let number = self.world.issue();
        self.grant_as(number, claim)
    }

    pub(super) fn grant_as(&mut self, number: Number, claim: Claim) -> Granted {
        let from_checkpoint = claim.extra.as_ref().and_then(|extra| extra.from_checkpoint);
        let granted = Granted {
            id: number.to_string(),
            token: self.world.sandbox_token(number),
            deadline: claim.deadline.timestamp(),
            owner_addr: self.world.nodes[self.index].address.authority(),
            template_digest: self
                .state
                .templates
                .get(&*claim.key)
                .map(|template| template.digest.clone()),
            from_checkpoint: from_checkpoint.map(Number::checkpoint),
            net_route: self
                .since_b()
                .then_some(if claim.is_egress() { "relay" } else { "none" }),
        };
        self.state.insert(number, claim, JournalEvent::Granted);
        granted
    }

    /// Takes a sandbox that starts from a checkpoint; `None` when the checkpoint is not here.
    pub(super) fn checkpoint_claim(
        &mut self,
        owner: Owner,
        checkpoint: Number,
        body: &CheckpointClaimBody,
    ) -> Result<Option<ClaimAnswer>, Refusal> {
        let Some(record) = self.state.checkpoints.get(&checkpoint) else {
            return Ok(None);
        };
        let (key, files) = (record.key.clone(), record.files.clone());
        self.admit(owner, 1)?;
        let latency = self.options().latency.clone;
        self.state.counters.claims_clone += 1;
        self.state.counters.claim_seconds += latency.as_secs_f64();
        let extra = Extra {
            metadata: body.metadata.clone(),
            env: body.env.clone(),
            from_checkpoint: Some(checkpoint),
            failed: None,
            files,
        };
        let claim = Claim {
            on_expire: OnExpire::parse(&body.on_expire),
            extra: extra.boxed(),
            ..self.mk_claim(owner, &key, body.ttl_seconds)
        };
        Ok(Some(ClaimAnswer::Granted(Box::new(self.grant(claim)))))
    }

    pub(super) fn since_b(&self) -> bool {
        self.options().generation >= super::Generation::B
    }
}

fn elsewhere(redirect: Vec<String>, require_promoted: bool) -> Placement {
    Placement::Elsewhere(Redirect {
        redirect,
        require_promoted,
    })
}
