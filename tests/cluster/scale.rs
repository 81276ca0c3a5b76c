//! Many nodes and many sandboxes.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures::TryStreamExt as _;
use kube::{
    Api, ResourceExt as _,
    api::DynamicObject,
    runtime::watcher::{self, Event},
};

use serde_json::{Value, json};

use crate::{
    installation::Installation,
    kube_client::sandboxes,
    stage::{Stage, StageOptions, eventually, item},
};

const NODES: usize = 200;
const SANDBOXES: usize = 50_000;
/// Long enough for a debug build on a machine that others use too.
const SYNCS_WITHIN: Duration = Duration::from_secs(90);
const SEEN_WITHIN: Duration = Duration::from_secs(1);

#[tokio::test]
async fn kubectl_and_an_informer_see_fifty_thousand_sandboxes() {
    let began = Instant::now();
    let stage = Stage::start(StageOptions {
        nodes: NODES,
        sandboxes: SANDBOXES,
        warm: 2,
        ..StageOptions::default()
    })
    .await;
    eprintln!(
        "{NODES} nodes and the server are up after {:?}",
        began.elapsed()
    );

    let began = Instant::now();
    let kubectl = stage.control_plane.kubectl();
    let listed = kubectl
        .stdout(&["get", "sandboxes", "--all-namespaces", "--no-headers"])
        .await;
    eprintln!("kubectl get sandboxes -A took {:?}", began.elapsed());
    assert_eq!(listed.lines().count(), SANDBOXES);

    let api: Api<DynamicObject> = Api::all_with(stage.control_plane.client(), &sandboxes());
    let config = watcher::Config::default().streaming_lists();
    let mut events = std::pin::pin!(watcher::watcher(api, config));
    let began = Instant::now();
    let mut n_listed = 0;
    let synced = async {
        loop {
            match events.try_next().await.expect("the watch goes on") {
                Some(Event::InitApply(_)) => n_listed += 1,
                Some(Event::InitDone) => return,
                Some(_) => {}
                None => panic!("the watch ended"),
            }
        }
    };
    tokio::time::timeout(SYNCS_WITHIN, synced)
        .await
        .expect("it syncs in time");
    eprintln!("a streaming list of {n_listed} took {:?}", began.elapsed());
    assert_eq!(n_listed, SANDBOXES);

    let namespace = stage.namespace("scale").await;
    let began = Instant::now();
    stage.create(&namespace, "one-more").await;
    let mut is_ours = async |deleted: bool| {
        loop {
            let event = events.try_next().await.expect("the watch goes on");
            let (object, is_delete) = match event {
                Some(Event::Apply(object)) => (object, false),
                Some(Event::Delete(object)) => (object, true),
                _ => continue,
            };
            if object.name_any() == "one-more" && is_delete == deleted {
                return;
            }
        }
    };
    tokio::time::timeout(SEEN_WITHIN, is_ours(false))
        .await
        .expect("the create is seen");
    let seen = began.elapsed();
    let began = Instant::now();
    stage
        .direct()
        .delete(&item(&namespace, "one-more"))
        .await
        .ok();
    tokio::time::timeout(SEEN_WITHIN, is_ours(true))
        .await
        .expect("the delete is seen");
    eprintln!(
        "a create was seen after {seen:?}, a delete after {:?}",
        began.elapsed()
    );
    assert!(seen < SEEN_WITHIN && began.elapsed() < SEEN_WITHIN);
}

const CROWD: usize = 10_000;

/// An object of etcd has 1.5 MiB, and the agent leaves out what does not fit. The feed brings the rest.
#[tokio::test]
async fn a_node_with_ten_thousand_sandboxes_publishes_what_fits_and_shows_them_all() {
    let mut installed = Installation::over(1, CROWD).await;
    let kubectl = installed.control_plane.kubectl();
    let all = [
        "get",
        "sandboxes",
        "--all-namespaces",
        "--output=jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {.metadata.uid}{\"\\n\"}{end}",
    ];
    let listed = async || -> BTreeMap<String, String> {
        let listed = kubectl.stdout(&all).await;
        let pairs = listed.lines().filter_map(|line| line.split_once(' '));
        pairs
            .map(|(name, uid)| (name.to_owned(), uid.to_owned()))
            .collect()
    };
    let is_whole = async || listed().await.len() == CROWD;
    eventually(SYNCS_WITHIN, "all are listed", is_whole).await;
    let before = listed().await;

    let inventory = ["get", "nodeinventories", "--output=json"];
    let inventory: Value = serde_json::from_str(&kubectl.stdout(&inventory).await).unwrap();
    let inventory = &inventory["items"][0];
    assert_eq!(
        (&inventory["total"], &inventory["truncated"]),
        (&json!(CROWD), &json!(true))
    );
    let entries = inventory["entries"].as_array().unwrap();
    assert!(
        (CROWD / 4..CROWD).contains(&entries.len()),
        "{} entries",
        entries.len()
    );
    let published: BTreeSet<_> = entries
        .iter()
        .map(|entry| entry["claimRef"].as_str().unwrap())
        .collect();
    let left_out = before
        .keys()
        .find(|name| !published.contains(name.as_str()));
    let (namespace, name) = left_out.and_then(|name| name.split_once('/')).unwrap();

    let (sandbox, here) = (
        format!("sandbox/{name}"),
        format!("--namespace={namespace}"),
    );
    kubectl
        .stdout(&["label", &sandbox, &here, "kept=yes"])
        .await;
    installed.server.crash();
    installed.agents[0].crash();
    installed.until_available().await;
    eventually(SYNCS_WITHIN, "all are listed again", is_whole).await;
    assert!(
        listed().await == before,
        "under their names, with their uids"
    );
    let kept = [
        "get",
        &sandbox,
        &here,
        "--output=jsonpath={.metadata.labels.kept}",
    ];
    assert_eq!(kubectl.stdout(&kept).await, "yes");
    kubectl.stdout(&["delete", &sandbox, &here]).await;
    assert_eq!(listed().await.len(), CROWD - 1);
}
