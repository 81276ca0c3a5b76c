//! Watches that are read, and which claims each was told of.

use std::{
    io::BufRead as _,
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::claims::NAME_FIELD;
use crate::{
    client::Client,
    endpoint::Endpoint,
    watchers::{self, Spread},
};

/// How an event begins that tells of something new.
const ADDED: &[u8] = b"{\"type\":\"ADDED\",";

/// What is to be read.
#[derive(Clone)]
pub(super) struct Reading {
    pub(super) endpoint: Endpoint,
    /// The path of the watch.
    pub(super) path: String,
    /// Claims that there will be, numbered from 0.
    pub(super) n_claims: usize,
    /// How often a watcher was told of a claim so far, over all watchers.
    pub(super) n_seen: Arc<AtomicUsize>,
}

/// Watches under way.
pub(super) struct OpenReaders {
    tasks: JoinSet<Reader>,
    clients: Vec<Client>,
}

/// One watch.
pub(super) struct Reader {
    /// By a claim's number, whether it was told of it.
    seen: Vec<bool>,
    /// A line that has not ended yet: many events at once are more than a frame.
    begun_line: Vec<u8>,
    /// Whether the server ended it.
    pub(super) ended: bool,
}

impl Reading {
    pub(super) async fn open(
        &self,
        spread: Spread,
        stop: &CancellationToken,
    ) -> anyhow::Result<OpenReaders> {
        let (clients, bodies) = watchers::streams_of(&self.endpoint, &self.path, spread).await?;
        let mut tasks = JoinSet::new();
        for body in bodies {
            let mut reader = Reader::new(self.n_claims);
            let (n_seen, stop) = (self.n_seen.clone(), stop.clone());
            tasks.spawn(async move {
                let reads = reader.read(body, &n_seen);
                let ended = stop.run_until_cancelled(reads).await.is_some();
                Reader { ended, ..reader }
            });
        }
        Ok(OpenReaders { tasks, clients })
    }
}

impl OpenReaders {
    /// A connection that watches are on.
    pub(super) fn client(&self) -> Option<&Client> {
        self.clients.first()
    }

    /// All readers, once they are stopped or were ended.
    pub(super) async fn end(mut self) -> anyhow::Result<Vec<Reader>> {
        let mut readers = Vec::with_capacity(self.tasks.len());
        while let Some(reader) = self.tasks.join_next().await {
            readers.push(reader?);
        }
        Ok(readers)
    }
}

impl Reader {
    fn new(n_claims: usize) -> Self {
        Self {
            seen: vec![false; n_claims],
            begun_line: Vec::new(),
            ended: false,
        }
    }

    /// Of the claims that were made, how many it was not told of.
    pub(super) fn n_missing(&self, made: &[bool]) -> usize {
        let both = self.seen.iter().zip(made);
        both.filter(|(seen, made)| **made && !**seen).count()
    }

    /// Reads until the stream ends.
    async fn read(&mut self, mut body: Incoming, n_seen: &AtomicUsize) {
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(chunk) = frame.into_data() {
                n_seen.fetch_add(self.take(&chunk), Ordering::Relaxed);
            }
        }
    }

    /// How many claims this is the first to tell of.
    fn take(&mut self, mut chunk: &[u8]) -> usize {
        let mut n_new = 0;
        loop {
            let rest = chunk;
            // The library's own search for a byte: there are gigabytes to go through.
            let Ok(n_bytes @ 1..) = chunk.skip_until(b'\n') else {
                return n_new;
            };
            let line = &rest[..n_bytes];
            n_new += match (line.ends_with(b"\n"), self.begun_line.is_empty()) {
                (true, true) => self.note(line),
                (true, false) => {
                    let mut whole = mem::take(&mut self.begun_line);
                    whole.extend_from_slice(line);
                    self.note(&whole)
                }
                (false, _) => {
                    self.begun_line.extend_from_slice(line);
                    0
                }
            };
        }
    }

    /// Whether it is news of a claim: 1 or 0.
    fn note(&mut self, line: &[u8]) -> usize {
        let seen = claim_number(line).and_then(|number| self.seen.get_mut(number));
        let is_new = seen.is_some_and(|seen| !mem::replace(seen, true));
        usize::from(is_new)
    }
}

/// The number of the claim that the event says was made. The name is near the beginning of an object.
fn claim_number(line: &[u8]) -> Option<usize> {
    let object = line.strip_prefix(ADDED)?;
    let mut windows = object.windows(NAME_FIELD.len());
    let at = windows.position(|window| window == NAME_FIELD)?;
    let number = &object[at + NAME_FIELD.len()..];
    let n_digits = number.iter().take_while(|byte| byte.is_ascii_digit());
    let number = &number[..n_digits.count()];
    std::str::from_utf8(number).ok()?.parse().ok()
}
