//! The product as it is installed: a fleet that runs on it alone, from the first warm pool to a template of its own making.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use sandbox_apiserver::api::AgentEndpoint;
use serde_json::{Value, json};

use crate::{
    caller::{Caller, Events},
    gateway_client::GatewayClient,
    installation::Installation,
    kubectl::Kubectl,
    stage::{NODE_TOKEN, TEMPLATE, collection, eventually, item, sandbox},
    users::ADMIN,
};

/// How soon a pool of some dozens is warm.
const SOON: Duration = Duration::from_secs(3);
/// How soon a change is there for a reader.
const AT_ONCE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);
const EXTENSIONS: &str = "extensions.agents.x-k8s.io/v1beta1";
const N_NODES: usize = 3;

/// One namespace of an installation, and who watches it.
struct Scene {
    installed: Installation,
    kubectl: Kubectl,
    admin: Caller,
    namespace: String,
    events: Events,
}

impl Scene {
    async fn new() -> Self {
        let installed = Installation::new(N_NODES).await;
        let kubectl = installed.control_plane.kubectl();
        let namespace = installed.control_plane.create_namespace("fleet").await;
        let admin = installed.admin();
        let events = admin
            .watch(&format!("{}?watch=1", collection(&namespace)))
            .await;
        Self {
            installed,
            kubectl,
            admin,
            namespace,
            events,
        }
    }

    async fn kubectl(&self, args: &[&str]) -> String {
        let here = format!("--namespace={}", self.namespace);
        let args: Vec<_> = args.iter().copied().chain([here.as_str()]).collect();
        self.kubectl.stdout(&args).await
    }

    async fn create(&self, object: &Value) {
        let here = format!("--namespace={}", self.namespace);
        let create = ["create", "--filename=-", &here];
        self.kubectl
            .stdout_with_input(&create, &object.to_string())
            .await;
    }

    /// The sandbox is there for the next reader, for the watcher within a moment, and on one node.
    async fn is_there(&mut self, name: &str) -> Value {
        let listed = self.admin.get(&collection(&self.namespace)).await.ok();
        let named = |object: &&Value| object["metadata"]["name"] == name;
        let listed = items(&listed["items"]).find(named).cloned();
        let listed = listed.unwrap_or_else(|| panic!("{name} is not listed"));
        let read = self.admin.get(&item(&self.namespace, name)).await.ok();
        assert_eq!(read["metadata"]["uid"], listed["metadata"]["uid"]);
        loop {
            let event = self.events.next_within(AT_ONCE).await;
            if event["object"]["metadata"]["name"] == name && event["type"] == "ADDED" {
                assert_eq!(event["object"]["metadata"]["uid"], read["metadata"]["uid"]);
                break;
            }
        }
        let id = read["metadata"]["annotations"]["sandbox.cocoonstack.io/claim-id"].clone();
        let mut holders = 0;
        for node in 0..N_NODES {
            let inventory = self.installed.nodes.inventory(node).await;
            holders += items(&inventory["entries"])
                .filter(|entry| entry["id"] == id)
                .count();
        }
        assert_eq!(holders, 1, "{name} is on one node");
        read
    }

    /// A caller of an agent, as a ServiceAccount that may do everything.
    async fn caller_of_agent(&self, node: usize) -> GatewayClient {
        let name = self.installed.nodes.all().await[node]["name"].clone();
        let path = format!(
            "/apis/{EXTENSIONS}/nodeinventories/{}",
            name.as_str().unwrap()
        );
        let inventory = self.admin.get(&path).await.ok();
        let agent: AgentEndpoint = serde_json::from_value(inventory["agent"].clone()).unwrap();
        let account = format!("caller-{node}");
        self.kubectl(&["create", "serviceaccount", &account]).await;
        let binding = [
            "create",
            "clusterrolebinding",
            &account,
            "--clusterrole=cluster-admin",
            &format!("--serviceaccount={}:{account}", self.namespace),
        ];
        self.kubectl.stdout(&binding).await;
        let as_account = format!("--as=system:serviceaccount:{}:{account}", self.namespace);
        let can = ["auth", "can-i", "*", "*", &as_account];
        eventually(PATIENCE, "the role is in force", async || {
            self.kubectl.run(&can).await.status.success()
        })
        .await;
        let token = ["create", "token", &account, "--audience=sandbox-agent"];
        let token = self.kubectl(&token).await;
        GatewayClient::connect(&agent, Some(token.trim())).await
    }

    async fn act(&self, name: &str, subresource: &str, body: &Value) -> Value {
        let path = format!("{}/{subresource}", item(&self.namespace, name));
        self.admin.post(&path, body).await.ok()
    }

