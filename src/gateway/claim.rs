//! A claim: a warm VM for a name, from whichever node has one.

use std::{sync::Arc, time::Duration};

use compact_str::CompactString;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Error, Gateway, Result,
    attempt::{Reference, made_by, metadata},
    lease,
    route::{breaks_off, is_silence},
};
use crate::{
    admission::QuotaReservation,
    api::{ClaimId, NodeAddress, NodeName, PoolKey, SandboxKey, Token, UserPart, labels},
    fleet::{Granted, NameReservation, Now, Phase, Placement, Sandbox},
    meta::UnixTime,
    sandboxd::{self, CheckpointClaim, ClaimReply, ClaimRequest, Claimed},
    snapshots::Snapshot,
    store::Stored,
    telemetry::answer_of,
};

/// Nodes asked for one claim before it is given up.
const MAX_ATTEMPTS: usize = 6;
/// Nodes asked what is warm, when none is known to have anything: a publication may be half a minute old, and a pool refills
/// in less.
const ASKED: usize = 4;
/// Addresses of one redirect that are tried.
const MAX_REDIRECTS: usize = 3;
/// How long a node is asked, right after its answer broke off, whether it granted the claim.
const QUICK_QUESTION: Duration = Duration::from_millis(500);
/// Longest address of a sandbox that is kept: a DNS name and a port.
const MAX_ADDRESS: usize = 300;
/// What is claimed.
#[derive(Clone, Debug)]
pub struct ClaimOrder {
    /// The name it gets.
    pub key: SandboxKey,
    /// What it is made from.
    pub pool: PoolKey,
    /// The snapshot it starts from, in place of a warm VM of the pool.
    pub snapshot: Option<Snapshot>,
    /// The lease; `None`: the daemon's default.
    pub ttl: Option<Duration>,
    /// What the user sent.
    pub user: Arc<UserPart>,
}

/// A sandbox that was claimed.
#[derive(Debug)]
pub struct ClaimedSandbox {
    /// The sandbox, listed.
    pub record: Arc<Stored<Sandbox>>,
    /// Its credential, which nothing else keeps.
    pub token: Token,
}

/// A grant on its way to its client.
struct Grant {
    node: NodeName,
    reply: ClaimReply,
    /// When the node made it.
    claimed_at: UnixTime,
}

/// Why a checkpoint was not claimed.
enum Unclaimed {
    /// The daemon's answer to the claim.
    Refused(sandboxd::Error),
    /// It was granted, and is being released: it cannot be told whose it is.
    GivenBack(Error),
}

/// One claim, over all its attempts.
pub(super) struct Claim {
    gateway: Gateway,
    pub(super) name: Arc<NameReservation>,
    pub(super) request: ClaimRequest,
    order: ClaimOrder,
    quota: QuotaReservation,
    tried: Vec<NodeName>,
    /// The most telling refusal so far.
    refusal: Option<Error>,
    /// Nodes that did not say what they did.
    pub(super) unsettled: Vec<(NodeName, NodeAddress)>,
}

impl Gateway {
    /// Claims a warm VM and lists it under its name. `quota` is given back when it is listed, or the claim has failed.
    ///
    /// Dropping the future, as when the client leaves, releases what is granted afterwards.
    ///
    /// # Errors
    /// See [`Error`]. Only after [`Error::OutcomeUnknown`] may a VM have been spent; it is found and released.
    pub async fn claim(
        &self,
        order: ClaimOrder,
        quota: QuotaReservation,
    ) -> Result<ClaimedSandbox> {
        let begun = Instant::now();
        // Before the nodes are looked at: without a token nothing is heard of them either, and they look as if down.
        let token = self.inner.daemons.check_token();
        token.map_err(|error| Error::NoToken(Arc::new(error)))?;
        let name = self.inner.fleet.reserve(order.key.clone());
        let name = name.map_err(|taken| Error::NameTaken {
            key: order.key.clone(),
            terminating: taken.terminating,
        })?;
        let claim = Claim::new(self.clone(), Arc::new(name), order, quota);
        let (answer_tx, answer_rx) = oneshot::channel();
        let answer = answer_of(&self.inner.tasks, claim.run(answer_tx), answer_rx).await;
        let answer = answer.unwrap_or(Err(Error::Ending));
        let metrics = &self.inner.metrics;
        metrics
            .claim_duration
            .observe(begun.elapsed().as_secs_f64());
        metrics.claimed(match &answer {
            Ok(_) => "ok",
            Err(Error::NoWarmCapacity { .. }) => "no_warm_capacity",
            Err(Error::OutcomeUnknown { .. }) => "unknown",
            Err(_) => "error",
        });
        answer
    }
}

