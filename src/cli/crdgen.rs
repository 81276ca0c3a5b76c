//! `crdgen`: the CRDs, printed or written a file each.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use crate::resources::stored_kinds;

#[derive(Debug, Args)]
pub(super) struct CrdgenArgs {
    /// Directory to write to, a file each; without it they are printed.
    #[arg(long)]
    output_dir: Option<PathBuf>,
}

pub(super) fn crdgen(args: CrdgenArgs) -> anyhow::Result<()> {
    for kind in stored_kinds()? {
        let yaml = kind.to_yaml()?;
        match &args.output_dir {
            None => print!("---\n{yaml}"),
            Some(directory) => {
                let file = directory.join(format!("{}_{}.yaml", kind.group, kind.plural));
                std::fs::write(&file, yaml)
                    .with_context(|| format!("writing {}", file.display()))?;
            }
        }
    }
    Ok(())
}
