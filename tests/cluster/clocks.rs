//! Nodes whose clocks are an hour off, behind kube-apiserver: users cannot tell them from others.

use std::time::{Duration, Instant};

use sandbox_apiserver::meta::UnixTime;
use serde_json::{Value, json};

use crate::{
    kubectl::In,
    stage::{Stage, StageOptions, TEMPLATE, collection, eventually, item, sandbox},
};

const SOON: Duration = Duration::from_secs(20);
const HOUR: i64 = 3_600;
const DEADLINE: &str = "sandbox.cocoonstack.io/deadline";

async fn mk_stage() -> Stage {
    Stage::start(StageOptions {
        nodes: 2,
        sim_flags: vec!["--clock-offset-seconds=3600,-3600".to_owned()],
        ..StageOptions::default()
    })
    .await
}

/// Seconds from now to the time in the field; below zero it is past.
#[track_caller]
fn from_now(field: &Value) -> i64 {
    let time = field
        .as_str()
        .and_then(|text| text.parse::<UnixTime>().ok());
    let time = time.expect("a time");
    time.as_secs() - UnixTime::now().as_secs()
}

/// Seconds from now to the end of its lease.
#[track_caller]
fn left(object: &Value) -> i64 {
    from_now(&object["metadata"]["annotations"][DEADLINE])
}

/// A sandbox that ends so long from now.
fn mk_ending(name: &str, seconds: i64) -> Value {
    let end = UnixTime::from_secs(UnixTime::now().as_secs() + seconds);
    let mut wanted = sandbox(name, TEMPLATE);
    wanted["spec"]["shutdownTime"] = end.to_string().into();
    wanted
}

#[tokio::test]
async fn sandboxes_of_nodes_an_hour_off_are_ready_and_survive_the_server() {
    let mut stage = mk_stage().await;
    let here = In::new(&stage, "clocks").await;
    for n in 0..8 {
        let wanted = mk_ending(&format!("box-{n}"), HOUR / 2);
        here.feed(&["create", "-f-"], &wanted).await;
    }
    for (node, name) in [(0, "theirs-0"), (1, "theirs-1")] {
        let claim_ref = format!("{}/{name}", here.namespace);
        stage.nodes.plant(node, TEMPLATE, &claim_ref, "none").await;
        stage.publish(node).await;
    }
    let path = collection(&here.namespace);
    let admin = stage.admin();
    eventually(SOON, "all are listed", async || {
        items(&admin.get(&path).await.ok()).len() == 10
    })
    .await;
    let ready = [
        "wait",
        "--for=condition=Ready",
        "sandbox",
        "--all",
        "--timeout=20s",
    ];
    here.run(&ready).await;
    let shown = here.run(&["get", "sandboxes"]).await;
    assert!(
        !shown.contains("invalid") && !shown.contains("60m"),
        "{shown}"
    );
    let check = |list: &Value| {
        let mut nodes = std::collections::BTreeSet::new();
        for object in items(list) {
            let name = object["metadata"]["name"].as_str().unwrap();
            let lease = if name.starts_with("theirs") {
                300
            } else {
                HOUR / 2
            };
            let left = left(object);
            assert!(
                (lease - 120..=lease + 5).contains(&left),
                "{name}: {left} s"
            );
            let age = -from_now(&object["metadata"]["creationTimestamp"]);
            assert!((-5..=120).contains(&age), "{name}: {age} s");
            nodes.insert(object["status"]["nodeName"].as_str().unwrap().to_owned());
        }
        assert_eq!(nodes.len(), 2);
    };
    check(&admin.get(&path).await.ok());
    // The next life knows the nodes by what they published and by what they answer.
    stage.kill_serve();
    stage.start_serve().await;
    check(&stage.direct().get(&path).await.ok());
    let list = stage.direct().get(&path).await.ok();
    for object in items(&list) {
        let condition = &object["status"]["conditions"][0];
        assert_eq!(condition["status"], "True", "{object}");
    }
}

#[tokio::test]
async fn shutdown_times_are_kept_whatever_the_nodes_clock_shows() {
    let stage = mk_stage().await;
    let here = In::new(&stage, "ends").await;
    let (admin, path) = (stage.admin(), collection(&here.namespace));
    // As many as make it likely that both nodes have some.
    let begun = Instant::now();
    for n in 0..6 {
        let wanted = mk_ending(&format!("short-{n}"), 25);
        admin.post(&path, &wanted).await.ok();
    }
    let renewed = json!({"spec": {"shutdownTime": mk_ending("", HOUR)["spec"]["shutdownTime"]}});
    let patch = ["patch", "sandbox", "short-0", "--type=merge", "--patch"];
    here.run(&[&patch[..], &[&renewed.to_string()]].concat())
        .await;
    let longer = admin.get(&item(&here.namespace, "short-0")).await;
    let ended = async || {
        let list = admin.get(&path).await.ok();
        let reasons = items(&list).iter().map(|object| {
            let condition = &object["status"]["conditions"][0];
            condition["reason"].as_str().unwrap_or_default().to_owned()
        });
        reasons.filter(|reason| reason == "SandboxExpired").count()
    };
    assert!(left(&longer.ok()) > HOUR - 60);
    eventually(Duration::from_secs(10), "nothing is over", async || {
        ended().await == 0
    })
    .await;
    eventually(
        Duration::from_secs(60),
        "all but one are over",
        async || ended().await == 5,
    )
    .await;
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(20), "after {took:?}");
    let list = admin.get(&path).await.ok();
    let nodes = items(&list)
        .iter()
        .map(|object| object["status"]["nodeName"].to_string());
    let nodes: std::collections::BTreeSet<_> = nodes.collect();
    eprintln!("all over after {took:?}, on {nodes:?}");
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}
