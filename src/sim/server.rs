//! A node's port: connections, requests, and the faults between a request and its answer.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt;
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use jiff::fmt::rfc2822::DateTimePrinter;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Semaphore, watch},
    time::Sleep,
};

use super::{
    FaultKind, Refusal,
    body::MAX_BODY,
    claim::{Millis, Number},
    endpoints::Call,
    log::Outcome,
    reply::{Redirect, Reply},
    routes::route,
    silkd::Silkd,
    world::{Gate, World},
};

/// Connections to one node at once.
const MAX_CONNECTIONS: usize = 4096;
const BACKLOG: u32 = 1024;
/// How long the first half of a cut answer has to leave.
const CUT_AFTER: Duration = Duration::from_millis(5);
/// How long to wait when a connection cannot be accepted, for want of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);
static FILLER: Bytes = Bytes::from_static(&[b' '; 64 << 10]);

/// A port that is bound and does not listen: connections to it are refused, and nobody else can have it.
pub(super) fn bind(address: std::net::SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Serves one node until its gate closes for good, and tells in `listening` whether its port is open.
pub(super) async fn serve(
    world: Arc<World>,
    index: usize,
    mut listener: TcpListener,
) -> io::Result<()> {
    let node = &world.nodes[index];
    let mut gate = node.gate.subscribe();
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        tokio::select! {
            _ = wait_for(&mut gate, |gate| gate != Gate::Up) => {}
            never = accept(&world, index, &listener, &connections) => match never {},
        }
        drop(listener);
        // Every slot is free once every connection is cut.
        let _ = connections.acquire_many(MAX_CONNECTIONS as u32).await;
        let port = bind(node.socket)?;
        node.listening.send_replace(false);
        if wait_for(&mut gate, |gate| gate != Gate::Down).await == Gate::Closed {
            return Ok(());
        }
        listener = listen(port)?;
        node.listening.send_replace(true);
    }
}

pub(super) fn listen(port: TcpSocket) -> io::Result<TcpListener> {
    port.listen(BACKLOG)
}

/// Waits until the gate is as wanted. A gate without its fleet is closed.
async fn wait_for(gate: &mut watch::Receiver<Gate>, wanted: impl Fn(Gate) -> bool) -> Gate {
    match gate.wait_for(|gate| wanted(*gate)).await {
        Ok(gate) => *gate,
        Err(_) => Gate::Closed,
    }
}

async fn accept(
    world: &Arc<World>,
    index: usize,
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> Infallible {
    loop {
        let slot = connections.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let world = world.clone();
                tokio::spawn(async move {
                    let _slot = slot;
                    connection(&world, index, stream).await;
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// How a connection ends when a request ends it.
#[derive(Debug, thiserror::Error)]
#[error("the connection is broken on purpose")]
struct Broken;

async fn connection(world: &World, index: usize, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut gate = world.nodes[index].gate.subscribe();
    let after = Aftermath::default();
    let service = service_fn(|request| Box::pin(respond(world, index, request, &after)));
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)) => {}
        _ = wait_for(&mut gate, |gate| gate != Gate::Up) => {}
    }
    let parts = connection.into_parts();
    let (stream, read) = (parts.io.into_inner(), parts.read_buf);
    if let Some(number) = after.guest.into_inner() {
        let silkd = Silkd {
            world,
            index,
            number,
            stream,
            early: read.into(),
        };
        // Its client sees that the connection ends, whatever the reason.
        tokio::select! {
            _ = silkd.serve() => {}
            _ = wait_for(&mut gate, |gate| gate != Gate::Up) => {}
        }
        return;
    }
    if after.reset.load(Ordering::Relaxed) {
        // Closed with nothing to linger for, the kernel sends RST instead of FIN.
        let _ = stream.set_zero_linger();
    }
    drop(stream);
    if let Some(overtime) = after.overtime.into_inner() {
        tokio::select! {
            () = overtime => {}
            _ = wait_for(&mut gate, |gate| gate != Gate::Up) => {}
        }
    }
}

/// What a request leaves to be done after its connection ended.
#[derive(Default)]
struct Aftermath<'w> {
    /// Whether the client is to see a reset.
    reset: AtomicBool,
    /// The VM that goes on to speak with the client.
    guest: Mutex<Option<Number>>,
    /// The work that was asked for, with nobody to answer to.
    overtime: Mutex<Option<BoxFuture<'w, ()>>>,
}

async fn respond<'w>(
    world: &'w World,
    index: usize,
    request: Request<Incoming>,
    after: &Aftermath<'w>,
) -> Result<Response<ReplyBody>, Broken> {
    let (head, incoming) = request.into_parts();
    let body = read(incoming).await.map_err(|_| Broken)?;
    let node = &world.nodes[index];
    let seen = body.as_deref().unwrap_or_default();
    let entered = node.log.enter(&head.method, &head.uri, seen);
    let (delay, fault) = node.faults.meet(&head.method, head.uri.path());
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    if let Some(FaultKind::Overtime { millis }) = fault {
        entered.end(Outcome::Fault(FaultKind::Overtime { millis }.name()));
        *after.overtime.lock() = Some(Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            work(world, index, &head, body).await;
        }));
        return Err(Broken);
    }
    let work = work(world, index, &head, body);
    let Some(fault) = fault else {
        let reply = work.await;
        entered.end(Outcome::Status(reply.status.as_u16()));
        *after.guest.lock() = reply.guest;
        return Ok(dated(response(reply, Shape::Whole), world.now(index)));
    };
    let name = fault.name();
    let answer = misbehave(fault, work, &after.reset).await;
    entered.end(Outcome::Fault(name));
    answer.map(|response| dated(response, world.now(index)))
}

