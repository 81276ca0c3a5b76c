//! One node, locked for one operation: what becomes of a sandbox once it is claimed.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    Refusal,
    body::{ForkBody, RenewBody, check_name},
    claim::{Claim, Number, OnExpire, Owner, Phase, lease},
    daemon::Daemon,
    journal::JournalEvent,
    reply::{CheckpointRecord, Granted},
    state::{Checkpoint, Template},
};
use crate::api::PoolKey;

/// Bounds on what a node stores; a real one is bounded by its disk.
const MAX_CHECKPOINTS: usize = 65_536;
const MAX_TEMPLATES: usize = 4_096;

impl Daemon<'_> {
    pub(super) fn release(&mut self, number: Number) -> Result<(), Refusal> {
        if !self.state.remove(number, JournalEvent::Released) {
            return Err(Refusal::unknown_sandbox());
        }
        self.state.counters.releases += 1;
        Ok(())
    }

    pub(super) fn hibernate(&mut self, number: Number) -> Result<(), Refusal> {
        let claim = self.claim_of(number)?;
        if claim.is_egress() {
            return Err(Refusal::conflict("an egress sandbox cannot hibernate"));
        }
        match claim.phase {
            Phase::Hibernated => return Ok(()),
            Phase::Running => claim.phase = Phase::Hibernated,
            Phase::Archived => return Err(Refusal::conflict("sandbox is archived")),
            Phase::Failed => return Err(Refusal::conflict("sandbox has failed")),
        }
        self.state.counters.hibernates += 1;
        Ok(())
    }

    pub(super) fn wake(&mut self, number: Number) -> Result<(), Refusal> {
        let now = self.now;
        let claim = self.claim_of(number)?;
        let was = std::mem::replace(&mut claim.phase, Phase::Running);
        if was == Phase::Running {
            return Ok(());
        }
        if was == Phase::Archived {
            claim.deadline = now.after(Duration::from_secs(claim.lease_seconds.into()));
        }
        if was == Phase::Failed {
            claim.extra_mut().failed = None;
        }
        let deadline = claim.deadline;
        self.state.note_deadline(deadline);
        let took = self.options().latency.wake;
        let counters = &mut self.state.counters;
        counters.wakes += 1;
        counters.wake_seconds += took.as_secs_f64();
        counters.unarchives += u64::from(was == Phase::Archived);
        Ok(())
    }

    pub(super) fn renew(&mut self, number: Number, body: &RenewBody) -> Result<Timestamp, Refusal> {
        let (now, since_b) = (self.now, self.since_b());
        let claim = self.claim_of(number)?;
        if claim.phase == Phase::Archived {
            return Err(Refusal::conflict("sandbox is archived"));
        }
        if since_b && !body.on_expire.is_empty() {
            if body.on_expire == "archive" && claim.is_egress() {
                return Err(Refusal::conflict("an egress sandbox cannot be archived"));
            }
            claim.on_expire = OnExpire::parse(&body.on_expire);
        }
        claim.set_lease(now, lease(body.ttl_seconds));
        let deadline = claim.deadline;
        self.state.note_deadline(deadline);
        Ok(deadline.timestamp())
    }

    pub(super) fn fork(
        &mut self,
        number: Number,
        body: &ForkBody,
    ) -> Result<Vec<Granted>, Refusal> {
        let most = self.options().max_fork_count;
        let count = u32::try_from(body.count)
            .ok()
            .filter(|count| (1..=most).contains(count))
            .ok_or_else(|| Refusal::bad("count is out of range"))?;
        let since_b = self.since_b();
        let parent = self.copyable(number)?;
        let (key, owner, extra) = (parent.key.clone(), parent.owner, parent.extra.clone());
        let on_expire = match body.on_expire.as_str() {
            set if since_b && !set.is_empty() => OnExpire::parse(set),
            _ => parent.on_expire,
        };
        self.admit(owner, count as usize)?;
        self.state.counters.forks += 1;
        let children = (0..count).map(|_| {
            let child = self.world.issue();
            let claim_ref = match body.claim_ref_prefix.as_str() {
                "" => "".into(),
                prefix => format!("{prefix}{child}").into(),
            };
            let claim = Claim {
                claim_ref,
                on_expire,
                extra: extra.clone(),
                ..self.mk_claim(owner, &key, body.ttl_seconds)
            };
            self.grant_as(child, claim)
        });
        Ok(children.collect())
    }

    /// A sandbox whose state may be copied: by fork, checkpoint and promote.
    fn copyable(&mut self, number: Number) -> Result<&Claim, Refusal> {
        let claim = &*self.claim_of(number)?;
        if claim.is_egress() {
            return Err(Refusal::conflict("an egress sandbox cannot be copied"));
        }
        match claim.phase {
            Phase::Running | Phase::Hibernated => Ok(claim),
            Phase::Archived => Err(Refusal::conflict("sandbox is archived")),
            Phase::Failed => Err(Refusal::conflict("sandbox has failed")),
        }
    }

    pub(super) fn promote(
        &mut self,
        number: Number,
        name: &str,
        owner: Owner,
    ) -> Result<(PoolKey, String), Refusal> {
        check_name(name)?;
        let now = self.now.timestamp();
        let tenant = owner.name(self.options()).map(str::to_owned);
        let source = self.copyable(number)?.key.clone();
        let key = PoolKey {
            template: name.into(),
            ..(*source).clone()
        };
        if self.state.pools.keys().any(|pool| pool.template == name) {
            return Err(Refusal::conflict("name is a configured pool"));
        }
        match self.state.templates.get(&key) {
            Some(taken) if taken.tenant != tenant => {
                return Err(Refusal::conflict("template belongs to another tenant"));
            }
            None if self.state.templates.len() >= MAX_TEMPLATES => {
                return Err(Refusal::failed("promote failed"));
            }
            _ => {}
        }
        let digest = format!(
            "sha256:{0}{0}",
            self.world.sandbox_token(self.world.issue())
        );
        let template = Template {
            digest: digest.clone(),
            tenant,
            created_at: now,
            labels: Default::default(),
        };
        self.state.templates.insert(key.clone(), template);
        self.state.counters.promotes += 1;
        Ok((key, digest))
    }

    pub(super) fn checkpoint(
        &mut self,
        number: Number,
        name: &str,
        owner: Owner,
    ) -> Result<CheckpointRecord, Refusal> {
        if !name.is_empty() {
            check_name(name)?;
        }
        let claim = self.copyable(number)?;
        let files = claim.extra.as_ref().map(|extra| extra.files.clone());
        let key = claim.key.clone();
        if self.state.checkpoints.len() >= MAX_CHECKPOINTS {
            return Err(Refusal::failed("checkpoint failed"));
        }
        let taken = self.world.issue();
        let checkpoint = Checkpoint {
            name: (!name.is_empty()).then(|| name.to_owned()),
            sandbox: number,
            key,
            tenant: owner.name(self.options()).map(str::to_owned),
            created_at: self.now,
            files: files.unwrap_or_default(),
        };
        let record = record(taken, &checkpoint);
        self.state.checkpoints.insert(taken, checkpoint);
        self.state.counters.checkpoints += 1;
        Ok(record)
    }

    /// Newest first; a tenant sees its own.
    pub(super) fn checkpoints(&self, owner: Owner) -> Vec<CheckpointRecord> {
        let tenant = owner.name(self.options());
        let mut records: Vec<_> = self
            .state
            .checkpoints
            .iter()
            .filter(|(_, checkpoint)| tenant.is_none() || checkpoint.tenant.as_deref() == tenant)
            .map(|(&number, checkpoint)| record(number, checkpoint))
            .collect();
        records.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        records
    }

    /// Whether there was one that `owner` may delete.
    pub(super) fn delete_checkpoint(&mut self, number: Number, owner: Owner) -> bool {
        let tenant = owner.name(self.options()).map(str::to_owned);
        let may = self
            .state
            .checkpoints
            .get(&number)
            .is_some_and(|checkpoint| tenant.is_none() || checkpoint.tenant == tenant);
        may && self.state.checkpoints.remove(&number).is_some()
    }
}

fn record(number: Number, checkpoint: &Checkpoint) -> CheckpointRecord {
    CheckpointRecord {
        id: number.checkpoint(),
        name: checkpoint.name.clone(),
        sandbox_id: checkpoint.sandbox.to_string(),
        key: (*checkpoint.key).clone(),
        tenant: checkpoint.tenant.clone(),
        created_at: checkpoint.created_at.timestamp(),
    }
}
