//! Nodes whose clocks are off: users see every time by the server's clock, and sandboxes end when they should.

use std::time::{Duration, Instant};

use sandbox_apiserver::{
    meta::UnixTime,
    sim::{self, Planted},
};
use serde_json::{Value, json};

use crate::harness::{ALL_SANDBOXES, Cluster, SANDBOXES, item, mk_node, mk_sandbox, until};

const HOUR: i64 = 3_600;
const DEADLINE: &str = "sandbox.cocoonstack.io/deadline";
const TTL: &str = "sandbox.cocoonstack.io/ttl-seconds";

/// A node whose clock is so far ahead.
async fn mk_cluster(ahead: i64) -> Cluster {
    Cluster::start(sim::Options {
        clock_offsets: vec![ahead],
        ..mk_node(8)
    })
    .await
}

fn now_and(seconds: i64) -> UnixTime {
    UnixTime::from_secs(UnixTime::now().as_secs() + seconds)
}

/// The time in the field is this one, but for what the machine and a cut to the second make of it.
#[track_caller]
fn is_about(field: &Value, expected: UnixTime) {
    let time: UnixTime = field.as_str().unwrap().parse().unwrap();
    let apart = time.as_secs().abs_diff(expected.as_secs());
    assert!(apart <= 10, "{time} is not {expected}");
}

fn deadline(object: &Value) -> &Value {
    &object["metadata"]["annotations"][DEADLINE]
}

fn created(object: &Value) -> &Value {
    &object["metadata"]["creationTimestamp"]
}

#[track_caller]
fn is_ready(object: &Value) {
    let condition = &object["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("Ready"), &json!("True")),
        "{object}"
    );
}

fn key() -> sandbox_apiserver::api::PoolKey {
    sim::Options::default().pools[0].clone()
}

#[tokio::test]
async fn what_was_there_before_the_server_shows_by_its_clock() {
    let cluster = Cluster::start(sim::Options {
        nodes: 3,
        sandboxes: 6,
        lease: Duration::from_secs(1_800),
        clock_offsets: vec![HOUR, -HOUR, 0],
        ..mk_node(1)
    })
    .await;
    let list = cluster.client.get(ALL_SANDBOXES).await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 6);
    for object in list["items"].as_array().unwrap() {
        is_ready(object);
        is_about(deadline(object), now_and(1_800));
        // Claimed within an hour before the start.
        let created: UnixTime = created(object).as_str().unwrap().parse().unwrap();
        let (earliest, latest) = (now_and(-HOUR - 10), now_and(1));
        assert!(earliest <= created && created <= latest, "{created}");
    }
    until("the clocks are counted", || {
        cluster
            .door
            .counted("sandbox_apiserver_inventory_clocks_off")
            == 2.0
    })
    .await;
}

#[tokio::test]
async fn every_call_answers_by_the_servers_clock() {
    for ahead in [HOUR, -HOUR] {
        let cluster = mk_cluster(ahead).await;
        let client = &cluster.client;
        let mut mine = mk_sandbox("mine");
        mine["spec"]["shutdownTime"] = now_and(1_200).to_string().into();
        let mine = client.post(SANDBOXES, &mine).await.json();
        is_ready(&mine);
        is_about(created(&mine), now_and(0));
        is_about(deadline(&mine), now_and(1_200));

        let later = json!({"spec": {"shutdownTime": now_and(7_200).to_string()}});
        let renewed = client.merge(item("mine"), &later).await.json();
        is_about(deadline(&renewed), now_and(7_200));

        let path = item("mine/fork");
        let body = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "SandboxForkOptions", "count": 2, "ttlSeconds": 600});
        let forked = client.post(&path, &body).await;
        assert_eq!(forked.code(), 201, "{}", forked.text());
        for copy in forked.json()["items"].as_array().unwrap() {
            is_ready(copy);
            is_about(created(copy), now_and(0));
            is_about(deadline(copy), now_and(600));
        }

        let stats = client.get(item("mine/stats")).await.json();
        is_about(&stats["measuredAt"], now_and(0));
        let body = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "SandboxSnapshotOptions", "name": "kept"});
        let taken = client.post(item("mine/snapshot"), &body).await;
        assert_eq!(taken.code(), 201, "{}", taken.text());
        is_about(&taken.json()["status"]["createdAt"], now_and(0));
    }
}

