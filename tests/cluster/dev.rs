//! `dev`, as somebody meets it who follows what it prints.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::{
    control_plane,
    process::Directory,
    stage::{eventually, start_binary},
};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn what_dev_says_to_try_works() {
    let directory = Directory::create("dev-").unwrap();
    let flags = ["dev", "--secure-port=0", "--nodes=2", "--sandboxes=4"];
    let mut dev = start_binary("dev", &flags, directory.path());
    eventually(PATIENCE, "it says what to try", async || {
        dev.log().contains("Ctrl-C ends it.")
    })
    .await;
    let said = dev.log();
    // The tools' cluster is not asked.
    let tools = control_plane::shared().forever();
    let kubectl = tools.kubectl_at(&directory.path().join("sandbox-dev/kubeconfig"));

    let mut tried = Vec::new();
    for line in said
        .lines()
        .filter_map(|line| line.strip_prefix("  kubectl "))
    {
        // The paths are those of its own directory.
        let line = line.replace(
            "sandbox-dev/",
            &format!("{}/sandbox-dev/", directory.path().display()),
        );
        let args: Vec<_> = line.split_whitespace().collect();
        if args.contains(&"--watch") {
            continue;
        }
        tried.push((args[0].to_owned(), kubectl.stdout(&args).await));
    }
    let verbs: Vec<_> = tried.iter().map(|(verb, _)| verb.as_str()).collect();
    assert_eq!(verbs, ["get", "create", "describe", "create", "delete"]);
    let [listed, created, described, paused, deleted] =
        [0, 1, 2, 3, 4].map(|at| tried[at].1.as_str());
    assert_eq!(listed.lines().count(), 1 + 4, "{listed}");
    assert!(created.contains("hello created"), "{created}");
    assert!(described.contains("python:3.12"), "{described}");
    assert!(paused.contains("\"Suspended\""), "{paused}");
    assert!(deleted.contains("\"hello\" deleted"), "{deleted}");

    // Each node has an agent, and each agent is heard.
    let live = "sandbox_apiserver_inventory_live_feeds 2\n";
    eventually(PATIENCE, "the feeds are live", async || {
        kubectl
            .stdout(&["get", "--raw", "/metrics"])
            .await
            .contains(live)
    })
    .await;
    dev.terminate();
    let mut status = None;
    for _ in 0..600 {
        status = dev.exited().unwrap();
        if status.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let status = status.unwrap_or_else(|| panic!("it does not end\n{}", dev.log_tail(20)));
    assert!(status.success(), "{status}\n{}", dev.log_tail(20));
}
