//! kubectl against the test control plane.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use crate::stage::Stage;

/// kubectl as one user, with nothing of the developer's own set-up: neither kubeconfig, nor preferences, nor cache.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    binary: PathBuf,
    kubeconfig: PathBuf,
    cache: PathBuf,
    editor: String,
}

impl Kubectl {
    /// Every kubectl has a cache of its own. kube-apiserver tells the age of its OpenAPI index in whole seconds, so that of two
    /// tests with one cache the second would be shown what the first saw in the same second: an index from before a new server.
    pub(crate) fn new(binaries: &Path, kubeconfig: &Path, dir: &Path) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            binary: binaries.join("kubectl"),
            kubeconfig: kubeconfig.to_owned(),
            cache: dir.join(format!("kubectl-cache-{n}")),
            editor: "false".to_owned(),
        }
    }

    /// With an editor that `kubectl edit` starts: a program and its arguments, to which the file is added.
    pub(crate) fn with_editor(mut self, editor: &str) -> Self {
        editor.clone_into(&mut self.editor);
        self
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Output {
        self.run_with_input(args, "").await
    }

    /// Runs kubectl with `input` on its standard input.
    pub(crate) async fn run_with_input(&self, args: &[&str], input: &str) -> Output {
        // Not blocking: the server that kubectl talks to may run in the caller's own runtime.
        let mut child = tokio::process::Command::from(self.command(args))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("kubectl starts");
        let mut pipe = child.stdin.take().expect("standard input is a pipe");
        // A kubectl that does not read its input closes the pipe, which is no failure.
        let _ = pipe.write_all(input.as_bytes()).await;
        drop(pipe);
        child.wait_with_output().await.expect("kubectl ends")
    }

    /// Runs kubectl and gives its standard output.
    ///
    /// # Panics
    /// When kubectl fails; the message has what it printed.
    pub(crate) async fn stdout(&self, args: &[&str]) -> String {
        stdout(args, self.run(args).await)
    }

    /// As [`Self::stdout`], with `input` on standard input.
    pub(crate) async fn stdout_with_input(&self, args: &[&str], input: &str) -> String {
        stdout(args, self.run_with_input(args, input).await)
    }

    /// Runs kubectl where no runtime is at hand.
    pub(crate) fn run_blocking(&self, args: &[&str]) -> std::io::Result<Output> {
        self.command(args).output()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBECACHEDIR", &self.cache)
            .env("KUBE_EDITOR", &self.editor)
            .env("KUBERC", "off");
        command
    }
}

/// kubectl in one namespace of the stage.
pub(crate) struct In<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) kubectl: Kubectl,
    pub(crate) namespace: String,
}

impl<'a> In<'a> {
    pub(crate) async fn new(stage: &'a Stage, prefix: &str) -> Self {
        Self {
            stage,
            kubectl: stage.control_plane.kubectl(),
            namespace: stage.namespace(prefix).await,
        }
    }

    pub(crate) fn args<'b>(&'b self, args: &[&'b str]) -> Vec<&'b str> {
        let mut all = vec!["--namespace", self.namespace.as_str()];
        all.extend(args);
        all
    }

    pub(crate) async fn run(&self, args: &[&str]) -> String {
        self.kubectl.stdout(&self.args(args)).await
    }

    pub(crate) async fn feed(&self, args: &[&str], input: &Value) -> String {
        let args = self.args(args);
        self.kubectl
            .stdout_with_input(&args, &input.to_string())
            .await
    }

    pub(crate) async fn json(&self, args: &[&str]) -> Value {
        let mut all = args.to_vec();
        all.push("--output=json");
        serde_json::from_str(&self.run(&all).await).expect("kubectl prints JSON")
    }

    /// What kubectl complains about.
    pub(crate) async fn refused(&self, args: &[&str], input: &Value) -> String {
        let args = self.args(args);
        let output = self.kubectl.run_with_input(&args, &input.to_string()).await;
        assert!(!output.status.success(), "{args:?} succeeds");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

fn stdout(args: &[&str], output: Output) -> String {
    assert!(
        output.status.success(),
        "`kubectl {}` ended with {}\n{}{}",
        args.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("kubectl prints UTF-8")
}
