//! Entry point: reads the flags and calls [`sandbox_apiserver::cli`].

use clap::Parser;
use sandbox_apiserver::cli::{Cli, run};

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    cli.runtime()?.block_on(run(cli))
}
