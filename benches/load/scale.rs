//! The size that the server is made for: what its index weighs there, how long it takes to fill, and what changes cost.
//!
//! Without a control plane: inventories come from memory, in the bytes that kube-apiserver would send. The index is looked at in
//! processes of their own, since memory that was freed before would be handed out again unseen.

mod binary;
mod follower;
mod index;
mod intake;
mod inventories;

use std::process::{Command, Stdio};

use anyhow::ensure;
use clap::ValueEnum;
use serde::de::DeserializeOwned;

use crate::{options::Options, report::Report};

/// What is measured in a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Trial {
    /// The index when it is full.
    Index,
    /// Inventories on their way into it.
    Intake,
}

pub(crate) fn measure(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    eprintln!(
        "{} sandboxes on {} nodes, in process",
        options.scale_sandboxes, options.scale_nodes
    );
    index::measure(options, report)?;
    intake::measure(options, report)?;
    binary::measure(report)
}

impl Trial {
    /// Is the process of the trial, which prints what it measured as JSON.
    ///
    /// One thread, as the server takes inventories in by one task: so the process has no other time and memory than that task's.
    pub(crate) fn run(self, options: &Options) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let measured = match self {
            Self::Index => serde_json::to_string(&runtime.block_on(index::run(options))?)?,
            Self::Intake => serde_json::to_string(&runtime.block_on(intake::run(options))?)?,
        };
        println!("{measured}");
        Ok(())
    }
}

/// What this binary measures as the trial of that name.
fn measured<T: DeserializeOwned>(trial: &str, options: &Options) -> anyhow::Result<T> {
    let output = Command::new(std::env::current_exe()?)
        .arg(format!("--trial={trial}"))
        .arg(format!("--scale-nodes={}", options.scale_nodes))
        .arg(format!("--scale-sandboxes={}", options.scale_sandboxes))
        .arg(format!("--namespaces={}", options.namespaces))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(
        output.status.success(),
        "the trial {trial}: {}",
        output.status
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}
