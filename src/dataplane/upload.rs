//! `upload`: a file, as the form field `file` of a multipart body, under the name that its part has.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use http::{HeaderMap, Response, header};
use http_body::Body as _;
use multer::{Constraints, Field, Multipart, SizeLimit};
use serde_json::json;
use tokio::time::timeout;

use super::{
    answer, error::of_guest, files::MAX_FILE, metrics::Outcome, path::GuestPath, router::Visit,
};
use crate::{
    apiserver::{Body, Interrupted, RequestBody, Status},
    sandboxd::WriteError,
};

const FIELD: &str = "file";
/// Bytes of a body beside the file: boundaries, heads of parts, parts of another name.
const MAX_BESIDE: usize = 256 << 10;
/// How long what follows the file is taken.
const REST_WITHIN: Duration = Duration::from_secs(1);
/// Bytes that are given to the parser at once.
const PIECE: usize = 64 << 10;

/// Writes the file. What had its name before is there until all of the file has come, and stays if it does not.
pub(super) async fn upload(
    visit: &Visit<'_>,
    headers: &HeaderMap,
    body: RequestBody,
) -> Result<Response<Body>, Status> {
    let ahead = Arc::new(AtomicUsize::new(0));
    let mut form = form(headers, body, ahead.clone())?;
    let field = find(&mut form).await;
    let field = field.map_err(|error| refused(visit, &error))?;
    let field = field.ok_or_else(|| {
        let text = format!("the body has no field {FIELD:?}");
        Status::bad_request(text)
    })?;
    let name = field.file_name().unwrap_or_default().to_owned();
    let path = GuestPath::read(&name)?.of_file()?;
    write(visit, &path, field, &ahead).await?;
    // So that the connection can be asked more; what is wrong with the rest changes nothing any more.
    let rest = async { while let Ok(Some(_)) = form.next_field().await {} };
    let _ = timeout(REST_WITHIN, rest).await;
    let text = format!("file {name:?} was written");
    let about = text.len();
    answer::json(visit, json!({ "message": text }), about).await
}

/// Writes the part's bytes as they come, with the directories that the path needs.
async fn write(
    visit: &Visit<'_>,
    path: &GuestPath,
    field: Field<'static>,
    ahead: &AtomicUsize,
) -> Result<(), Status> {
    let entry = visit.entry().await?;
    if let Some(parent) = path.parent() {
        let made = visit.guest(&entry).await?.make_directories(parent).await;
        made.map_err(|error| of_guest(path, &error))?;
    }
    let received = visit.bytes("in");
    let bytes = field.inspect_ok(|bytes| {
        ahead.fetch_sub(bytes.len(), Ordering::Relaxed);
        received.inc_by(bytes.len() as u64);
    });
    let written = visit.guest(&entry).await?.write(path.as_str(), bytes).await;
    written.map_err(|error| match error {
        WriteError::Source(error) => refused(visit, &error),
        WriteError::Guest(error) => of_guest(path, &error),
    })
}

fn form(
    headers: &HeaderMap,
    body: RequestBody,
    ahead: Arc<AtomicUsize>,
) -> Result<Multipart<'static>, Status> {
    let most = MAX_FILE + MAX_BESIDE as u64;
    if body.size_hint().lower() > most {
        return Err(too_large());
    }
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let boundary = multer::parse_boundary(content_type.unwrap_or_default());
    let boundary = boundary.map_err(|error| broken(&error))?;
    let limit = SizeLimit::new()
        .whole_stream(most)
        .for_field(FIELD, MAX_FILE);
    let constraints = Constraints::new().size_limit(limit);
    let pieces = Pieces {
        body,
        held: Bytes::new(),
        ahead,
        rests: false,
    };
    Ok(Multipart::with_constraints(pieces, boundary, constraints))
}

