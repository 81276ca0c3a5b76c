//! Endpoints for what a sandbox or a template has beside its life: env, instance metadata, labels.

use std::collections::BTreeMap;

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    Generation, Refusal,
    auth::{self, Caller},
    body::{EnvBody, EnvVar, LabelsBody, check_env, check_env_count, check_metadata, strict},
    claim::{Number, Phase},
    daemon::Daemon,
    endpoints::{Answer, Call},
    reply::Reply,
    routes::{Endpoint, query},
    size::pool_key,
};
use crate::api::PoolKey;

/// Longest instance metadata.
const MAX_INSTANCE_METADATA: usize = 4096;

impl Call<'_> {
    /// The template that the query names, after the checks that both template routes share.
    fn template(&self, daemon: &Daemon<'_>, caller: Caller) -> Result<PoolKey, Refusal> {
        let query = query(self.query);
        let value = |wanted: &str| {
            let pair = query.iter().find(|(name, _)| name == wanted);
            pair.map_or("", |(_, value)| value.as_str())
        };
        let key = pool_key(value("template"), value("net"), value("size"))?;
        if daemon.state.pools.contains_key(&key) {
            return Err(Refusal::conflict("key is a configured pool"));
        }
        let template = daemon.state.templates.get(&key);
        let tenant = caller.owner().name(self.options());
        let template = template
            .filter(|template| tenant.is_none() || template.tenant.as_deref() == tenant)
            .ok_or_else(|| Refusal::not_found("unknown template"))?;
        let digest = value("digest");
        if self.generation() >= Generation::B && !digest.is_empty() && digest != template.digest {
            return Err(Refusal::with_status(
                StatusCode::PRECONDITION_FAILED,
                "digest differs",
            ));
        }
        Ok(key)
    }

    pub(super) fn delete_template(&self) -> Answer {
        let caller = self.caller()?;
        let mut daemon = self.daemon();
        let key = self.template(&daemon, caller)?;
        daemon.state.templates.remove(&key);
        Ok(Reply::no_content())
    }

    pub(super) fn put_labels(&self) -> Answer {
        let caller = self.caller()?;
        let body: LabelsBody = strict(self.body()?)?;
        check_metadata(&body.labels)?;
        let mut daemon = self.daemon();
        let key = self.template(&daemon, caller)?;
        if let Some(template) = daemon.state.templates.get_mut(&key) {
            template.labels = body.labels;
        }
        Ok(Reply::no_content())
    }

    /// The sandbox of an env route: a tenant reaches its own.
    fn own(&self, daemon: &Daemon<'_>) -> Result<Number, Refusal> {
        let caller = self.caller()?;
        let number = daemon.find(self.id())?;
        let foreign =
            matches!(caller, Caller::Tenant(owner) if daemon.state.claims[&number].owner != owner);
        if foreign {
            Err(Refusal::unknown_sandbox())
        } else {
            Ok(number)
        }
    }

    pub(super) fn get_env(&self) -> Answer {
        let daemon = self.daemon();
        let number = self.own(&daemon)?;
        let extra = daemon.state.claims[&number].extra.as_ref();
        let shown = extra
            .into_iter()
            .flat_map(|extra| &extra.env)
            .map(|(name, var)| {
                let value = if var.guest { var.value.as_str() } else { "" };
                (name.as_str(), json!({ "value": value, "guest": var.guest }))
            });
        Ok(Reply::json(
            &json!({ "env": shown.collect::<BTreeMap<_, _>>() }),
        ))
    }

    pub(super) fn put_env(&self) -> Answer {
        let changes = self.env_body()?;
        self.change_env(|env| {
            *env = changes
                .into_iter()
                .filter_map(|(k, v)| Some((k, v?)))
                .collect()
        })
    }

    pub(super) fn patch_env(&self) -> Answer {
        let changes = self.env_body()?;
        self.change_env(|env| {
            for (name, change) in changes {
                match change {
                    Some(var) => env.insert(name, var),
                    None => env.remove(&name),
                };
            }
        })
    }

    fn env_body(&self) -> Result<BTreeMap<String, Option<EnvVar>>, Refusal> {
        self.own(&self.daemon())?;
        let body: EnvBody = strict(self.body()?)?;
        for (name, var) in &body.env {
            match var {
                Some(var) => check_env(name, var)?,
                None if self.endpoint == Endpoint::PutEnv => {
                    return Err(Refusal::bad("invalid env"));
                }
                None => {}
            }
        }
        Ok(body.env)
    }

    /// Changes the env; one that the guest would see, only while the sandbox runs.
    pub(super) fn change_env(&self, change: impl FnOnce(&mut BTreeMap<String, EnvVar>)) -> Answer {
        let mut daemon = self.daemon();
        let number = self.own(&daemon)?;
        let claim = daemon.claim_of(number)?;
        let before = claim
            .extra
            .as_ref()
            .map(|extra| extra.env.clone())
            .unwrap_or_default();
        let mut after = before.clone();
        change(&mut after);
        check_env_count(after.len())?;
        let guests = |env: &BTreeMap<String, EnvVar>| env.values().any(|var| var.guest);
        if claim.phase != Phase::Running && (guests(&before) || guests(&after)) {
            return Err(Refusal::conflict("sandbox is not running"));
        }
        claim.extra_mut().env = after;
        Ok(Reply::no_content())
    }

    /// Checked and forgotten: no guest is there to read it.
    pub(super) fn instance_metadata(&self) -> Answer {
        auth::root(self.options(), self.headers)?;
        let body = self.body()?;
        let object = serde_json::from_slice::<serde_json::Map<String, Value>>(body);
        if object.is_err() || body.len() > MAX_INSTANCE_METADATA {
            return Err(Refusal::bad("invalid request body"));
        }
        let daemon = self.daemon();
        match daemon.state.claims[&daemon.find(self.id())?].phase {
            Phase::Running => Ok(Reply::no_content()),
            _ => Err(Refusal::conflict("sandbox is not running")),
        }
    }
}
