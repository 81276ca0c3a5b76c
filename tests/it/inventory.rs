//! Inventories and direct reads against simulated daemons, merged into the index.

use std::{
    fmt::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_apiserver::{
    api::{AgentEndpoint, ClaimId, NodeInventory, NodeName, PoolKey, Token},
    feed::Credential,
    fleet::{Fleet, HealthLimits, Phase},
    inventory::{ClusterNode, Inventory, InventoryMetrics, Options, Publication, Source, Update},
    meta::{ResourceVersion, UnixTime},
    sandboxd::{Client, ClientOptions, TokenSource},
    sim::{self, Fault, FaultKind, Handle, Planted},
    store::{EventKind, Limits, Scope},
    telemetry::{Metrics, Readiness, Tasks},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

mod clocks;
mod watch;

/// Longer than anything here takes, on a slow machine as well.
const PATIENCE: Duration = Duration::from_secs(20);
const LIST: &str = "/v1/sandboxes";
const INFO: &str = "/v1/info";

struct Bench {
    sim: sim::Fleet,
    /// What every node published at the start.
    listed: Vec<NodeInventory>,
    fleet: Arc<Fleet>,
    inventory: Inventory,
    inventories: mpsc::Sender<Update<Publication>>,
    nodes: mpsc::Sender<Update<ClusterNode>>,
    readiness: Readiness,
    metrics: Metrics,
    tasks: Tasks,
}

struct Setting {
    nodes: usize,
    sandboxes: usize,
    options: Options,
    health: HealthLimits,
    cluster: Option<kube::Client>,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            nodes: 2,
            sandboxes: 6,
            options: Options {
                node_address_cidrs: vec!["127.0.0.0/8".parse().unwrap()],
                nodes_within: Duration::from_millis(200),
                reads_apart: Duration::from_millis(10),
                cut_reads_apart: Duration::from_secs(1),
                unfed_reads_apart: Duration::from_secs(1),
                probe_jitter: Duration::ZERO,
                ..Options::default()
            },
            health: HealthLimits::default(),
            cluster: None,
        }
    }
}

impl Bench {
    /// A follower that has heard nothing yet but that there are no Nodes.
    async fn new(setting: Setting) -> Self {
        let options = sim::Options {
            nodes: setting.nodes,
            sandboxes: setting.sandboxes,
            mesh: false,
            ..sim::Options::default()
        };
        let sim = sim::Fleet::start(options).await.unwrap();
        let start = ResourceVersion::first_of_epoch(1).unwrap();
        let fleet = Arc::new(Fleet::new(start, Limits::default(), setting.health));
        let client = Client::new(ClientOptions {
            token: TokenSource::Fixed(Token::from("sim".to_owned())),
            ca_file: None,
        });
        let (metrics, readiness) = (Metrics::new(), Readiness::new());
        let counters = InventoryMetrics::register(&metrics);
        let inventory = Inventory::new(fleet.clone(), client.unwrap(), setting.options, counters);
        let (inventories, inventories_rx) = mpsc::channel(1_000);
        let (nodes, nodes_rx) = mpsc::channel(10);
        let source = match setting.cluster {
            Some(client) => Source::Cluster(client),
            None => Source::InProcess {
                inventories: inventories_rx,
                nodes: nodes_rx,
            },
        };
        let shutdown = CancellationToken::new();
        let mut tasks = Tasks::new(shutdown.clone());
        let ready = readiness.check("inventory");
        tasks.spawn("inventory", inventory.clone().run(source, ready, shutdown));
        let bench = Self {
            listed: sim.inventories(),
            sim,
            fleet,
            inventory,
            inventories,
            nodes,
            readiness,
            metrics,
            tasks,
        };
        let _ = bench.nodes.send(Update::ListEnds).await;
        bench
    }

    /// A follower that has listed what every node publishes, and is ready.
    async fn started(setting: Setting) -> Self {
        let bench = Self::new(setting).await;
        bench.list().await;
        bench.ready().await;
        bench
    }

    /// Lists what every node published at the start.
    async fn list(&self) {
        for inventory in &self.listed {
            self.send(Update::Listed(publication(inventory))).await;
        }
        self.send(Update::ListEnds).await;
    }

