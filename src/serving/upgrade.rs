//! A connection that stops to speak HTTP after an answer with 101.
//!
//! It stays a connection of its listener: it keeps its place, its request counts as in flight, and it is cut when its client
//! takes nothing or the listener has waited long enough for it. A task spawned by the handler would escape all of that.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::body::Request;

type Speak = Box<dyn FnOnce(UpgradedStream) -> BoxFuture<'static, ()> + Send>;

/// What is spoken on the connection behind an answer with 101. The handler puts it into that answer's extensions, where it
/// has to be `Clone`: whoever takes it first has it.
#[derive(Clone)]
pub struct Upgrade(Arc<Mutex<Option<Speak>>>);

/// The connection after the answer, with what its client has sent already.
pub struct UpgradedStream {
    io: TokioIo<hyper::upgrade::Upgraded>,
    request: Request,
}

/// An upgrade that was promised with an answer: it happens once the answer is out.
pub(super) struct Promised {
    on_upgrade: OnUpgrade,
    speak: Speak,
    request: Request,
}

impl Upgrade {
    /// The connection is over when `speak` returns.
    pub fn new<F>(speak: impl FnOnce(UpgradedStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let speak: Speak = Box::new(|stream| Box::pin(speak(stream)));
        Self(Arc::new(Mutex::new(Some(speak))))
    }

    fn of<B>(response: &mut Response<B>) -> Option<Speak> {
        let upgrade = response.extensions_mut().remove::<Self>()?;
        let speak = upgrade.0.lock().take();
        speak.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS)
    }
}

impl Promised {
    /// The upgrade that an answer speaks of. `begin` counts it as in flight.
    pub(super) fn with<B>(
        response: &mut Response<B>,
        on_upgrade: OnUpgrade,
        begin: impl FnOnce() -> Request,
    ) -> Option<Self> {
        let speak = Upgrade::of(response)?;
        let mut request = begin();
        // The client has to take the answer first. One that does not is idle.
        request.works(false);
        Some(Self {
            on_upgrade,
            speak,
            request,
        })
    }

    /// Speaks until there is nothing more to say.
    pub(super) async fn speak(mut self) {
        // Without it the client left before it had the answer.
        if let Ok(upgraded) = self.on_upgrade.await {
            self.request.works(true);
            let stream = UpgradedStream {
                io: TokioIo::new(upgraded),
                request: self.request,
            };
            (self.speak)(stream).await;
        }
    }
}

impl UpgradedStream {
    /// It is our turn unless the client does not take what we write.
    fn turn<T>(&mut self, polled: Poll<T>) -> Poll<T> {
        if polled.is_ready() {
            self.request.steps();
        }
        self.request.works(polled.is_ready());
        polled
    }
}

impl AsyncRead for UpgradedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl AsyncWrite for UpgradedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(context, bytes);
        self.turn(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(context);
        self.turn(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upgrade")
    }
}

impl fmt::Debug for UpgradedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradedStream")
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use crate::serving::Connection;

    #[test]
    fn an_upgrade_is_idle_until_its_answer_is_taken() {
        let connection = Connection::new(([127, 0, 0, 1], 1).into(), Vec::new());
        let in_flight = Gauge::default();
        let begin = || Request::new(connection.request_starts(), in_flight.clone());
        let promise = |code: StatusCode| {
            let mut response = Response::new(());
            *response.status_mut() = code;
            let upgrade = Upgrade::new(async |_| {});
            response.extensions_mut().insert(upgrade);
            let on_upgrade = hyper::upgrade::on(http::Request::new(()));
            Promised::with(&mut response, on_upgrade, begin)
        };
        assert!(promise(StatusCode::OK).is_none(), "HTTP goes on");
        let promised = promise(StatusCode::SWITCHING_PROTOCOLS);
        assert!(promised.is_some());
        assert_eq!(in_flight.get(), 1);
        assert!(connection.steps_if_idle().is_some());
        drop(promised);
        assert_eq!(in_flight.get(), 0);
    }
}