impl Claim {
    fn new(
        gateway: Gateway,
        name: Arc<NameReservation>,
        order: ClaimOrder,
        quota: QuotaReservation,
    ) -> Self {
        let claim_ref = order.key.to_string();
        let reference = match order.snapshot {
            Some(_) => Reference::InMetadata(&claim_ref),
            None => Reference::OfItsOwn(&claim_ref),
        };
        let request = ClaimRequest {
            ttl_seconds: lease::ttl_seconds(order.ttl),
            metadata: metadata(&order.user, reference),
            claim_ref,
            ..ClaimRequest::new(order.pool.clone())
        };
        Self {
            gateway,
            name,
            request,
            order,
            quota,
            tried: Vec::new(),
            refusal: None,
            unsettled: Vec::new(),
        }
    }

    async fn run(mut self, answer_tx: oneshot::Sender<Result<ClaimedSandbox>>) {
        let granted = self.grant().await;
        let winner = granted
            .as_ref()
            .ok()
            .map(|grant| (grant.node.clone(), grant.reply.id.clone()));
        let answer = granted.and_then(|grant| self.list(grant, &answer_tx));
        // Listed, it counts by itself; and what still turns up of a claim that failed is released. Before the client hears of it,
        // so that its next create is not refused on account of this one.
        drop(std::mem::take(&mut self.quota));
        if let Err(answer) = answer_tx.send(answer)
            && let Ok(claimed) = answer
        {
            self.abandon(&claimed.record.value);
        }
        if !self.unsettled.is_empty() {
            self.gateway
                .inner
                .metrics
                .lost_answers
                .inc_by(self.unsettled.len() as u64);
            self.settle(winner).await;
        }
    }

    /// Lists the grant, unless nobody waits for it or its name is gone.
    fn list(
        &self,
        grant: Grant,
        answer_tx: &oneshot::Sender<Result<ClaimedSandbox>>,
    ) -> Result<ClaimedSandbox> {
        let inner = &self.gateway.inner;
        let Grant {
            node,
            reply,
            claimed_at,
        } = grant;
        if answer_tx.is_closed() {
            inner.metrics.abandoned_claims.inc();
            self.gateway.release_unlisted(node, reply.id, None);
            return Err(Error::Ending);
        }
        let granted = Granted {
            node: node.clone(),
            claim: reply.id.clone(),
            pool: Some(self.order.pool.clone()),
            address: address(reply.owner_addr),
            from_checkpoint: reply.from_checkpoint.map(|id| id.as_str().into()),
            claimed_at,
            deadline: reply.deadline,
            phase: Phase::Running,
            user: Some(self.order.user.clone()),
        };
        let asked: Vec<_> = self
            .unsettled
            .iter()
            .map(|(node, _)| node.clone())
            .collect();
        let listed = inner
            .fleet
            .granted(&self.name, granted, &asked, Now::read());
        match listed {
            Ok(record) => Ok(ClaimedSandbox {
                record,
                token: reply.token,
            }),
            Err(_) => {
                self.gateway.release_unlisted(node, reply.id, None);
                Err(Error::NameTaken {
                    key: self.order.key.clone(),
                    terminating: false,
                })
            }
        }
    }

