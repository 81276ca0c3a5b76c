//! Watches that are read, and who was told what when.

use std::{
    fmt, mem,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use sandbox_apiserver::serving::ServeOptions;
use tokio::task::JoinSet;

use crate::{client::Client, cluster::Name, endpoint::Endpoint};

/// An event that takes longer is lost.
const EVENT_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at how much is there. A look counts, and reads nothing.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How many watchers, over how many connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) watchers: usize,
    pub(crate) connections: usize,
}

/// What a watcher can be told of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Added,
    Deleted,
}

/// Open watches. They end when this is dropped.
pub(crate) struct Watchers {
    n_watchers: usize,
    received: Received,
    _tasks: JoinSet<()>,
    _clients: Vec<Client>,
}

/// What the watchers received since somebody looked. Nothing is read while the time runs: that would delay the next watcher.
type Received = Arc<Mutex<Vec<Piece>>>;

/// Part of a stream. A change by itself comes whole: it is smaller than a frame.
struct Piece {
    at: Instant,
    bytes: Bytes,
}

impl Spread {
    pub(crate) const ONE: Self = Self {
        watchers: 1,
        connections: 1,
    };

    /// As few connections as the server lets so many watchers be on.
    pub(crate) fn dense(watchers: usize) -> Self {
        Self {
            watchers,
            connections: watchers.div_ceil(streams()),
        }
    }

    fn ensure_possible(self) -> anyhow::Result<()> {
        let most = self.connections * streams();
        ensure!(
            self.watchers <= most,
            "{self} are too many: the server allows {} streams on each",
            streams()
        );
        Ok(())
    }
}

impl Watchers {
    /// Nobody, whom a change reaches at once.
    pub(crate) fn none() -> Self {
        Self {
            n_watchers: 0,
            received: Received::default(),
            _tasks: JoinSet::new(),
            _clients: Vec::new(),
        }
    }

    /// Opens the same watch for each, on one connection after the other.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        path: &str,
        spread: Spread,
    ) -> anyhow::Result<Self> {
        let (received, mut tasks) = (Received::default(), JoinSet::new());
        let (clients, bodies) = streams_of(endpoint, path, spread).await?;
        for body in bodies {
            tasks.spawn(receive(body, received.clone()));
        }
        Ok(Self {
            n_watchers: spread.watchers,
            received,
            _tasks: tasks,
            _clients: clients,
        })
    }

    /// Drops what was received so far, which the next change would be looked for in.
    pub(crate) fn forget(&self) {
        self.received.lock().clear();
    }

    /// How long after `begun` each watcher was told of the new sandbox.
    pub(crate) async fn all_have(
        &self,
        name: &Name,
        begun: Instant,
    ) -> anyhow::Result<Vec<Duration>> {
        let arrivals = self.arrivals(Change::Added, name).await?;
        let arrivals = arrivals.into_iter().map(|at| at.duration_since(begun));
        Ok(arrivals.collect())
    }

    /// When each watcher was told of the change.
    pub(crate) async fn arrivals(
        &self,
        change: Change,
        name: &Name,
    ) -> anyhow::Result<Vec<Instant>> {
        let told = self.told(change, name).await?;
        Ok(told.into_iter().map(|piece| piece.at).collect())
    }

    /// What the first watcher was told of the change.
    pub(crate) async fn event(&self, change: Change, name: &Name) -> anyhow::Result<Option<Bytes>> {
        let told = self.told(change, name).await?;
        Ok(told.into_iter().next().map(|piece| piece.bytes))
    }

    /// The pieces that tell of the change, one for each watcher.
    async fn told(&self, change: Change, name: &Name) -> anyhow::Result<Vec<Piece>> {
        let (kind, field) = (
            format!("{{\"type\":\"{change}\","),
            format!("\"name\":\"{}\"", name.name),
        );
        let deadline = Instant::now() + EVENT_WITHIN;
        let mut told = Vec::with_capacity(self.n_watchers);
        loop {
            // Once at least, so that changes that nobody watches follow each other as slowly as others do.
            tokio::time::sleep(LOOK_EVERY).await;
            let pieces = self.take(self.n_watchers - told.len());
            told.extend(
                pieces
                    .into_iter()
                    .filter(|piece| tells(&piece.bytes, &kind, &field)),
            );
            if told.len() >= self.n_watchers {
                return Ok(told);
            }
            ensure!(
                Instant::now() < deadline,
                "{} of {} watchers were told that {} was {change}",
                told.len(),
                self.n_watchers,
                name.name
            );
        }
    }

    /// All that is there, as soon as it can be what `n_missing` watchers are to be told.
    fn take(&self, n_missing: usize) -> Vec<Piece> {
        let mut received = self.received.lock();
        if received.len() < n_missing {
            return Vec::new();
        }
        mem::replace(&mut *received, Vec::with_capacity(self.n_watchers))
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            watchers,
            connections,
        } = self;
        write!(f, "{watchers} watchers on {connections} connections")
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "ADDED",
            Self::Deleted => "DELETED",
        })
    }
}

/// Streams that the server allows on a connection.
pub(crate) fn streams() -> usize {
    ServeOptions::default().max_concurrent_streams as usize
}

/// The same stream, as often as there are watchers, and the connections that they are on.
pub(crate) async fn streams_of(
    endpoint: &Endpoint,
    path: &str,
    spread: Spread,
) -> anyhow::Result<(Vec<Client>, Vec<Incoming>)> {
    spread.ensure_possible()?;
    let mut clients = Vec::with_capacity(spread.connections);
    for _ in 0..spread.connections {
        clients.push(endpoint.connect().await?);
    }
    let mut bodies = Vec::with_capacity(spread.watchers);
    for client in clients.iter().cycle().take(spread.watchers) {
        bodies.push(client.stream(path).await?);
    }
    Ok((clients, bodies))
}

async fn receive(mut body: Incoming, received: Received) {
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(bytes) = frame.into_data() {
            let at = Instant::now();
            received.lock().push(Piece { at, bytes });
        }
    }
}

/// Whether a line begins as an event of this kind does and has the field.
fn tells(piece: &[u8], kind: &str, field: &str) -> bool {
    let mut lines = piece.split(|byte| *byte == b'\n');
    lines.any(|line| {
        let mut windows = line.windows(field.len());
        line.starts_with(kind.as_bytes()) && windows.any(|window| window == field.as_bytes())
    })
}
