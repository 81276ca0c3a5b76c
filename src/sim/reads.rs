//! What a node tells: rows, counts, metrics.

use std::fmt::Write;

use serde_json::value::RawValue;

use super::{
    Generation, Refusal,
    claim::{Claim, Number, OnExpire, Owner, Phase},
    daemon::Daemon,
    reply::{Info, PoolInfo, Row, RowB, RowC, Stats, TemplateInfo},
    size::resources,
};

/// Which rows a list holds.
#[derive(Debug, Default)]
pub(super) struct Filter {
    pub(super) claim_ref: String,
    pub(super) metadata: Vec<(String, String)>,
    pub(super) tenant: String,
}

impl Filter {
    /// The filters that daemons of `generation` know; others are ignored, as an unknown query parameter is.
    pub(super) fn parse(
        query: &[(String, String)],
        generation: Generation,
    ) -> Result<Self, Refusal> {
        let mut filter = Self::default();
        for (name, value) in query {
            match name.as_str() {
                "claim_ref" => filter.claim_ref.clone_from(value),
                "metadata" if generation >= Generation::B => {
                    let pair = value.split_once('=').filter(|(key, _)| !key.is_empty());
                    let (key, value) =
                        pair.ok_or_else(|| Refusal::bad("invalid metadata filter"))?;
                    if filter.metadata.iter().any(|(known, _)| known == key) {
                        return Err(Refusal::bad("repeated metadata filter"));
                    }
                    filter.metadata.push((key.to_owned(), value.to_owned()));
                }
                "tenant" if generation >= Generation::C => filter.tenant.clone_from(value),
                _ => {}
            }
        }
        Ok(filter)
    }

    fn holds(&self, claim: &Claim, tenant: Option<&str>) -> bool {
        let metadata = |key: &str| claim.extra.as_ref()?.metadata.get(key).map(String::as_str);
        (self.claim_ref.is_empty() || self.claim_ref == claim.claim_ref)
            && (self.tenant.is_empty() || tenant == Some(&*self.tenant))
            && self
                .metadata
                .iter()
                .all(|(key, value)| metadata(key) == Some(value))
    }
}

