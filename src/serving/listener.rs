//! The accept loop.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Connection, ServeOptions, Transport, peers::Peers, protocol::Protocol};

/// How long accepting rests after an error, such as too many open files, that another try at once would only repeat.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `app` on `listener` until `shutdown` is cancelled and the requests in flight are answered.
///
/// The handler gets the connection and the request as it came. It may panic: that request is answered 500 and the others go
/// on. An answer with `Connection: close` ends its connection in both versions of HTTP. One with 101 and an
/// [`Upgrade`](super::Upgrade) in its extensions ends HTTP on it, and the upgrade is spoken from then on.
///
/// On shutdown no connection is accepted any more, open ones get GOAWAY or `Connection: close`, and after
/// [`ServeOptions::drain_timeout`] what is left is cut. What is spoken on upgraded ones has to end by itself until then.
pub async fn run<A, F, B>(
    listener: TcpListener,
    transport: Transport,
    app: A,
    options: ServeOptions,
    shutdown: CancellationToken,
) where
    A: Fn(Arc<Connection>, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let acceptor = match transport {
        Transport::Plain => None,
        Transport::Tls(material) => Some(TlsAcceptor::from(Arc::new(material.server_config()))),
    };
    let protocol = Protocol::new(&options);
    let permits = Arc::new(Semaphore::new(options.max_connections));
    let peers = Peers::new(options.max_strangers);
    let (connections, cut) = (TaskTracker::new(), CancellationToken::new());
    while let Some(accepted) = shutdown
        .run_until_cancelled(accept(&listener, &permits))
        .await
    {
        let Accepted {
            stream,
            peer_address,
            permit,
        } = accepted;
        let Some(place) = peers.enter(peer_address.ip()) else {
            options.metrics.strangers_refused.inc();
            tracing::debug!(peer = %peer_address, "too many connections without a credential");
            continue;
        };
        let (acceptor, protocol, app) = (acceptor.clone(), protocol.clone(), app.clone());
        let (options, drain, cut) = (options.clone(), shutdown.clone(), cut.clone());
        let open = Open::new(permit, &options.metrics.connections);
        connections.spawn(async move {
            let _open = open;
            let served = async {
                match acceptor {
                    None => {
                        let connection =
                            Connection::of_stranger(peer_address, Vec::new(), Some(place));
                        protocol
                            .serve(stream, connection, app, options, drain)
                            .await;
                    }
                    Some(acceptor) => {
                        let Some(stream) = handshake(&acceptor, stream, &options).await else {
                            return;
                        };
                        let certificates = stream.get_ref().1.peer_certificates();
                        let connection = Connection::of_stranger(
                            peer_address,
                            certificates.unwrap_or_default().to_vec(),
                            Some(place),
                        );
                        protocol
                            .serve(stream, connection, app, options, drain)
                            .await;
                    }
                }
            };
            cut.run_until_cancelled(served).await;
        });
    }
    drop(listener);
    drain(connections, cut, options.drain_timeout).await;
}

struct Accepted {
    stream: TcpStream,
    peer_address: SocketAddr,
    permit: OwnedSemaphorePermit,
}

/// A connection's share of the limit and of the gauge.
struct Open {
    _permit: OwnedSemaphorePermit,
    connections: Gauge,
}

impl Open {
    fn new(permit: OwnedSemaphorePermit, connections: &Gauge) -> Self {
        connections.inc();
        Self {
            _permit: permit,
            connections: connections.clone(),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connections.dec();
    }
}

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> Accepted {
    let permit = permits
        .clone()
        .acquire_owned()
        .await
        .expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, peer_address)) => {
                // Answers are small and written whole; without this they wait for the client's delayed ACK.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(peer = %peer_address, %error, "cannot set TCP_NODELAY");
                }
                return Accepted {
                    stream,
                    peer_address,
                    permit,
                };
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Errors of a client that left between its SYN and our accept.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    options: &ServeOptions,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    let peer = stream.peer_addr().ok();
    let reason =
        match tokio::time::timeout(options.handshake_timeout, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "timed out".to_owned(),
        };
    options.metrics.handshake_failures.inc();
    tracing::debug!(?peer, reason, "TLS handshake failed");
    None
}

async fn drain(connections: TaskTracker, cut: CancellationToken, patience: Duration) {
    connections.close();
    if tokio::time::timeout(patience, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            connections = connections.len(),
            "cutting connections that did not end in time"
        );
        cut.cancel();
        connections.wait().await;
    }
}
