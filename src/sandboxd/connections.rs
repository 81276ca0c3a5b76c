//! Kept HTTP/1.1 connections to the nodes, and the one exchange that is made over them.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::http1::{Builder, SendRequest},
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tokio_rustls::TlsConnector;

use super::{Error, Result};
use crate::api::NodeAddress;

/// Connections in use to one node. A node answers a claim in under a millisecond, so this bounds the slow calls
/// (a snapshot takes seconds) without making the fast ones wait.
const MAX_PER_NODE: usize = 256;
/// Idle connections kept to one node.
const MAX_IDLE_PER_NODE: usize = 32;
/// An idle connection is closed after this.
const IDLE: Duration = Duration::from_secs(60);
/// How long a kept connection may need until it takes the next request; it is ready at once but for a stuck peer.
const READY_WITHIN: Duration = Duration::from_millis(50);
/// Bound on the head of an answer, and on what is read ahead of its body.
const READ_BUFFER: usize = 256 << 10;

/// Every connection of a client.
pub(super) struct Connections {
    tls: Option<TlsConnector>,
    /// Short sections: a look-up, a push, a pop. Never held over an await.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    nodes: HashMap<NodeAddress, PerNode>,
    /// Whether a task runs that closes idle connections; it ends when there are none.
    sweeping: bool,
}

struct PerNode {
    slots: Arc<Semaphore>,
    /// The most recently used one last, and taken first, so that the rest grow old.
    idle: Vec<Idle>,
}

struct Idle {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// A connection that is this call's alone. Dropped, it closes; [`Connections::keep`] gives it back.
pub(super) struct Lease {
    sender: SendRequest<Full<Bytes>>,
    /// Given back with the connection, kept or not: an idle connection takes no slot, or a waiter could starve beside it.
    _slot: OwnedSemaphorePermit,
    /// It served a call before, so its peer may have closed it without our knowledge.
    reused: bool,
}

impl Connections {
    pub(super) fn new(tls: Option<TlsConnector>) -> Arc<Self> {
        Arc::new(Self {
            tls,
            kept: Mutex::new(Kept::default()),
        })
    }

