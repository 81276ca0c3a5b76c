//! The server under load, beside a real control plane: what a client waits, what the server spends, and what the same
//! machine gives a server that does nothing but send bytes.
//!
//! `hack/bench` runs it. Everything is a process of its own, as in production: etcd, kube-apiserver, the simulated nodes, the
//! server, the ceiling; this process is the client. All share the machine, so a number of a busy machine is a bad number:
//! compare with the ceiling, which was measured in the same run by the same client.

mod aggregated;
mod awake;
mod bare;
mod ceiling;
mod claims;
mod client;
mod cluster;
mod compare;
mod direct;
mod endpoint;
mod fan_out;
mod gateway;
mod latency;
mod options;
mod plot;
mod pressure;
mod quiet;
mod reads;
mod relay;
mod report;
mod scale;
mod usage;
mod watchers;
mod watches;

#[allow(dead_code, reason = "shared with tests/cluster, which uses all of it")]
#[path = "../../tests/cluster/api_service.rs"]
mod api_service;
#[allow(dead_code, reason = "as above")]
#[path = "../../tests/cluster/caller.rs"]
mod caller;
#[allow(dead_code, reason = "as above")]
#[path = "../../tests/cluster/components.rs"]
mod components;
#[allow(dead_code, reason = "as above")]
#[path = "../../tests/cluster/control_plane.rs"]
mod control_plane;
#[allow(dead_code, reason = "as above")]
#[path = "../../tests/cluster/etcd.rs"]
mod etcd;
#[path = "../../tests/it/gateway_client.rs"]
mod gateway_client;
#[allow(dead_code, reason = "as above")]
#[path = "../../tests/cluster/kubectl.rs"]
mod kubectl;
#[allow(dead_code, reason = "as above")]
#[path = "../../tests/cluster/nodes.rs"]
mod nodes;
#[allow(dead_code, reason = "as above")]
#[path = "../../tests/cluster/pki.rs"]
mod pki;
#[allow(dead_code, reason = "as above")]
#[path = "../../tests/cluster/process.rs"]
mod process;
#[allow(dead_code, reason = "as above")]
#[path = "../../tests/cluster/stage.rs"]
mod stage;
#[path = "../../tests/it/tls_client.rs"]
mod tls_client;
#[allow(dead_code, reason = "as above")]
#[path = "../../tests/cluster/users.rs"]
mod users;

use clap::Parser as _;

use crate::{
    cluster::Cluster,
    options::{Options, Part},
    report::Report,
};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if let Some(directory) = &options.ceiling {
        return ceiling::serve(directory);
    }
    if let Some(directory) = &options.relay {
        return relay::serve(directory);
    }
    if let Some(trial) = options.trial {
        return trial.run(&options);
    }
    if let Some(directory) = &options.fan_out {
        return fan_out::serve(directory);
    }
    if let Some(directory) = &options.compare {
        return compare::print(directory);
    }
    if let Some(directory) = &options.plot {
        return plot::draw(directory);
    }
    // One thread: a request and the answer to it never wait for another core to wake up.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(measure(options))
}

async fn measure(options: Options) -> anyhow::Result<()> {
    let mut report = Report::new();
    // First, while nothing else runs that could be in its way.
    if options.runs(Part::Scale) {
        quiet::wait().await?;
        scale::measure(&options, &mut report)?;
    }
    if options.parts.iter().all(|part| *part == Part::Scale) {
        return finish(&report, &options);
    }
    let mut cluster = Cluster::start(&options).await?;
    report.memory("memory, before the load", cluster.server.memory()?, None);
    if options.runs(Part::Reads) {
        quiet::wait().await?;
        let samples = reads::Samples::take(&cluster).await?;
        let ceiling = ceiling::start(&samples).await?;
        reads::measure(&cluster, &ceiling, &options, &mut report).await?;
    }
    if options.runs(Part::Claims) {
        quiet::wait().await?;
        claims::measure(&cluster, &options, &mut report).await?;
    }
    if options.runs(Part::Aggregated) {
        quiet::wait().await?;
        aggregated::measure(&cluster, &options, &mut report).await?;
    }
    if options.runs(Part::Gateway) {
        quiet::wait().await?;
        gateway::measure(&mut cluster, &options, &mut report).await?;
    }
    if options.runs(Part::Watches) {
        quiet::wait().await?;
        let _watchers = watches::measure(&cluster, &options, &mut report).await?;
        quiet::measure(&cluster, &options, &mut report).await?;
    }
    if options.runs(Part::Pressure) {
        quiet::wait().await?;
        pressure::measure(&cluster, &options, &mut report).await?;
    }
    finish(&report, &options)
}

fn finish(report: &Report, options: &Options) -> anyhow::Result<()> {
    print!("{report}");
    report.write(options)
}
