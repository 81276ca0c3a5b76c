//! The client: one method a route.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, header};
use http_body_util::Full;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::Semaphore,
    time::{Instant, error::Elapsed, timeout_at},
};
use tokio_rustls::TlsConnector;

use super::{
    CheckpointClaim, CheckpointRecord, ClaimReply, ClaimRequest, Claimed, Error, ForkRequest, Info,
    PoolSpec, Promoted, Result, Sandbox, SandboxRow, Stats, TokenSource,
    answer::{Answer, LARGE_AT_ONCE, LIST, ORDINARY, OUTPUTS_AT_ONCE},
    clock::{ClockOffset, NodeTime},
    clocks::Clocks,
    connections::Connections,
    dated::Dated,
    token::Credential,
    wire,
};
use crate::{
    api::{ClaimId, NodeAddress, SnapshotId},
    meta::UnixTime,
};

/// What may stand unescaped in a path segment or a query value.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// How to call the daemons of a fleet.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The fleet's API token.
    pub token: TokenSource,
    /// PEM file of the authorities that sign the certificates of `https` nodes, read once. Without it those nodes are
    /// unreachable.
    pub ca_file: Option<PathBuf>,
}

/// A client for every node of a fleet. A clone shares connections, clocks and token.
///
/// The times of every answer are by this machine's clock, whatever the node's shows, as far as its answers tell.
#[derive(Clone)]
pub struct Client {
    pub(super) inner: Arc<Inner>,
    /// Whether times stay as the node told them.
    in_node_time: bool,
}

pub(super) struct Inner {
    pub(super) connections: Arc<Connections>,
    clocks: Clocks,
    credential: Credential,
    large: Semaphore,
    pub(super) outputs: Semaphore,
    /// Whether nodes may be changed at this moment; unset: always.
    may_write: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

/// One node, and how long each call to it may take: connection, request and whole answer.
///
/// Every method fails with an [`Error`]; [`Error::outcome_unknown`] tells what that means for a call that changes the node.
/// Dropping a call's future closes its connection, which the daemon takes as a hang-up.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    pub(super) client: &'a Client,
    pub(super) address: &'a NodeAddress,
    pub(super) within: Duration,
}

impl Client {
    /// A client; connects to nothing yet.
    ///
    /// # Errors
    /// [`Error::UnusableCa`] when the CA file cannot be read or holds no certificate.
    pub fn new(options: ClientOptions) -> Result<Self> {
        let tls = options.ca_file.map(tls_connector).transpose()?;
        let inner = Inner {
            connections: Connections::new(tls),
            clocks: Clocks::default(),
            credential: Credential::new(options.token),
            large: Semaphore::new(LARGE_AT_ONCE),
            outputs: Semaphore::new(OUTPUTS_AT_ONCE),
            may_write: OnceLock::new(),
        };
        Ok(Self {
            inner: Arc::new(inner),
            in_node_time: false,
        })
    }

    /// The same client with times as nodes tell them: for who runs on a node and passes them on.
    #[must_use]
    pub fn in_node_time(self) -> Self {
        Self {
            in_node_time: true,
            ..self
        }
    }

    /// How far a node's clock is ahead of this machine's; `None` before its first answer.
    pub fn clock_offset(&self, node: &NodeAddress) -> Option<ClockOffset> {
        self.inner.clocks.offset(node)
    }

    /// The nodes whose offset has changed since the last call. What was taken in of them until now is by another clock than
    /// what will be.
    pub fn take_changed_clocks(&self) -> Vec<(NodeAddress, ClockOffset)> {
        self.inner.clocks.take_changed()
    }

    /// Whether any clock is off.
    pub fn has_clocks_off(&self) -> bool {
        self.inner.clocks.has_any_off()
    }

    /// What a node's clock shows now, as far as its answers tell.
    pub fn node_time(&self, node: &NodeAddress) -> NodeTime {
        let offset = self.clock_offset(node).unwrap_or_default();
        offset.theirs(UnixTime::now())
    }

    /// From now on sends what changes a node only while `may_write` says yes, which is asked each time; else
    /// [`Error::Fenced`]. The first one stays.
    pub fn fence(&self, may_write: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.inner.may_write.set(Box::new(may_write));
    }

    /// Whether this process may change nodes now.
    pub fn may_write(&self) -> bool {
        self.check_fence().is_ok()
    }

    /// # Errors
    /// [`Error::Fenced`] while nodes may not be changed.
    pub(super) fn check_fence(&self) -> Result<()> {
        match self.inner.may_write.get() {
            Some(may_write) if !may_write() => Err(Error::Fenced),
            _ => Ok(()),
        }
    }

