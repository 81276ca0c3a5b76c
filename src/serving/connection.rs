//! What is known about the other end of a connection.

use std::{
    any::Any,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

/// One connection, shared by its requests.
#[derive(Debug)]
pub struct Connection {
    /// The client's certificate and its intermediates as sent, the client's own first; empty when it sent none.
    ///
    /// The client has proved to hold the key. Nothing else is checked: not the issuer, not the dates, not the usage.
    pub peer_certificates: Vec<CertificateDer<'static>>,
    /// Where the connection comes from. Never a reason to trust it.
    pub peer_address: SocketAddr,
    // Held for one load or store of the pointer.
    memo: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    closing: CancellationToken,
    in_flight: AtomicUsize,
    n_requests: AtomicU64,
}

/// Counts a request as in flight until its answer is complete or dropped.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Connection>);

impl Connection {
    /// A connection from `peer_address` whose client sent `peer_certificates`. The listener makes these; tests may.
    pub fn new(
        peer_address: SocketAddr,
        peer_certificates: Vec<CertificateDer<'static>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            peer_certificates,
            peer_address,
            memo: Mutex::new(None),
            closing: CancellationToken::new(),
            in_flight: AtomicUsize::new(0),
            n_requests: AtomicU64::new(0),
        })
    }

    /// What [`Self::remember`] stored last, if it was a `T`.
    pub fn recall<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.memo
            .lock()
            .clone()
            .and_then(|memo| memo.downcast().ok())
    }

    /// Stores what was found out about this connection, in place of what was stored before. There is one slot: it belongs to
    /// `auth`, which judges a certificate once and not with every request.
    pub fn remember<T: Send + Sync + 'static>(&self, memo: Arc<T>) {
        *self.memo.lock() = Some(memo);
    }

    /// Ends the connection once the requests in flight are answered: GOAWAY in HTTP/2, `Connection: close` in HTTP/1.1. An
    /// answer with `Connection: close` does the same.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Returns when somebody has asked for [`Self::close`].
    pub(super) async fn closing(&self) {
        self.closing.cancelled().await;
    }

    pub(super) fn request_starts(self: &Arc<Self>) -> InFlight {
        self.n_requests.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(self.clone())
    }

    /// How many requests were ever started here, if none of them is in flight.
    pub(super) fn requests_if_idle(&self) -> Option<u64> {
        (self.in_flight.load(Ordering::Relaxed) == 0)
            .then(|| self.n_requests.load(Ordering::Relaxed))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memo_is_typed() {
        let connection = Connection::new(([127, 0, 0, 1], 1).into(), Vec::new());
        assert_eq!(connection.recall::<u8>(), None);
        connection.remember(Arc::new(7_u8));
        assert_eq!(connection.recall::<u8>(), Some(Arc::new(7)));
        assert_eq!(connection.recall::<String>(), None);
    }

    #[test]
    fn a_connection_is_idle_only_without_a_request_in_flight() {
        let connection = Connection::new(([127, 0, 0, 1], 1).into(), Vec::new());
        let request = connection.request_starts();
        assert_eq!(connection.requests_if_idle(), None);
        drop(request);
        assert_eq!(connection.requests_if_idle(), Some(1));
    }
}