/// The answer with the time that its node's clock shows.
fn dated(mut response: Response<ReplyBody>, now: Millis) -> Response<ReplyBody> {
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&now.timestamp());
    if let Some(date) = date.ok().and_then(|date| date.try_into().ok()) {
        response.headers_mut().insert(header::DATE, date);
    }
    response
}

/// What the daemon does and answers.
async fn work(world: &World, index: usize, head: &Parts, body: Option<Bytes>) -> Reply {
    let found = route(world.options.generation, &head.method, head.uri.path());
    let (endpoint, segments) = match found {
        Ok(found) => found,
        Err(reply) => return reply,
    };
    let call = Call {
        world,
        index,
        endpoint,
        segments,
        query: head.uri.query().unwrap_or_default(),
        headers: &head.headers,
        body,
    };
    call.answer().await
}

/// What becomes of a request that meets a fault; the work is done only if the fault is in its answer.
async fn misbehave(
    fault: FaultKind,
    work: impl Future<Output = Reply>,
    reset: &AtomicBool,
) -> Result<Response<ReplyBody>, Broken> {
    match fault {
        FaultKind::Late { .. } | FaultKind::Refuse => Ok(response(work.await, Shape::Whole)),
        FaultKind::Cut => Ok(response(work.await, Shape::Cut)),
        FaultKind::AnswerLost => {
            work.await;
            Err(Broken)
        }
        FaultKind::Reset => {
            reset.store(true, Ordering::Relaxed);
            Err(Broken)
        }
        FaultKind::Hang => std::future::pending().await,
        FaultKind::Oversized { bytes } => {
            let empty = Reply::raw(StatusCode::OK, Some(Reply::JSON), Bytes::new());
            Ok(response(empty, Shape::Filler(bytes)))
        }
        fault => Ok(response(instead(fault), Shape::Whole)),
    }
}

/// The answer that a fault puts in the place of the daemon's.
fn instead(fault: FaultKind) -> Reply {
    const WRONG_TYPES: &str = r#"{"id":7,"token":[],"deadline":{},"sandboxes":{},"pools":7,"claimed":"x",
        "checkpoint":[],"checkpoints":"x","children":{},"redirect":7,"key":[],"hibernated":"x"}"#;
    let ok = |body: &'static str| Reply::raw(StatusCode::OK, Some(Reply::JSON), body);
    match fault {
        FaultKind::Status { status, text } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Refusal::with_status(status, &text).into()
        }
        FaultKind::Redirect {
            addresses,
            require_promoted,
        } => Reply::json(&Redirect {
            redirect: addresses,
            require_promoted,
        }),
        FaultKind::HttpRedirect { location, status } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::TEMPORARY_REDIRECT);
            Reply {
                location: Some(location),
                ..Reply::raw(status, None, Bytes::new())
            }
        }
        FaultKind::WrongTypes => ok(WRONG_TYPES),
        FaultKind::Unauthorized => Refusal::unauthorized("invalid api token").into(),
        _ => ok(r#"{"sandboxes":["#),
    }
}

/// The whole body; None when it is longer than a daemon reads.
async fn read(mut incoming: Incoming) -> Result<Option<Bytes>, hyper::Error> {
    let mut body = BytesMut::new();
    let mut fits = true;
    while let Some(frame) = incoming.frame().await {
        if let Ok(data) = frame?.into_data() {
            fits &= body.len() + data.len() <= MAX_BODY;
            if fits {
                body.extend_from_slice(&data);
            }
        }
    }
    Ok(fits.then(|| body.freeze()))
}

/// How much of an answer's body is sent.
enum Shape {
    Whole,
    /// Half of it, and then the connection ends.
    Cut,
    /// So many blanks.
    Filler(u64),
}

fn response(reply: Reply, shape: Shape) -> Response<ReplyBody> {
    let body = match shape {
        Shape::Whole => ReplyBody::Whole(Some(reply.body).filter(|body| !body.is_empty())),
        Shape::Cut => ReplyBody::Cut {
            promised: reply.body.len().max(1) as u64,
            half: Some(reply.body.slice(..reply.body.len() / 2)),
            pause: Box::pin(tokio::time::sleep(CUT_AFTER)),
        },
        Shape::Filler(left) => ReplyBody::Filler(left),
    };
    let mut response = Response::new(body);
    *response.status_mut() = reply.status;
    let headers = response.headers_mut();
    if let Some(kind) = reply.content_type {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    if let Some(protocol) = reply.upgrade {
        headers.insert(header::UPGRADE, HeaderValue::from_static(protocol));
        if reply.guest.is_some() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        }
    }
    if let Some(location) = reply.location.and_then(|text| text.try_into().ok()) {
        headers.insert(header::LOCATION, location);
    }
    response
}

/// An answer's body, whole or as a fault wants it.
enum ReplyBody {
    Whole(Option<Bytes>),
    Cut {
        promised: u64,
        half: Option<Bytes>,
        pause: Pin<Box<Sleep>>,
    },
    Filler(u64),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let ready = |data: Option<Bytes>| Poll::Ready(data.map(|data| Ok(Frame::data(data))));
        match self.get_mut() {
            Self::Whole(body) => ready(body.take()),
            Self::Cut { half, pause, .. } => match half.take().filter(|half| !half.is_empty()) {
                Some(half) => ready(Some(half)),
                None => pause.as_mut().poll(cx).map(|()| Some(Err(Broken))),
            },
            Self::Filler(left) => {
                let now = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(FILLER.len());
                *left -= now as u64;
                ready((now > 0).then(|| FILLER.slice(..now)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None) | Self::Filler(0))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Self::Whole(body) => body.as_ref().map_or(0, |body| body.len() as u64),
            Self::Cut { promised, .. } => *promised,
            Self::Filler(left) => *left,
        })
    }
}
