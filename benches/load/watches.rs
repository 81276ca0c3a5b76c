//! What watchers of everything cost the server, and how long a change takes to reach each of them.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::{
    claims::claim,
    cluster::{Cluster, Name, all},
    fan_out::{FanOut, Round},
    latency::Latencies,
    options::Options,
    report::{Goal, NO_GOALS, Report, Unit, megabytes},
    watchers::{Change, Spread, Watchers},
};

/// From a claim's answer to an event of it, at any watcher: p50 and p99.
const TOLD_WITHIN: [Option<Goal>; 2] = [Some(Goal::AtMost(1.0)), Some(Goal::AtMost(5.0))];
/// So many watchers may take so many megabytes. Of fewer, what the connections take is most.
const MANY: usize = 10_000;
const MEMORY_OF_MANY: f64 = 400.0;
/// What another watcher may cost beside the first one: a change is encoded once.
const ONE_MORE: Goal = Goal::AtMost(1.0 / 50.0);
/// Less cannot be told from the noise.
const LEAST_CPU: Duration = Duration::from_micros(1);

/// Opens watches of all namespaces, from now on.
pub(crate) async fn open(cluster: &Cluster, spread: Spread) -> anyhow::Result<Watchers> {
    eprintln!("{spread}");
    Watchers::open(&cluster.endpoint(), &path(cluster).await?, spread).await
}

/// The path of such a watch.
pub(crate) async fn path(cluster: &Cluster) -> anyhow::Result<String> {
    let page = cluster.client.get(&format!("{}?limit=1", all())).await?;
    let page: serde_json::Value = serde_json::from_slice(&page.body)?;
    let version = page["metadata"]["resourceVersion"].as_str();
    let version = version.context("a list without a version")?;
    Ok(format!("{}?watch=1&resourceVersion={version}", all()))
}

