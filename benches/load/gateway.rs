//! Claims at the gateway of a node, past it at the node's daemon, and how soon a watcher of the API server hears of them.

#[allow(dead_code, reason = "shared with tests/cluster, which uses all of it")]
#[path = "../../tests/cluster/gateway/node.rs"]
mod node;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;

pub(crate) use self::node::{Files, GatewayNode};
use crate::{
    cluster::{CLAIMS_NAMESPACE, Cluster, Name},
    direct::Daemon,
    latency::Latencies,
    options::Options,
    report::{Goal, NO_GOALS, Report},
    stage::TEMPLATE,
    watches,
};

const PATIENCE: Duration = Duration::from_secs(60);
const API: &str = "extensions.agents.x-k8s.io/v1beta1";

/// The node keeps 40 VMs warm, and has another one 200 ms after a claim: two claims in this time never find it empty.
const APART: Duration = Duration::from_millis(15);

/// One claim after the other, here and there in turn; each is recorded before the next, so that the numbers are those of a gateway
/// that does nothing else.
///
/// The gateway tells the server of a claim by the agent's feed. A watcher's time runs from the request to the gateway, so that it
/// has the claim's own in it.
pub(crate) async fn measure(
    cluster: &mut Cluster,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let n_claims = options.gateway_claims;
    eprintln!("{n_claims} claims at a gateway");
    let stage = &cluster.stage;
    let kubectl = stage.control_plane.kubectl();
    let apply = ["apply", "--filename=-"];
    kubectl.stdout_with_input(&apply, &pool()).await;
    let files = cluster.agent_files.take();
    let node = GatewayNode::start(stage, files.context("one node at a time")?).await;
    node.is_heard(stage).await;
    let watcher = watches::open(cluster, 1).await?;
    let caller = node.caller(stage, CLAIMS_NAMESPACE, "bench", true).await;
    let mut daemon = Daemon::connect(&node.daemon_address.parse()?).await?;
    let (admin, mut ids) = (stage.admin(), Vec::new());
    let [mut served, mut direct, mut told] = [(); 3].map(|()| Latencies::default());
    for turn in 0..=n_claims {
        let name = format!("gateway-{turn}");
        watcher.forget();
        let begun = Instant::now();
        let (status, granted) = caller.claim(CLAIMS_NAMESPACE, &name).await;
        let latency = begun.elapsed();
        ensure!(status == 201, "{status}: {granted}");
        let seen = watcher
            .all_have(&Name::of_claim(name.clone()), begun)
            .await?;
        ids.push(granted["id"].as_str().unwrap_or_default().to_owned());
        let path = format!("/apis/{API}/namespaces/{CLAIMS_NAMESPACE}/sandboxclaims/{name}");
        while admin.get(&path).await.body["status"]["conditions"].is_null() {
            ensure!(begun.elapsed() < PATIENCE, "{name} is not recorded");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(APART).await;
        let claimed = daemon.claim().await?;
        daemon.release(&claimed.id).await?;
        // The first one pays for the reviews and for the pool.
        if turn > 0 {
            served.add(latency);
            direct.add(claimed.latency);
            told.extend(seen);
        }
    }
    report.latencies(
        "claim at the node's gateway",
        &served,
        NO_GOALS,
        Some(&direct),
    );
    let beside = served.percentile(50).saturating_sub(direct.percentile(50));
    report
        .time("claim at the gateway beside the daemon, p50", beside)
        .goal(Goal::AtMost(0.15));
    report.latencies(
        "claim at the gateway to event",
        &told,
        [None, Some(Goal::AtMost(5.0))],
        None,
    );
    for id in ids {
        let (status, answer) = caller.delete(CLAIMS_NAMESPACE, &id).await;
        ensure!(status == 204, "{status}: {answer}");
    }
    node.forget(stage).await;
    Ok(())
}

/// A warm pool of what the daemon keeps warm.
fn pool() -> String {
    let metadata = json!({"name": "pool", "namespace": CLAIMS_NAMESPACE});
    let container = json!({"name": "main", "image": TEMPLATE});
    let template = json!({"apiVersion": API, "kind": "SandboxTemplate", "metadata": metadata,
        "spec": {"podTemplate": {"spec": {"containers": [container]}}}});
    let pool = json!({"apiVersion": API, "kind": "SandboxWarmPool", "metadata": metadata,
        "spec": {"replicas": 1, "sandboxTemplateRef": {"name": "pool"}}});
    json!({"apiVersion": "v1", "kind": "List", "items": [template, pool]}).to_string()
}
