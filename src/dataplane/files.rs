//! `download`, `list` and `exists`: what is read of a guest's files.

use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, Response, header};
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use serde_json::json;
use tokio::time::timeout;

use super::{answer, error::of_guest, path::GuestPath, router::Visit};
use crate::{
    apiserver::{Body, Interrupted, Status},
    gateway::Entry as Opened,
    sandboxd::{GuestEntry, GuestError, GuestFile, GuestKind, GuestRefusal, GuestStat},
};

/// Largest file that goes into a sandbox or out of it, as of the SDKs.
pub(super) const MAX_FILE: u64 = 256 << 20;

/// Names of which it is asked when they last changed: a question for each.
const MAX_TIMED: usize = 1_000;
/// How long is waited for the times: a list without them is better than none.
const TIMES_WITHIN: Duration = Duration::from_secs(3);

/// One name in a list.
#[derive(Serialize)]
struct Entry {
    name: String,
    size: u64,
    r#type: &'static str,
    /// Second of its last change, where the guest says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    mod_time: Option<i64>,
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
    };
    let bytes = stream::try_unfold(download, async |mut download: Download| {
        let next = download.next().await;
        next.map(|bytes| bytes.map(|bytes| (bytes, download)))
    });
    let mut response = Response::new(answer::body(visit, bytes));
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
}

impl Download {
    /// The next bytes; `None` once all have come.
    async fn next(&mut self) -> Result<Option<Bytes>, Interrupted> {
        let bytes = self.file.next().await.map_err(|error| broken(&error))?;
        let length = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let Some(left) = self.left.checked_sub(length) else {
            return Err(Interrupted::new("the file has grown too large"));
        };
        self.left = left;
        self.sent.inc_by(length);
        Ok(bytes)
    }
}

/// Why a file breaks off. A refusal is the guest's own, and may name the file: it is nothing for the log.
fn broken(error: &GuestError) -> Interrupted {
    if !matches!(error, GuestError::Refused { .. }) {
        let error = error as &dyn std::error::Error;
        tracing::debug!(error, "a file broke off on its way out of a sandbox");
    }
    Interrupted::new(error.to_string())
}

/// What is in a directory. What is no directory is called a file, as by the runtime that the SDKs know: they take no other word.
pub(super) async fn list(visit: &Visit<'_>, path: &GuestPath) -> Result<Response<Body>, Status> {
    let entry = visit.entry().await?;
    let entries = visit.guest(&entry).await?.list(path.as_str()).await;
    let entries = entries.map_err(|error| of_guest(path, &error))?;
    let times = match entries.len() {
        1..=MAX_TIMED => {
            let times = times(visit, &entry, path, &entries);
            timeout(TIMES_WITHIN, times).await.ok().flatten()
        }
        _ => None,
    };
    let times = times.unwrap_or_default();
    let times = times.into_iter().chain(std::iter::repeat(None));
    let shown = entries.into_iter().zip(times);
    let shown: Vec<_> = shown.map(|(entry, time)| Entry::new(entry, time)).collect();
    // Every name has some room beside it.
    let about = shown.iter().map(|entry| entry.name.len() + 64).sum();
    answer::json(visit, shown, about).await
}

/// When each of the names in a directory last changed; `None` when that is not told, as by an agent that is too old to be asked for
/// many.
async fn times(
    visit: &Visit<'_>,
    entry: &Opened,
    directory: &GuestPath,
    entries: &[GuestEntry],
) -> Option<Vec<Option<i64>>> {
    let directory = directory.as_str().trim_end_matches('/');
    let paths: Vec<_> = entries
        .iter()
        .map(|entry| format!("{directory}/{}", entry.name))
        .collect();
    let guest = visit.guest(entry).await.ok()?.lasting().await.ok()??;
    let stats = guest.stats(&paths).await.ok()?;
    let time = |stat: Option<GuestStat>| stat.map(|stat| stat.modified);
    Some(stats.into_iter().map(time).collect())
}

impl Entry {
    fn new(entry: GuestEntry, mod_time: Option<i64>) -> Self {
        Self {
            mod_time,
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
    answer::json(visit, json!({ "exists": exists }), 0).await
}
