//! Clients in Rust: kube's watcher, reflector and conditions, through kube-apiserver and over a crash of the server.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt as _;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, PostParams},
    core::GroupVersionKind,
    runtime::{
        WatchStreamExt as _,
        reflector::{Store, store::Writer},
        wait::{await_condition, conditions},
        watcher,
    },
};
use serde_json::Value;
use tokio::time::timeout;

use crate::stage::{Stage, StageOptions, TEMPLATE, eventually, sandbox};

/// The watcher's own pause after a failure is 30 s at most.
const PATIENCE: Duration = Duration::from_secs(90);
const SOON: Duration = Duration::from_secs(10);

pub(crate) fn sandboxes() -> ApiResource {
    let kind = GroupVersionKind::gvk("agents.x-k8s.io", "v1beta1", "Sandbox");
    ApiResource::from_gvk_with_plural(&kind, "sandboxes")
}

fn is_ready(object: Option<&DynamicObject>) -> bool {
    let conditions = object.and_then(|object| object.data["status"]["conditions"].as_array());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Whole objects by namespace and name.
fn by_name(objects: impl Iterator<Item = Value>) -> BTreeMap<String, Value> {
    let named = objects.map(|object| {
        let metadata = &object["metadata"];
        (
            format!("{}/{}", metadata["namespace"], metadata["name"]),
            object,
        )
    });
    named.collect()
}

/// Waits until the store holds exactly what kubectl shows.
async fn agree(stage: &Stage, store: &Store<DynamicObject>, n_expected: usize) {
    let kubectl = stage.control_plane.kubectl();
    let all = ["get", "sandboxes", "-A", "-ojson", "--show-managed-fields"];
    eventually(PATIENCE, "the store holds what kubectl shows", async || {
        let shown: Value = serde_json::from_str(&kubectl.stdout(&all).await).unwrap();
        let shown = by_name(shown["items"].as_array().cloned().unwrap().into_iter());
        let state = store.state();
        let held = state
            .iter()
            .map(|object| serde_json::to_value(&**object).unwrap());
        assert_eq!(shown.len(), n_expected);
        by_name(held) == shown
    })
    .await;
}

async fn survives_a_crash(config: watcher::Config) {
    const AT_THE_START: usize = 30;
    let mut stage = Stage::start(StageOptions {
        sandboxes: AT_THE_START,
        ..StageOptions::default()
    })
    .await;
    let namespace = stage.namespace("kube-rs").await;
    let client = stage.control_plane.client();
    let writer = Writer::new(sandboxes());
    let store = writer.as_reader();
    let everywhere = Api::all_with(client.clone(), &sandboxes());
    let following = watcher(everywhere, config)
        .default_backoff()
        .reflect(writer)
        .for_each(async |_| {});
    let following = tokio::spawn(following);
    let ready = timeout(PATIENCE, store.wait_until_ready()).await;
    ready.expect("it syncs").unwrap();
    agree(&stage, &store, AT_THE_START).await;

    let here: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &sandboxes());
    let create = async |name: &str| {
        let object = serde_json::from_value(sandbox(name, TEMPLATE)).unwrap();
        let created = here.create(&PostParams::default(), &object).await.unwrap();
        let ready = await_condition(here.clone(), name, is_ready);
        timeout(SOON, ready).await.expect("it is ready").unwrap();
        created
    };
    let delete = async |object: &DynamicObject| {
        let (name, uid) = (object.name_any(), object.uid().unwrap());
        here.delete(&name, &DeleteParams::default()).await.unwrap();
        let gone = await_condition(here.clone(), &name, conditions::is_deleted(&uid));
        timeout(SOON, gone).await.expect("it is gone").unwrap();
    };
    let (dropped, kept) = (create("dropped").await, create("kept").await);
    delete(&dropped).await;
    agree(&stage, &store, AT_THE_START + 1).await;

    stage.kill_serve();
    stage.start_serve().await;
    let after = create("after").await;
    delete(&kept).await;
    agree(&stage, &store, AT_THE_START + 1).await;
    delete(&after).await;
    agree(&stage, &store, AT_THE_START).await;
    assert!(!following.is_finished(), "the watcher goes on");
    following.abort();
}

#[tokio::test]
async fn a_reflector_that_lists_in_pages_holds_what_kubectl_shows() {
    survives_a_crash(watcher::Config::default().page_size(7)).await;
}

#[tokio::test]
async fn a_reflector_that_streams_its_list_holds_what_kubectl_shows() {
    survives_a_crash(watcher::Config::default().streaming_lists()).await;
}
