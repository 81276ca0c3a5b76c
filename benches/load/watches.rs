//! Watchers of everything, and how long a change takes to reach them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::{
    claims::claim,
    cluster::{Cluster, Name, all},
    latency::Latencies,
    options::Options,
    report::{NO_GOALS, Report},
};

/// An event that takes longer is lost.
const EVENT_WITHIN: Duration = Duration::from_secs(10);

/// What the watchers received, and when. Nothing is read while the time runs: that would delay the next watcher.
type Received = Arc<Mutex<Vec<(Instant, Bytes)>>>;

/// Open watches. They end when this is dropped.
pub(crate) struct Watchers {
    n_watchers: usize,
    received: Received,
    _tasks: JoinSet<()>,
}

/// Opens `n_watchers` watches of all namespaces, from now on.
pub(crate) async fn open(cluster: &Cluster, n_watchers: usize) -> anyhow::Result<Watchers> {
    eprintln!("{n_watchers} watchers");
    let (received, mut tasks) = (Received::default(), JoinSet::new());
    let version = version(cluster).await?;
    for _ in 0..n_watchers {
        let client = cluster.connect().await?;
        let path = format!("{}?watch=1&resourceVersion={version}", all());
        let body = client.stream(&path).await?;
        let received = received.clone();
        tasks.spawn(async move {
            receive(body, &received).await;
            drop(client);
        });
    }
    Ok(Watchers {
        n_watchers,
        received,
        _tasks: tasks,
    })
}

/// Times changes from the request to the event, at every watcher.
pub(crate) async fn measure(
    cluster: &Cluster,
    watchers: &Watchers,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    eprintln!("{} changes", options.changes);
    let (mut answers, mut first, mut last) = (
        Latencies::default(),
        Latencies::default(),
        Latencies::default(),
    );
    for turn in 0..options.changes {
        let name = Name::of_claim(format!("watched-{turn}"));
        watchers.forget();
        let begun = Instant::now();
        answers.add(claim(&cluster.client, &name).await?.latency);
        let mut arrivals = watchers.all_have(&name, begun).await?;
        arrivals.sort_unstable();
        first.add(arrivals[0]);
        last.add(arrivals[arrivals.len() - 1]);
        cluster.client.delete(&name.path()).await?;
    }
    let n_watchers = watchers.n_watchers;
    report.latencies(
        &format!("claim with {n_watchers} watchers"),
        &answers,
        NO_GOALS,
        None,
    );
    report.latencies("claim to event, first watcher", &first, NO_GOALS, None);
    report.latencies("claim to event, last watcher", &last, NO_GOALS, None);
    Ok(())
}

impl Watchers {
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
        let field = format!("\"name\":\"{}\"", name.name);
        let deadline = begun + EVENT_WITHIN;
        loop {
            let arrivals: Vec<_> = {
                let received = self.received.lock();
                let of_name = received.iter().filter(|(_, chunk)| tells_of(chunk, &field));
                of_name.map(|(at, _)| at.duration_since(begun)).collect()
            };
            if arrivals.len() >= self.n_watchers {
                return Ok(arrivals);
            }
            ensure!(
                Instant::now() < deadline,
                "{} of {} watchers saw {}",
                arrivals.len(),
                self.n_watchers,
                name.name
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn receive(mut body: Incoming, received: &Received) {
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(chunk) = frame.into_data() {
            received.lock().push((Instant::now(), chunk));
        }
    }
}

fn tells_of(chunk: &[u8], field: &str) -> bool {
    let added = chunk
        .windows(16)
        .any(|window| window == b"{\"type\":\"ADDED\",");
    added
        && chunk
            .windows(field.len())
            .any(|window| window == field.as_bytes())
}

/// The newest version.
async fn version(cluster: &Cluster) -> anyhow::Result<String> {
    let page = cluster.client.get(&format!("{}?limit=1", all())).await?;
    let page: serde_json::Value = serde_json::from_slice(&page.body)?;
    let version = page["metadata"]["resourceVersion"].as_str();
    Ok(version.context("a list without a version")?.to_owned())
}
