//! The Python client of Kubernetes, through kube-apiserver and over a crash of the server.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{path::Path, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::Command,
    time::timeout,
};

use crate::{
    stage::{Stage, StageOptions},
    users::ADMIN,
};

const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test]
async fn lists_watches_and_patches_of_the_python_client_survive_a_crash() {
    let python = std::env::var("PYTHON_SDK")
        .expect("PYTHON_SDK is not set: run the tests with `hack/test`, which installs it");
    let mut stage = Stage::start(StageOptions::default()).await;
    let namespace = stage.namespace("python").await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/python_client.py");
    let mut child = Command::new(python)
        .arg(script)
        .arg(&namespace)
        .env("KUBECONFIG", stage.control_plane.kubeconfig_as(ADMIN))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut printed = Vec::new();
    while let Some(line) = timeout(PATIENCE, lines.next_line())
        .await
        .expect("the program goes on")
        .unwrap()
    {
        if line == "restart" {
            stage.kill_serve();
            stage.start_serve().await;
            let stdin = child.stdin.as_mut().unwrap();
            stdin.write_all(b"restarted\n").await.unwrap();
        } else {
            printed.push(line);
        }
    }
    let mut complaints = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut complaints).await.unwrap();
    let checks = ["lists", "patches", "watches", "dynamic", "restart"];
    let expected = checks.map(|check| format!("ok {check}"));
    assert_eq!(printed, expected, "{complaints}");
    assert!(child.wait().await.unwrap().success(), "{complaints}");
    assert_eq!(stage.nodes.held(&namespace).await, []);
}