/// The part that is the file, if there is one; what comes before it is passed over.
async fn find(form: &mut Multipart<'static>) -> multer::Result<Option<Field<'static>>> {
    while let Some(field) = form.next_field().await? {
        if field.name() == Some(FIELD) {
            return Ok(Some(field));
        }
    }
    Ok(None)
}

/// What a client is told of a body that could not be read, if it is still there.
fn refused(visit: &Visit<'_>, error: &multer::Error) -> Status {
    if has_left(error) {
        visit.call().ends(Outcome::Left);
    }
    broken(error)
}

/// Whether the body broke off because its client is no more there to be told of it.
fn has_left(error: &multer::Error) -> bool {
    let multer::Error::StreamReadFailed(cause) = error else {
        return false;
    };
    matches!(cause.downcast_ref(), Some(BrokenBody::Left(_)))
}

/// What is wrong with a body that could not be read to the end of its file.
fn broken(error: &multer::Error) -> Status {
    match error {
        multer::Error::StreamSizeExceeded { .. } | multer::Error::FieldSizeExceeded { .. } => {
            too_large()
        }
        error => Status::bad_request(format!("the body is no form with a file: {error}")),
    }
}

fn too_large() -> Status {
    Status::over_limit(format!("no file over {MAX_FILE} bytes is taken"))
}

/// Why a parser gets no more.
#[derive(Debug, thiserror::Error)]
enum BrokenBody {
    #[error("{0}")]
    Left(#[source] Interrupted),
    #[error("too much that belongs to no file")]
    TooMuch,
}

/// A body in pieces, for a parser that takes what it gets: it asks again and again as long as there is more, and keeps what it
/// cannot make sense of. So it gets one piece each time it is asked, and none when too much has gone in of which nothing came out.
struct Pieces {
    body: RequestBody,
    held: Bytes,
    /// Bytes that went in, without those of the file that came out.
    ahead: Arc<AtomicUsize>,
    /// Whether the last piece was given just now.
    rests: bool,
}

impl Stream for Pieces {
    type Item = Result<Bytes, BrokenBody>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.rests) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        while self.held.is_empty() {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            match frame {
                Some(Ok(frame)) => self.held = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(BrokenBody::Left(error)))),
                None => return Poll::Ready(None),
            }
        }
        let length = self.held.len().min(PIECE);
        let piece = self.held.split_to(length);
        let ahead = self.ahead.fetch_add(length, Ordering::Relaxed) + length;
        if ahead > MAX_BESIDE + PIECE {
            return Poll::Ready(Some(Err(BrokenBody::TooMuch)));
        }
        self.rests = true;
        Poll::Ready(Some(Ok(piece)))
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    fn mk_body(pieces: impl Stream<Item = Bytes> + Send + 'static) -> RequestBody {
        RequestBody::new(StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))))
    }

    fn mk_form(body: RequestBody) -> (Multipart<'static>, Arc<AtomicUsize>) {
        let mut headers = HeaderMap::new();
        let kind = "multipart/form-data; boundary=x".parse().unwrap();
        headers.insert(header::CONTENT_TYPE, kind);
        let ahead = Arc::new(AtomicUsize::new(0));
        (form(&headers, body, ahead.clone()).unwrap(), ahead)
    }

    /// The head of a part, and what follows for ever.
    fn endless(head: &'static str, piece: &'static [u8]) -> RequestBody {
        let head = stream::iter([Bytes::from_static(head.as_bytes())]);
        mk_body(head.chain(stream::repeat(Bytes::from_static(piece))))
    }

    const FILE: &str =
        "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";

    #[tokio::test]
    async fn a_parser_is_never_far_ahead_of_who_takes_from_it() {
        let (mut form, ahead) = mk_form(endless(FILE, &[b'a'; 100_000]));
        let mut field = find(&mut form).await.unwrap().unwrap();
        for _ in 0..100 {
            let chunk = field.chunk().await.unwrap().unwrap();
            let before = ahead.fetch_sub(chunk.len(), Ordering::Relaxed);
            assert!(before <= 3 * PIECE, "{before}");
        }
    }

    #[tokio::test]
    async fn a_file_has_so_many_bytes_whatever_is_beside_it() {
        let (mut form, ahead) = mk_form(endless(FILE, vec![b'a'; 1 << 20].leak()));
        let mut field = find(&mut form).await.unwrap().unwrap();
        let mut taken = 0;
        let refused = loop {
            match field.chunk().await {
                Ok(chunk) => {
                    let length = chunk.expect("it has no end").len();
                    ahead.fetch_sub(length, Ordering::Relaxed);
                    taken += length as u64;
                }
                Err(error) => break error,
            }
        };
        assert_eq!(broken(&refused).code(), 413);
        assert!(
            taken <= MAX_FILE && taken + 2 * PIECE as u64 > MAX_FILE,
            "{taken}"
        );
    }

    #[tokio::test]
    async fn what_leads_to_no_file_is_given_up() {
        for (head, piece) in [
            ("", "no boundary "),
            ("--x\r\ncontent-disposition: form-data; ", "name=a; "),
            (
                "--x\r\ncontent-disposition: form-data; name=\"other\"\r\n\r\n",
                "a",
            ),
        ] {
            let (mut form, ahead) = mk_form(endless(head, piece.repeat(1_000).leak().as_bytes()));
            let refused = find(&mut form).await.unwrap_err();
            assert!(!has_left(&refused));
            assert_eq!(broken(&refused).code(), 400, "{head}");
            assert!(ahead.load(Ordering::Relaxed) <= MAX_BESIDE + 2 * PIECE);
        }
    }
}
