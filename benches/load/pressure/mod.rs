//! Everything at once: whole lists over and over, watches that read, watches that stall, and claims by the clock.
//!
//! The load generator shares the two cores with the server, the nodes and kube-apiserver, so these are numbers of an overloaded
//! machine: what they show is whether the server stays fair, and not how fast it is. What must not delay each other in the
//! client has a thread and a runtime of its own: the lists, the watches, the connection that gets share with watches, the
//! claims, and the claims' clock. The kernel then lets a claim's answer in between the megabytes of a list, as it would with
//! clients on machines of their own; one runtime would count its own queue as the server's.

mod aside;
mod claims;
mod lists;
mod readers;
mod shared;
mod stalled;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use self::{
    aside::Aside,
    claims::Claims,
    lists::Lists,
    readers::{Reader, Reading},
    shared::Shared,
    stalled::Stalled,
};
use crate::{
    cluster::{Cluster, Name},
    latency::Latencies,
    options::Options,
    report::{Goal, Report, Row, Unit, megabytes},
    watchers::{self, Spread},
    watches,
};

const LIST_CLIENTS: usize = 16;
const STALLED_WATCHERS: usize = 20;
/// A watcher that was told of a claim only so long after the last one was not told.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// In milliseconds, of p99.
const CLAIM_WITHIN: Goal = Goal::AtMost(5.0);
const GET_WITHIN: Goal = Goal::AtMost(20.0);
const NONE: Goal = Goal::AtMost(0.0);

/// What is to be reported.
struct Outcome {
    claims: Claims,
    lists: Lists,
    readers: Vec<Reader>,
    on_shared: usize,
    gets: Latencies,
    n_stalled_cut: usize,
    peak_bytes: u64,
}

pub(crate) async fn measure(
    cluster: &Cluster,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    claims::warm_up(cluster).await?;
    eprintln!(
        "{} s of {LIST_CLIENTS} clients that list, {} watchers, {STALLED_WATCHERS} that stall, and {} claims a second",
        options.pressure_seconds,
        options.pressure_watchers,
        claims::PER_SECOND
    );
    press(cluster, options).await?.report(report);
    Ok(())
}

async fn press(cluster: &Cluster, options: &Options) -> anyhow::Result<Outcome> {
    let n_claims = claims::PER_SECOND * options.pressure_seconds;
    let n_watchers = options.pressure_watchers;
    let names: Vec<_> = cluster.names().await?.iter().map(Name::path).collect();
    let reading = Reading {
        endpoint: cluster.endpoint(),
        path: watches::path(cluster).await?,
        n_claims,
        n_seen: Arc::new(AtomicUsize::new(0)),
    };
    let stalled = Stalled::open(&reading.endpoint, &reading.path, STALLED_WATCHERS).await?;
    // As many watches share a connection with the gets as the server lets them. Those without gets go first: what begins here
    // runs until the claims are over, and only watches take a while to open.
    let on_shared = n_watchers.min(watchers::streams() - 1);
    let apart = begin_readers(reading.clone(), Spread::dense(n_watchers - on_shared)).await?;
    let claims_over = CancellationToken::new();
    let shared = begin_shared(reading.clone(), on_shared, names, claims_over.clone()).await?;
    let lists = begin_lists(cluster).await?;
    if let Err(error) = cluster.server.forget_peak() {
        eprintln!("the peak is that of the server's whole life: {error}");
    }
    let claims = claims::make(cluster, n_claims).await?;
    claims_over.cancel();
    let peak_bytes = cluster.server.memory()?.peak;
    let lists = lists.end().await?;
    wait_until_seen(&reading.n_seen, n_watchers * claims.n_made()).await;
    let Shared { mut readers, gets } = shared.end().await?;
    readers.extend(apart.end().await?);
    Ok(Outcome {
        claims,
        lists,
        readers,
        on_shared,
        gets,
        n_stalled_cut: stalled.n_cut().await?,
        peak_bytes,
    })
}

async fn begin_readers(reading: Reading, spread: Spread) -> anyhow::Result<Aside<Vec<Reader>>> {
    Aside::begin("readers", async move |mut signals| {
        let open = reading.open(spread, &signals.stop).await?;
        signals.is_open();
        open.end().await
    })
    .await
}

async fn begin_shared(
    reading: Reading,
    n_watchers: usize,
    names: Vec<String>,
    over: CancellationToken,
) -> anyhow::Result<Aside<Shared>> {
    Aside::begin("shared", async move |signals| {
        shared::read_and_get(reading, n_watchers, names, over, signals).await
    })
    .await
}

async fn begin_lists(cluster: &Cluster) -> anyhow::Result<Aside<Lists>> {
    let endpoint = cluster.endpoint();
    Aside::begin("lists", async move |signals| {
        lists::over_and_over(&endpoint, LIST_CLIENTS, signals).await
    })
    .await
}

/// Who has not seen everything by then is reported.
async fn wait_until_seen(n_seen: &AtomicUsize, all: usize) {
    let deadline = Instant::now() + TOLD_WITHIN;
    while n_seen.load(Ordering::Relaxed) < all && Instant::now() < deadline {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Outcome {
    fn report(&self, report: &mut Report) {
        let claims = &self.claims;
        let goals = [None, Some(CLAIM_WITHIN)];
        report.latencies("claim under pressure", &claims.latencies, goals, None);
        count(
            report,
            "claims that failed under pressure",
            claims.n_failed(),
        )
        .goal(NONE);
        report.row(
            "lists under pressure",
            self.lists.per_second(),
            Unit::PerSecond,
        );

        let what = format!(
            "get beside {} watches on its connection under pressure",
            self.on_shared
        );
        report.latencies(&what, &self.gets, [None, Some(GET_WITHIN)], None);

        let n_ended = self.readers.iter().filter(|reader| reader.ended).count();
        let missing = self
            .readers
            .iter()
            .map(|reader| reader.n_missing(&claims.made));
        let n_missing: usize = missing.sum();
        let n_told = self.readers.len() * claims.n_made() - n_missing;
        count(report, "watches that ended under pressure", n_ended).goal(NONE);
        count(report, "claims that watchers were told of", n_told);
        count(report, "claims that watchers were not told of", n_missing).goal(NONE);
        let what = format!("stalled watchers cut, of {STALLED_WATCHERS}");
        count(report, &what, self.n_stalled_cut);
        report.row(
            "memory under pressure, peak",
            megabytes(self.peak_bytes),
            Unit::Megabytes,
        );
    }
}

fn count<'a>(report: &'a mut Report, what: &str, number: usize) -> &'a mut Row {
    report.row(what, number as f64, Unit::Count)
}
