//! Reads after writes, while the nodes publish every 30 s.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use serde_json::Value;
use tokio::time::{interval, timeout};

use crate::stage::{self, collection, item};

const SANDBOXES: usize = 4;
/// Two publications.
const LOOKED_AT_FOR: Duration = Duration::from_secs(62);
const POLL: Duration = Duration::from_millis(50);

// aliyun-fc/fc-docs#46
#[tokio::test]
async fn a_created_sandbox_is_there_for_the_very_next_request() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("fresh").await;
    let (direct, admin) = (stage.direct(), stage.admin());
    for n in 0..20 {
        let name = format!("new-{n}");
        let created = stage.create(&namespace, &name).await;
        let reader = if n % 2 == 0 { &direct } else { &admin };
        let shown = reader.get(&item(&namespace, &name)).await.ok();
        for field in ["uid", "resourceVersion", "creationTimestamp"] {
            assert_eq!(
                shown["metadata"][field], created["metadata"][field],
                "{name} {field}"
            );
        }
        let listed = reader.get(&collection(&namespace)).await.ok();
        assert_eq!(listed["items"].as_array().map(Vec::len), Some(n + 1));
    }
    for n in 0..20 {
        let path = item(&namespace, &format!("new-{n}"));
        direct.delete(&path).await.ok();
        direct.get(&path).await.expect(404, "NotFound");
        let listed = direct.get(&collection(&namespace)).await.ok();
        assert_eq!(listed["items"].as_array().map(Vec::len), Some(19 - n));
    }
}

// daytonaio/daytona#5138
#[tokio::test]
async fn a_deleted_sandbox_never_comes_back_and_a_kept_one_never_goes() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("gone").await;
    let direct = stage.direct();
    let watch = format!("{}?watch=1", collection(&namespace));
    let mut events = direct.watch(&watch).await;
    for n in 0..SANDBOXES {
        for name in ["gone", "kept"] {
            stage.create(&namespace, &format!("{name}-{n}")).await;
        }
    }
    // The nodes' last word is that all of them are there, and they will say so again to whoever asks late.
    for node in 0..3 {
        stage.publish(node).await;
    }
    for n in 0..SANDBOXES {
        let path = item(&namespace, &format!("gone-{n}"));
        direct.delete(&path).await.ok();
    }
    let ends = Instant::now() + LOOKED_AT_FOR;
    let mut ticks = interval(POLL);
    let mut n_polls = 0;
    while Instant::now() < ends {
        ticks.tick().await;
        let path = item(&namespace, &format!("gone-{}", n_polls % SANDBOXES));
        direct.get(&path).await.expect(404, "NotFound");
        let listed = direct.get(&collection(&namespace)).await.ok();
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        let names = items.iter().map(|item| item["metadata"]["name"].as_str());
        let names: Vec<_> = names.flatten().collect();
        assert_eq!(names, ["kept-0", "kept-1", "kept-2", "kept-3"]);
        n_polls += 1;
    }
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    while let Ok(Some(event)) = timeout(POLL, events.next()).await {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = text(&event["object"]["metadata"]["name"]);
        *seen.entry((text(&event["type"]), name)).or_default() += 1;
    }
    for n in 0..SANDBOXES {
        let count = |kind: &str, name: &str| {
            let key = (kind.to_owned(), format!("{name}-{n}"));
            seen.get(&key).copied().unwrap_or_default()
        };
        assert_eq!(
            (count("ADDED", "gone"), count("DELETED", "gone")),
            (1, 1),
            "{seen:?}"
        );
        assert_eq!(
            (count("ADDED", "kept"), count("DELETED", "kept")),
            (1, 0),
            "{seen:?}"
        );
    }
    eprintln!("{n_polls} polls of get and list over {LOOKED_AT_FOR:?}, events: {seen:?}");
}

// kubernetes-sigs/agent-sandbox#1241
#[tokio::test]
async fn after_a_thousand_claims_etcd_knows_the_sandboxes_from_inventories_alone() {
    const CLAIMS: usize = 1_000;
    const AT_ONCE: usize = 16;
    let stage = stage::shared().await;
    let namespace = stage.namespace("thousand").await;
    let (direct, path) = (stage.direct(), collection(&namespace));
    let node = stage.own_node();
    let warm = u32::try_from(CLAIMS).unwrap_or(u32::MAX);
    stage
        .nodes
        .set_pool(node.index, &node.template, warm, 0)
        .await;
    stage.publish(node.index).await;
    // Unlike anything else that etcd may hold.
    let name = |n: usize| format!("etcd-probe-{n}");
    let began = Instant::now();
    let calls = (0..CLAIMS).map(|n| {
        let wanted = stage::sandbox(&name(n), &node.template);
        let (direct, path) = (&direct, &path);
        async move { direct.post(path, &wanted).await.ok() }
    });
    stream::iter(calls)
        .buffer_unordered(AT_ONCE)
        .for_each(async |_| {})
        .await;
    let took = began.elapsed();
    let listed = direct.get(&path).await.ok();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(CLAIMS));
    stage.publish(node.index).await;

    let everything = stage.control_plane.etcd_get_prefix("").await;
    let (inventories, others): (Vec<_>, Vec<_>) = everything
        .iter()
        .partition(|entry| entry.key.contains("/nodeinventories/"));
    let n_bytes: usize = everything.iter().map(|entry| entry.value.len()).sum();
    eprintln!(
        "{CLAIMS} claims in {took:?}; scanned {} keys of etcd, {n_bytes} bytes, {} of them inventories",
        everything.len(),
        inventories.len()
    );
    let known = inventories
        .iter()
        .filter(|entry| entry.mentions("etcd-probe-"));
    assert_eq!(known.count(), 1, "the scan finds what is there");
    let found = others.iter().find(|entry| entry.mentions("etcd-probe-"));
    assert!(found.is_none(), "{:?}", found.map(|entry| &entry.key));
    direct.delete(&path).await.ok();
    assert_eq!(stage.nodes.held(&namespace).await, []);
}