    /// A template of the image and a pool of it, both with this name.
    async fn pool(&self, name: &str, image: &str, replicas: u32) {
        let metadata = json!({"name": name});
        let container = json!({"name": "main", "image": image});
        self.create(
            &json!({"apiVersion": EXTENSIONS, "kind": "SandboxTemplate", "metadata": metadata,
            "spec": {"podTemplate": {"spec": {"containers": [container]}}}}),
        )
        .await;
        self.create(
            &json!({"apiVersion": EXTENSIONS, "kind": "SandboxWarmPool", "metadata": metadata,
            "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": name}}}),
        )
        .await;
    }

    /// Warm VMs of the template on each node.
    async fn warm(&self, template: &str) -> [u64; N_NODES] {
        let mut warm = [0; N_NODES];
        for (node, warm) in warm.iter_mut().enumerate() {
            let inventory = self.installed.nodes.inventory(node).await;
            let mut pools = items(&inventory["pools"]);
            let pool = pools.find(|pool| pool["template"] == template);
            *warm = pool.map_or(0, |pool| pool["warm"].as_u64().unwrap());
        }
        warm
    }

    async fn until_warm(&self, template: &str, expected: [u64; N_NODES], within: Duration) {
        let what = format!("{expected:?} of {template} are warm");
        eventually(within, &what, async || {
            self.warm(template).await == expected
        })
        .await;
    }

    /// PUTs of pools that each node got.
    async fn puts(&self) -> [usize; N_NODES] {
        let mut puts = [0; N_NODES];
        for (node, puts) in puts.iter_mut().enumerate() {
            *puts = self.installed.nodes.requests(node, "PUT").await.len();
        }
        puts
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn token_of(created: &Value) -> String {
    let token = created["metadata"]["annotations"]["sandbox.cocoonstack.io/token"].as_str();
    token.expect("the creator gets it").to_owned()
}

#[tokio::test]
async fn a_fleet_runs_on_what_the_chart_installs() {
    let mut scene = Scene::new().await;
    let mut secrets = vec![NODE_TOKEN.to_owned()];
    a_pool_is_filled_and_scaled(&scene).await;
    secrets.push(claims_of_every_kind_are_served(&mut scene).await);
    snapshots_forks_and_templates_come_of_a_sandbox(&mut scene).await;
    what_users_say_survives(&mut scene).await;
    nobody_else_is_shown(&scene, &secrets).await;
}

async fn a_pool_is_filled_and_scaled(scene: &Scene) {
    // The pools that the nodes came with are taken away before anything is counted.
    eventually(PATIENCE, "the nodes are taken over", async || {
        scene.puts().await == [1; N_NODES]
    })
    .await;
    scene.pool("pool", TEMPLATE, 30).await;
    let begun = Instant::now();
    scene.until_warm(TEMPLATE, [10; N_NODES], SOON).await;
    eprintln!("30 warm after {:?}", begun.elapsed());
    assert_eq!(scene.puts().await, [2; N_NODES], "one for the pool");
    let scale = ["scale", "sandboxwarmpool/pool", "--replicas=60"];
    scene.kubectl(&scale).await;
    scene.until_warm(TEMPLATE, [20; N_NODES], SOON).await;
    assert_eq!(scene.puts().await, [3; N_NODES], "one for the scale");
}

/// Gives the token of one of them.
async fn claims_of_every_kind_are_served(scene: &mut Scene) -> String {
    scene.create(&sandbox("by-kubectl", TEMPLATE)).await;
    scene.is_there("by-kubectl").await;

    scene
        .create(&json!({"apiVersion": EXTENSIONS, "kind": "SandboxClaim",
            "metadata": {"name": "by-claim"}, "spec": {"warmPoolRef": {"name": "pool"}}}))
        .await;
    let wait = [
        "wait",
        "--for=condition=Ready",
        "--timeout=10s",
        "sandboxclaim/by-claim",
    ];
    scene.kubectl(&wait).await;
    scene.is_there("by-claim").await;

    let python = std::env::var("PYTHON_SDK")
        .expect("PYTHON_SDK is not set: run the tests with `hack/test`, which installs the SDK");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/python_sdk.py");
    let kubeconfig = scene.installed.control_plane.kubeconfig_as(ADMIN);
    let output = tokio::process::Command::new(python)
        .arg(script)
        .args([&scene.namespace, "pool", "by-claim"])
        .env("KUBECONFIG", kubeconfig)
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(2 * PATIENCE, output).await;
    let output = output.expect("the SDK ends").unwrap();
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{said}{complained}");

    let agent = scene.caller_of_agent(0).await;
    let (status, granted) = agent.claim(&scene.namespace, "by-gateway").await;
    assert_eq!(status, 201, "{granted:#}");
    // The node tells the server of it, and does not wait for it.
    let path = item(&scene.namespace, "by-gateway");
    eventually(AT_ONCE, "the node has told of it", async || {
        scene.admin.get(&path).await.status == 200
    })
    .await;
    scene.is_there("by-gateway").await;
    for condition in ["Bound", "Ready"] {
        let wait = [
            "wait",
            &format!("--for=condition={condition}"),
            "--timeout=10s",
            "sandboxclaim/by-gateway",
        ];
        scene.kubectl(&wait).await;
    }

    let path = collection(&scene.namespace);
    let created = scene.admin.post(&path, &sandbox("secret", TEMPLATE)).await;
    let created = created.ok();
    scene.is_there("secret").await;
    token_of(&created)
}

async fn snapshots_forks_and_templates_come_of_a_sandbox(scene: &mut Scene) {
    let api = "agents.x-k8s.io/v1beta1";
    scene
        .create(&json!({"apiVersion": api, "kind": "SandboxSnapshot",
            "metadata": {"name": "point"}, "spec": {"sandboxName": "by-kubectl"}}))
        .await;
    let shown = scene.kubectl(&["get", "sandboxsnapshots"]).await;
    assert!(shown.contains("point"), "{shown}");

    let mut resumed = sandbox("from-point", TEMPLATE);
    resumed["metadata"]["annotations"] = json!({"sandbox.cocoonstack.io/snapshot": "point"});
    scene.create(&resumed).await;
    let resumed = scene.is_there("from-point").await;
    let origin = scene.admin.get(&item(&scene.namespace, "by-kubectl")).await;
    assert_eq!(
        resumed["status"]["nodeName"],
        origin.ok()["status"]["nodeName"],
        "where the snapshot is"
    );

    let fork =
        json!({"apiVersion": api, "kind": "SandboxForkOptions", "count": 3, "namePrefix": "copy"});
    let forked = scene.act("from-point", "fork", &fork).await;
    let copies: Vec<_> = items(&forked["items"])
        .map(|copy| copy["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(copies.len(), 3);
    for copy in &copies {
        scene.is_there(copy).await;
    }

    for _ in 0..10 {
        for (subresource, mode) in [("pause", "Suspended"), ("resume", "Running")] {
            scene.act("by-claim", subresource, &json!({})).await;
            let path = item(&scene.namespace, "by-claim");
            let read = scene.admin.get(&path).await.ok();
            assert_eq!(read["spec"]["operatingMode"], mode);
        }
    }

    let promoted =
        json!({"apiVersion": api, "kind": "SandboxPromoteOptions", "template": "made-here"});
    let promoted = scene.act("by-kubectl", "promote", &promoted).await;
    assert_eq!(promoted["template"], "made-here");
    scene.pool("promoted", "made-here", 3).await;
    // A template that was made on a node is there alone.
    eventually(PATIENCE, "the promoted template is warm", async || {
        scene.warm("made-here").await.iter().sum::<u64>() > 0
    })
    .await;
    scene.create(&sandbox("of-promoted", "made-here")).await;
    scene.is_there("of-promoted").await;
}

async fn what_users_say_survives(scene: &mut Scene) {
    let label = ["label", "sandbox/by-kubectl", "kept=yes"];
    scene.kubectl(&label).await;
    let annotate = ["annotate", "sandbox/by-kubectl", "example.com/kept=too"];
    scene.kubectl(&annotate).await;
    scene.installed.server.crash();
    for agent in &mut scene.installed.agents {
        agent.crash();
    }
    let path = item(&scene.namespace, "by-kubectl");
    let admin = &scene.admin;
    eventually(PATIENCE, "labels and annotations are there", async || {
        let read = admin.get(&path).await;
        let metadata = &read.body["metadata"];
        read.status == 200
            && metadata["labels"]["kept"] == "yes"
            && metadata["annotations"]["example.com/kept"] == "too"
    })
    .await;
}

async fn nobody_else_is_shown(scene: &Scene, secrets: &[String]) {
    let Installation { server, agents, .. } = &scene.installed;
    let mut shown = vec![("the server's log".to_owned(), server.log())];
    for agent in agents {
        shown.push(("an agent's log".to_owned(), agent.log()));
    }
    for args in [
        &["get", "nodeinventories", "--output=yaml"][..],
        &["get", "sandboxes", "--output=yaml"],
        &["get", "sandboxclaims", "--output=yaml"],
        &["get", "sandboxsnapshots", "--output=yaml"],
        &["get", "events", "--output=yaml"],
    ] {
        shown.push((args[1].to_owned(), scene.kubectl(args).await));
    }
    let metrics = scene.installed.direct().await.get("/metrics").await.ok();
    let metrics = metrics.as_str().unwrap().to_owned();
    assert!(metrics.contains("sandbox_apiserver_"), "{metrics}");
    shown.push(("the server's metrics".to_owned(), metrics));
    let agent = scene.caller_of_agent(1).await;
    let (status, metrics) = agent.send("GET", "/metrics", String::new()).await;
    assert_eq!(status, 200, "{metrics}");
    shown.push(("an agent's metrics".to_owned(), metrics.to_string()));
    // The kubelet's own copies of the daemons' token are where it is meant to be.
    for file in files(scene.installed.directory()) {
        if !file.to_string_lossy().contains("sandboxd-token") {
            let content = std::fs::read(&file).unwrap();
            let content = String::from_utf8_lossy(&content).into_owned();
            shown.push((file.display().to_string(), content));
        }
    }
    assert!(shown.len() > 12 + N_NODES);
    for (place, text) in &shown {
        for secret in secrets {
            assert!(!text.contains(secret), "{place} shows a secret");
        }
    }
}

fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

const N_IDLE: usize = 20;
/// Longer than the time from one publication of a node to the next, where there is anything to publish.
const PUBLISHED_APART: Duration = Duration::from_secs(40);
const LOOKED_AT_FOR: Duration = Duration::from_secs(60);
/// What etcd may be told of one node.
const A_WRITE_IN: Duration = Duration::from_secs(600);

/// Whether the key is written on the clock, whatever happens: by kube-apiserver for itself, and by whoever holds a Lease.
fn is_renewed(key: &str) -> bool {
    let places = ["leases", "masterleases", "peerserverleases"];
    places
        .map(|place| format!("/registry/{place}/"))
        .iter()
        .any(|prefix| key.starts_with(prefix.as_str()))
}

// kubernetes-sigs/agent-sandbox#1241
#[tokio::test]
async fn an_idle_fleet_and_a_create_write_nothing_to_etcd() {
    let installed = Installation::new(N_IDLE).await;
    let control_plane = &installed.control_plane;
    let kubectl = control_plane.kubectl();
    let namespace = control_plane.create_namespace("idle").await;
    let apply = ["apply", "--filename=-"];
    let pool = crate::warm_pools::pool(&namespace, 40);
    kubectl.stdout_with_input(&apply, &pool).await;
    let written = async |during: Duration| {
        let before = control_plane.etcd_writes().await;
        tokio::time::sleep(during).await;
        let after = control_plane.etcd_writes().await;
        let since = after.since(&before);
        let others = since.iter().filter(|(key, _)| !is_renewed(key));
        let others: Vec<_> = others.map(|(key, n)| ((*key).to_owned(), *n)).collect();
        (
            after.puts_since(&before),
            since.values().sum::<u64>(),
            others,
        )
    };
    eventually(Duration::from_secs(180), "the fleet is quiet", async || {
        written(PUBLISHED_APART).await.2.is_empty()
    })
    .await;

    let create = async {
        let in_namespace = format!("--namespace={namespace}");
        let create = ["create", "--filename=-", &in_namespace];
        let wanted = sandbox("one", TEMPLATE).to_string();
        kubectl.stdout_with_input(&create, &wanted).await;
        let shown = ["get", "sandbox", "one", "--output=name", &in_namespace];
        kubectl.stdout(&shown).await
    };
    let ((puts, counted, others), shown) = tokio::join!(written(LOOKED_AT_FOR), create);
    assert!(shown.contains("sandbox.agents.x-k8s.io/one"), "{shown}");
    eprintln!(
        "{N_IDLE} nodes and a create, {LOOKED_AT_FOR:?}: {puts} puts, {} of them not of Leases: {others:?}",
        others.len()
    );
    assert!(
        puts > 0 && puts <= counted + 1,
        "{puts} puts, {counted} of them known"
    );
    let (inventories, others): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|(key, _)| key.contains("/nodeinventories/"));
    assert_eq!(others, [], "a create writes nothing");
    let n_written: u64 = inventories.iter().map(|(_, n)| n).sum();
    let allowed = N_IDLE as f64 * LOOKED_AT_FOR.as_secs_f64() / A_WRITE_IN.as_secs_f64();
    assert!(n_written as f64 <= allowed, "{inventories:?}");
}