    /// The client left between the listing and the answer.
    fn abandon(&self, sandbox: &Sandbox) {
        self.gateway.inner.metrics.abandoned_claims.inc();
        let (gateway, node, claim) = (
            self.gateway.clone(),
            sandbox.node.clone(),
            sandbox.claim.clone(),
        );
        self.gateway.inner.tasks.spawn(async move {
            if let Some(record) = gateway.inner.fleet.by_claim(&node, &claim) {
                // What cannot be released now stays owed, and the sandbox visible until then.
                let _ = gateway.release(record).await;
            }
        });
    }

    /// Asks one node after the other.
    async fn grant(&mut self) -> Result<Grant> {
        let ends = Instant::now() + self.gateway.inner.options.claim_budget;
        while self.tried.len() < MAX_ATTEMPTS && Instant::now() < ends {
            let Some(placement) = self.place().await else {
                break;
            };
            if let Some(grant) = self.attempt(placement).await? {
                return Ok(grant);
            }
        }
        Err(self.verdict())
    }

    /// The next node to ask. When none is known to have a warm VM, those that should have are asked how many there are.
    async fn place(&self) -> Option<Placement> {
        let fleet = &self.gateway.inner.fleet;
        if let Some(snapshot) = &self.order.snapshot {
            return self.holder(snapshot);
        }
        if let Some(placement) = fleet.place(&self.order.pool, &self.tried) {
            return Some(placement);
        }
        let keepers = fleet.keepers(&self.order.pool, &self.tried, ASKED);
        let inventory = &self.gateway.inner.inventory;
        futures::future::join_all(keepers.iter().map(|node| inventory.refresh(node))).await;
        fleet.place(&self.order.pool, &self.tried)
    }

    /// A node that has the snapshot and was not asked yet.
    fn holder(&self, snapshot: &Snapshot) -> Option<Placement> {
        let inner = &self.gateway.inner;
        let holders = inner.snapshots.holders(&snapshot.id).into_iter();
        let mut left = holders.filter(|node| !self.tried.contains(node));
        left.find_map(|node| {
            let address = inner.fleet.open_address(&node)?;
            Some(Placement { node, address })
        })
    }

    /// Asks one node, and those it redirects to. `None`: another one may have it.
    async fn attempt(&mut self, placement: Placement) -> Result<Option<Grant>> {
        let fleet = self.gateway.inner.fleet.clone();
        let node = placement.node.clone();
        self.next_is(node.clone());
        let (addresses, require_promoted) = match self.ask(&placement, self.request.clone()).await?
        {
            None => return Ok(None),
            Some(Claimed::Granted(reply)) => return Ok(Some(self.granted(node, reply))),
            Some(Claimed::Redirect {
                addresses,
                require_promoted,
            }) => (addresses, require_promoted),
        };
        if self.is_of_checkpoint() {
            // Other nodes may have it, and are known by what they say of themselves.
            self.refuse(self.snapshot_gone(node));
            return Ok(None);
        }
        fleet.found_empty(&self.order.pool, &node);
        self.refuse(Error::NoWarmCapacity {
            pool: self.order.pool.clone(),
        });
        for address in addresses.into_iter().take(MAX_REDIRECTS) {
            // The token goes only where a publication says that a node is, and no sandbox to one that is to get none.
            let Some(peer) = fleet
                .open_node_at(&address)
                .filter(|peer| !self.tried.contains(peer))
            else {
                continue;
            };
            self.next_is(peer.clone());
            let request = ClaimRequest {
                no_redirect: true,
                require_promoted,
                ..self.request.clone()
            };
            let placement = Placement {
                node: peer.clone(),
                address,
            };
            if let Some(Claimed::Granted(reply)) = self.ask(&placement, request).await? {
                return Ok(Some(self.granted(peer, reply)));
            }
        }
        Ok(None)
    }