/// Measures, and leaves the watchers open.
pub(crate) async fn measure(
    cluster: &Cluster,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<Watchers> {
    let spread = Spread {
        watchers: options.watchers,
        connections: options.watch_connections.min(options.watchers),
    };
    let unwatched = cost(cluster, &Watchers::none(), "unwatched", options.changes).await?;
    let of_one = {
        let one = open(cluster, Spread::ONE).await?;
        cost(cluster, &one, "watched-by-one", options.changes).await?
    };
    let watchers = open_weighed(cluster, spread, report).await?;
    let of_all = cost(cluster, &watchers, "watched-by-all", options.changes).await?;
    Cost {
        unwatched,
        of_one,
        of_all,
    }
    .report(options.watchers, report);
    deliveries(cluster, &watchers, spread, options.changes, report).await?;
    Ok(watchers)
}

/// Opens the watches and reports what memory the server holds for them, once each has sent something.
async fn open_weighed(
    cluster: &Cluster,
    spread: Spread,
    report: &mut Report,
) -> anyhow::Result<Watchers> {
    let before = cluster.server.memory()?.resident;
    let watchers = open(cluster, spread).await?;
    change(cluster, &watchers, &Name::of_claim("weighed".to_owned())).await?;
    let held = cluster.server.memory()?.resident.saturating_sub(before);
    let n_watchers = spread.watchers;
    let what = format!("{n_watchers} watchers, memory");
    let row = report.row(&what, megabytes(held), Unit::Megabytes);
    if n_watchers >= MANY {
        row.goal(Goal::AtMost(
            MEMORY_OF_MANY * n_watchers as f64 / MANY as f64,
        ));
    }
    let each = megabytes(held) * 1e3 / n_watchers as f64;
    report.row(&format!("{what} of each"), each, Unit::Kilobytes);
    Ok(watchers)
}

/// The server's CPU time for a claim and its deletion, told to all watchers.
async fn cost(
    cluster: &Cluster,
    watchers: &Watchers,
    name: &str,
    n_changes: usize,
) -> anyhow::Result<Duration> {
    eprintln!("{n_changes} changes, {name}");
    let before = cluster.server.cpu()?;
    for turn in 0..n_changes {
        let name = Name::of_claim(format!("{name}-{turn}"));
        change(cluster, watchers, &name).await?;
    }
    let spent = cluster.server.cpu()? - before;
    Ok(spent / u32::try_from(n_changes)?)
}

/// A claim and its deletion, each seen by all before what follows, so that no event is delayed by those of another change.
async fn change(cluster: &Cluster, watchers: &Watchers, name: &Name) -> anyhow::Result<Round> {
    watchers.forget();
    let begun = Instant::now();
    claim(&cluster.client, name).await?;
    let answered = Instant::now();
    let arrivals = watchers.arrivals(Change::Added, name).await?;
    cluster.client.delete(&name.path()).await?;
    watchers.arrivals(Change::Deleted, name).await?;
    Ok(Round {
        begun,
        answered,
        arrivals,
    })
}

/// The server's CPU time for a change, by who watches.
struct Cost {
    unwatched: Duration,
    of_one: Duration,
    of_all: Duration,
}

impl Cost {
    fn report(&self, n_watchers: usize, report: &mut Report) {
        for (who, spent) in [
            ("nobody", self.unwatched),
            ("one watcher", self.of_one),
            ("all watchers", self.of_all),
        ] {
            let what = format!("claim and deletion told to {who}, CPU of the server");
            report.time(&what, spent);
        }
        let Some(n_more) = n_watchers.checked_sub(1).filter(|more| *more > 0) else {
            return;
        };
        let first = self.of_one.saturating_sub(self.unwatched).max(LEAST_CPU);
        let more = self.of_all.saturating_sub(self.of_one).as_secs_f64() / n_more as f64;
        let ratio = more / first.as_secs_f64();
        report
            .row("CPU of one more watcher", ratio, Unit::Times)
            .goal(ONE_MORE);
    }
}

/// Times events, in turns with a server that only sends them, so that whatever else the machine does hits both.
async fn deliveries(
    cluster: &Cluster,
    watchers: &Watchers,
    spread: Spread,
    n_changes: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let bare = ceiling(cluster, spread).await?;
    eprintln!("{n_changes} timed changes");
    let (mut served, mut sent) = (Deliveries::default(), Deliveries::default());
    for turn in 0..n_changes {
        let name = Name::of_claim(format!("watched-{turn}"));
        served.add(&change(cluster, watchers, &name).await?);
        sent.add(&bare.round().await?);
    }
    let what = format!("claim with {} watchers", spread.watchers);
    report.latencies(&what, &served.answers, NO_GOALS, None);
    for (what, goals, served, sent) in [
        (
            "claim to event, first watcher",
            NO_GOALS,
            &served.first,
            &sent.first,
        ),
        (
            "claim to event, last watcher",
            NO_GOALS,
            &served.last,
            &sent.last,
        ),
        (
            "claim's answer to event, every watcher",
            TOLD_WITHIN,
            &served.beside_answer,
            &sent.beside_answer,
        ),
    ] {
        report.latencies(what, served, goals, Some(sent));
    }
    Ok(())
}

/// The server that only sends, with an event of the real one.
async fn ceiling(cluster: &Cluster, spread: Spread) -> anyhow::Result<FanOut> {
    let watcher = open(cluster, Spread::ONE).await?;
    let name = Name::of_claim("watched".to_owned());
    claim(&cluster.client, &name).await?;
    let event = watcher.event(Change::Added, &name).await?;
    cluster.client.delete(&name.path()).await?;
    let event = event.context("nobody was told of a claim")?;
    FanOut::start(&event, name, spread).await
}

/// Times of many changes.
#[derive(Default)]
struct Deliveries {
    /// From the request to its answer.
    answers: Latencies,
    /// From the request to the event at the watcher that had it first, and at the one that had it last.
    first: Latencies,
    last: Latencies,
    /// From the answer to the event, at each watcher; nothing when the event came first.
    beside_answer: Latencies,
}

impl Deliveries {
    fn add(&mut self, round: &Round) {
        let Round {
            begun,
            answered,
            arrivals,
        } = round;
        self.answers.add(answered.duration_since(*begun));
        let first = arrivals.iter().min().map(|at| at.duration_since(*begun));
        let last = arrivals.iter().max().map(|at| at.duration_since(*begun));
        self.first.extend(first);
        self.last.extend(last);
        let beside = arrivals
            .iter()
            .map(|at| at.saturating_duration_since(*answered));
        self.beside_answer.extend(beside);
    }
}
