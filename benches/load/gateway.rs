//! Claims at the gateway of a node, past it at the node's daemon, and how soon a watcher of the API server hears of them.

#[allow(dead_code, reason = "shared with tests/cluster, which uses all of it")]
#[path = "../../tests/cluster/gateway/node.rs"]
mod node;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

pub(crate) use self::node::{Files, GatewayNode};
use crate::{
    awake::Awake,
    cluster::{CLAIMS_NAMESPACE, Cluster, Name},
    direct::Daemon,
    latency::Latencies,
    options::Options,
    process::signal,
    relay::Relay,
    report::{Goal, NO_GOALS, Report},
    stage::TEMPLATE,
    watchers::Spread,
    watches,
};

const PATIENCE: Duration = Duration::from_secs(60);
const API: &str = "extensions.agents.x-k8s.io/v1beta1";

/// Claims in a row. Their records come 5 ms after each, so that they are not what is measured.
const IN_A_ROW: usize = 10;
/// The node keeps 40 VMs warm, and has another one 200 ms after a claim.
const SETTLED: Duration = Duration::from_millis(250);

/// Some claims in a row at the gateway, as many that it refuses by itself, as many through a relay and as many at the daemon, over
/// and over; then one at a time that a watcher waits for. All are recorded before the next ones, and the server, which in a cluster
/// has cores of its own, stands still during those in a row, so that the numbers are those of a node.
///
/// All speak HTTP/1.1, in which one asks for one thing at a time.
///
/// The gateway tells the server of a claim by the agent's feed. A watcher's time runs from the gateway's answer.
pub(crate) async fn measure(
    cluster: &mut Cluster,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let n_rounds = options.gateway_claims.div_ceil(IN_A_ROW);
    eprintln!("{n_rounds} times {IN_A_ROW} claims at a gateway");
    let stage = &cluster.stage;
    let kubectl = stage.control_plane.kubectl();
    let apply = ["apply", "--filename=-"];
    kubectl.stdout_with_input(&apply, &pool()).await;
    let files = cluster.agent_files.take();
    let node = GatewayNode::start(stage, files.context("one node at a time")?).await;
    node.is_heard(stage).await;
    let caller = node.caller(stage, CLAIMS_NAMESPACE, "bench", true).await;
    let caller = caller.over_http1().await;
    let mut daemon = Daemon::connect(&node.daemon_address.parse()?).await?;
    let mut relay = Relay::start(&node.daemon_address).await?;
    let (admin, mut ids) = (stage.admin(), Vec::new());
    let claim = async |name: &str| {
        let (status, granted, latency) = caller.timed_claim(CLAIMS_NAMESPACE, name).await;
        ensure!(status == 201, "{status}: {granted:?}");
        let granted: Value = serde_json::from_slice(&granted)?;
        let id = granted["id"].as_str().unwrap_or_default().to_owned();
        anyhow::Ok((id, latency))
    };
    let is_recorded = async |name: &str| {
        let path = format!("/apis/{API}/namespaces/{CLAIMS_NAMESPACE}/sandboxclaims/{name}");
        let begun = Instant::now();
        while admin.get(&path).await.body["status"]["conditions"].is_null() {
            ensure!(begun.elapsed() < PATIENCE, "{name} is not recorded");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::Ok(())
    };
    let [mut served, mut refused, mut relayed, mut direct, mut told] =
        [(); 5].map(|()| Latencies::default());
    let settle = async || tokio::time::sleep(SETTLED).await;
    let awake = Awake::start()?;
    // The first round pays for the reviews and for the pool.
    for round in 0..=n_rounds {
        let names: Vec<_> = (0..IN_A_ROW)
            .map(|n| format!("gateway-{round}-{n}"))
            .collect();
        let stopped = Stopped::begin(cluster.server.pid())?;
        for name in &names {
            let (id, latency) = claim(name).await?;
            ids.push(id);
            if round > 0 {
                served.add(latency);
            }
        }
        // Now it hears of them.
        drop(stopped);
        for name in &names {
            is_recorded(name).await?;
        }
        // Each kind begins when all is quiet again behind the one before.
        settle().await;
        for name in &names {
            // As a claim is, but for the daemon: who asks is known, may do so, and the name is taken.
            let (status, answer, latency) = caller.timed_claim(CLAIMS_NAMESPACE, name).await;
            ensure!(status == 409, "{status}: {answer:?}");
            if round > 0 {
                refused.add(latency);
            }
        }
        settle().await;
        for _ in 0..IN_A_ROW {
            let claimed = relay.claim().await?;
            daemon.release(&claimed.id).await?;
            if round > 0 {
                relayed.add(claimed.latency);
            }
        }
        settle().await;
        for _ in 0..IN_A_ROW {
            let claimed = daemon.claim().await?;
            daemon.release(&claimed.id).await?;
            if round > 0 {
                direct.add(claimed.latency);
            }
        }
        settle().await;
    }
    drop(awake);
    // Not before: this process is the watcher as well, and would wait for itself.
    let watcher = watches::open(cluster, Spread::ONE).await?;
    for round in 0..n_rounds {
        let watched = format!("gateway-watched-{round}");
        watcher.forget();
        ids.push(claim(&watched).await?.0);
        let name = Name::of_claim(watched.clone());
        told.extend(watcher.all_have(&name, Instant::now()).await?);
        is_recorded(&watched).await?;
    }
    report.latencies(
        "claim at the node's gateway",
        &served,
        NO_GOALS,
        Some(&relayed),
    );
    report.latencies(
        "claim at a bare relay to the daemon",
        &relayed,
        NO_GOALS,
        Some(&direct),
    );
    report.latencies(
        "refused claim at the node's gateway",
        &refused,
        NO_GOALS,
        None,
    );
    let own = |latencies: &Latencies| {
        let daemon = direct.percentile(50);
        latencies.percentile(50).saturating_sub(daemon)
    };
    report
        .time("claim at the gateway beside the daemon, p50", own(&served))
        .goal(Goal::AtMost(0.15))
        .ceiling(own(&relayed).as_secs_f64() * 1e3);
    report.latencies(
        "answer of the gateway to event",
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

/// The server, standing still: it has cores of its own where agents run, and would take those of the agent here.
struct Stopped(String);

impl Stopped {
    fn begin(pid: u32) -> anyhow::Result<Self> {
        let stopped = Self(pid.to_string());
        ensure!(signal("STOP", &stopped.0), "the server is gone");
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("CONT", &self.0);
    }
}
