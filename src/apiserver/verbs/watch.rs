//! WATCH: a cursor in the store's log, written out as the log grows.
//!
//! A watcher holds a version and nothing else, so it costs no memory that grows; one that reads too slowly finds its version
//! gone from the log and is told so. What is encoded is shared by all watchers of the same form. Chunks are whole lines, which
//! a WebSocket counts on.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode};
use rand::Rng;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    list::matches,
    request::{VerbRequest, too_large},
};
use crate::{
    apiserver::{
        Body, Resource, Status,
        body::response,
        form::Form,
        metrics::OpenWatch,
        negotiate::{MediaType, Offer},
        options::{Selection, WatchFrom, WatchOptions},
        websocket,
    },
    meta::{ResourceVersion, UnixTime},
    store::{Event, EventKind, Key, Scope, Value},
};

/// Time between two bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// A last bookmark goes out this long before the end, so that the client's next watch starts close to it.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// A watch without a timeout of its own ends after this long or up to twice as long.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1_800);
/// How long a watch waits for a version that is not there yet.
const FRESHNESS_WAIT: Duration = Duration::from_secs(3);
/// Events taken from the log under one lock.
const BATCH: usize = 256;
/// Objects taken from the store under one lock, and bytes after which a chunk is sent.
const PIECE: usize = 256;
const CHUNK: usize = 64 << 10;

pub(super) fn watch<R: Resource>(
    resource: &Arc<R>,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let negotiated = request.negotiate(Offer::Object)?;
    if negotiated.media_type != MediaType::Json {
        return Err(Status::not_acceptable(&["application/json"]));
    }
    let options = WatchOptions::parse(&request.query, resource.definition().selectable_fields)?;
    let lifetime = options
        .timeout
        .unwrap_or_else(|| DEFAULT_TIMEOUT.mul_f64(rand::rng().random_range(1.0..2.0)));
    let now = Instant::now();
    let watcher = Watcher {
        scope: request.scope(&options.selection.fields),
        form: Form {
            shape: negotiated.shape,
            version: request.version,
        },
        head_rx: resource.store().subscribe(),
        selection: options.selection,
        bookmarks: options.bookmarks,
        stage: Stage::begin(options.from, resource.store().head()),
        first: true,
        ends: now + lifetime,
        next_bookmark: now + BOOKMARK_INTERVAL.min(lifetime.saturating_sub(LAST_BOOKMARK)),
        shutdown: request.shutdown.clone(),
        _open: request.counters.watch_opens(),
        resource: resource.clone(),
    };
    let events = futures::stream::unfold(watcher, |mut watcher| async move {
        let chunk = watcher.next().await?;
        Some((Ok(chunk), watcher))
    });
    Ok(match websocket::is_asked(&request.headers) {
        true => websocket::answer(&request.headers, events, request.shutdown.clone()),
        false => response(
            StatusCode::OK,
            MediaType::Json.as_str(),
            Body::stream(events),
        ),
    })
}

/// How far a watch is.
#[derive(Debug)]
enum Stage {
    /// Waiting until the store is as new as the client knows it to be, to begin with what is there.
    Reach {
        wanted: ResourceVersion,
        marked: bool,
    },
    /// Sending what was there at one version.
    Initial {
        at: ResourceVersion,
        after: Option<Key>,
        marked: bool,
    },
    /// Sending changes after a version.
    Live(ResourceVersion),
    /// Nothing more will come.
    Over,
}

impl Stage {
    fn begin(from: WatchFrom, head: ResourceVersion) -> Self {
        match from {
            WatchFrom::Initial {
                at_least: Some(wanted),
                marked,
            } if wanted > head => Self::Reach { wanted, marked },
            WatchFrom::Initial { marked, .. } => Self::Initial {
                at: head,
                after: None,
                marked,
            },
            WatchFrom::After(version) => Self::Live(version),
            WatchFrom::Now => Self::Live(head),
        }
    }
}

struct Watcher<R: Resource> {
    resource: Arc<R>,
    scope: Scope,
    selection: Selection,
    form: Form,
    bookmarks: bool,
    stage: Stage,
    /// Whether nothing was sent yet.
    first: bool,
    head_rx: watch::Receiver<ResourceVersion>,
    ends: Instant,
    next_bookmark: Instant,
    shutdown: CancellationToken,
    /// Counts the watch until it is dropped.
    _open: OpenWatch,
}

