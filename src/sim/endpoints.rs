//! What each endpoint does: credentials first, then the body, then the delay, then the work, in the daemon's order.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::{
    Generation, Refusal,
    auth::{self, Caller},
    body::{
        CheckpointClaimBody, ClaimBody, ForkBody, NamedBody, PoolsBody, RenewBody, check_on_expire,
        lenient, strict,
    },
    claim::Number,
    daemon::{Daemon, Placement, Source},
    reads::Filter,
    reply::{ClaimAnswer, Redirect, Reply},
    routes::{Endpoint, query},
    size::pool_key,
    world::World,
};

/// Owners of a checkpoint that a redirect names at most.
const MAX_OWNERS: usize = 3;

/// One request to one node, its body read.
pub(super) struct Call<'a> {
    pub(super) world: &'a World,
    pub(super) index: usize,
    pub(super) endpoint: Endpoint,
    pub(super) segments: Vec<Cow<'a, str>>,
    pub(super) query: &'a str,
    pub(super) headers: &'a HeaderMap,
    /// None when it was longer than a daemon reads.
    pub(super) body: Option<Bytes>,
}

pub(super) type Answer = Result<Reply, Refusal>;

impl Call<'_> {
    /// Does the work. Dropped before its delay is over, it does nothing.
    pub(super) async fn answer(self) -> Reply {
        self.dispatch().await.unwrap_or_else(Reply::from)
    }

    async fn dispatch(&self) -> Answer {
        match self.endpoint {
            Endpoint::Claim => self.claim().await,
            Endpoint::CheckpointClaim => self.checkpoint_claim().await,
            Endpoint::Release => self.release(),
            Endpoint::Hibernate => self.hibernate().await,
            Endpoint::Wake => self.wake().await,
            Endpoint::Renew => self.renew(),
            Endpoint::Fork => self.fork().await,
            Endpoint::Promote => self.promote().await,
            Endpoint::Checkpoint => self.checkpoint().await,
            Endpoint::Preview => self.preview(),
            Endpoint::List => self.list(),
            Endpoint::Get => self.get(),
            Endpoint::Stats => self.stats(),
            Endpoint::Owner => self.owner(),
            Endpoint::Info => self.info(auth::root(self.options(), self.headers)),
            Endpoint::Peers => self.peers(),
            Endpoint::Volumes => self.volumes(),
            Endpoint::Healthz => Ok(Reply::plain(StatusCode::OK, "ok")),
            Endpoint::Metrics => self.metrics(),
            Endpoint::PutPools => self.put_pools(),
            Endpoint::Drain => self.drain(true),
            Endpoint::Undrain => self.drain(false),
            Endpoint::Reload => self.reload(),
            Endpoint::Checkpoints => self.checkpoints(),
            Endpoint::DeleteCheckpoint => self.delete_checkpoint(),
            Endpoint::DeleteTemplate => self.delete_template(),
            Endpoint::PutLabels => self.put_labels(),
            Endpoint::GetEnv => self.get_env(),
            Endpoint::PutEnv => self.put_env(),
            Endpoint::PatchEnv => self.patch_env(),
            Endpoint::DeleteEnv => self.change_env(|env| env.clear()),
            Endpoint::InstanceMetadata => self.instance_metadata(),
            Endpoint::Exec => self.exec().await,
            Endpoint::Agent => self.agent(),
            Endpoint::Port => self.port(),
        }
    }

    pub(super) fn options(&self) -> &super::Options {
        &self.world.options
    }

    pub(super) fn generation(&self) -> Generation {
        self.options().generation
    }

    pub(super) fn daemon(&self) -> Daemon<'_> {
        self.world.daemon(self.index)
    }

    pub(super) fn id(&self) -> &str {
        &self.segments[0]
    }

    pub(super) fn body(&self) -> Result<&[u8], Refusal> {
        self.body
            .as_deref()
            .ok_or_else(|| Refusal::bad("invalid request body"))
    }

    /// Class N.
    pub(super) fn caller(&self) -> Result<Caller, Refusal> {
        auth::root_or_tenant(self.options(), self.headers)
    }

    /// Class SR.
    pub(super) fn sandbox_or_root(&self) -> Result<Number, Refusal> {
        auth::sandbox_or_root(&self.daemon(), self.headers, self.id())
    }

    async fn claim(&self) -> Answer {
        let owner = self.caller()?.owner();
        let mut body: ClaimBody = lenient(self.body()?)?;
        let key = pool_key(&body.template, &body.net, &body.size)?;
        body.check(self.generation())?;
        let placement = self.daemon().place(owner, &key, &body)?;
        if let Placement::Here(source) = placement {
            pause(self.delay(source)).await;
        }
        let answer = self.daemon().claim(owner, &key, body)?;
        Ok(Reply::json(&answer))
    }

    fn delay(&self, source: Source) -> Duration {
        let latency = &self.options().latency;
        match source {
            Source::Warm => latency.warm,
            Source::Clone | Source::Missing => latency.clone,
            Source::Cold => latency.cold.unwrap_or_default(),
        }
    }

    async fn checkpoint_claim(&self) -> Answer {
        let owner = self.caller()?.owner();
        let mut body: CheckpointClaimBody = lenient(self.body()?)?;
        body.check(self.generation())?;
        let unknown = || Refusal::not_found("unknown checkpoint");
        let number = Number::parse_checkpoint(self.id()).ok_or_else(unknown)?;
        if self.has_checkpoint(self.index, number) {
            pause(self.options().latency.clone).await;
            if let Some(answer) = self.daemon().checkpoint_claim(owner, number, &body)? {
                return Ok(Reply::json(&answer));
            }
        }
        let owners = self.checkpoint_owners(number);
        if body.no_redirect || owners.is_empty() {
            return Err(unknown());
        }
        Ok(Reply::json(&ClaimAnswer::Redirect(Redirect {
            redirect: owners,
            require_promoted: false,
        })))
    }

    fn has_checkpoint(&self, index: usize, number: Number) -> bool {
        self.world
            .daemon(index)
            .state
            .checkpoints
            .contains_key(&number)
    }

    /// Peers are asked one after another, none locked while another is.
    fn checkpoint_owners(&self, number: Number) -> Vec<String> {
        self.other_nodes()
            .filter(|&index| self.has_checkpoint(index, number))
            .take(MAX_OWNERS)
            .map(|index| self.world.nodes[index].address.authority())
            .collect()
    }

    /// The nodes of the mesh that answer, but this one.
    fn other_nodes(&self) -> impl Iterator<Item = usize> + '_ {
        let all = if self.options().mesh {
            self.world.nodes.len()
        } else {
            0
        };
        (0..all).filter(|&index| index != self.index && self.world.is_up(index))
    }

    fn release(&self) -> Answer {
        let number = self.sandbox_or_root()?;
        self.daemon().release(number)?;
        Ok(Reply::no_content())
    }

    async fn hibernate(&self) -> Answer {
        let number = self.sandbox_or_root()?;
        pause(self.options().latency.snapshot).await;
        self.daemon().hibernate(number)?;
        Ok(Reply::no_content())
    }

    async fn wake(&self) -> Answer {
        let number = self.sandbox_or_root()?;
        pause(self.options().latency.wake).await;
        self.daemon().wake(number)?;
        Ok(Reply::no_content())
    }

    fn renew(&self) -> Answer {
        let number = self.sandbox_or_root()?;
        let body = match self.body()? {
            [] => RenewBody::default(),
            body => lenient(body)?,
        };
        if self.generation() >= Generation::B {
            check_on_expire(&body.on_expire)?;
        }
        let deadline = self.daemon().renew(number, &body)?;
        Ok(Reply::json(&json!({ "deadline": deadline })))
    }

    async fn fork(&self) -> Answer {
        let caller = self.caller()?;
        let body: ForkBody = lenient(self.body()?)?;
        check_on_expire(&body.on_expire)?;
        let number = auth::body_token(&self.daemon(), caller, &body.token, self.id())?;
        pause(self.options().latency.clone).await;
        let children = self.daemon().fork(number, &body)?;
        Ok(Reply::json(&BTreeMap::from([("children", children)])))
    }

    async fn promote(&self) -> Answer {
        let caller = self.caller()?;
        let body: NamedBody = lenient(self.body()?)?;
        let number = auth::body_token(&self.daemon(), caller, &body.token, self.id())?;
        pause(self.options().latency.snapshot).await;
        let (key, digest) = self
            .daemon()
            .promote(number, &body.template, caller.owner())?;
        Ok(Reply::json(
            &json!({ "key": key, "content_digest": digest }),
        ))
    }

    async fn checkpoint(&self) -> Answer {
        let caller = self.caller()?;
        let body: NamedBody = lenient(self.body()?)?;
        let number = auth::body_token(&self.daemon(), caller, &body.token, self.id())?;
        pause(self.options().latency.snapshot).await;
        let record = self
            .daemon()
            .checkpoint(number, &body.name, caller.owner())?;
        Ok(Reply::json(&json!({ "checkpoint": record })))
    }

    fn list(&self) -> Answer {
        let caller = match self.generation() {
            Generation::Early => auth::root(self.options(), self.headers)?,
            _ => self.caller()?,
        };
        let filter = Filter::parse(&query(self.query), self.generation())?;
        let rows = self.daemon().list(caller.owner(), &filter);
        Ok(Reply::raw(StatusCode::OK, Some(Reply::JSON), rows))
    }

    fn get(&self) -> Answer {
        let caller = auth::root(self.options(), self.headers)?;
        let daemon = self.daemon();
        let row = daemon.row_json(daemon.find(self.id())?, caller == Caller::Root)?;
        Ok(Reply::json(&row))
    }

    fn stats(&self) -> Answer {
        auth::root(self.options(), self.headers)?;
        let daemon = self.daemon();
        Ok(Reply::json(&daemon.stats(daemon.find(self.id())?)?))
    }

    fn owner(&self) -> Answer {
        auth::sandbox_token(self.headers)?;
        auth::sandbox(&self.daemon(), self.headers, self.id())
            .map_err(|_| Refusal::not_found("not owned here"))?;
        let address = self.world.nodes[self.index].address.authority();
        Ok(Reply::json(&json!({ "owner_addr": address })))
    }

    fn info(&self, permission: Result<Caller, Refusal>) -> Answer {
        permission?;
        Ok(Reply::json(&self.daemon().info()))
    }

    fn peers(&self) -> Answer {
        self.caller()?;
        let peers = self.world.peers(self.index);
        let peers = if peers.is_empty() {
            Value::Null
        } else {
            json!(peers)
        };
        Ok(Reply::json(&json!({ "peers": peers })))
    }

    fn volumes(&self) -> Answer {
        self.caller()?;
        Ok(Reply::json(&json!({ "volumes": [] })))
    }

    fn metrics(&self) -> Answer {
        auth::root(self.options(), self.headers)?;
        Ok(Reply::metrics(self.daemon().metrics()))
    }

    fn put_pools(&self) -> Answer {
        let permission = auth::root(self.options(), self.headers)?;
        let body: PoolsBody = strict(self.body()?)?;
        self.daemon().put_pools(&body.pools)?;
        self.info(Ok(permission))
    }

    fn drain(&self, draining: bool) -> Answer {
        let permission = auth::root(self.options(), self.headers)?;
        self.daemon().set_draining(draining);
        self.info(Ok(permission))
    }

    fn reload(&self) -> Answer {
        auth::root(self.options(), self.headers)?;
        Ok(Reply::json(&json!({ "changed": [], "ignored": [] })))
    }

    fn checkpoints(&self) -> Answer {
        let records = self.daemon().checkpoints(self.caller()?.owner());
        Ok(Reply::json(&BTreeMap::from([("checkpoints", records)])))
    }

    fn delete_checkpoint(&self) -> Answer {
        let owner = self.caller()?.owner();
        let unknown = || Refusal::not_found("unknown checkpoint");
        let number = Number::parse_checkpoint(self.id()).ok_or_else(unknown)?;
        let here = self.daemon().delete_checkpoint(number, owner);
        if !query(self.query)
            .iter()
            .any(|(name, value)| name == "no_forward" && value == "1")
        {
            for index in self.other_nodes() {
                self.world.daemon(index).delete_checkpoint(number, owner);
            }
        }
        here.then(Reply::no_content).ok_or_else(unknown)
    }
}

async fn pause(delay: Duration) {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}
