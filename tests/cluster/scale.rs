//! Many nodes and many sandboxes.

use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use kube::{
    Api, ResourceExt as _,
    api::DynamicObject,
    runtime::watcher::{self, Event},
};

use crate::{
    kube_client::sandboxes,
    stage::{Stage, StageOptions, item},
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
