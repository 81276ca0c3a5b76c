//! Claims that begin by the clock, whether or not those before them are answered.

use std::{
    thread,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    claims::claim,
    client::Client,
    cluster::{Cluster, Name},
    latency::Latencies,
};

pub(super) const PER_SECOND: usize = 200;
const PERIOD: Duration = Duration::from_micros(1_000_000 / PER_SECOND as u64);
/// Connections that they are spread over.
const CONNECTIONS: usize = 4;
/// How the name of a claim begins in an event; its number follows.
pub(super) const NAME_FIELD: &[u8] = b"\"name\":\"pressed-";

/// What came of them.
pub(super) struct Claims {
    /// From the time that each was due, so that what a late one makes wait is counted as well.
    pub(super) latencies: Latencies,
    /// By its number, whether it was made, and deleted.
    pub(super) made: Vec<bool>,
}

impl Claims {
    pub(super) fn n_made(&self) -> usize {
        self.made.iter().filter(|made| **made).count()
    }

    pub(super) fn n_failed(&self) -> usize {
        self.made.len() - self.n_made()
    }
}

/// A first claim on a node costs a connection to it, and a first one of the user reviews.
pub(super) async fn warm_up(cluster: &Cluster) -> anyhow::Result<()> {
    for turn in 0..cluster.nodes.len() {
        let name = Name::of_claim(format!("warm-up-under-pressure-{turn}"));
        claim(&cluster.client, &name).await?;
        cluster.client.delete(&name.path()).await?;
    }
    Ok(())
}

/// Makes claims and deletes each as soon as it is there.
pub(super) async fn make(cluster: &Cluster, n_claims: usize) -> anyhow::Result<Claims> {
    let mut clients = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        clients.push(cluster.connect().await?);
    }
    let (mut due_rx, mut tasks) = (clock(n_claims), JoinSet::new());
    while let Some((number, due)) = due_rx.recv().await {
        let client = clients[number % CONNECTIONS].clone();
        tasks.spawn(async move { (number, make_and_delete(&client, number, due).await) });
    }
    let (mut latencies, mut made) = (Latencies::default(), vec![false; n_claims]);
    while let Some(ended) = tasks.join_next().await {
        match ended? {
            (number, Ok(latency)) => {
                latencies.add(latency);
                made[number] = true;
            }
            (_, Err(error)) => eprintln!("{error:#}"),
        }
    }
    Ok(Claims { latencies, made })
}

/// Numbers, each when its time has come and with that time. On a thread of its own, and by a finer clock than the runtime's,
/// which ticks in milliseconds.
fn clock(n_claims: usize) -> mpsc::UnboundedReceiver<(usize, Instant)> {
    let (due_tx, due_rx) = mpsc::unbounded_channel();
    thread::spawn(move || {
        let mut due = Instant::now();
        for number in 0..n_claims {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if due_tx.send((number, due)).is_err() {
                return;
            }
            due += PERIOD;
        }
    });
    due_rx
}

/// How long after its time the claim was answered.
async fn make_and_delete(client: &Client, number: usize, due: Instant) -> anyhow::Result<Duration> {
    let name = Name::of_claim(format!("pressed-{number}"));
    claim(client, &name).await?;
    let latency = due.elapsed();
    client.delete(&name.path()).await?;
    Ok(latency)
}
