//! Claims and deletions, through the server and past it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    client::{Answer, Client},
    cluster::{Cluster, Name},
    direct::Daemon,
    latency::Latencies,
    options::Options,
    report::{Goal, NO_GOALS, Report, Unit, milliseconds},
    stage::{TEMPLATE, sandbox},
};

/// Connections that claims under way at once are spread over.
const CONNECTIONS: usize = 4;

pub(crate) async fn measure(
    cluster: &Cluster,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut daemons = Vec::with_capacity(cluster.nodes.len());
    for address in &cluster.nodes {
        daemons.push(Daemon::connect(address).await?);
    }
    one_by_one(cluster, &mut daemons, options.claims, report).await?;
    at_once(cluster, daemons, options, report).await
}

/// Claims under a name.
pub(crate) async fn claim(client: &Client, name: &Name) -> anyhow::Result<Answer> {
    let sandbox = sandbox(&name.name, TEMPLATE).to_string();
    client.post(&name.collection(), sandbox.into()).await
}

async fn one_by_one(
    cluster: &Cluster,
    daemons: &mut [Daemon],
    n_claims: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    eprintln!("{n_claims} claims");
    let names: Vec<_> = (0..n_claims)
        .map(|turn| Name::of_claim(format!("one-{turn}")))
        .collect();
    warm_up(cluster, daemons).await?;
    let [mut served, mut direct, mut gets] = [(); 3].map(|()| Latencies::default());
    let (mut spent, n_daemons) = (Duration::ZERO, daemons.len());
    for (turn, name) in names.iter().enumerate() {
        let before = cluster.server.cpu()?;
        served.add(claim(&cluster.client, name).await?.latency);
        spent += cluster.server.cpu()? - before;
        gets.add(cluster.client.get(&name.path()).await?.latency);
        let daemon = &mut daemons[turn % n_daemons];
        let claimed = daemon.claim().await?;
        direct.add(claimed.latency);
        daemon.release(&claimed.id).await?;
    }
    report.latencies("claim", &served, NO_GOALS, Some(&direct));
    report.latencies("get of what was claimed", &gets, NO_GOALS, None);
    for (percent, goal) in [(50, 0.06), (99, 0.25)] {
        let [served, direct, get] = [&served, &direct, &gets].map(|it| it.percentile(percent));
        let what = format!("claim beside the node's own time and a get, p{percent}");
        report
            .time(&what, served.saturating_sub(direct + get))
            .goal(Goal::AtMost(goal));
    }
    report.time("claim, CPU of the server", spent / u32::try_from(n_claims)?);

    let mut deleted = Latencies::default();
    for name in &names {
        deleted.add(cluster.client.delete(&name.path()).await?.latency);
    }
    report.latencies("delete", &deleted, NO_GOALS, None);
    Ok(())
}

/// A first claim of the user costs reviews by kube-apiserver, and a first claim on a node a connection to it.
async fn warm_up(cluster: &Cluster, daemons: &mut [Daemon]) -> anyhow::Result<()> {
    for (turn, daemon) in daemons.iter_mut().enumerate() {
        let name = Name::of_claim(format!("warm-up-{turn}"));
        claim(&cluster.client, &name).await?;
        cluster.client.delete(&name.path()).await?;
        let claimed = daemon.claim().await?;
        daemon.release(&claimed.id).await?;
    }
    Ok(())
}

async fn at_once(
    cluster: &Cluster,
    daemons: Vec<Daemon>,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let in_flight = options.in_flight;
    eprintln!("{} claims, {in_flight} at once", options.burst);
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(cluster.connect().await?);
    }
    let turns = Turns::up_to(options.burst);
    let workers = (0..in_flight).map(|worker| {
        let client = clients[worker % CONNECTIONS].clone();
        tokio::spawn(claim_in_turn(client, turns.clone()))
    });
    let before = cluster.server.cpu()?;
    let (elapsed, served) = finish(workers).await?;
    let spent = cluster.server.cpu()? - before;

    let turns = Turns::up_to(options.burst);
    let mut shares: Vec<_> = std::iter::repeat_with(Vec::new).take(in_flight).collect();
    for (turn, daemon) in daemons.into_iter().enumerate() {
        shares[turn % in_flight].push(daemon);
    }
    let workers = shares.into_iter().filter(|share| !share.is_empty());
    let workers = workers.map(|share| tokio::spawn(claim_directly_in_turn(share, turns.clone())));
    let (direct_elapsed, direct) = finish(workers).await?;

    let what = format!("claim, {in_flight} at once");
    report.latencies(&what, &served, NO_GOALS, Some(&direct));
    report
        .row(
            &format!("{what}, rate"),
            rate(options.burst, elapsed),
            Unit::PerSecond,
        )
        .goal(Goal::AtLeast(5_000.0))
        .ceiling(rate(options.burst, direct_elapsed));
    let spent = milliseconds(spent) / options.burst as f64;
    report.row(
        &format!("{what}, CPU of the server"),
        spent,
        Unit::Milliseconds,
    );
    for turn in 0..options.burst {
        cluster.client.delete(&burst_name(turn).path()).await?;
    }
    Ok(())
}

/// Numbers that the workers draw from.
#[derive(Clone)]
struct Turns {
    next: Arc<AtomicUsize>,
    end: usize,
}

impl Turns {
    fn up_to(end: usize) -> Self {
        Self {
            next: Arc::default(),
            end,
        }
    }

    fn draw(&self) -> Option<usize> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        (turn < self.end).then_some(turn)
    }
}

async fn claim_in_turn(client: Client, turns: Turns) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    while let Some(turn) = turns.draw() {
        latencies.push(claim(&client, &burst_name(turn)).await?.latency);
    }
    Ok(latencies)
}

async fn claim_directly_in_turn(
    mut daemons: Vec<Daemon>,
    turns: Turns,
) -> anyhow::Result<Vec<Duration>> {
    let mut claimed = Vec::new();
    let n_daemons = daemons.len();
    while turns.draw().is_some() {
        let daemon = claimed.len() % n_daemons;
        claimed.push(daemons[daemon].claim().await?);
    }
    for (turn, claim) in claimed.iter().enumerate() {
        daemons[turn % n_daemons].release(&claim.id).await?;
    }
    Ok(claimed.into_iter().map(|claim| claim.latency).collect())
}

type Worker = tokio::task::JoinHandle<anyhow::Result<Vec<Duration>>>;

async fn finish(workers: impl Iterator<Item = Worker>) -> anyhow::Result<(Duration, Latencies)> {
    let begun = Instant::now();
    let workers: Vec<_> = workers.collect();
    let mut latencies = Latencies::default();
    for worker in workers {
        latencies.extend(worker.await??);
    }
    Ok((begun.elapsed(), latencies))
}

fn burst_name(turn: usize) -> Name {
    Name::of_claim(format!("burst-{turn}"))
}

fn rate(n_claims: usize, elapsed: Duration) -> f64 {
    n_claims as f64 / elapsed.as_secs_f64()
}
