//! One connection from its first byte to its last.

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::{body::Incoming, rt, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    Connection, ServeOptions,
    body::{self, Tracked},
    lingering::Lingering,
    upgrade::Promised,
};

/// Bytes of a request body that one stream may have under way. Bodies are small and the network is near.
const STREAM_WINDOW: u32 = 64 << 10;

/// Bytes of answers a stream holds for a client that does not read them.
const SEND_BUFFER: usize = 64 << 10;

/// Headers of an HTTP/1.1 request; hyper's own 100 would shut out a user with a hundred groups.
const MAX_HEADERS: usize = 1_024;

/// Streams opened and reset before they reach the handler; more closes the connection (CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 64;

/// A silent HTTP/2 peer is asked for a sign of life this often, and given this long.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The answer when the handler panicked. A Status, since that is what every client of this server can read.
const PANICKED: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Internal error occurred: the request could not be completed because of a bug in the server","reason":"InternalError","code":500}"#;

/// A body of the handler, or ours.
pub(super) type AnyBody<B> = Tracked<Either<B, Full<Bytes>>>;

/// How connections are served; one for all of a listener.
#[derive(Clone, Debug)]
pub(super) struct Protocol {
    builder: auto::Builder<TokioExecutor>,
    idle_timeout: Duration,
    closing_timeout: Duration,
}

impl Protocol {
    pub(super) fn new(options: &ServeOptions) -> Self {
        let max_header_bytes = options.max_header_bytes;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(options.header_read_timeout)
            .max_headers(MAX_HEADERS)
            .max_buf_size(max_header_bytes as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(options.max_concurrent_streams)
            .initial_stream_window_size(STREAM_WINDOW)
            // Room for every stream's window at once: a handler that does not read its body never stops another.
            .initial_connection_window_size(
                STREAM_WINDOW.saturating_mul(options.max_concurrent_streams),
            )
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(max_header_bytes)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT);
        Self {
            builder,
            idle_timeout: options.idle_timeout,
            closing_timeout: options.closing_timeout,
        }
    }

    /// Serves `connection` until its client ends it, or it is to end: because it stays idle, somebody has closed it or `drain`
    /// is cancelled. Then the requests in flight are answered, as long as anything moves.
    pub(super) async fn serve<I, A, F, B>(
        self,
        io: I,
        connection: Arc<Connection>,
        app: A,
        options: ServeOptions,
        drain: CancellationToken,
    ) where
        I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
        TokioIo<Lingering<I>>: rt::Read + rt::Write,
        A: Fn(Arc<Connection>, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let of_request = connection.clone();
        let (promised_tx, mut promised_rx) = mpsc::channel(1);
        let service = service_fn(move |request| {
            let (app, connection) = (app.clone(), of_request.clone());
            answer(
                app,
                connection,
                request,
                options.clone(),
                promised_tx.clone(),
            )
            .map(Ok::<_, std::convert::Infallible>)
        });
        let mut served = pin!(
            self.builder
                .serve_connection_with_upgrades(TokioIo::new(Lingering::new(io)), service)
        );
        let stop = async {
            tokio::select! {
                () = drain.cancelled() => {}
                () = connection.closing() => {}
                () = idle(&connection, self.idle_timeout) => {}
            }
        };
        let ended = tokio::select! {
            ended = served.as_mut() => ended,
            () = stop => {
                served.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = served => ended,
                    // Dropped with what its client does not take.
                    () = idle(&connection, self.closing_timeout) => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(peer = %connection.peer_address, error, "connection ended early");
        }
        if let Ok(promised) = promised_rx.try_recv() {
            self.speak(promised, &connection, &drain).await;
        }
    }

    /// Speaks what was promised, as long as its client takes it.
    async fn speak(&self, promised: Promised, connection: &Connection, drain: &CancellationToken) {
        let draining = async {
            drain.cancelled().await;
            idle(connection, self.closing_timeout).await;
        };
        tokio::select! {
            () = promised.speak() => return,
            () = idle(connection, self.idle_timeout) => {}
            () = draining => {}
        }
        tracing::debug!(peer = %connection.peer_address, "upgraded connection cut: its client takes nothing");
    }
}

/// Returns once nothing has gone on for a whole `period`.
async fn idle(connection: &Connection, period: Duration) {
    let mut before = None;
    loop {
        tokio::time::sleep(period).await;
        let now = connection.steps_if_idle();
        if now.is_some() && now == before {
            return;
        }
        before = now;
    }
}

/// The handler's answer, or 500 when it panics.
async fn answer<A, F, B>(
    app: A,
    connection: Arc<Connection>,
    mut request: Request<Incoming>,
    options: ServeOptions,
    promised_tx: mpsc::Sender<Promised>,
) -> Response<AnyBody<B>>
where
    A: Fn(Arc<Connection>, Request<Incoming>) -> F,
    F: Future<Output = Response<B>>,
{
    let metrics = &options.metrics;
    let begin = || {
        body::Request::new(
            connection.request_starts(),
            metrics.requests_in_flight.clone(),
        )
    };
    let in_flight = begin();
    let wants_upgrade = asks_to_upgrade(&request);
    let on_upgrade = hyper::upgrade::on(&mut request);
    // The handler runs inside the future, so that a panic before its first await is caught too. What it shares with other
    // requests is behind locks that do not poison and atomics: there is no half-written state to fear.
    let answer = async { app(connection.clone(), request).await };
    let mut response = match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(response) => response.map(Either::Left),
        Err(_) => {
            metrics.panics.inc();
            tracing::error!(peer = %connection.peer_address, "request handler panicked");
            panicked().map(Either::Right)
        }
    };
    if wants_upgrade && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        // kube-apiserver passes the answer on as it is and closes its client's connection, who has to know: a client that keeps
        // the connection loses its next request.
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    if asks_to_close(&response) {
        connection.close();
    }
    if let Some(promised) = Promised::with(&mut response, on_upgrade, begin) {
        // Taken up when this answer, the last one in HTTP, is out. An HTTP/1.1 connection is asked one thing at a time.
        let _ = promised_tx.try_send(promised);
    }
    response.map(|body| Tracked::new(body, in_flight))
}

fn panicked() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(PANICKED.as_bytes())));
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// By the test that kube-apiserver makes.
fn asks_to_upgrade<B>(request: &Request<B>) -> bool {
    let mut connection = request.headers().get_all(header::CONNECTION).iter();
    connection.any(|value| {
        let value = value.as_bytes().to_ascii_lowercase();
        value.windows(b"upgrade".len()).any(|it| it == b"upgrade")
    })
}

/// `Connection: close` has no meaning in HTTP/2, where hyper drops it: it is turned into GOAWAY.
fn asks_to_close<B>(response: &Response<B>) -> bool {
    let connection = response.headers().get(header::CONNECTION);
    connection.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"close"))
}
