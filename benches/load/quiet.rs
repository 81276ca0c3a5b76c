//! The server while nobody asks: watchers are open and nodes publish. And the machine, before anybody asks.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use crate::{
    cluster::Cluster,
    options::Options,
    report::{Goal, Report, Unit},
};

/// The share of the machine's time that is idle when it is quiet: what publishes by the clock goes on.
const QUIET: f64 = 0.85;
const LOOK_EVERY: Duration = Duration::from_secs(1);
const QUIET_WITHIN: Duration = Duration::from_secs(60);

pub(crate) async fn measure(
    cluster: &Cluster,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    eprintln!("{} s of rest", options.idle_seconds);
    let what = format!("at rest with {} watchers", options.watchers);
    let (begun, before) = (Instant::now(), cluster.server.cpu()?);
    tokio::time::sleep(Duration::from_secs(options.idle_seconds)).await;
    let spent = cluster.server.cpu()? - before;
    let share = 100.0 * spent.as_secs_f64() / begun.elapsed().as_secs_f64();
    report
        .row(&format!("{what}, CPU of one core"), share, Unit::Percent)
        .goal(Goal::AtMost(2.0));
    report.memory(
        &format!("{what}, memory"),
        cluster.server.memory()?,
        Some(Goal::AtMost(120.0)),
    );
    Ok(())
}

/// Waits until the others are done with what the part before left them: the garbage collector goes through each object that went.
/// A machine that never is quiet is said to be so on stderr.
pub(crate) async fn wait() -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let before = Ticks::read()?;
        tokio::time::sleep(LOOK_EVERY).await;
        let idle = Ticks::read()?.idle_since(&before);
        if idle >= QUIET {
            return Ok(());
        }
        if begun.elapsed() > QUIET_WITHIN {
            eprintln!("the machine is busy: {:.0} % of it idle", 100.0 * idle);
            return Ok(());
        }
    }
}

/// Ticks of all CPUs since the machine started.
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    fn read() -> anyhow::Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        // `cpu user nice system idle iowait irq softirq steal`, in proc_stat(5); what follows is in `user` as well.
        let line = stat.lines().next().unwrap_or_default();
        let ticks = line.split_whitespace().skip(1).take(8).map(str::parse);
        let ticks: Vec<u64> = ticks.collect::<Result<_, _>>()?;
        let idle = ticks.get(3..5).context("no idle time in /proc/stat")?;
        Ok(Self {
            idle: idle.iter().sum(),
            all: ticks.iter().sum(),
        })
    }

    fn idle_since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.idle.saturating_sub(before.idle) as f64 / all as f64
    }
}
