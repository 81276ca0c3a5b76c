//! The binary: its size, and how fast it starts.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::ensure;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;

use crate::{
    components::free_port,
    latency::Latencies,
    pki::Authority,
    process::Directory,
    report::{Goal, Report, Unit, megabytes},
    stage::{self, StageOptions},
};

const BINARY: &str = env!("CARGO_BIN_EXE_sandbox-apiserver");
const N_STARTS: usize = 20;
/// Between two knocks at a door that is not open yet.
const KNOCK_EVERY: Duration = Duration::from_micros(200);
const OPEN_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn measure(report: &mut Report) -> anyhow::Result<()> {
    let size = megabytes(fs::metadata(BINARY)?.len());
    report
        .row("size of the binary, as built", size, Unit::Megabytes)
        .goal(Goal::AtMost(25.0));
    let version: Latencies = (0..N_STARTS)
        .map(|_| version())
        .collect::<anyhow::Result<_>>()?;
    report.time("start to end of --version, p50", version.percentile(50));
    let site = Site::new()?;
    let open: Latencies = (0..N_STARTS)
        .map(|_| site.open())
        .collect::<anyhow::Result<_>>()?;
    report
        .time("start to open port, p50", open.percentile(50))
        .goal(Goal::AtMost(50.0));
    Ok(())
}

fn version() -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let status = Command::new(BINARY)
        .arg("--version")
        .stdout(Stdio::null())
        .status()?;
    let elapsed = begun.elapsed();
    ensure!(status.success(), "--version: {status}");
    Ok(elapsed)
}

/// What a server needs until its port is open.
struct Site {
    directory: Directory,
    /// A kube-apiserver that never answers, which is not waited for before.
    _silent: TcpListener,
}

impl Site {
    fn new() -> anyhow::Result<Self> {
        let (directory, authority) = (Directory::create("start-")?, Authority::new("start")?);
        stage::write_files(&authority, directory.path());
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let server = format!("https://{}", silent.local_addr()?);
        let ca = BASE64_STANDARD.encode(authority.pem());
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "silent", "cluster": {"server": server, "certificate-authority-data": ca}}],
            "users": [{"name": "server", "user": {"token": "none"}}],
            "contexts": [{"name": "silent", "context": {"cluster": "silent", "user": "server"}}],
            "current-context": "silent",
        });
        fs::write(kubeconfig_in(directory.path()), kubeconfig.to_string())?;
        Ok(Self {
            directory,
            _silent: silent,
        })
    }

    /// How long a server takes until its port is open, with the start of the shell that guards it.
    fn open(&self) -> anyhow::Result<Duration> {
        let (directory, port) = (self.directory.path(), free_port()?);
        let kubeconfig = kubeconfig_in(directory);
        let begun = Instant::now();
        let mut serve = stage::start_serve(&StageOptions::default(), &kubeconfig, port, directory);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            let is_late = begun.elapsed() > OPEN_WITHIN;
            ensure!(
                !is_late && serve.exited()?.is_none(),
                "the port is not open\n{}",
                serve.log_tail(10)
            );
            sleep(KNOCK_EVERY);
        }
        Ok(begun.elapsed())
    }
}

fn kubeconfig_in(directory: &Path) -> PathBuf {
    directory.join("kubeconfig")
}
