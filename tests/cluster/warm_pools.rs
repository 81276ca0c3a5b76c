//! SandboxWarmPool objects, carried out by a server that drives the nodes' pools.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::stage::{Stage, StageOptions, TEMPLATE, eventually};

/// How soon a pool of some dozens is warm.
const SOON: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(15);

/// A stage whose server drives. The nodes' own pools are taken over.
pub(crate) async fn driven(nodes: usize) -> Stage {
    let flags = ["--warm-pool-driver=true", "--warm-pool-takeover"];
    let options = StageOptions {
        nodes,
        warm: 0,
        serve_flags: flags.map(str::to_owned).into(),
        ..StageOptions::default()
    };
    Stage::start(options).await
}

/// A template and a pool of it, both named `pool`.
pub(crate) fn pool(namespace: &str, replicas: u32) -> String {
    let api = "extensions.agents.x-k8s.io/v1beta1";
    let metadata = json!({"name": "pool", "namespace": namespace});
    let container = json!({"name": "main", "image": TEMPLATE});
    let template = json!({"apiVersion": api, "kind": "SandboxTemplate", "metadata": metadata,
        "spec": {"podTemplate": {"spec": {"containers": [container]}}}});
    let pool = json!({"apiVersion": api, "kind": "SandboxWarmPool", "metadata": metadata,
        "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": "pool"}}});
    json!({"apiVersion": "v1", "kind": "List", "items": [template, pool]}).to_string()
}

/// Applies the pool and waits until its status says that it is full.
pub(crate) async fn fill(stage: &Stage, namespace: &str, replicas: u32) {
    let kubectl = stage.control_plane.kubectl();
    let apply = ["apply", "--filename=-"];
    kubectl
        .stdout_with_input(&apply, &pool(namespace, replicas))
        .await;
    until_ready(stage, namespace, replicas).await;
}

async fn until_ready(stage: &Stage, namespace: &str, replicas: u32) {
    let path = path(namespace);
    eventually(
        PATIENCE,
        "the status says that the pool is full",
        async || {
            let status = stage.admin().get(&path).await.ok()["status"].clone();
            status["readyReplicas"] == replicas
                && ready(&status) == ("True".into(), "Filled".into())
        },
    )
    .await;
}

async fn scale(stage: &Stage, namespace: &str, replicas: u32) {
    let replicas = format!("--replicas={replicas}");
    let args = [
        "scale",
        "sandboxwarmpool/pool",
        &replicas,
        "--namespace",
        namespace,
    ];
    stage.control_plane.kubectl().stdout(&args).await;
}

fn path(namespace: &str) -> String {
    format!("/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxwarmpools/pool")
}

fn ready(status: &Value) -> (String, String) {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.into_iter().find(|c| c["type"] == "Ready");
    let text = |field| {
        let ready = ready.as_ref();
        ready
            .and_then(|ready| ready[field].as_str())
            .unwrap_or_default()
            .to_owned()
    };
    (text("status"), text("reason"))
}

/// Warm VMs of the template on each node.
async fn warm(stage: &Stage, nodes: usize) -> Vec<u64> {
    let mut warm = Vec::new();
    for node in 0..nodes {
        let inventory = stage.nodes.inventory(node).await;
        let pools = inventory["pools"].as_array().cloned().unwrap_or_default();
        let pool = pools.iter().find(|pool| pool["template"] == TEMPLATE);
        warm.push(pool.map_or(0, |pool| pool["warm"].as_u64().unwrap()));
    }
    warm
}

async fn puts(stage: &Stage, nodes: usize) -> Vec<usize> {
    let mut puts = Vec::new();
    for node in 0..nodes {
        puts.push(stage.nodes.requests(node, "PUT").await.len());
    }
    puts
}

