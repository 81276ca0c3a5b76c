//! Inventories on their way into the index: all of them at the start, and all of them again when a little has changed.

use std::time::{Duration, Instant};

use anyhow::ensure;
use sandbox_apiserver::{
    api::NodeInventory,
    fleet::{Phase, Sandbox},
    meta::ResourceVersion,
    store::Event,
};
use serde::{Deserialize, Serialize};

use super::{follower::Follower, inventories::Inventories, measured};
use crate::{
    latency::Latencies,
    options::Options,
    report::{Goal, Report, Unit, milliseconds},
    usage::Usage,
};

/// How often every node publishes again. The two that are compared take turns.
const N_ROUNDS: usize = 3;

#[derive(Serialize, Deserialize)]
pub(super) struct Measured {
    /// From nothing until the server is ready.
    ready: Duration,
    rounds: Vec<Round>,
}

/// CPU time for the inventories of one round.
#[derive(Serialize, Deserialize)]
struct Round {
    taken_in: Duration,
    /// The same bytes read into the object's type by serde alone, and dropped.
    parsed: Duration,
}

pub(super) fn measure(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let Measured { ready, rounds } = measured("intake", options)?;
    report
        .time("start to ready, inventories in memory", ready)
        .goal(Goal::AtMost(3_000.0));
    let p50 = |of: fn(&Round) -> Duration| {
        let latencies: Latencies = rounds.iter().map(of).collect();
        milliseconds(latencies.percentile(50))
    };
    let (taken_in, parsed) = (p50(|round| round.taken_in), p50(|round| round.parsed));
    report
        .row("churn of 1 %, CPU", taken_in, Unit::Milliseconds)
        .ceiling(parsed);
    let ratio = taken_in / parsed;
    report
        .row("churn of 1 %, CPU beside a bare parse", ratio, Unit::Times)
        .goal(Goal::AtMost(1.5));
    Ok(())
}

pub(super) async fn run(options: &Options) -> anyhow::Result<Measured> {
    let inventories = Inventories::new(options);
    let listed: Vec<_> = inventories.of_round(0).collect();
    let begun = Instant::now();
    let follower = Follower::start()?;
    for json in &listed {
        follower.list(json).await?;
    }
    follower.end_list(inventories.n_sandboxes()).await?;
    let ready = begun.elapsed();
    drop(listed);
    let mut rounds = Vec::with_capacity(N_ROUNDS);
    for number in 1..=N_ROUNDS {
        rounds.push(round(&follower, &inventories, number).await?);
    }
    Ok(Measured { ready, rounds })
}

/// The kernel may count the last milliseconds late, of some seconds.
async fn round(
    follower: &Follower,
    inventories: &Inventories,
    number: usize,
) -> anyhow::Result<Round> {
    let published: Vec<_> = inventories.of_round(number).collect();
    let (usage, head) = (Usage::own(), follower.store().head());
    let begun = usage.cpu()?;
    for json in &published {
        follower.apply(json).await?;
    }
    let taken_in = usage.cpu()?;
    for json in &published {
        let inventory: NodeInventory = serde_json::from_slice(json)?;
        std::hint::black_box(inventory);
    }
    let parsed = usage.cpu()?;
    only_changes_are_events(follower, inventories, head, number)?;
    Ok(Round {
        taken_in: taken_in - begun,
        parsed: parsed - taken_in,
    })
}

/// Each sandbox that changed is one event since `head`, and there is no other.
fn only_changes_are_events(
    follower: &Follower,
    inventories: &Inventories,
    head: ResourceVersion,
    round: usize,
) -> anyhow::Result<()> {
    let events = follower.store().changes_after(head, usize::MAX)?;
    // None can be there twice: who is paused does not come to be so again.
    let is_change = |event: &Event<Sandbox>| {
        let phases = [event.before(), event.after()].map(|it| it.map(|stored| stored.value.phase));
        phases == [Some(Phase::Running), Some(Phase::Paused)]
            && inventories.is_changed(&event.object().value.name, round)
    };
    let changes = events.iter().filter(|event| is_change(event)).count();
    let (n_events, n_changed) = (events.len(), inventories.n_changed(round));
    ensure!(
        changes == n_changed && n_events == n_changed,
        "round {round}: {n_changed} sandboxes changed; of {n_events} events {changes} say so"
    );
    Ok(())
}
