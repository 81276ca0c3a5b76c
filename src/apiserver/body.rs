//! Bodies of answers: whole, or made while they are sent.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream::BoxStream};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Frame, SizeHint};

use super::{Status, negotiate::MediaType};

/// Answers over so many bytes are streamed where they can be, and compressed for clients that take that: the bound of
/// kube-apiserver.
pub(super) const STREAMED_FROM: usize = 128 << 10;

/// A body that broke off: that of an answer, whose client sees the connection reset and not a short answer, or of a request.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Interrupted(String);

impl Interrupted {
    /// For this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// The body of an answer.
pub struct Body(Content);

enum Content {
    Whole(Option<Bytes>),
    Stream(BoxStream<'static, Result<Bytes, Interrupted>>),
}

/// What rewrites bytes as they pass.
pub(super) trait Transform: Send + 'static {
    /// What goes out for these bytes now; the rest is held back.
    fn push(&mut self, bytes: &[u8]) -> Vec<u8>;

    /// What goes out at the end.
    fn finish(&mut self) -> Vec<u8>;
}

impl Body {
    /// Nothing.
    pub fn empty() -> Self {
        Self(Content::Whole(None))
    }

    /// These bytes.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self(Content::Whole(Some(bytes.into())))
    }

    /// Bytes as they come.
    pub fn stream(chunks: impl Stream<Item = Result<Bytes, Interrupted>> + Send + 'static) -> Self {
        Self(Content::Stream(chunks.boxed()))
    }

    /// Number of bytes, if it is known.
    pub(super) fn length(&self) -> Option<usize> {
        match &self.0 {
            Content::Whole(bytes) => Some(bytes.as_ref().map_or(0, Bytes::len)),
            Content::Stream(_) => None,
        }
    }

    /// The body with its bytes rewritten.
    pub(super) fn transformed(self, mut transform: impl Transform) -> Self {
        Self(match self.0 {
            Content::Whole(None) => Content::Whole(None),
            Content::Whole(Some(bytes)) => {
                let mut out = transform.push(&bytes);
                out.extend(transform.finish());
                Content::Whole(Some(out.into()))
            }
            Content::Stream(chunks) => Content::Stream(rewritten(chunks, transform).boxed()),
        })
    }
}

fn rewritten(
    chunks: BoxStream<'static, Result<Bytes, Interrupted>>,
    transform: impl Transform,
) -> impl Stream<Item = Result<Bytes, Interrupted>> + Send {
    futures::stream::unfold(Some((chunks, transform)), async |state| {
        let (mut chunks, mut transform) = state?;
        loop {
            let out = match chunks.next().await {
                Some(Ok(chunk)) => transform.push(&chunk),
                Some(Err(error)) => return Some((Err(error), None)),
                None => return Some((Ok(transform.finish().into()), None)),
            };
            // A compressor may take much before it gives.
            if !out.is_empty() {
                return Some((Ok(out.into()), Some((chunks, transform))));
            }
        }
    })
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Content::Whole(_) => "Body::whole",
            Content::Stream(_) => "Body::stream",
        })
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Interrupted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Interrupted>>> {
        match &mut self.0 {
            Content::Whole(bytes) => {
                let bytes = bytes.take().filter(|bytes| !bytes.is_empty());
                Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
            Content::Stream(chunks) => chunks
                .poll_next_unpin(context)
                .map(|chunk| chunk.map(|chunk| chunk.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Content::Whole(bytes) if bytes.as_ref().is_none_or(Bytes::is_empty))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Content::Stream(_) => SizeHint::default(),
        }
    }
}

/// An answer of this type.
pub(super) fn response(code: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A JSON value as the answer, in the negotiated serialization.
pub(super) fn value_response(
    code: StatusCode,
    media_type: MediaType,
    value: &serde_json::Value,
) -> Response<Body> {
    response(
        code,
        media_type.as_str(),
        Body::whole(serialize(media_type, value)),
    )
}

/// JSON bytes as the answer, in the negotiated serialization.
pub(super) fn json_response(
    code: StatusCode,
    media_type: MediaType,
    json: Vec<u8>,
) -> Response<Body> {
    let bytes = match media_type {
        MediaType::Json => json,
        MediaType::Yaml => {
            let value = serde_json::from_slice(&json).expect("the machinery writes valid JSON");
            serialize(media_type, &value)
        }
    };
    response(code, media_type.as_str(), Body::whole(bytes))
}

/// A refusal as the answer.
pub(super) fn status_response(status: &Status, media_type: MediaType) -> Response<Body> {
    let mut response = value_response(status.code(), media_type, &status.to_json());
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if let Some(seconds) = status.retry_after_seconds() {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

pub(super) fn serialize(media_type: MediaType, value: &serde_json::Value) -> Vec<u8> {
    match media_type {
        MediaType::Json => serde_json::to_vec(value).expect("a JSON value serializes"),
        MediaType::Yaml => serde_saphyr::to_string(value)
            .map(String::into_bytes)
            // A JSON value has only string keys and finite numbers, so YAML can say it.
            .expect("a JSON value serializes to YAML"),
    }
}
