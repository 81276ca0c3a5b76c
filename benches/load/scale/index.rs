//! The full index: what it weighs, and what a look-up takes.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rand::Rng as _;
use sandbox_apiserver::inventory::Publication;
use serde::{Deserialize, Serialize};

use super::{follower::Follower, inventories::Inventories, measured};
use crate::{
    latency::Latencies,
    options::Options,
    report::{Goal, Report, Unit},
    usage::Usage,
};

/// Gets between two looks at the clock, which would otherwise be a good part of what is seen.
const BATCH: u32 = 1_000;
const N_BATCHES: usize = 1_000;

#[derive(Serialize, Deserialize)]
pub(super) struct Measured {
    /// More memory that is resident than before there was any sandbox.
    grown_bytes: u64,
    /// Batches of gets, by random names that are there.
    gets: Vec<Duration>,
}

pub(super) fn measure(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let measured: Measured = measured("index", options)?;
    let each = measured.grown_bytes as f64 / options.scale_sandboxes as f64;
    report
        .row("memory of the index, a sandbox", each, Unit::Bytes)
        .goal(Goal::AtMost(256.0));
    let batches: Latencies = measured.gets.into_iter().collect();
    let get = batches.percentile(50).as_secs_f64() * 1e6 / f64::from(BATCH);
    report
        .row("look-up of a random name, p50", get, Unit::Microseconds)
        .goal(Goal::AtMost(1.0));
    Ok(())
}

/// The sandboxes have no user part: a node does not publish it.
///
/// An inventory is made up, taken in and dropped before the next, as in the server, so that none is left when memory is read. But
/// the allocator keeps what was freed between what is in use, and what it keeps is counted: room for an inventory, a few MB, which
/// is there before as well, and for the log of the first list, which is forgotten at its end. By the log's limits that is ten to
/// twenty bytes too many a sandbox at a million of them; at a few thousand the number says nothing.
pub(super) async fn run(options: &Options) -> anyhow::Result<Measured> {
    let (inventories, follower) = (Inventories::new(options), Follower::start()?);
    // Room for one inventory is there before and after.
    for json in inventories.of_round(0).take(1) {
        Publication::decode(&json)?;
    }
    let before = Usage::own().memory()?.resident;
    for json in inventories.of_round(0) {
        follower.list(&json).await?;
    }
    follower.end_list(inventories.n_sandboxes()).await?;
    let grown = Usage::own().memory()?.resident.saturating_sub(before);
    let batches = (0..N_BATCHES).map(|_| get_batch(&follower, &inventories));
    Ok(Measured {
        grown_bytes: grown,
        gets: batches.collect::<anyhow::Result<_>>()?,
    })
}

fn get_batch(follower: &Follower, inventories: &Inventories) -> anyhow::Result<Duration> {
    let mut rng = rand::rng();
    let keys: Vec<_> = (0..BATCH)
        .map(|_| inventories.key(rng.random_range(0..inventories.n_sandboxes())))
        .collect();
    let store = follower.store();
    let is_there = |(namespace, name): &&(&str, String)| store.get(namespace, name).is_some();
    let begun = Instant::now();
    let found = keys.iter().filter(is_there).count();
    let elapsed = begun.elapsed();
    ensure!(found == keys.len(), "{found} of {} names", keys.len());
    Ok(elapsed)
}