impl<R: Resource> Watcher<R> {
    /// The next bytes for the client; `None` ends the stream cleanly.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            // Asked between any two chunks: a stream that is never idle must end too.
            if self.shutdown.is_cancelled() || Instant::now() >= self.ends {
                return None;
            }
            let chunk = match self.stage {
                Stage::Over => return None,
                Stage::Reach { wanted, marked } => self.reach(wanted, marked).await?,
                Stage::Initial { .. } => self.initial(),
                Stage::Live(since) => match self.live(since) {
                    Some(chunk) => chunk,
                    None => self.wait(since).await?,
                },
            };
            if !chunk.is_empty() {
                self.first = false;
                return Some(chunk);
            }
        }
    }

    async fn reach(&mut self, wanted: ResourceVersion, marked: bool) -> Option<Bytes> {
        let patience = self.ends.min(Instant::now() + FRESHNESS_WAIT);
        let reached = self.head_rx.wait_for(|head| *head >= wanted);
        let reached = tokio::time::timeout_at(patience, reached).await.is_ok();
        let head = self.resource.store().head();
        if !reached {
            return Some(self.fail(&too_large(wanted, head)));
        }
        self.stage = Stage::Initial {
            at: head,
            after: None,
            marked,
        };
        Some(Bytes::new())
    }

    /// The next part of what was there at the beginning.
    fn initial(&mut self) -> Bytes {
        let Stage::Initial { at, after, marked } = &mut self.stage else {
            return Bytes::new();
        };
        let (at, marked) = (*at, *marked);
        let mut out = Vec::with_capacity(4 << 10);
        let now = UnixTime::now();
        while out.len() < CHUNK {
            let page = match self
                .resource
                .store()
                .page(&self.scope, after.as_ref(), at, PIECE)
            {
                Ok(page) => page,
                Err(expired) => {
                    out.extend_from_slice(&self.fail(&Status::expired(expired.to_string())));
                    return out.into();
                }
            };
            for object in &page.items {
                if matches(self.resource.as_ref(), &self.selection, &object.value) {
                    let first = self.first && out.is_empty();
                    self.form.initial_event(
                        self.resource.as_ref(),
                        &object.value,
                        object.version,
                        first,
                        now,
                        &mut out,
                    );
                }
            }
            if !page.more {
                if marked && self.bookmarks {
                    let first = self.first && out.is_empty();
                    out.extend_from_slice(&self.form.bookmark(
                        self.resource.as_ref(),
                        at,
                        true,
                        first,
                    ));
                }
                self.stage = Stage::Live(at);
                return out.into();
            }
            *after = page
                .items
                .last()
                .map(|object| Key::new(object.value.namespace(), object.value.name()));
        }
        out.into()
    }

    /// The changes after `since` that concern this watcher; `None` when there are no changes at all yet.
    fn live(&mut self, since: ResourceVersion) -> Option<Bytes> {
        let events = match self.resource.store().changes_after(since, BATCH) {
            Ok(events) => events,
            Err(expired) => {
                return Some(self.fail(&Status::expired(format!("{expired} ({since})"))));
            }
        };
        self.stage = Stage::Live(events.last()?.version());
        let now = UnixTime::now();
        let mut chunks = Vec::new();
        for event in &events {
            if let Some(kind) = self.concerns(event) {
                let first = self.first && chunks.is_empty();
                chunks.push(
                    self.form
                        .event(self.resource.as_ref(), event, kind, first, now),
                );
            }
        }
        Some(match chunks.len() {
            1 => chunks.swap_remove(0),
            _ => chunks.concat().into(),
        })
    }

    /// What the event is to this watcher: an object may come into its selection or leave it by changing.
    fn concerns(&self, event: &Event<R::Object>) -> Option<EventKind> {
        let object = &event.object().value;
        if !self.scope.contains(object.namespace(), object.name()) {
            return None;
        }
        if self.selection.is_everything() {
            return Some(event.kind());
        }
        let matching =
            |object: &R::Object| matches(self.resource.as_ref(), &self.selection, object);
        let before = event.before().is_some_and(|object| matching(&object.value));
        let after = event.after().is_some_and(|object| matching(&object.value));
        match (before, after) {
            (false, true) => Some(EventKind::Added),
            (true, true) => Some(EventKind::Modified),
            (true, false) => Some(EventKind::Deleted),
            (false, false) => None,
        }
    }

    /// Sleeps until there are changes, a bookmark is due, or the stream ends.
    async fn wait(&mut self, since: ResourceVersion) -> Option<Bytes> {
        // A version of the future is nothing to confirm, until it is reached.
        let reached = since <= self.resource.store().head();
        let bookmark_at = if self.bookmarks && reached {
            self.next_bookmark
        } else {
            self.ends
        };
        let next_due = self.ends.min(bookmark_at);
        let is_news = |head: &ResourceVersion| *head > since || (!reached && *head == since);
        tokio::select! {
            changed = self.head_rx.wait_for(is_news) => return changed.is_ok().then(Bytes::new),
            () = self.shutdown.cancelled() => return None,
            () = tokio::time::sleep_until(next_due) => {}
        }
        (Instant::now() < self.ends).then(|| self.bookmark(since))
    }

    fn bookmark(&mut self, at: ResourceVersion) -> Bytes {
        let last = self.ends.checked_sub(LAST_BOOKMARK).unwrap_or(self.ends);
        let now = Instant::now();
        self.next_bookmark = if now < last {
            last.min(now + BOOKMARK_INTERVAL)
        } else {
            self.ends
        };
        self.form
            .bookmark(self.resource.as_ref(), at, false, self.first)
            .into()
    }

    /// An ERROR event; the last of the stream.
    fn fail(&mut self, status: &Status) -> Bytes {
        self.stage = Stage::Over;
        let event = serde_json::json!({"type": "ERROR", "object": status.to_json()});
        format!("{event}\n").into()
    }
}