    /// Whether there is a token to present, so that a call is not tried in vain.
    ///
    /// # Errors
    /// [`Error::NoToken`] when there is none.
    pub fn check_token(&self) -> Result<()> {
        self.inner
            .credential
            .header(std::time::Instant::now())
            .map(drop)
    }

    /// The node at `address`, called with a deadline of `within` each time.
    pub fn node<'a>(&'a self, address: &'a NodeAddress, within: Duration) -> Node<'a> {
        Node {
            client: self,
            address,
            within,
        }
    }
}

/// How it comes that a sandbox is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// This call destroyed it.
    Released,
    /// The daemon does not know it. One that has just begun may find it later.
    Absent,
}

impl Node<'_> {
    /// Takes a sandbox. Never repeated: without an answer the sandbox may exist until its lease ends, and
    /// [`Node::sandboxes_of`] finds it by its `claim_ref`.
    ///
    /// Source: `POST /v1/claim`.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Claimed> {
        self.json(Method::POST, "/v1/claim", Some(body(request)), ORDINARY)
            .await
    }

    /// Takes a sandbox that starts from a checkpoint. Never repeated.
    ///
    /// Source: `POST /v1/checkpoints/{id}/claim`.
    pub async fn checkpoint_claim(
        &self,
        checkpoint: &SnapshotId,
        request: &CheckpointClaim,
    ) -> Result<Claimed> {
        let path = format!("/v1/checkpoints/{}/claim", segment(checkpoint.as_str()));
        self.json(Method::POST, &path, Some(body(request)), ORDINARY)
            .await
    }

    /// Destroys a sandbox, or finds that it is gone. A release is answered "not found" by a daemon that does not know our token
    /// as well, so that counts only when the daemon, asked with the same token, does not list the sandbox either.
    ///
    /// Source: `POST /v1/sandboxes/{id}/release`.
    pub async fn release(&self, id: &ClaimId) -> Result<Ended> {
        let released = self.done(Method::POST, &sandbox_path(id, "/release")).await;
        match released {
            Ok(()) => Ok(Ended::Released),
            Err(Error::NotFound { .. }) if self.is_absent(id).await? => Ok(Ended::Absent),
            Err(error) => Err(error),
        }
    }

    /// Whether the daemon says that it has no such sandbox.
    ///
    /// Source: as [`Node::sandbox`].
    pub async fn is_absent(&self, id: &ClaimId) -> Result<bool> {
        match self.sandbox(id).await {
            Ok(_) => Ok(false),
            Err(Error::NotFound { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Writes a sandbox's memory to disk and stops its VM; takes time in proportion to the memory. Idempotent.
    ///
    /// Source: `POST /v1/sandboxes/{id}/hibernate`.
    pub async fn hibernate(&self, id: &ClaimId) -> Result<()> {
        self.done(Method::POST, &sandbox_path(id, "/hibernate"))
            .await
    }

    /// Starts a hibernated or archived sandbox again. Idempotent.
    ///
    /// Source: `POST /v1/sandboxes/{id}/wake`.
    pub async fn wake(&self, id: &ClaimId) -> Result<()> {
        self.done(Method::POST, &sandbox_path(id, "/wake")).await
    }

    /// Sets the lease to `ttl` from the node's now, and gives the granted end. Seconds are rounded up; zero is the daemon's
    /// default, more than its cap is cut. [`Error::RouteMissing`] on daemons before generation A.
    ///
    /// Source: `POST /v1/sandboxes/{id}/renew`.
    pub async fn renew(&self, id: &ClaimId, ttl: Duration) -> Result<UnixTime> {
        let renewal = wire::Renewal {
            ttl_seconds: ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0),
        };
        let path = sandbox_path(id, "/renew");
        self.json::<wire::Renewed>(Method::POST, &path, Some(body(&renewal)), ORDINARY)
            .await
            .map(|renewed| renewed.deadline)
    }

    /// Makes copies of a sandbox, all or none. Never repeated.
    ///
    /// Source: `POST /v1/sandboxes/{id}/fork`.
    pub async fn fork(&self, id: &ClaimId, request: &ForkRequest) -> Result<Vec<ClaimReply>> {
        let path = sandbox_path(id, "/fork");
        self.json::<wire::Children>(Method::POST, &path, Some(body(request)), ORDINARY)
            .await
            .map(|forked| forked.children)
    }

    /// Publishes a sandbox's state as a template of this node.
    ///
    /// Source: `POST /v1/sandboxes/{id}/promote`.
    pub async fn promote(&self, id: &ClaimId, template: &str) -> Result<Promoted> {
        let promotion = body(&wire::Promotion { template });
        let path = sandbox_path(id, "/promote");
        self.json(Method::POST, &path, Some(promotion), ORDINARY)
            .await
    }

    /// Takes a checkpoint of a running sandbox. Never repeated.
    ///
    /// Source: `POST /v1/sandboxes/{id}/checkpoint`.
    pub async fn checkpoint(&self, id: &ClaimId, name: Option<&str>) -> Result<CheckpointRecord> {
        let request = body(&wire::Checkpointing { name });
        let path = sandbox_path(id, "/checkpoint");
        self.json::<wire::Checkpointed>(Method::POST, &path, Some(request), ORDINARY)
            .await
            .map(|taken| taken.checkpoint)
    }

    /// Every sandbox of the node, up to 256 MiB of rows.
    ///
    /// Source: `GET /v1/sandboxes`.
    pub async fn sandboxes(&self) -> Result<Vec<SandboxRow>> {
        self.json::<wire::Sandboxes>(Method::GET, "/v1/sandboxes", None, LIST)
            .await
            .map(|list| list.sandboxes)
    }

    /// The sandboxes that were claimed with exactly this `claim_ref`. Filtered again here: a daemon that does not know the
    /// filter sends every row, and the caller may be about to release what it gets.
    ///
    /// Source: `GET /v1/sandboxes?claim_ref=`.
    pub async fn sandboxes_of(&self, claim_ref: &str) -> Result<Vec<SandboxRow>> {
        let path = format!("/v1/sandboxes?claim_ref={}", segment(claim_ref));
        let list: wire::Sandboxes = self.json(Method::GET, &path, None, LIST).await?;
        let mut rows = list.sandboxes;
        rows.retain(|row| row.claim_ref == claim_ref);
        Ok(rows)
    }

    /// The sandboxes that were claimed with this pair in their metadata. Filtered again here, as for [`Node::sandboxes_of`]; a daemon
    /// that keeps no metadata has none.
    ///
    /// Source: `GET /v1/sandboxes?metadata=`.
    pub async fn sandboxes_with(&self, key: &str, value: &str) -> Result<Vec<SandboxRow>> {
        let pair = segment(&format!("{key}={value}")).to_string();
        let path = format!("/v1/sandboxes?metadata={pair}");
        let list: wire::Sandboxes = self.json(Method::GET, &path, None, LIST).await?;
        let mut rows = list.sandboxes;
        rows.retain(|row| row.metadata.get(key).is_some_and(|found| found == value));
        Ok(rows)
    }

    /// One sandbox, with its credential if the node has an API token.
    ///
    /// Source: `GET /v1/sandboxes/{id}`.
    pub async fn sandbox(&self, id: &ClaimId) -> Result<Sandbox> {
        self.json(Method::GET, &sandbox_path(id, ""), None, ORDINARY)
            .await
    }

    /// Memory and CPUs of one sandbox.
    ///
    /// Source: `GET /v1/sandboxes/{id}/stats`.
    pub async fn stats(&self, id: &ClaimId) -> Result<Stats> {
        self.json(Method::GET, &sandbox_path(id, "/stats"), None, ORDINARY)
            .await
    }

    /// Pools, counts and templates of the node.
    ///
    /// Source: `GET /v1/info`.
    pub async fn info(&self) -> Result<Info> {
        self.json(Method::GET, "/v1/info", None, ORDINARY).await
    }

    /// Replaces the node's whole set of pools; what is left out is drained.
    ///
    /// Source: `PUT /v1/pools`.
    pub async fn put_pools(&self, pools: &[PoolSpec]) -> Result<Info> {
        let request = body(&wire::Pools { pools });
        self.json(Method::PUT, "/v1/pools", Some(request), ORDINARY)
            .await
    }

    /// No new claims from now on, and warm VMs are destroyed. Not kept over the daemon's restart.
    ///
    /// Source: `POST /v1/drain`.
    pub async fn drain(&self) -> Result<Info> {
        self.json(Method::POST, "/v1/drain", None, ORDINARY).await
    }

    /// Ends a drain.
    ///
    /// Source: `DELETE /v1/drain`.
    pub async fn undrain(&self) -> Result<Info> {
        self.json(Method::DELETE, "/v1/drain", None, ORDINARY).await
    }

    /// The node's checkpoints, newest first.
    ///
    /// Source: `GET /v1/checkpoints`.
    pub async fn checkpoints(&self) -> Result<Vec<CheckpointRecord>> {
        self.json::<wire::Checkpoints>(Method::GET, "/v1/checkpoints", None, LIST)
            .await
            .map(|list| list.checkpoints)
    }

    /// Deletes a checkpoint here and, as far as they answer, on the node's peers.
    ///
    /// Source: `DELETE /v1/checkpoints/{id}`.
    pub async fn delete_checkpoint(&self, id: &SnapshotId) -> Result<()> {
        let path = format!("/v1/checkpoints/{}", segment(id.as_str()));
        self.done(Method::DELETE, &path).await
    }

    /// Whether the daemon answers at all; the one call without a token.
    ///
    /// Source: `GET /healthz`.
    pub async fn healthz(&self) -> Result<()> {
        let request = self.request(Method::GET, "/healthz", None, None);
        self.call(request, ORDINARY).await.map(drop)
    }

    /// A call whose answer is a value.
    async fn json<T: Dated + DeserializeOwned + Send + 'static>(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        limit: usize,
    ) -> Result<T> {
        let request = self.authorized(method, path, body)?;
        let mut value: T = self.call(request, limit).await?.json().await?;
        if !self.client.in_node_time {
            let offset = self.client.clock_offset(self.address);
            value.to_our_clock(offset.unwrap_or_default());
        }
        Ok(value)
    }

    /// A call whose answer is its status.
    async fn done(&self, method: Method, path: &str) -> Result<()> {
        let request = self.authorized(method, path, None)?;
        self.call(request, ORDINARY).await?.nothing()
    }

    fn authorized(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Request<Full<Bytes>>> {
        if method != Method::GET {
            self.client.check_fence()?;
        }
        let now = std::time::Instant::now();
        let token = self.client.inner.credential.header(now)?;
        Ok(self.request(method, path, body, Some(token)))
    }

    pub(super) fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        token: Option<HeaderValue>,
    ) -> Request<Full<Bytes>> {
        let mut builder = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.address.authority());
        if let Some(token) = token {
            builder = builder.header(header::AUTHORIZATION, token);
        }
        if body.is_some() {
            builder = builder.header(header::CONTENT_TYPE, "application/json");
        }
        builder
            .body(Full::new(body.unwrap_or_default()))
            .expect("a checked address and an escaped path")
    }

    /// Sends the request and reads the whole answer within the deadline.
    async fn call(&self, request: Request<Full<Bytes>>, limit: usize) -> Result<Answer<'_>> {
        let Inner {
            connections,
            clocks,
            credential,
            large,
            ..
        } = &*self.client.inner;
        let mut sent = false;
        let begun = std::time::Instant::now();
        let exchange = async {
            let (response, lease) = connections
                .exchange(self.address, request, &mut sent)
                .await?;
            clocks.hear(self.address, response.headers(), begun.elapsed());
            let answer = Answer::read(response, limit, large).await;
            // An answer that was read to its end leaves a usable connection, whatever it says.
            if !matches!(&answer, Err(Error::Interrupted(_) | Error::TooLarge { .. })) {
                connections.keep(self.address, lease);
            }
            answer
        };
        let done = timeout_at(Instant::now() + self.within, exchange).await;
        self.in_time(done, sent).inspect_err(|error| {
            if let Error::Unauthorized { .. } = error {
                credential.doubt();
            }
        })
    }

    /// What came within the deadline, and what it means that nothing did.
    pub(super) fn in_time<T>(&self, done: Result<Result<T>, Elapsed>, sent: bool) -> Result<T> {
        match done {
            Ok(done) => done,
            Err(_) if sent => Err(Error::Silent { after: self.within }),
            Err(_) => Err(Error::Unreachable(std::io::ErrorKind::TimedOut.into())),
        }
    }
}

/// A TLS connector that trusts the authorities in `path`, and speaks HTTP/1.1 only.
fn tls_connector(path: PathBuf) -> Result<TlsConnector> {
    let unusable = |reason: String| Error::UnusableCa {
        path: path.clone(),
        reason,
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in
        CertificateDer::pem_file_iter(&path).map_err(|error| unusable(error.to_string()))?
    {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("it holds no certificate".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

pub(super) fn sandbox_path(id: &ClaimId, rest: &str) -> String {
    format!("/v1/sandboxes/{}{rest}", segment(id.as_str()))
}

/// `text` as one path segment or query value, whatever it holds.
fn segment(text: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(text, UNRESERVED)
}

pub(super) fn body(request: &impl Serialize) -> Bytes {
    serde_json::to_vec(request)
        .expect("strings, numbers and maps with string keys always encode")
        .into()
}
