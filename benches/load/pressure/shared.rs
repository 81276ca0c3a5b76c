//! Gets on a connection that watches are on, as kube-apiserver sends those of all users.

use std::time::Duration;

use anyhow::Context as _;
use rand::seq::IndexedRandom as _;
use tokio_util::sync::CancellationToken;

use super::{
    aside::Signals,
    readers::{Reader, Reading},
};
use crate::{client::Client, latency::Latencies, watchers::Spread};

/// Between an answer and the next get: somebody who waits for answers, and no load.
const PAUSE: Duration = Duration::from_millis(5);

/// What came of it.
pub(super) struct Shared {
    pub(super) readers: Vec<Reader>,
    pub(super) gets: Latencies,
}

/// Gets one of the paths after the other until it is `over`, and reads the watches until it is to stop.
///
/// An answer waits in the client for events that came before it on the connection, as it would in kube-apiserver.
pub(super) async fn read_and_get(
    reading: Reading,
    n_watchers: usize,
    paths: Vec<String>,
    over: CancellationToken,
    mut signals: Signals,
) -> anyhow::Result<Shared> {
    let spread = Spread {
        watchers: n_watchers,
        connections: 1,
    };
    let open = reading.open(spread, &signals.stop).await?;
    let client = open.client().context("a connection was opened")?.clone();
    signals.is_open();
    let gets = get_until(&client, &paths, &over).await?;
    Ok(Shared {
        readers: open.end().await?,
        gets,
    })
}

async fn get_until(
    client: &Client,
    paths: &[String],
    over: &CancellationToken,
) -> anyhow::Result<Latencies> {
    let mut gets = Latencies::default();
    while !over.is_cancelled() {
        let path = paths.choose(&mut rand::rng());
        let path = path.context("there are no sandboxes")?;
        gets.add(client.get(path).await?.latency);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(gets)
}