    async fn send(&self, update: Update<Publication>) {
        self.inventories.send(update).await.unwrap();
    }

    async fn publish(&self, inventory: &NodeInventory) {
        self.send(Update::Applied(publication(inventory))).await;
    }

    async fn publish_json(&self, inventory: &Value) {
        let inventory = Publication::decode(inventory.to_string().as_bytes()).unwrap();
        self.send(Update::Applied(inventory)).await;
    }

    /// Waits until everything sent so far was taken: by then a node that comes after it has come and gone.
    async fn settled(&self) {
        let entry = json!({"id": "marker", "claimedAt": "2026-01-01T00:00:00Z"});
        let marker = json!({"metadata": {"name": "marker"}, "entries": [entry]});
        let is_there = || {
            self.fleet
                .by_claim(&"marker".into(), &"marker".into())
                .is_some()
        };
        self.publish_json(&marker).await;
        eventually("the marker is taken", is_there).await;
        self.send(Update::Deleted("marker".into())).await;
        eventually("the marker is gone", || !is_there()).await;
    }

    async fn ready(&self) {
        eventually("ready", || self.readiness.is_ready()).await;
    }

    fn node(&self, index: usize) -> &Handle {
        &self.sim.nodes()[index]
    }

    /// Names listed, in order.
    fn names(&self) -> Vec<String> {
        let store = self.fleet.store();
        let page = store.page(&Scope::All, None, store.head(), 10_000).unwrap();
        page.items
            .iter()
            .map(|item| item.value.name.to_string())
            .collect()
    }

    /// The changes since `version`, the marker's left out: `+name`, `~name`, `-name`.
    fn changes(&self, version: ResourceVersion) -> String {
        let mut shown = String::new();
        let events = self.fleet.store().changes_after(version, 10_000).unwrap();
        let events = events.iter();
        for event in events.filter(|event| event.object().value.name != "marker") {
            let sign = match event.kind() {
                EventKind::Added => '+',
                EventKind::Modified => '~',
                EventKind::Deleted => '-',
            };
            let _ = write!(shown, "{sign}{} ", event.object().value.name);
        }
        shown.trim_end().to_owned()
    }

    /// The value of a metric of this room, all its labels added up.
    fn metric(&self, name: &str) -> f64 {
        let text = self.metrics.encode();
        let prefix = format!("sandbox_apiserver_inventory_{name}");
        let lines = text.lines().filter(|line| line.starts_with(&prefix));
        lines
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }
}

fn publication(inventory: &NodeInventory) -> Publication {
    Publication::decode(&serde_json::to_vec(inventory).unwrap()).unwrap()
}

fn asked(node: &Handle, path: &str) -> usize {
    node.log()
        .iter()
        .filter(|request| request.path == path)
        .count()
}

