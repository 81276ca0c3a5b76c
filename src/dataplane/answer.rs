//! Answers on their way to their clients.
//!
//! A client that takes nothing is not noticed by the body of its answer: nobody looks at that before there is room for more. So what
//! a long answer is made from lies with a task of the call, which drops it at the call's end.

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{HeaderValue, Response, header};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::{metrics::Outcome, router::Visit};
use crate::apiserver::{Body, Interrupted, Status};

/// Bytes that lie between a call and its client; and so long an answer may lie there whole.
const PIECE: usize = 64 << 10;

/// A value as the answer, of `about` so many bytes. What may be long is encoded off the threads that serve
/// everybody else.
///
/// # Errors
/// 503 when too many long answers are waiting to be taken.
pub(super) async fn json<T>(
    visit: &Visit<'_>,
    value: T,
    about: usize,
) -> Result<Response<Body>, Status>
where
    T: Serialize + Send + 'static,
{
    let encode =
        move || serde_json::to_vec(&value).expect("strings, numbers and lists always encode");
    let encoded = match about <= PIECE {
        true => encode(),
        false => tokio::task::spawn_blocking(encode)
            .await
            .map_err(|stopped| Status::internal(stopped.to_string()))?,
    };
    let call = visit.call();
    let body = match encoded.len() <= PIECE {
        true => {
            call.ends(Outcome::Done);
            Body::whole(encoded)
        }
        false => {
            call.keeps(encoded.len())?;
            let encoded = Bytes::from(encoded);
            body(visit, stream::iter([Ok(encoded)]))
        }
    };
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// The body of a long answer. It breaks off unless all the bytes have come before the call's end.
pub(super) fn body(
    visit: &Visit<'_>,
    bytes: impl Stream<Item = Result<Bytes, Interrupted>> + Send + 'static,
) -> Body {
    let (call, end) = (visit.call(), visit.end());
    let (pieces_tx, pieces_rx) = mpsc::channel(1);
    let (verdict_tx, verdict_rx) = oneshot::channel();
    tokio::spawn(async move {
        let passed = tokio::select! {
            passed = pass(bytes, &pieces_tx) => passed,
            () = pieces_tx.closed() => Ok(Outcome::Left),
            status = end => Err(Interrupted::new(status.message())),
        };
        call.ends(*passed.as_ref().unwrap_or(&Outcome::Failed));
        drop(call);
        // Who has left does not hear it.
        let _ = verdict_tx.send(passed.map(drop));
    });
    Body::stream(taken(pieces_rx, verdict_rx))
}

/// Passes the bytes on, a piece at a time.
async fn pass(
    bytes: impl Stream<Item = Result<Bytes, Interrupted>>,
    pieces: &mpsc::Sender<Bytes>,
) -> Result<Outcome, Interrupted> {
    let mut bytes = std::pin::pin!(bytes);
    while let Some(chunk) = bytes.next().await {
        for piece in chunk?.chunks(PIECE) {
            // A copy: a part of the chunk would keep all of it.
            if pieces.send(Bytes::copy_from_slice(piece)).await.is_err() {
                return Ok(Outcome::Left);
            }
        }
    }
    Ok(Outcome::Done)
}

/// The pieces, and how they end: without a verdict they broke off as well.
fn taken(
    pieces: mpsc::Receiver<Bytes>,
    verdict: oneshot::Receiver<Result<(), Interrupted>>,
) -> impl Stream<Item = Result<Bytes, Interrupted>> + Send {
    stream::unfold(Some((pieces, verdict)), async |state| {
        let (mut pieces, verdict) = state?;
        if let Some(piece) = pieces.recv().await {
            return Some((Ok(piece), Some((pieces, verdict))));
        }
        let lost = |_| Err(Interrupted::new("the answer broke off"));
        let error = verdict.await.unwrap_or_else(lost).err()?;
        Some((Err(error), None))
    })
}
