//! The command line, a file a subcommand. Wiring only: what is decided is decided in the rooms.

mod agent;
mod certificate;
mod cluster;
mod crdgen;
mod dev;
mod serve;
mod server;
mod sim;
#[cfg(test)]
mod tests;

pub use cluster::write_client;

use std::io;

use clap::{Args, Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};

use crate::telemetry::{DEFAULT_FILTER, LogFormat, init_log};

/// Sandboxes of a fleet of nodes as ordinary Kubernetes objects, without an object in etcd for each.
#[derive(Debug, Parser)]
#[command(name = "sandbox-apiserver", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct LogArgs {
    /// Form of the log on standard error: text or json.
    #[arg(long, global = true, default_value = "text")]
    log_format: String,
    /// What is logged, as a list such as info,sandbox_apiserver::gateway=debug.
    #[arg(long, global = true, default_value = DEFAULT_FILTER)]
    log_filter: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve sandboxes.agents.x-k8s.io behind a kube-apiserver.
    Serve(Box<serve::ServeArgs>),
    /// Speak for the daemon of one node: its NodeInventory, its live feed, its users' objects.
    Agent(Box<agent::AgentArgs>),
    /// Serve simulated nodes, in one process and without a cluster.
    Dev(dev::DevArgs),
    /// Simulate nodes that answer the sandboxd API.
    Sim(Box<sim::SimArgs>),
    /// Print or write the CRDs of the objects that are kept in etcd.
    Crdgen(crdgen::CrdgenArgs),
}

impl Cli {
    /// What the command runs on. An agent has one worker thread unless `TOKIO_WORKER_THREADS` says otherwise: it leaves the cores to
    /// the VMs, and a claim that wakes no second thread is answered sooner.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn runtime(&self) -> io::Result<Runtime> {
        let mut builder = Builder::new_multi_thread();
        let asked = std::env::var_os("TOKIO_WORKER_THREADS").is_some();
        if let Some(n_workers) = self.n_workers(asked) {
            builder.worker_threads(n_workers);
        }
        builder.enable_all().build()
    }

    /// How many worker threads the command has; `None`: what was asked for, or as many as there are cores.
    fn n_workers(&self, asked: bool) -> Option<usize> {
        (matches!(self.command, Command::Agent(_)) && !asked).then_some(1)
    }
}

/// Runs the command until it ends.
///
/// # Errors
/// Why it could not start, or had to end.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    if !matches!(cli.command, Command::Crdgen(_)) {
        init_log(
            cli.log.log_format.parse::<LogFormat>()?,
            &cli.log.log_filter,
        )?;
    }
    match cli.command {
        Command::Serve(args) => serve::serve(*args).await,
        Command::Agent(args) => agent::agent(*args).await,
        Command::Dev(args) => dev::dev(args).await,
        Command::Sim(args) => sim::sim(*args).await,
        Command::Crdgen(args) => crdgen::crdgen(args),
    }
}