fn mk_pool() -> PoolKey {
    sim::Options::default().pools[0].clone()
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let (caller, begun) = (std::panic::Location::caller(), Instant::now());
    async move {
        while !holds() {
            assert!(begun.elapsed() < PATIENCE, "never: {what} ({caller})");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn a_restart_forgets_no_claim_that_the_last_inventory_did_not_know() {
    let bench = Bench::new(Setting::default()).await;
    for mut inventory in bench.sim.inventories() {
        inventory.entries.truncate(1);
        inventory.total = None;
        bench.send(Update::Listed(publication(&inventory))).await;
    }
    eventually("reads begin with the list", || {
        asked(bench.node(0), LIST) == 1
    })
    .await;
    assert!(!bench.readiness.is_ready(), "the list is not over");
    bench.send(Update::ListEnds).await;
    bench.ready().await;
    assert_eq!(bench.names().len(), 6);
    let store = bench.fleet.store();
    assert_eq!(store.oldest(), store.head(), "history begins now");
    assert_eq!(
        (asked(bench.node(0), LIST), asked(bench.node(1), LIST)),
        (1, 1)
    );
    assert_eq!(bench.fleet.counts().nodes, [2, 0, 0]);
}

#[tokio::test]
async fn a_node_that_is_silent_at_the_start_keeps_its_sandboxes_and_is_stale() {
    let setting = Setting {
        options: Options {
            first_read_within: Duration::from_millis(200),
            ..Setting::default().options
        },
        ..Setting::default()
    };
    let bench = Bench::new(setting).await;
    assert!(bench.node(0).inject(Fault::always(FaultKind::Hang)).await);
    bench.node(1).stop().await;
    bench.list().await;
    bench.ready().await;
    assert_eq!(bench.names().len(), 6);
    assert_eq!(bench.fleet.counts().nodes, [0, 2, 0]);
}

#[tokio::test]
async fn an_answer_that_is_no_list_empties_nothing() {
    for kind in [
        FaultKind::WrongJson,
        FaultKind::WrongTypes,
        FaultKind::Cut,
        FaultKind::Unauthorized,
        FaultKind::Oversized { bytes: 2 << 20 },
        FaultKind::Status {
            status: 500,
            text: String::new(),
        },
        FaultKind::HttpRedirect {
            location: "http://127.0.0.1:1/".to_owned(),
            status: 302,
        },
    ] {
        let bench = Bench::new(Setting::default()).await;
        assert!(bench.node(0).inject(Fault::always(kind.clone())).await);
        bench.list().await;
        bench.ready().await;
        assert_eq!(bench.names().len(), 6, "{kind:?}");
    }
}

#[tokio::test]
async fn what_an_inventory_lacks_goes_only_when_the_node_says_so() {
    let bench = Bench::started(Setting::default()).await;
    let node = bench.node(0);
    let mut late = node.inventory();
    let lost = late.entries.pop().unwrap();
    let version = bench.fleet.store().head();
    let reads = asked(node, LIST);
    bench.publish(&late).await;
    eventually("the node is asked", || asked(node, LIST) == reads + 1).await;
    bench.settled().await;
    assert_eq!(
        bench.changes(version),
        "",
        "a late inventory deletes nothing"
    );

    assert!(node.lose(&lost.id.as_str().into()));
    bench.publish(&late).await;
    eventually("it is gone", || bench.names().len() == 5).await;
    bench.publish(&late).await;
    bench.settled().await;
    let name = lost.name.split_once('/').unwrap().1;
    assert_eq!(bench.changes(version), format!("-{name}"), "once");
}

#[tokio::test]
async fn an_inventory_that_somebody_else_edits_takes_nothing_back() {
    let bench = Bench::started(Setting::default()).await;
    let node = bench.node(0);
    let mut published = node.inventory();
    published.entries.pop();
    published.total = i64::try_from(published.entries.len()).ok();
    let claim = ClaimId::from(published.entries[0].id.as_str());
    let daemons = Client::new(ClientOptions {
        token: TokenSource::Fixed(Token::from("sim".to_owned())),
        ca_file: None,
    })
    .unwrap();
    let daemon = daemons.node(node.address(), PATIENCE);
    daemon.hibernate(&claim).await.unwrap();
    // It lacks one of them, and so the node is asked, which says of the other that it is paused.
    bench.publish(&published).await;
    let phase = || {
        let record = bench.fleet.by_claim(node.name(), &claim);
        record.map(|record| record.value.phase)
    };
    eventually("it is paused", || phase() == Some(Phase::Paused)).await;
    let (version, reads) = (bench.fleet.store().head(), asked(node, LIST));
    published.releases.push("sb_x".to_owned());
    bench.publish(&published).await;
    bench.publish(&published).await;
    bench.settled().await;
    assert_eq!(bench.changes(version), "");
    assert_eq!(asked(node, LIST), reads, "nor is there anything to ask");
}

#[tokio::test]
async fn a_node_that_cannot_be_asked_keeps_its_sandboxes_until_it_can() {
    let bench = Bench::started(Setting::default()).await;
    let node = bench.node(0);
    let mut inventory = node.inventory();
    let lost = inventory.entries.pop().unwrap();
    assert!(node.lose(&lost.id.as_str().into()));
    node.stop().await;
    let version = bench.fleet.store().head();
    bench.publish(&inventory).await;
    eventually("the read fails", || {
        bench.metric("direct_reads_total{outcome=\"failed\"}") >= 1.0
    })
    .await;
    assert_eq!(bench.changes(version), "");
    node.start().await;
    eventually("it is gone", || {
        let _ = bench
            .inventories
            .try_send(Update::Applied(publication(&inventory)));
        bench.names().len() == 5
    })
    .await;
}

#[tokio::test]
async fn undated_newcomers_get_their_time_from_the_node_or_else_from_the_inventory() {
    let bench = Bench::new(Setting::default()).await;
    let undated = |node: &Handle| {
        let mut inventory = serde_json::to_value(node.inventory()).unwrap();
        inventory["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
        for entry in inventory["entries"].as_array_mut().unwrap() {
            entry.as_object_mut().unwrap().remove("claimedAt");
        }
        Publication::decode(inventory.to_string().as_bytes()).unwrap()
    };
    bench.node(1).stop().await;
    for node in bench.sim.nodes() {
        bench.send(Update::Listed(undated(node))).await;
    }
    bench.send(Update::ListEnds).await;
    bench.ready().await;
    assert_eq!(bench.names().len(), 6);
    let created = |node: &Handle| {
        let id = node.inventory().entries[0].id.as_str().into();
        bench
            .fleet
            .by_claim(node.name(), &id)
            .unwrap()
            .value
            .created
    };
    let claimed_at = bench.node(0).inventory().entries[0]
        .claimed_at
        .clone()
        .unwrap();
    assert_eq!(created(bench.node(0)), claimed_at.parse().unwrap());
    let published: UnixTime = "2020-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(created(bench.node(1)), published);
}

#[tokio::test]
async fn what_was_cut_off_an_inventory_is_read_from_the_node() {
    let bench = Bench::started(Setting::default()).await;
    let node = bench.node(0);
    let mut inventory = node.inventory();
    inventory.truncated = true;
    inventory.entries.clear();
    bench.publish(&inventory).await;
    bench.settled().await;
    assert_eq!(bench.names().len(), 6, "absence means nothing");
    node.plant(Planted::new("team/late", mk_pool()));
    eventually("it is listed", || {
        bench.names().contains(&"late".to_owned())
    })
    .await;
    let other = asked(bench.node(1), LIST);
    let reads = asked(node, LIST);
    eventually("it is read again", || asked(node, LIST) > reads).await;
    assert_eq!(asked(bench.node(1), LIST), other, "the other one is not");
    bench.publish(&node.inventory()).await;
}

#[tokio::test]
async fn no_token_goes_to_an_address_that_is_not_the_nodes() {
    let bench = Bench::started(Setting {
        nodes: 1,
        options: Options {
            node_address_cidrs: Vec::new(),
            ..Setting::default().options
        },
        ..Setting::default()
    })
    .await;
    let node = bench.node(0);
    assert_eq!(bench.names().len(), 6, "what it publishes is listed");
    assert!(!bench.inventory.refresh(node.name()).await);
    for address in [
        "169.254.169.254:80",
        "127.0.0.1:80/x",
        "http://u@127.0.0.1:80",
        "localhost:80",
        "",
    ] {
        let mut inventory = node.inventory();
        inventory.address = address.to_owned();
        bench.publish(&inventory).await;
    }
    bench.publish_json(&json!({"metadata": {"name": node.name()}, "address": {"host": "127.0.0.1"}, "truncated": true})).await;
    bench.publish(&node.inventory()).await;
    bench.settled().await;
    assert_eq!(node.log().len(), 0);
    assert_eq!(bench.fleet.address(node.name()), None);
    assert!(bench.metric("refused_addresses_total") >= 8.0);

    let own = json!({"metadata": {"name": node.name()}, "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}});
    let own: ClusterNode = serde_json::from_value(own).unwrap();
    bench.nodes.send(Update::Applied(own)).await.unwrap();
    eventually("it is read", || asked(node, LIST) == 1).await;
    assert!(bench.inventory.refresh(node.name()).await);
}

#[tokio::test]
async fn an_address_is_one_nodes() {
    let bench = Bench::started(Setting {
        nodes: 1,
        ..Setting::default()
    })
    .await;
    let node = bench.node(0);
    let alias = NodeName::from("alias");
    let mut inventory = node.inventory();
    inventory.metadata.name = Some(alias.to_string());
    inventory.entries.clear();
    bench.publish(&inventory).await;
    bench.settled().await;
    assert_eq!(bench.fleet.address(&alias), None);
    assert!(!bench.inventory.refresh(&alias).await);
    assert_eq!(bench.names().len(), 6, "each of them once");
    assert!(bench.metric("refused_addresses_total") >= 1.0);

    // The machine has a new name, and the old Node is gone.
    let own = json!({"metadata": {"name": alias}, "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}});
    let own: ClusterNode = serde_json::from_value(own).unwrap();
    bench.nodes.send(Update::Applied(own)).await.unwrap();
    eventually("the address is handed on", || {
        bench.fleet.address(&alias).is_some()
    })
    .await;
    assert_eq!(bench.fleet.address(node.name()), None);
}

#[tokio::test]
async fn an_address_is_free_when_its_node_is_forgotten() {
    let bench = Bench::started(Setting {
        nodes: 1,
        ..Setting::default()
    })
    .await;
    let node = bench.node(0);
    let mut inventory = node.inventory();
    inventory.metadata.name = Some("alias".to_owned());
    bench.publish(&inventory).await;
    bench.send(Update::Deleted(node.name().clone())).await;
    let alias = NodeName::from("alias");
    eventually("the address is the other's", || {
        bench.fleet.address(&alias).is_some()
    })
    .await;
}

#[tokio::test]
async fn no_token_goes_where_the_node_was_before() {
    let second = Duration::from_secs(1);
    let bench = Bench::started(Setting {
        nodes: 1,
        options: Options {
            node_address_cidrs: Vec::new(),
            ..Setting::default().options
        },
        health: HealthLimits {
            fresh: second,
            probe_interval: second,
            ..HealthLimits::default()
        },
        ..Setting::default()
    })
    .await;
    let node = bench.node(0);
    let at = |ip: &str| {
        let node = json!({"metadata": {"name": node.name()}, "status": {"addresses": [{"type": "InternalIP", "address": ip}]}});
        serde_json::from_value::<ClusterNode>(node).unwrap()
    };
    let address = || bench.fleet.address(node.name());
    for left in [
        Update::Deleted(node.name().clone()),
        Update::Applied(at("192.0.2.7")),
    ] {
        let own = Update::Applied(at("127.0.0.1"));
        bench.nodes.send(own).await.unwrap();
        eventually("it is asked", || address().is_some()).await;
        assert!(bench.inventory.refresh(node.name()).await);
        assert!(bench.fleet.place(&mk_pool(), &[]).is_some());
        bench.nodes.send(left).await.unwrap();
        eventually("it is asked no more", || address().is_none()).await;
        assert!(bench.fleet.place(&mk_pool(), &[]).is_none());
        let asked = node.log().len();
        bench.publish(&node.inventory()).await;
        tokio::time::sleep(second * 3).await;
        assert!(!bench.inventory.refresh(node.name()).await);
        assert_eq!(node.log().len(), asked);
        assert_eq!(bench.names().len(), 6, "what it holds is listed");
    }
}

#[tokio::test]
async fn a_node_whose_agent_goes_before_it_was_heard_is_read() {
    let mut bench = Bench::new(Setting {
        nodes: 1,
        options: Options {
            agent_credential: Some(Credential::Fixed(Token::from("x".to_owned()))),
            ..Setting::default().options
        },
        ..Setting::default()
    })
    .await;
    // It takes connections and says nothing.
    let agent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    bench.listed[0].agent = Some(AgentEndpoint {
        address: agent.local_addr().unwrap().to_string(),
        certificate_sha256: "0".repeat(64),
    });
    bench.list().await;
    bench.listed[0].agent = None;
    bench.list().await;
    bench.ready().await;
    assert_eq!(asked(bench.node(0), LIST), 1);
}

#[tokio::test]
async fn a_node_without_its_agent_is_read_again_and_again() {
    let mut bench = Bench::new(Setting {
        nodes: 1,
        options: Options {
            agent_credential: Some(Credential::Fixed(Token::from("x".to_owned()))),
            ..Setting::default().options
        },
        ..Setting::default()
    })
    .await;
    bench.listed[0].agent = Some(AgentEndpoint {
        address: "127.0.0.1:1".to_owned(),
        certificate_sha256: "0".repeat(64),
    });
    bench.list().await;
    bench.ready().await;
    eventually("it is read", || asked(bench.node(0), LIST) > 0).await;
    // Nobody publishes any more, and nothing was done here.
    bench.node(0).plant(Planted::new("team/new", mk_pool()));
    let is_listed = || bench.fleet.store().get("team", "new").is_some();
    eventually("what came since is listed", is_listed).await;
}

#[tokio::test]
async fn a_cordoned_node_is_passed_over() {
    let bench = Bench::started(Setting {
        nodes: 1,
        ..Setting::default()
    })
    .await;
    let node = |cordoned: bool| {
        let node = json!({"metadata": {"name": bench.node(0).name()}, "spec": {"unschedulable": cordoned}});
        Update::Applied(serde_json::from_value(node).unwrap())
    };
    assert!(bench.fleet.has_ready_node());
    bench.nodes.send(node(true)).await.unwrap();
    eventually("cordoned", || !bench.fleet.has_ready_node()).await;
    bench.publish(&bench.node(0).inventory()).await;
    bench.settled().await;
    assert!(bench.fleet.place(&mk_pool(), &[]).is_none());
    bench.nodes.send(node(false)).await.unwrap();
    eventually("uncordoned", || bench.fleet.has_ready_node()).await;
}

#[tokio::test]
async fn hostile_inventories_harm_nobody_and_are_counted() {
    let bench = Bench::started(Setting::default()).await;
    let version = bench.fleet.store().head();
    let name = bench.node(0).name().as_str();
    let address = bench.node(0).address().authority();
    for mut hostile in [
        json!({"entries": "none", "pools": 7}),
        json!({"entries": [1, null, [], {"id": []}, {"id": "x".repeat(10_000)}], "total": -1}),
        json!({"truncated": {}, "entries": {}, "agent": 3, "releases": {}}),
        json!({"entries": [{"name": 1}], "pools": [{"template": ["x"]}]}),
    ] {
        hostile["metadata"] = json!({"name": name, "labels": 3});
        hostile["address"] = address.as_str().into();
        bench.publish_json(&hostile).await;
    }
    for nameless in [
        json!([]),
        json!({"metadata": {"name": "../x"}}),
        json!({"metadata": 7}),
    ] {
        bench.publish_json(&nameless).await;
    }
    bench.send(Update::Undecodable("line 1".to_owned())).await;
    bench.settled().await;
    assert_eq!(bench.changes(version), "");
    assert_eq!(
        bench.metric("rejected_publications_total{reason=\"name\"}"),
        3.0
    );
    assert_eq!(
        bench.metric("rejected_publications_total{reason=\"undecodable\"}"),
        1.0
    );
    assert_eq!(
        bench.metric("rejected_entries_total{reason=\"wrong_type\"}"),
        5.0
    );
    assert_eq!(
        bench.metric("rejected_entries_total{reason=\"too_long\"}"),
        1.0
    );

    let twins = json!({"metadata": {"name": "twin"}, "address": "127.0.0.1:1", "entries": [
        {"id": "sb_t1", "claimRef": "team/twin", "claimedAt": "2026-01-01T00:00:00Z"},
        {"id": "sb_t2", "claimRef": "team/twin", "claimedAt": "2026-01-01T00:00:01Z"},
        {"id": "sb_t3", "claimRef": "../Not A Name", "claimedAt": "2026-01-01T00:00:01Z"}]});
    bench.publish_json(&twins).await;
    eventually("the conflict is counted", || {
        bench.metric("name_conflicts") == 1.0
    })
    .await;
    let names = bench.names();
    assert!(
        ["twin", "sb-t2", "sb-t3"]
            .iter()
            .all(|name| names.contains(&(*name).to_owned())),
        "{names:?}"
    );
}

#[tokio::test]
async fn an_answer_does_not_bring_back_a_node_whose_inventory_is_deleted() {
    let bench = Bench::started(Setting::default()).await;
    let node = bench.node(0);
    let late = FaultKind::Late { millis: 300 };
    assert!(node.inject(Fault::always(late)).await);
    let mut inventory = node.inventory();
    inventory.entries.pop();
    let reads = asked(node, LIST);
    bench.publish(&inventory).await;
    eventually("the node is asked", || asked(node, LIST) > reads).await;
    let (name, refreshed) = (node.name().clone(), bench.inventory.clone());
    let refresh = tokio::spawn(async move { refreshed.refresh(&name).await });
    eventually("the node is asked twice", || asked(node, INFO) > 0).await;
    bench.send(Update::Deleted(node.name().clone())).await;
    eventually("it is forgotten", || bench.names().len() == 3).await;
    assert!(refresh.await.unwrap());
    eventually("the read ends", || {
        node.log().iter().all(|request| request.outcome == "200")
    })
    .await;
    bench.settled().await;
    assert_eq!(bench.names().len(), 3);
    assert_eq!(bench.fleet.address(node.name()), None);
}

#[tokio::test]
async fn many_who_want_to_know_share_one_question() {
    let bench = Bench::started(Setting {
        nodes: 1,
        ..Setting::default()
    })
    .await;
    let node = bench.node(0);
    node.set_pool(&mk_pool(), 7, 9);
    assert!(
        node.inject(Fault::once(FaultKind::Late { millis: 50 }, INFO))
            .await
    );
    let together = (0..20).map(|_| bench.inventory.refresh(node.name()));
    let answers = futures::future::join_all(together).await;
    assert!(answers.into_iter().all(|answered| answered));
    assert!(bench.inventory.refresh(node.name()).await);
    assert_eq!(asked(node, INFO), 1);
    assert_eq!(bench.fleet.counts().warm, 7);
    assert_eq!(
        bench.fleet.store().count(&Scope::All),
        6,
        "it says nothing of sandboxes"
    );

    tokio::time::sleep(Options::default().infos_apart).await;
    node.stop().await;
    assert!(!bench.inventory.refresh(node.name()).await);
    assert_eq!(bench.fleet.counts().warm, 7);
    assert!(!bench.inventory.refresh(&"nobody".into()).await);
}

#[tokio::test]
async fn a_silent_publisher_is_no_dead_node() {
    let second = Duration::from_secs(1);
    let health = HealthLimits {
        fresh: second,
        stale: second * 4,
        lost: second * 5,
        probe_interval: second,
    };
    let bench = Bench::started(Setting {
        health,
        ..Setting::default()
    })
    .await;
    bench.node(1).stop().await;
    eventually("one is lost", || bench.fleet.counts().nodes == [1, 0, 1]).await;
    assert!(asked(bench.node(0), INFO) >= 1);
    assert_eq!(bench.names().len(), 6, "the lost one's sandboxes stay");
    assert_eq!(bench.metric("nodes{health=\"lost\"}"), 1.0);
    let mut edited = bench.listed[1].clone();
    edited.releases.push("sb_x".to_owned());
    bench.publish(&edited).await;
    bench.settled().await;
    assert_eq!(
        bench.fleet.counts().nodes[2],
        1,
        "an edit by the server is no sign of life"
    );
    bench.node(1).start().await;
    eventually("it is back", || bench.fleet.counts().nodes == [2, 0, 0]).await;
}

#[tokio::test]
async fn the_follower_ends_with_its_process() {
    let bench = Bench::started(Setting::default()).await;
    assert!(bench.node(0).inject(Fault::always(FaultKind::Hang)).await);
    let mut inventory = bench.node(0).inventory();
    inventory.entries.clear();
    bench.publish(&inventory).await;
    bench.tasks.shutdown().cancel();
    let begun = Instant::now();
    bench.tasks.finish(PATIENCE).await;
    assert!(begun.elapsed() < Duration::from_secs(2));
}
