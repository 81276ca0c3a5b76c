//! One watch: a task that reads it as a client does, and what it got.

use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use sandbox_apiserver::apiserver::Body;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use super::query::View;

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// `resourceVersion` unset, or `0` if so: what is there, then what changes.
    Anything { zero: bool },
    /// The changes after this version.
    After(u64),
    /// `sendInitialEvents`: what is there, at least as new as this if it says so, then what changes.
    List(Option<u64>),
}

/// What a watcher asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct WatchRequest {
    pub(super) view: View,
    pub(super) from: From,
    pub(super) bookmarks: bool,
    /// Seconds.
    pub(super) timeout: Option<u64>,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It goes on, or the watcher left it.
    Open,
    /// The server ended it well.
    Clean,
    /// It broke.
    Broken,
}

/// What a watcher got so far.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) lines: Vec<Bytes>,
    pub(super) end: End,
}

/// At one moment at which nothing was under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// Lines it had got.
    pub(super) lines: usize,
    /// The store's newest version.
    pub(super) head: u64,
    /// Whether more than a minute had passed since the mark before, in which nothing else happened.
    pub(super) after_a_minute: bool,
    /// Milliseconds since it was opened.
    pub(super) at: u128,
}

/// All about one watch, once it is over.
#[derive(Debug)]
pub(super) struct WatchRecord {
    pub(super) request: WatchRequest,
    /// The newest version before and after it was opened.
    pub(super) opened: (u64, u64),
    pub(super) lines: Vec<Bytes>,
    pub(super) end: End,
    /// Times at which it was reading and must have had everything.
    pub(super) marks: Vec<Mark>,
    /// Milliseconds that it lasted.
    pub(super) lasted: u128,
}

/// A watch that is open.
pub(super) struct Watcher {
    pub(super) request: WatchRequest,
    opened: (u64, u64),
    since: Instant,
    got: Arc<Mutex<Got>>,
    marks: Vec<Mark>,
    reads_tx: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl WatchRequest {
    pub(super) fn path(&self) -> String {
        let mut more = "watch=true".to_owned();
        match self.from {
            From::Anything { zero: false } => {}
            From::Anything { zero: true } => more.push_str("&resourceVersion=0"),
            From::After(version) => more.push_str(&format!("&resourceVersion={version}")),
            From::List(version) => {
                more.push_str("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
                if let Some(version) = version {
                    more.push_str(&format!("&resourceVersion={version}"));
                }
            }
        }
        if self.bookmarks {
            more.push_str("&allowWatchBookmarks=true");
        }
        if let Some(timeout) = self.timeout {
            more.push_str(&format!("&timeoutSeconds={timeout}"));
        }
        self.view.path(&more)
    }
}

impl Watcher {
    pub(super) fn new(request: WatchRequest, opened: (u64, u64), body: Body) -> Self {
        let got = Arc::new(Mutex::new(Got {
            lines: Vec::new(),
            end: End::Open,
        }));
        let (reads_tx, reads_rx) = watch::channel(true);
        Self {
            request,
            opened,
            since: Instant::now(),
            task: tokio::spawn(read(body, reads_rx, got.clone())),
            got,
            marks: Vec::new(),
            reads_tx,
        }
    }

    /// Stops reading, or goes on.
    pub(super) fn reads(&self, reads: bool) {
        self.reads_tx.send_replace(reads);
    }

    pub(super) fn is_reading(&self) -> bool {
        *self.reads_tx.borrow()
    }

    /// Notes that nothing is under way.
    pub(super) fn mark(&mut self, head: u64, after_a_minute: bool) {
        let got = self.got.lock().unwrap();
        if self.is_reading() && got.end == End::Open {
            self.marks.push(Mark {
                lines: got.lines.len(),
                head,
                after_a_minute,
                at: self.since.elapsed().as_millis(),
            });
        }
    }

    /// The version of the last whole event, from which a client would go on.
    pub(super) fn last_version(&self) -> Option<u64> {
        let got = self.got.lock().unwrap();
        got.lines.iter().rev().find_map(|line| version_in(line))
    }

    /// Leaves the watch.
    pub(super) fn close(self) -> WatchRecord {
        self.task.abort();
        let mut got = self.got.lock().unwrap();
        WatchRecord {
            request: self.request,
            opened: self.opened,
            lines: std::mem::take(&mut got.lines),
            end: got.end,
            marks: self.marks,
            lasted: self.since.elapsed().as_millis(),
        }
    }
}

async fn read(mut body: Body, mut reads_rx: watch::Receiver<bool>, got: Arc<Mutex<Got>>) {
    let mut pending = BytesMut::new();
    let end = loop {
        if reads_rx.wait_for(|reads| *reads).await.is_err() {
            return;
        }
        // One piece at a time: a reader that stalls leaves the rest where it is.
        match body.frame().await {
            Some(Ok(frame)) => pending.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(_)) => break End::Broken,
            None if pending.is_empty() => break End::Clean,
            None => break End::Broken,
        }
        let mut got = got.lock().unwrap();
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            got.lines.push(pending.split_to(end + 1).freeze());
        }
    };
    got.lock().unwrap().end = end;
}

/// The last `resourceVersion` of a line: the object's own, or the status has none.
fn version_in(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?;
    let (_, rest) = text.rsplit_once("\"resourceVersion\":\"")?;
    rest.split('"').next()?.parse().ok()
}
