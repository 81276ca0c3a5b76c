//! The server while nobody asks: watchers are open and nodes publish.

use std::time::{Duration, Instant};

use crate::{
    cluster::Cluster,
    options::Options,
    report::{Goal, Report, Unit},
};

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
