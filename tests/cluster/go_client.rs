//! Clients in Go: client-go's informers, its pager, apply and finalizers, and a controller of controller-runtime, through
//! kube-apiserver and over a restart of the server.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::{
    stage::{Stage, StageOptions},
    users::ADMIN,
};

const PATIENCE: Duration = Duration::from_secs(120);

/// The program while it runs.
struct Client {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Client {
    fn start(stage: &Stage, namespace: &str, watch_list: bool) -> Self {
        let program = std::env::var("GO_CLIENT")
            .expect("GO_CLIENT is not set: run the tests with `hack/test`, which builds it");
        let mut child = Command::new(program)
            .arg(namespace)
            .env("KUBECONFIG", stage.control_plane.kubeconfig_as(ADMIN))
            .env("KUBE_FEATURE_WatchListClient", watch_list.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn line(&mut self) -> String {
        let line = timeout(PATIENCE, self.lines.next_line()).await;
        let line = line.expect("the program goes on").unwrap();
        line.unwrap_or_else(|| "(end)".to_owned())
    }
}

async fn uses_everything(watch_list: bool) {
    let mut stage = Stage::start(StageOptions::default()).await;
    let namespace = stage.namespace("go").await;
    let mut client = Client::start(&stage, &namespace, watch_list);
    assert_eq!(client.line().await, "restart");
    stage.kill_serve();
    stage.start_serve().await;
    let stdin = client.child.stdin.as_mut().unwrap();
    stdin.write_all(b"restarted\n").await.unwrap();
    for check in [
        "informers",
        "pager",
        "apply",
        "finalizers",
        "preconditions",
        "controller",
    ] {
        assert_eq!(client.line().await, format!("ok {check}"));
    }
    let ended = timeout(PATIENCE, client.child.wait()).await;
    assert!(ended.expect("the program ends").unwrap().success());
    assert_eq!(stage.nodes.held(&namespace).await, []);
}

#[tokio::test]
async fn informers_that_stream_their_lists() {
    uses_everything(true).await;
}

#[tokio::test]
async fn informers_that_list_in_pages() {
    uses_everything(false).await;
}
