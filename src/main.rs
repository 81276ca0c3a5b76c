//! Entry point: reads the flags and calls [`sandbox_apiserver::cli`].

use clap::Parser;
use sandbox_apiserver::cli::{Cli, run};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    run(Cli::parse()).await
}