    /// Notes which node is asked now. It keeps the how-many-th it is: if an earlier one granted the claim too, without being heard,
    /// a server that was killed can tell whose grant was answered.
    fn next_is(&mut self, node: NodeName) {
        self.tried.push(node);
        let number = self.tried.len().to_string();
        let metadata = &mut self.request.metadata;
        metadata.insert(labels::ATTEMPT_NODE.to_owned(), number);
    }

    /// Asks one node once. `None`: it refused, or did not say; an error ends the claim.
    async fn ask(
        &mut self,
        placement: &Placement,
        request: ClaimRequest,
    ) -> Result<Option<Claimed>> {
        let Placement { node, address } = placement;
        let inner = self.gateway.inner.clone();
        let answer = match &self.order.snapshot {
            None => {
                let daemon = inner.daemons.node(address, inner.options.claim_timeout);
                daemon.claim(&request).await
            }
            Some(snapshot) => match self.claim_checkpoint(snapshot, placement).await {
                Ok(claimed) => Ok(claimed),
                Err(Unclaimed::Refused(error)) => Err(error),
                Err(Unclaimed::GivenBack(refusal)) => {
                    self.refuse(refusal);
                    return Ok(None);
                }
            },
        };
        let error = match answer {
            Ok(claimed) => return Ok(Some(claimed)),
            Err(error) => error,
        };
        tracing::debug!(%node, error = &error as &dyn std::error::Error, "a node did not grant a claim");
        if breaks_off(&error)
            && let Some(reply) = self.recover(address).await
        {
            return Ok(Some(Claimed::Granted(reply)));
        }
        if error.outcome_unknown() {
            self.unsettled.push((node.clone(), address.clone()));
        }
        let of_pool = self.order.snapshot.is_none();
        match &error {
            error if is_silence(error) => inner.fleet.suspect(node, Now::read()),
            sandboxd::Error::AtCapacity { .. } if of_pool => {
                inner.fleet.found_empty(&self.order.pool, node);
            }
            error if of_pool && error.nothing_happened() => {
                inner.fleet.give_back(&self.order.pool, node);
            }
            sandboxd::Error::NotFound { .. } => inner.snapshots.ask_soon(node),
            _ => {}
        }
        let refusal = match Error::of_call(node, &self.order.key, error) {
            error @ (Error::NoToken(_) | Error::Ending) => return Err(error),
            error @ Error::AtCapacity { .. } if !of_pool => error,
            Error::Gone { node, .. } if !of_pool => self.snapshot_gone(node),
            Error::AtCapacity { .. } => Error::NoWarmCapacity {
                pool: self.order.pool.clone(),
            },
            Error::Gone { .. } => Error::UnknownTemplate {
                template: self.order.pool.template.to_string(),
            },
            error => error,
        };
        self.refuse(refusal);
        Ok(None)
    }

    /// Claims the checkpoint of a snapshot at one node. A daemon that does not keep to whom the claim belongs is given it back: after a
    /// restart nobody could tell whose memory it is.
    async fn claim_checkpoint(
        &self,
        snapshot: &Snapshot,
        Placement { node, address }: &Placement,
    ) -> Result<Claimed, Unclaimed> {
        let inner = &self.gateway.inner;
        let daemon = inner.daemons.node(address, inner.options.claim_timeout);
        let request = CheckpointClaim {
            ttl_seconds: self.request.ttl_seconds,
            no_redirect: true,
            metadata: self.request.metadata.clone(),
            on_expire: None,
        };
        let claimed = daemon.checkpoint_claim(&snapshot.id, &request).await;
        let claimed = claimed.map_err(Unclaimed::Refused)?;
        let Claimed::Granted(reply) = &claimed else {
            return Ok(claimed);
        };
        let refusal = match daemon.sandbox(&reply.id).await {
            Ok(found)
                if found.row.metadata.get(labels::CLAIM_REF) == Some(&self.request.claim_ref) =>
            {
                return Ok(claimed);
            }
            Ok(_) => Error::TooOld { node: node.clone() },
            // What is not known to be kept is not kept; that it is given back does not depend on this answer.
            Err(error) => Error::of_call(node, &self.order.key, error),
        };
        self.gateway
            .release_unlisted(node.clone(), reply.id.clone(), None);
        Err(Unclaimed::GivenBack(refusal))
    }