    /// Sends `request` once and gives the head of its answer, with the connection that its body comes over.
    ///
    /// A kept connection may turn out closed; while it has not taken the request, the next connection is tried. hyper hands
    /// the request back only if it never left the queue, so no request is written twice. `sent` becomes true before the
    /// request is handed over: until then the caller's deadline means that nothing happened.
    pub(super) async fn exchange(
        &self,
        node: &NodeAddress,
        mut request: Request<Full<Bytes>>,
        sent: &mut bool,
    ) -> Result<(Response<Incoming>, Lease)> {
        loop {
            *sent = false;
            let mut lease = self.lease(node).await.map_err(Error::Unreachable)?;
            *sent = true;
            match lease.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, lease)),
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if lease.reused => request = unsent,
                    Some(_) => {
                        return Err(Error::Unreachable(io::Error::other(failed.into_error())));
                    }
                    None => return Err(Error::Interrupted(failed.into_error())),
                },
            }
        }
    }

    /// A ready connection: a kept one, else a new one, within the bound for the node.
    async fn lease(&self, node: &NodeAddress) -> io::Result<Lease> {
        let slots = self.kept.lock().node(node).slots.clone();
        let slot = slots.acquire_owned().await.map_err(io::Error::other)?;
        while let Some(mut idle) = self.take_idle(node) {
            if let Ok(Ok(())) = timeout(READY_WITHIN, idle.sender.ready()).await {
                return Ok(Lease {
                    sender: idle.sender,
                    _slot: slot,
                    reused: true,
                });
            }
        }
        Ok(Lease {
            sender: self.connect(node).await?,
            _slot: slot,
            reused: false,
        })
    }

    fn take_idle(&self, node: &NodeAddress) -> Option<Idle> {
        self.kept.lock().nodes.get_mut(node)?.idle.pop()
    }

    /// Takes a connection back whose answer was read to its end.
    pub(super) fn keep(self: &Arc<Self>, node: &NodeAddress, lease: Lease) {
        let mut kept = self.kept.lock();
        let idle = &mut kept.node(node).idle;
        if lease.sender.is_closed() || idle.len() >= MAX_IDLE_PER_NODE {
            return;
        }
        idle.push(Idle {
            sender: lease.sender,
            since: Instant::now(),
        });
        if !std::mem::replace(&mut kept.sweeping, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// A connection beside those that are kept, which nothing bounds but its caller.
    pub(super) async fn connect(&self, node: &NodeAddress) -> io::Result<SendRequest<Full<Bytes>>> {
        let stream = dial(node).await?;
        if !node.is_tls() {
            return handshake(stream).await;
        }
        let tls = self.tls.as_ref().ok_or_else(|| {
            io::Error::new(io::ErrorKind::Unsupported, "no CA is configured for TLS")
        })?;
        let name = ServerName::try_from(node.host().to_owned()).map_err(io::Error::other)?;
        handshake(tls.connect(name, stream).await?).await
    }
}

impl Kept {
    fn node(&mut self, node: &NodeAddress) -> &mut PerNode {
        if !self.nodes.contains_key(node) {
            let empty = PerNode {
                slots: Arc::new(Semaphore::new(MAX_PER_NODE)),
                idle: Vec::new(),
            };
            self.nodes.insert(node.clone(), empty);
        }
        self.nodes.get_mut(node).expect("inserted above")
    }

    /// Closes what is idle for [`IDLE`] or closed by its peer, and forgets the nodes that nobody has a connection to.
    fn sweep(&mut self, now: Instant) {
        self.nodes.retain(|_, node| {
            node.idle
                .retain(|idle| !idle.sender.is_closed() && now.duration_since(idle.since) < IDLE);
            // A lease or a waiter holds a share of the semaphore.
            !node.idle.is_empty() || Arc::strong_count(&node.slots) > 1
        });
        self.sweeping = !self.nodes.is_empty();
    }
}

/// Sweeps until no node is left; the next kept connection starts it again.
async fn sweep(connections: Weak<Connections>) {
    loop {
        tokio::time::sleep(IDLE / 2).await;
        let Some(connections) = connections.upgrade() else {
            return;
        };
        let mut kept = connections.kept.lock();
        kept.sweep(Instant::now());
        if !kept.sweeping {
            return;
        }
    }
}

/// A TCP connection to a node, without delay for small writes. A name is resolved here, so that where it leads is checked too.
///
/// Sets no deadline of its own.
///
/// # Errors
/// As [`TcpStream::connect`]; also when the name leads to link-local addresses only.
pub async fn dial(node: &NodeAddress) -> io::Result<TcpStream> {
    let found = tokio::net::lookup_host((node.host(), node.port())).await?;
    let allowed: Vec<SocketAddr> = found.filter(may_be_called).collect();
    let stream = TcpStream::connect(allowed.as_slice()).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A name must not lead to a link-local address, where clouds serve instance credentials, any more than a [`NodeAddress`]
/// may be one: what a name resolves to must itself be a `NodeAddress`.
fn may_be_called(resolved: &SocketAddr) -> bool {
    resolved.to_string().parse::<NodeAddress>().is_ok()
}

async fn handshake<S>(stream: S) -> io::Result<SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = Builder::new()
        .max_buf_size(READ_BUFFER)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    // Ends when the sender is dropped or the peer closes; what went wrong is told to the call in flight.
    tokio::spawn(async move {
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_not_lead_to_a_link_local_address() {
        for (resolved, allowed) in [
            ("10.0.0.1:80", true),
            ("[fd00::1]:80", true),
            ("169.254.169.254:80", false),
            ("[::ffff:169.254.169.254]:80", false),
            ("[fe80::1%2]:80", false),
        ] {
            assert_eq!(
                may_be_called(&resolved.parse().unwrap()),
                allowed,
                "{resolved}"
            );
        }
    }

    #[tokio::test]
    async fn an_idle_connection_is_closed_in_time_and_its_node_forgotten() {
        use tokio::io::AsyncReadExt;

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node: NodeAddress = listener.local_addr().unwrap().to_string().parse().unwrap();
        let connections = Connections::new(None);
        let mut leases = Vec::new();
        for _ in 0..MAX_IDLE_PER_NODE + 8 {
            leases.push(connections.lease(&node).await.unwrap());
        }
        let (mut first, _) = listener.accept().await.unwrap();
        for lease in leases {
            connections.keep(&node, lease);
        }
        let idle = |connections: &Connections| {
            let kept = connections.kept.lock();
            kept.nodes.get(&node).map(|node| node.idle.len())
        };
        assert_eq!(idle(&connections), Some(MAX_IDLE_PER_NODE));
        let now = Instant::now();
        connections.kept.lock().sweep(now + IDLE / 2);
        assert_eq!(idle(&connections), Some(MAX_IDLE_PER_NODE));
        connections.kept.lock().sweep(now + IDLE);
        assert_eq!(idle(&connections), None);
        assert_eq!(first.read(&mut [0]).await.unwrap(), 0, "closed");
    }
}
