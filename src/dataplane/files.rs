//! `download`, `list` and `exists`: what is read of a guest's files.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, stream};
use http::{HeaderValue, Response, header};
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use serde_json::json;

use super::{
    calls::{Call, End},
    error::of_guest,
    metrics::Outcome,
    path::GuestPath,
    router::{Visit, json as answer},
};
use crate::{
    apiserver::{Body, Interrupted, Status},
    sandboxd::{GuestEntry, GuestError, GuestFile, GuestKind, GuestRefusal},
};

/// Largest file that goes into a sandbox or out of it, as of the SDKs.
pub(super) const MAX_FILE: u64 = 256 << 20;

/// One name in a list.
#[derive(Serialize)]
struct Entry {
    name: String,
    size: u64,
    r#type: &'static str,
}

/// The bytes of a file, as the guest sends them and the client takes them.
pub(super) async fn download(
    visit: &Visit<'_>,
    path: &GuestPath,
) -> Result<Response<Body>, Status> {
    let refused = |error| of_guest(path, &error);
    let entry = visit.entry().await?;
    // Asked before, so that what cannot be sent is refused: what breaks off in the middle says nothing.
    let stat = visit.guest(&entry).await?.stat(path.as_str()).await;
    let stat = stat.map_err(refused)?;
    if stat.kind == GuestKind::Dir {
        let text = format!("{} is a directory", path.as_str());
        return Err(Status::bad_request(text));
    }
    if stat.size > MAX_FILE {
        let text = format!(
            "the file has {} bytes, and no more than {MAX_FILE} are sent",
            stat.size
        );
        return Err(Status::over_limit(text));
    }
    let file = visit.guest(&entry).await?.read(path.as_str()).await;
    let download = Download {
        file: file.map_err(refused)?,
        left: MAX_FILE,
        sent: visit.bytes("out"),
        end: visit.end(),
        call: visit.call(),
    };
    let mut response = Response::new(Body::stream(download.stream()));
    let octets = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, octets);
    Ok(response)
}

/// A file on its way to its client.
struct Download {
    file: GuestFile,
    /// Bytes that may still come: a file may grow while it is read.
    left: u64,
    sent: Counter,
    end: End,
    call: Arc<Call>,
}

impl Download {
    fn stream(self) -> impl Stream<Item = Result<Bytes, Interrupted>> + Send {
        stream::unfold(Some(self), async |download| {
            let mut download = download?;
            match download.next().await {
                Ok(Some(bytes)) => Some((Ok(bytes), Some(download))),
                Ok(None) => {
                    download.call.ends(Outcome::Done);
                    None
                }
                Err(error) => {
                    download.call.ends(Outcome::Failed);
                    Some((Err(error), None))
                }
            }
        })
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Interrupted> {
        let next = tokio::select! {
            next = self.file.next() => next,
            status = self.end.clone() => return Err(Interrupted::new(status.message())),
        };
        let bytes = match next {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a file broke off on its way out of a sandbox"
                );
                return Err(Interrupted::new(error.to_string()));
            }
        };
        let length = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let Some(left) = self.left.checked_sub(length) else {
            return Err(Interrupted::new("the file has grown too large"));
        };
        self.left = left;
        self.sent.inc_by(length);
        Ok(bytes)
    }
}

/// What is in a directory. What is no directory is called a file, as by the runtime that the SDKs know: they take no other word.
pub(super) async fn list(visit: &Visit<'_>, path: &GuestPath) -> Result<Response<Body>, Status> {
    let entry = visit.entry().await?;
    let entries = visit.guest(&entry).await?.list(path.as_str()).await;
    let entries = entries.map_err(|error| of_guest(path, &error))?;
    let shown: Vec<_> = entries.into_iter().map(Entry::from).collect();
    Ok(answer(&shown))
}

impl From<GuestEntry> for Entry {
    fn from(entry: GuestEntry) -> Self {
        Self {
            r#type: match entry.kind {
                GuestKind::Dir => "directory",
                GuestKind::File | GuestKind::Symlink | GuestKind::Other => "file",
            },
            name: entry.name,
            size: entry.size,
        }
    }
}

/// Whether a path names anything.
pub(super) async fn exists(visit: &Visit<'_>, path: &GuestPath) -> Result<Response<Body>, Status> {
    let entry = visit.entry().await?;
    let exists = match visit.guest(&entry).await?.stat(path.as_str()).await {
        Ok(_) => true,
        Err(GuestError::Refused {
            refusal: GuestRefusal::NotFound,
            ..
        }) => false,
        Err(error) => return Err(of_guest(path, &error)),
    };
    Ok(answer(&json!({ "exists": exists })))
}