    /// The grant behind an answer that broke off, if the node says at once that there is one.
    async fn recover(&self, address: &NodeAddress) -> Option<ClaimReply> {
        let daemon = self.gateway.inner.daemons.node(address, QUICK_QUESTION);
        let rows = self.reference().claims(daemon).await.ok()?;
        let row = made_by(self.attempt_id(), rows, true).into_iter().next()?;
        let found = daemon.sandbox(&row.id).await.ok()?;
        Some(ClaimReply {
            id: found.row.id,
            token: found.token?,
            deadline: found.row.deadline,
            owner_addr: None,
            template_digest: None,
            from_checkpoint: found.row.from_checkpoint,
        })
    }

    fn granted(&self, node: NodeName, reply: ClaimReply) -> Grant {
        Grant {
            claimed_at: lease::claimed_at(&reply, self.order.ttl),
            node,
            reply,
        }
    }

    /// Remembers a refusal; a lost answer outweighs all others, and any reason of a node outweighs that it was down.
    fn refuse(&mut self, refusal: Error) {
        let weight = |error: &Error| match error {
            Error::OutcomeUnknown { .. } => 4,
            Error::NoWarmCapacity { .. } => 3,
            Error::NodeDown { .. } => 1,
            _ => 2,
        };
        if self
            .refusal
            .as_ref()
            .is_none_or(|known| weight(&refusal) > weight(known))
        {
            self.refusal = Some(refusal);
        }
    }

    /// Why the claim failed.
    fn verdict(&mut self) -> Error {
        let fleet = &self.gateway.inner.fleet;
        if let Some(refusal) = self.refusal.take() {
            return refusal;
        }
        if let Some(snapshot) = &self.order.snapshot {
            return match fleet.address(&snapshot.node) {
                Some(_) => Error::NoNode,
                None => self.snapshot_gone(snapshot.node.clone()),
            };
        }
        let pool = self.order.pool.clone();
        match () {
            () if !fleet.has_ready_node() => Error::NoNode,
            () if !fleet.knows_template(&pool.template) => Error::UnknownTemplate {
                template: pool.template.to_string(),
            },
            () => Error::NoWarmCapacity { pool },
        }
    }

    fn snapshot_gone(&self, node: NodeName) -> Error {
        let snapshot = self.order.snapshot.as_ref();
        let name = snapshot.map_or_else(String::new, |snapshot| snapshot.name.to_string());
        Error::SnapshotGone { name, node }
    }

    fn reference(&self) -> Reference<'_> {
        match self.is_of_checkpoint() {
            true => Reference::InMetadata(&self.request.claim_ref),
            false => Reference::OfItsOwn(&self.request.claim_ref),
        }
    }

    pub(super) fn is_of_checkpoint(&self) -> bool {
        self.order.snapshot.is_some()
    }

    pub(super) fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// What tells this claim from others of the same name.
    pub(super) fn attempt_id(&self) -> &str {
        self.request
            .metadata
            .get(labels::ATTEMPT)
            .map_or("", String::as_str)
    }

    pub(super) fn ttl(&self) -> Option<Duration> {
        self.order.ttl
    }
}

/// Where the sandbox is reached, as the node says; empty when it does not, or says what is no address.
pub(super) fn address(owner: Option<String>) -> CompactString {
    let owner = owner.filter(|owner| owner.len() <= MAX_ADDRESS);
    owner.unwrap_or_default().into()
}

/// The id of a claim and where it is.
pub(super) type Winner = (NodeName, ClaimId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_is_not_kept() {
        assert_eq!(address(Some("10.0.0.1:80".into())), "10.0.0.1:80");
        assert_eq!(address(Some("x".repeat(301))), "");
        assert_eq!(address(None), "");
    }
}
