//! Clients that read whole lists and keep nothing of them.

use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::aside::Signals;
use crate::{client::Client, cluster::all, endpoint::Endpoint};

/// Lists that were read to their ends.
pub(super) struct Lists {
    n_lists: usize,
    elapsed: Duration,
}

impl Lists {
    pub(super) fn per_second(&self) -> f64 {
        self.n_lists as f64 / self.elapsed.as_secs_f64()
    }
}

/// Lists with so many clients, each on a connection of its own, until it is to stop.
pub(super) async fn over_and_over(
    endpoint: &Endpoint,
    n_clients: usize,
    mut signals: Signals,
) -> anyhow::Result<Lists> {
    let mut clients = Vec::with_capacity(n_clients);
    for _ in 0..n_clients {
        clients.push(endpoint.connect().await?);
    }
    signals.is_open();
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for client in clients {
        tasks.spawn(list_until(client, signals.stop.clone()));
    }
    let mut n_lists = 0;
    while let Some(read) = tasks.join_next().await {
        n_lists += read??;
    }
    Ok(Lists {
        n_lists,
        elapsed: begun.elapsed(),
    })
}

/// How many lists were read before `stop`.
async fn list_until(client: Client, stop: CancellationToken) -> anyhow::Result<usize> {
    let mut n_lists = 0;
    while let Some(read) = stop.run_until_cancelled(list(&client)).await {
        read?;
        n_lists += 1;
    }
    Ok(n_lists)
}

async fn list(client: &Client) -> anyhow::Result<()> {
    let mut body = client.stream(&all()).await?;
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(())
}
