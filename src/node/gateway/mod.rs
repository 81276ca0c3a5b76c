//! The claim gateway: warm VMs of this node, handed over by the agent beside the daemon, without kube-apiserver on the way.
//!
//! `POST /v1/claims` takes a warm VM and `DELETE /v1/claims/{id}` gives it back. Decided here:
//!
//! - Who asks is known by TokenReview and by nothing in the body; what they may is a SubjectAccessReview about SandboxClaims in the
//!   namespace. Both answers are the room [`auth`](crate::auth)'s, and count as long as there.
//! - The gateway hands over warm VMs and nothing else. Whatever stands in the way (nothing warm, 429, a redirect, a daemon that is
//!   silent) is answered with 503 and `fallback`: nothing was handed over, and the caller makes a SandboxClaim.
//! - A name is claimed once on a node, and the second caller gets 409, as a second create does; or 503 while it is not known what
//!   comes of the first. The same sandbox for both was rejected: its token is shown once, to who claimed it, and the subresource
//!   `token` has a right of its own.
//! - A claim is durable when the daemon has granted it. Its reference is the SandboxClaim's name, and its metadata carries the warm
//!   pool and the reference once more ([`HANDED_OVER`](crate::api::labels::HANDED_OVER)): forks inherit metadata, and have other
//!   references. Grant and mark are one write of the daemon, so that there is no moment at which a kill loses one of them.
//!   A file of the agent's own was rejected: it costs a sync on the way to the answer, and still leaves the moment between the grant
//!   and the file. Daemons before generation B keep no metadata; there a kill between the answer and the record leaves a sandbox
//!   that is listed, but has no SandboxClaim.
//! - The SandboxClaim is recorded afterwards (`records`, out of the `book`): made if there is none, and bound. Until it is, the
//!   claim is owed; the next life of the agent finds what it owes on the daemon ([`orphan`](super::orphan)).
//! - Pools are read when they are asked for, and kept for a while (`pools`). Watches were rejected: every agent of a fleet would
//!   hold two, be told of every pool's status and hold every template, and need the right to list them, for the few pools that
//!   somebody claims from on its node. The first claim from a pool in a minute waits for two reads.
//! - No ResourceQuota and no end of a namespace is asked. What a namespace has is known to the server alone, a round trip away that takes
//!   longer than the claim, and a quota's status tells it up to five minutes late; for a watch of all quotas and namespaces every
//!   agent would need the right to read them, and be told of every Pod that a quota counts. What was handed over is not taken back on
//!   account of a quota either: somebody uses it. It counts, so that the server makes nothing more in that namespace.
//! - A claim is given back when the VM is gone and the SandboxClaim goes, and 204 says that of both. The wish is in memory: an agent
//!   that is killed while kube-apiserver is away may leave a SandboxClaim without a VM, whose giver was told 503.
//! - Of two VMs for one SandboxClaim the one that is written into it first is bound; kube-apiserver decides, since both writes carry
//!   the version that was read. The loser's VM is released only by who made it, and only if nobody was told of it: one that was
//!   answered with 201 stays, is counted, and is listed under a name made of its id.

mod access;
mod answer;
mod book;
mod deliver;
mod metrics;
mod pools;
mod records;
mod release;
mod request;
mod route;
mod settle;

use std::{sync::Arc, time::Duration};

use tokio_util::task::TaskTracker;

pub use access::ClaimAccess;
pub(super) use {
    book::Owed,
    route::{Route, no_gateway},
};

use self::{book::Book, metrics::GatewayMetrics, pools::Pools, records::Records};
use crate::{
    api::NodeAddress,
    feed::Board,
    sandboxd::{Client, Node},
    telemetry::Metrics,
};

/// How long the daemon may take for a claim, as for one of the server's.
const CLAIM_WITHIN: Duration = Duration::from_secs(2);
/// How long it may take for anything else.
const DAEMON_WITHIN: Duration = Duration::from_secs(5);

/// What makes an agent's gateway.
#[derive(Clone)]
pub struct GatewayOptions {
    /// The way to kube-apiserver, for pools and records. It must repeat nothing by itself.
    pub client: kube::Client,
    /// What callers are asked about.
    pub access: ClaimAccess,
}

/// The gateway of a node. A clone is the same one.
#[derive(Clone)]
pub(super) struct Gateway(Arc<Inner>);

struct Inner {
    daemon: Client,
    daemon_address: NodeAddress,
    node: crate::api::NodeName,
    /// What callers reach a sandbox's daemon by, unless it says otherwise itself.
    advertised: NodeAddress,
    board: Board,
    pools: Pools,
    book: Book,
    access: ClaimAccess,
    metrics: GatewayMetrics,
    /// Claims under way, also of callers that left.
    tasks: TaskTracker,
}

/// What the gateway is built on.
pub(super) struct Ground {
    pub(super) daemon: Client,
    pub(super) daemon_address: NodeAddress,
    pub(super) identity: super::Identity,
    pub(super) board: Board,
}

impl Gateway {
    pub(super) fn new(ground: Ground, options: GatewayOptions, metrics: &Metrics) -> Self {
        let Ground {
            daemon,
            daemon_address,
            identity,
            board,
        } = ground;
        let metrics = GatewayMetrics::register(metrics);
        Self(Arc::new(Inner {
            daemon,
            daemon_address,
            node: identity.node,
            advertised: identity.daemon_address,
            board,
            pools: Pools::new(options.client.clone()),
            book: Book::new(Records::new(options.client), metrics.clone()),
            access: options.access,
            metrics,
            tasks: TaskTracker::new(),
        }))
    }

    /// Waits for claims whose callers have left.
    pub(super) async fn settled(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    fn daemon(&self) -> Node<'_> {
        self.0.daemon.node(&self.0.daemon_address, DAEMON_WITHIN)
    }
}
