//! Servers that said there was nothing when they knew nothing, and restarts that users noticed.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use kube::{
    Api, ResourceExt as _,
    api::DynamicObject,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use serde_json::Value;
use tokio::time::{interval, timeout};

use crate::{
    kube_client::sandboxes,
    stage::{API, Stage, StageOptions, TEMPLATE, collection, eventually, sandbox},
};

const SOON: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(90);

/// Uids by name.
fn uids(list: &Value) -> BTreeMap<String, String> {
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let named = items.into_iter().map(|item| {
        let metadata = &item["metadata"];
        (text(&metadata["name"]), text(&metadata["uid"]))
    });
    named.collect()
}

// TencentCloud/CubeSandbox#933
#[tokio::test]
async fn a_server_that_has_not_heard_of_its_nodes_is_unavailable_and_never_empty() {
    const SANDBOXES: usize = 6;
    let mut stage = Stage::start(StageOptions {
        sandboxes: SANDBOXES,
        ..StageOptions::default()
    })
    .await;
    let all = format!("{API}/sandboxes");
    let before = uids(&stage.direct().get(&all).await.ok());
    assert_eq!(before.len(), SANDBOXES);
    let everywhere: Api<DynamicObject> = Api::all_with(stage.control_plane.client(), &sandboxes());
    let following = watcher::watcher(everywhere, watcher::Config::default().streaming_lists());
    let mut following = Box::pin(following.default_backoff());

    // A consumer that cleans up what is gone: it must never be told that anything is.
    let (synced_tx, mut synced_rx) = tokio::sync::watch::channel(0);
    let consumer = tokio::spawn(async move {
        let mut n_listed = 0;
        loop {
            match following.next().await {
                Some(Ok(Event::Init)) => n_listed = 0,
                Some(Ok(Event::InitApply(_))) => n_listed += 1,
                Some(Ok(Event::InitDone)) => {
                    assert_eq!(n_listed, SANDBOXES);
                    synced_tx.send_modify(|n_syncs| *n_syncs += 1);
                }
                Some(Ok(Event::Delete(object))) => panic!("{} was deleted", object.name_any()),
                Some(Ok(Event::Apply(_)) | Err(_)) => {}
                None => panic!("the watch ended for good"),
            }
        }
    });
    let synced = timeout(PATIENCE, synced_rx.wait_for(|n_syncs| *n_syncs == 1)).await;
    synced.expect("the consumer syncs").unwrap();
    stage.kill_serve();
    let kubectl = stage.control_plane.kubectl();
    let forbid = ["delete", "clusterrolebinding", "sandbox-apiserver"];
    kubectl.stdout(&forbid).await;
    stage.begin_serve();
    let direct = stage.direct();
    let (mut n_refusals, ends) = (0, Instant::now() + SOON);
    while n_refusals < 20 && Instant::now() < ends {
        tokio::time::sleep(Duration::from_millis(50)).await;
        for path in [&all, &format!("{all}?watch=1"), &collection("default")] {
            let Some(answer) = direct.try_get(path).await else {
                continue;
            };
            // A watch is told to come again, so that its client keeps the version that it has.
            match path.contains("watch") {
                true => answer.expect(429, "TooManyRequests"),
                false => answer.expect(503, "ServiceUnavailable"),
            }
            assert!(answer.retry_after().is_some(), "{path}");
            n_refusals += 1;
        }
    }
    assert!(
        n_refusals >= 20,
        "the server answers: {}",
        stage.serve.log_tail(20)
    );
    assert_eq!(direct.get("/readyz").await.status, 500);

    let rights = concat!(
        "--filename=",
        env!("CARGO_MANIFEST_DIR"),
        "/apiservice/10-rbac.yaml"
    );
    kubectl
        .stdout(&["apply", "--server-side", "--force-conflicts", rights])
        .await;
    stage.serve_is_ready().await;
    assert_eq!(uids(&stage.direct().get(&all).await.ok()), before);
    let synced = timeout(PATIENCE, synced_rx.wait_for(|n_syncs| *n_syncs == 2)).await;
    synced.expect("the consumer syncs again").unwrap();
    assert!(!consumer.is_finished());
    consumer.abort();
}

// kubernetes/kubernetes#135285
#[tokio::test]
async fn restarts_in_order_cost_a_client_nothing_that_it_may_not_repeat() {
    const RESTARTS: usize = 3;
    let mut stage = Stage::start(StageOptions {
        warm: 200,
        ..StageOptions::default()
    })
    .await;
    let namespace = stage.namespace("rolling").await;
    let all = collection(&namespace);
    let done = std::sync::Arc::new(AtomicBool::new(false));
    let creating = {
        let (admin, all, done) = (stage.admin(), all.clone(), done.clone());
        tokio::spawn(async move {
            let (mut created, mut failed) = (BTreeSet::new(), BTreeMap::new());
            let mut ticks = interval(Duration::from_millis(200));
            for n in 0.. {
                ticks.tick().await;
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let name = format!("box-{n}");
                let answer = admin.post(&all, &sandbox(&name, TEMPLATE)).await;
                match answer.status.as_u16() {
                    201 => {
                        created.insert(name);
                    }
                    code => *failed.entry(code).or_insert(0) += 1,
                }
            }
            (created, failed)
        })
    };
    let reading = {
        let (admin, all, done) = (stage.admin(), all.clone(), done.clone());
        tokio::spawn(async move {
            let (mut n_read, mut failed) = (0, BTreeMap::new());
            let mut ticks = interval(Duration::from_millis(10));
            while !done.load(Ordering::Relaxed) {
                ticks.tick().await;
                match admin.get(&all).await.status.as_u16() {
                    200 => n_read += 1,
                    code => *failed.entry(code).or_insert(0) += 1,
                }
            }
            (n_read, failed)
        })
    };
    for _ in 0..RESTARTS {
        tokio::time::sleep(Duration::from_secs(2)).await;
        stage.serve.terminate();
        let began = Instant::now();
        while stage.serve.exited().unwrap().is_none() {
            assert!(began.elapsed() < PATIENCE, "it does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stage.start_serve().await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    done.store(true, Ordering::Relaxed);
    let (created, not_created) = creating.await.unwrap();
    let (n_read, not_read) = reading.await.unwrap();
    eprintln!(
        "{n_read} reads, {not_read:?}; {} creates, {not_created:?}",
        created.len()
    );
    assert!(created.len() > 10 && n_read > 100);
    // One server is away while it restarts; both say that nothing was done, and when to come back.
    for failed in [&not_created, &not_read] {
        let may_repeat = |code: &u16| matches!(code, 429 | 503);
        assert!(failed.keys().all(may_repeat), "{failed:?}");
    }
    eventually(SOON, "what is held is what was granted", async || {
        let listed = uids(&stage.direct().get(&all).await.ok());
        let listed: BTreeSet<_> = listed.into_keys().collect();
        listed == created && stage.nodes.held(&namespace).await.len() == created.len()
    })
    .await;
}
