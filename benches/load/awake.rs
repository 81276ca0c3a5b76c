//! Cores that do not go to sleep while latencies are measured.
//!
//! A virtual core that has nothing to do is given back to the host, and comes again when the host has woken it: tens of
//! microseconds, more than a request takes, for each process that a request passes through. A machine that serves has no such
//! pause, or is set up to have none. A loop on each core, that anything else which is to run displaces, makes this one alike.

use std::path::Path;

use crate::process::{Directory, Process};

/// What displaces nothing: it runs when nobody else wants the core (`SCHED_IDLE`, sched(7)).
const CHRT: &str = "/usr/bin/chrt";

/// The loops. Dropped, they end.
pub(crate) struct Awake {
    // The processes go before their directory.
    _loops: Vec<Process>,
    _directory: Directory,
}

impl Awake {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let directory = Directory::create("awake-")?;
        let n_cores = std::thread::available_parallelism()?.get();
        let loops = (0..n_cores).map(|_| {
            let arguments = ["--idle", "0", "sh", "-c", "while :; do :; done"];
            Process::start("awake", Path::new(CHRT), arguments, directory.path())
        });
        Ok(Self {
            _loops: loops.collect::<Result<_, _>>()?,
            _directory: directory,
        })
    }
}