#[tokio::test]
async fn a_claim_behind_our_back_shows_by_the_servers_clock() {
    for ahead in [HOUR, -HOUR] {
        let cluster = mk_cluster(ahead).await;
        let node = &cluster.nodes.nodes()[0];
        node.plant(Planted::new("default/theirs", key()));
        cluster.publish().await;
        let store = cluster.fleet.store();
        until("it is listed", || store.get("default", "theirs").is_some()).await;
        let object = cluster.client.get(item("theirs")).await.json();
        is_ready(&object);
        is_about(created(&object), now_and(0));
        is_about(deadline(&object), now_and(300));
    }
}

#[tokio::test]
async fn a_sandbox_expires_on_time() {
    for ahead in [HOUR, -HOUR] {
        let cluster = mk_cluster(ahead).await;
        let mut watch = cluster
            .client
            .watch(format!("{SANDBOXES}?watch=true"))
            .await;
        let mut short = mk_sandbox("short");
        short["metadata"]["annotations"] = json!({TTL: "6"});
        let begun = Instant::now();
        cluster.client.post(SANDBOXES, &short).await;
        assert_eq!(watch.next().await, "ADDED short");
        let event = watch.event().await;
        let took = begun.elapsed();
        let condition = &event["object"]["status"]["conditions"][0];
        assert_eq!(condition["reason"], "SandboxExpired", "{event}");
        // The clock is known to a second, and the server looks every second.
        let on_time = Duration::from_secs(4)..Duration::from_secs(20);
        assert!(
            on_time.contains(&took),
            "{took:?} with a clock off by {ahead}"
        );
    }
}

#[tokio::test]
async fn the_jitter_of_a_clock_is_no_change() {
    for ahead in [0, HOUR, -HOUR] {
        let cluster = mk_cluster(ahead).await;
        let node = &cluster.nodes.nodes()[0];
        let mut mine = mk_sandbox("mine");
        mine["spec"]["shutdownTime"] = now_and(1_200).to_string().into();
        cluster.client.post(SANDBOXES, &mine).await;
        node.plant(Planted::new("default/theirs", key()));
        cluster.publish().await;
        let store = cluster.fleet.store();
        until("it is listed", || store.get("default", "theirs").is_some()).await;
        let version = store.head();
        let (name, _) = cluster.fleet.addresses()[0].clone();
        for jitter in [2, -2, 1, 2, -2] {
            node.set_clock(ahead + jitter);
            cluster.client.get(item("mine/stats")).await;
            cluster.publish().await;
            let marker = node.plant(Planted::new("default/marker", key()));
            cluster.publish().await;
            let listed = || cluster.fleet.by_claim(&name, &marker).is_some();
            until("what was published is taken", listed).await;
            assert!(node.lose(&marker));
            cluster.publish().await;
            until("and what is gone", || !listed()).await;
        }
        let events = store.changes_after(version, 1_000).unwrap();
        let touched = events.iter().map(|event| event.object().value.name.clone());
        let touched: Vec<_> = touched.filter(|name| name != "marker").collect();
        assert!(
            touched.is_empty(),
            "{touched:?} with a clock off by {ahead}"
        );
    }
}

#[tokio::test]
async fn a_step_of_a_clock_moves_every_end_once() {
    let cluster = Cluster::start(sim::Options {
        sandboxes: 5,
        ..mk_node(1)
    })
    .await;
    let (node, store) = (&cluster.nodes.nodes()[0], cluster.fleet.store());
    let deadlines = async || {
        let list = cluster.client.get(ALL_SANDBOXES).await.json();
        let items = list["items"].as_array().unwrap().iter();
        let ends = items.map(|object| deadline(object).as_str().unwrap().parse::<UnixTime>());
        ends.map(|end| end.unwrap().as_secs()).collect::<Vec<_>>()
    };
    let (before, version) = (deadlines().await, store.head());
    node.set_clock(HOUR);
    // Whoever asks the node next brings it to light.
    cluster.client.get(item("sb-000000/stats")).await;
    until("every end is another one", || {
        store.changes_after(version, 1_000).unwrap().len() >= 5
    })
    .await;
    for (before, after) in before.iter().zip(deadlines().await) {
        let moved = before - after;
        assert!((HOUR - 2..=HOUR + 2).contains(&moved), "by {moved} s");
    }
    cluster.publish().await;
    node.plant(Planted::new("default/last", key()));
    cluster.publish().await;
    until("it is listed", || store.get("default", "last").is_some()).await;
    assert_eq!(store.changes_after(version, 1_000).unwrap().len(), 6);
}