impl Daemon<'_> {
    /// `{"sandboxes":[…]}` sorted by id, of the caller's own claims if it is a tenant.
    pub(super) fn list(&self, caller: Owner, filter: &Filter) -> Vec<u8> {
        let mut body = br#"{"sandboxes":["#.to_vec();
        let options = &self.world.options;
        let rows = self.state.claims.iter().filter(|(_, claim)| {
            (caller == Owner::ROOT || claim.owner == caller)
                && filter.holds(claim, claim.owner.name(options))
        });
        for (place, (&number, claim)) in rows.enumerate() {
            if place > 0 {
                body.push(b',');
            }
            serde_json::to_writer(&mut body, &self.row(number, claim, false))
                .expect("a row is strings and numbers");
        }
        body.extend_from_slice(b"]}");
        body
    }

    /// One row, with the sandbox's token for those who may have it.
    pub(super) fn row_json(
        &self,
        number: Number,
        with_token: bool,
    ) -> Result<Box<RawValue>, Refusal> {
        let claim = self.state.claims.get(&number);
        let claim = claim.ok_or_else(Refusal::unknown_sandbox)?;
        Ok(
            serde_json::value::to_raw_value(&self.row(number, claim, with_token))
                .expect("a row is strings and numbers"),
        )
    }

    fn row<'a>(&'a self, number: Number, claim: &'a Claim, with_token: bool) -> Row<'a> {
        let generation = self.world.options.generation;
        let (cpu_count, mem_total_bytes) = resources(&claim.key.size);
        let extra = claim.extra.as_deref();
        Row {
            id: number.to_string(),
            key: &claim.key,
            deadline: claim.deadline.timestamp(),
            claimed_at: Some(claim.claimed_at.timestamp()),
            hibernated: claim.phase == Phase::Hibernated,
            archived: claim.phase == Phase::Archived,
            from_checkpoint: extra
                .and_then(|e| e.from_checkpoint)
                .map(Number::checkpoint),
            claim_ref: &claim.claim_ref,
            b: (generation >= Generation::B).then(|| RowB {
                metadata: extra.map(|e| &e.metadata).filter(|m| !m.is_empty()),
                on_expire: (claim.on_expire == OnExpire::Archive).then(|| claim.on_expire.word()),
                cpu_count,
                mem_total_bytes,
            }),
            c: (generation >= Generation::C).then(|| RowC {
                tenant: claim.owner.name(&self.world.options),
                failed: extra.and_then(|e| e.failed.as_deref()),
            }),
            token: with_token.then(|| self.world.sandbox_token(number)),
        }
    }

    pub(super) fn stats(&self, number: Number) -> Result<Stats, Refusal> {
        let claim = self.state.claims.get(&number);
        let claim = claim.ok_or_else(Refusal::unknown_sandbox)?;
        let (cpu_count, mem_total_bytes) = resources(&claim.key.size);
        let running = claim.phase == Phase::Running;
        Ok(Stats {
            id: number.to_string(),
            cpu_count,
            mem_total_bytes,
            mem_used_bytes: match running {
                true => self.memory_used(number, mem_total_bytes),
                false => 0,
            },
            mem_used_measured: running,
            hibernated: claim.phase == Phase::Hibernated,
            measured_at: self.now.timestamp(),
        })
    }

    /// Some reading between an eighth and a quarter, which goes up and down by itself, a round in ten minutes.
    fn memory_used(&self, number: Number, mem_total_bytes: u64) -> u64 {
        const ROUND: u64 = 600;
        // Each sandbox is somewhere else in its round.
        let begun = number.0 % ROUND;
        let now = u64::try_from(self.now.0 / 1_000).unwrap_or(0);
        let at = (now + begun) % ROUND;
        let height = at.min(ROUND - at) * 2;
        mem_total_bytes / 8 + mem_total_bytes / 8 * height / ROUND
    }

    fn count(&self, phase: Phase) -> usize {
        let claims = self.state.claims.values();
        claims.filter(|claim| claim.phase == phase).count()
    }

    pub(super) fn info(&self) -> Info<'_> {
        let generation = self.world.options.generation;
        let at_capacity_reason = self.capacity_reason(Owner::ROOT, 1);
        let pools = self.state.pools.iter().map(|(key, pool)| PoolInfo {
            key,
            warm: pool.warm,
            refilling: pool.refilling,
            target: pool.target,
            golden: true,
        });
        let templates = self.state.templates.iter().map(|(key, template)| {
            let (cpu_count, mem_total_bytes) = resources(&key.size);
            TemplateInfo {
                key,
                content_digest: &template.digest,
                tenant: template.tenant.as_deref(),
                created_at: template.created_at,
                cpu_count,
                mem_total_bytes,
                labels: &template.labels,
            }
        });
        Info {
            pools: pools.collect(),
            claimed: self.state.claims.len(),
            hibernated: self.count(Phase::Hibernated),
            archived: self.count(Phase::Archived),
            draining: self.state.draining,
            peers: self.world.peers(self.index),
            at_capacity: at_capacity_reason.is_some(),
            at_capacity_reason,
            templates: self.since_b().then(|| templates.collect()),
            advertise_addr: self
                .since_b()
                .then(|| self.world.nodes[self.index].address.authority()),
            failed: (generation >= Generation::C).then(|| self.count(Phase::Failed)),
        }
    }

    /// Prometheus text.
    pub(super) fn metrics(&self) -> String {
        let (state, mut text) = (&self.state, String::new());
        let mut gauge = |name: &str, labels: &str, value: f64| {
            let _ = writeln!(text, "sandboxd_{name}{labels} {value}");
        };
        gauge("claimed", "", state.claims.len() as f64);
        gauge("hibernated", "", self.count(Phase::Hibernated) as f64);
        gauge("archived", "", self.count(Phase::Archived) as f64);
        if self.world.options.generation >= Generation::C {
            gauge("failed", "", self.count(Phase::Failed) as f64);
        }
        gauge("draining", "", f64::from(u8::from(state.draining)));
        for (place, tenant) in self.world.options.tenants.iter().enumerate() {
            let mine = |claim: &&Claim| claim.owner == Owner::tenant(place);
            let labels = format!("{{tenant={:?}}}", tenant.name);
            let count = state.claims.values().filter(mine).count();
            gauge("tenant_claims", &labels, count as f64);
        }
        for (key, pool) in &state.pools {
            let labels = format!(
                "{{template={:?},net={:?},size={:?}}}",
                key.template, key.net, key.size
            );
            gauge("pool_warm", &labels, pool.warm.into());
            gauge("pool_target", &labels, pool.target.into());
        }
        let c = &state.counters;
        gauge("claims_total", "{tier=\"warm\"}", c.claims_warm as f64);
        gauge("claims_total", "{tier=\"clone\"}", c.claims_clone as f64);
        gauge("claims_total", "{tier=\"cold\"}", c.claims_cold as f64);
        gauge("claim_seconds_total", "", c.claim_seconds);
        gauge("wake_seconds_total", "", c.wake_seconds);
        for (name, count) in [
            ("wakes_total", c.wakes),
            ("hibernates_total", c.hibernates),
            ("forks_total", c.forks),
            ("checkpoints_total", c.checkpoints),
            ("promotes_total", c.promotes),
            ("releases_total", c.releases),
            ("reaps_total", c.reaps),
            ("archives_total", c.archives),
            ("unarchives_total", c.unarchives),
            ("archive_deletes_total", 0),
        ] {
            gauge(name, "", count as f64);
        }
        text
    }
}
