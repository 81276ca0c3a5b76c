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

use super::peers::Place;

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
    // Held for one store. Given up once somebody is known to be there.
    among_strangers: Mutex<Option<Place>>,
    n_working: AtomicUsize,
    n_steps: AtomicU64,
}

/// A request from its start until its answer is complete or dropped. It works, or it waits until its client takes what is
/// there of the answer.
#[derive(Debug)]
pub(super) struct InFlight {
    connection: Arc<Connection>,
    works: bool,
}

impl Connection {
    /// A connection from `peer_address` whose client sent `peer_certificates`. The listener makes these; tests may.
    pub fn new(
        peer_address: SocketAddr,
        peer_certificates: Vec<CertificateDer<'static>>,
    ) -> Arc<Self> {
        Self::of_stranger(peer_address, peer_certificates, None)
    }

    /// The same, with its place among the strangers of its address.
    pub(super) fn of_stranger(
        peer_address: SocketAddr,
        peer_certificates: Vec<CertificateDer<'static>>,
        place: Option<Place>,
    ) -> Arc<Self> {
        Arc::new(Self {
            peer_certificates,
            peer_address,
            memo: Mutex::new(None),
            closing: CancellationToken::new(),
            among_strangers: Mutex::new(place),
            n_working: AtomicUsize::new(0),
            n_steps: AtomicU64::new(0),
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

    /// Somebody has shown a good credential here: from now on the connection does not count against the strangers that its
    /// address may have.
    pub fn identified(&self) {
        self.among_strangers.lock().take();
    }

    /// Returns when somebody has asked for [`Self::close`].
    pub(super) async fn closing(&self) {
        self.closing.cancelled().await;
    }

    pub(super) fn request_starts(self: &Arc<Self>) -> InFlight {
        let mut request = InFlight {
            connection: self.clone(),
            works: false,
        };
        request.steps();
        request.works(true);
        request
    }

    /// How often anything has gone on here, if nothing does now: no request works. An answer that its client does not take
    /// is no work, or whoever takes none would never be idle.
    pub(super) fn steps_if_idle(&self) -> Option<u64> {
        (self.n_working.load(Ordering::Relaxed) == 0).then(|| self.n_steps.load(Ordering::Relaxed))
    }
}

impl InFlight {
    /// The request has begun, or its client has taken something.
    pub(super) fn steps(&self) {
        self.connection.n_steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it is our turn, and not the client's.
    pub(super) fn works(&mut self, works: bool) {
        let n_working = &self.connection.n_working;
        match (self.works, works) {
            (false, true) => drop(n_working.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(n_working.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        self.works = works;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.works(false);
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
    fn a_connection_is_idle_while_no_request_works() {
        let connection = Connection::new(([127, 0, 0, 1], 1).into(), Vec::new());
        let mut request = connection.request_starts();
        assert_eq!(connection.steps_if_idle(), None);
        request.works(false);
        assert_eq!(connection.steps_if_idle(), Some(1));
        request.steps();
        request.works(true);
        assert_eq!(connection.steps_if_idle(), None);
        drop(request);
        assert_eq!(connection.steps_if_idle(), Some(2));
    }
}