#[tokio::test]
async fn a_pool_of_thirty_is_warm_on_three_nodes_and_scales() {
    let mut stage = driven(3).await;
    let namespace = stage.namespace("pools").await;
    let kubectl = stage.control_plane.kubectl();
    // The pools that the nodes had are gone before anything is counted.
    eventually(PATIENCE, "the nodes are taken over", async || {
        puts(&stage, 3).await == [1, 1, 1]
    })
    .await;

    let apply = ["apply", "--filename=-"];
    kubectl
        .stdout_with_input(&apply, &pool(&namespace, 30))
        .await;
    let applied = Instant::now();
    eventually(SOON, "ten are warm on each node", async || {
        warm(&stage, 3).await == [10, 10, 10]
    })
    .await;
    eprintln!("30 warm after {:?}", applied.elapsed());
    until_ready(&stage, &namespace, 30).await;
    assert_eq!(puts(&stage, 3).await, [2, 2, 2], "one for the pool");

    scale(&stage, &namespace, 60).await;
    eventually(SOON, "twenty are warm on each node", async || {
        warm(&stage, 3).await == [20, 20, 20]
    })
    .await;
    until_ready(&stage, &namespace, 60).await;
    assert_eq!(puts(&stage, 3).await, [3, 3, 3]);
    let scale_path = format!("{}/scale", path(&namespace));
    let shown = stage.admin().get(&scale_path).await.ok();
    assert_eq!(shown["status"]["replicas"], 60);

    stage.kill_serve();
    stage.start_serve().await;
    scale(&stage, &namespace, 61).await;
    until_ready(&stage, &namespace, 61).await;
    let all: usize = puts(&stage, 3).await.iter().sum();
    assert_eq!(all, 10, "one for the one more, and none for the restart");

    let delete = ["delete", "sandboxwarmpool/pool", "--namespace", &namespace];
    kubectl.stdout(&delete).await;
    eventually(SOON, "nothing is warm any more", async || {
        warm(&stage, 3).await == [0, 0, 0]
    })
    .await;
}

#[tokio::test]
async fn an_autoscaler_scales_a_pool() {
    let stage = driven(2).await;
    let namespace = stage.namespace("autoscaled").await;
    fill(&stage, &namespace, 4).await;
    // Without metrics it still keeps to its bounds.
    for (min, max, replicas) in [("6", "10", 6), ("1", "3", 3)] {
        let (min, max) = (format!("--min={min}"), format!("--max={max}"));
        let of = "sandboxwarmpool/pool";
        let autoscale = ["autoscale", of, &min, &max, "--namespace", &namespace];
        let kubectl = stage.control_plane.kubectl();
        kubectl.stdout(&autoscale).await;
        eventually(PATIENCE * 2, "it has scaled the pool", async || {
            stage.admin().get(&path(&namespace)).await.ok()["spec"]["replicas"] == replicas
        })
        .await;
        until_ready(&stage, &namespace, replicas).await;
        let autoscaler =
            format!("/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers/pool");
        eventually(PATIENCE, "it says so", async || {
            let status = stage.admin().get(&autoscaler).await.ok()["status"].clone();
            status["desiredReplicas"] == replicas
        })
        .await;
        let delete = ["delete", "hpa/pool", "--namespace", &namespace];
        kubectl.stdout(&delete).await;
    }
}

#[tokio::test]
async fn nodes_with_pools_of_others_are_left_alone_and_the_status_says_so() {
    let options = StageOptions {
        warm: 0,
        nodes: 2,
        serve_flags: vec!["--warm-pool-driver=true".to_owned()],
        ..StageOptions::default()
    };
    let stage = Stage::start(options).await;
    let namespace = stage.namespace("foreign").await;
    let kubectl = stage.control_plane.kubectl();
    let apply = ["apply", "--filename=-"];
    kubectl
        .stdout_with_input(&apply, &pool(&namespace, 4))
        .await;
    // Both nodes came with a pool of their own.
    eventually(PATIENCE, "the status tells of foreign pools", async || {
        let status = stage.admin().get(&path(&namespace)).await.ok()["status"].clone();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions
            .iter()
            .any(|c| c["type"] == "ForeignPools" && c["status"] == "True")
    })
    .await;
    assert_eq!(puts(&stage, 2).await, [0, 0]);
    let events = [
        "get",
        "events",
        "--output=jsonpath={.items[*].reason}",
        "--namespace",
        &namespace,
    ];
    eventually(PATIENCE, "an event tells of foreign pools", async || {
        kubectl.stdout(&events).await.contains("ForeignPools")
    })
    .await;
}
