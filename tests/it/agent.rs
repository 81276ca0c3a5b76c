//! Node agents beside simulated daemons: what they tell, publish and keep, heard by a server's index and by a listener.

mod clocks;
mod gateway;
mod process;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use http::StatusCode;
use sandbox_apiserver::{
    api::{
        ClaimId, InventoryEntry, NodeAddress, NodeInventory, NodeName, PoolKey, Token, UserPart,
    },
    auth::{Authenticator, Authorizer, UserInfo},
    feed::{self, Credential, Error, Event},
    fleet::{Fleet, Health, HealthLimits, Now, Phase},
    inventory::{Inventory, InventoryMetrics, NotKept, Options, Publication, Source, Update},
    meta::ResourceVersion,
    node::{self, Agent, Identity, Inventories, NodeMetrics, Objects},
    sandboxd::{Client, ClientOptions, TokenSource},
    sim::{self, Fault, FaultKind, Handle, Planted},
    store::{Limits, Scope},
    telemetry::{Metrics, Readiness, Tasks},
};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// Longer than anything here takes, on a slow machine as well.
const PATIENCE: Duration = Duration::from_secs(30);
const TOKEN: &str = "of-the-server";
const LIST: &str = "/v1/sandboxes";

/// An agent in this process, and what it published.
struct Running {
    port: u16,
    identity: Identity,
    published: mpsc::Receiver<NodeInventory>,
    shutdown: CancellationToken,
    task: JoinHandle<node::Result<()>>,
}

impl Running {
    async fn start(daemon: &Handle, state_dir: &Path, port: u16, options: node::Options) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let counters = NodeMetrics::default();
        let at = address(port);
        let node = daemon.name().clone();
        let identity = Identity::load(node, daemon.address().clone(), at, state_dir).unwrap();
        let (inventories_tx, published) = mpsc::channel(64);
        let server = UserInfo::new("server", &["system:masters"]);
        let agent = Agent {
            identity: identity.clone(),
            daemon: client(),
            daemon_address: daemon.address().clone(),
            objects: opened(state_dir, &counters).await,
            inventories: Inventories::InProcess(inventories_tx),
            authenticator: Authenticator::fixed([(TOKEN.to_owned(), server)], false),
            authorizer: Authorizer::always_allow(),
            options,
            counters,
            gateway: None,
        };
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(agent.run(listener, Metrics::new(), shutdown.clone()));
        Self {
            port,
            identity,
            published,
            shutdown,
            task,
        }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .expect("the agent ends when it is asked to")
            .unwrap()
            .unwrap();
    }

    fn agent(&self, token: &str) -> feed::Agent {
        feed::Agent {
            node: self.identity.node.clone(),
            address: address(self.port),
            pin: self.identity.endpoint().certificate_sha256.parse().unwrap(),
            credential: Credential::Fixed(Token::from(token.to_owned())),
        }
    }

    async fn published(&mut self) -> NodeInventory {
        let published = tokio::time::timeout(PATIENCE, self.published.recv()).await;
        published.expect("an inventory in time").unwrap()
    }
}

/// A simulated node with an agent, and a server's index that follows them.
struct Bench {
    sim: sim::Fleet,
    state: TempDir,
    agent: Running,
    server: Server,
}

struct Server {
    fleet: Arc<Fleet>,
    inventory: Inventory,
    inventories: mpsc::Sender<Update<Publication>>,
    readiness: Readiness,
    _tasks: Tasks,
}

impl Server {
    async fn start(listed: &[NodeInventory]) -> Self {
        let start = ResourceVersion::first_of_epoch(1).unwrap();
        let health = HealthLimits::default();
        let fleet = Arc::new(Fleet::new(start, Limits::default(), health));
        let options = Options {
            node_address_cidrs: vec!["127.0.0.0/8".parse().unwrap()],
            agent_credential: Some(Credential::Fixed(Token::from(TOKEN.to_owned()))),
            ..Options::default()
        };
        let counters = InventoryMetrics::default();
        let inventory = Inventory::new(fleet.clone(), client(), options, counters);
        let (inventories, inventories_rx) = mpsc::channel(64);
        let source = Source::InProcess {
            inventories: inventories_rx,
            nodes: mpsc::channel(1).1,
        };
        let (shutdown, readiness) = (CancellationToken::new(), Readiness::new());
        let mut tasks = Tasks::new(shutdown.clone());
        let ready = readiness.check("inventory");
        tasks.spawn("inventory", inventory.clone().run(source, ready, shutdown));
        for inventory in listed {
            let update = Update::Listed(publication(inventory));
            inventories.send(update).await.unwrap();
        }
        inventories.send(Update::ListEnds).await.unwrap();
        let server = Self {
            fleet,
            inventory,
            inventories,
            readiness,
            _tasks: tasks,
        };
        until("the server is ready", || server.readiness.is_ready()).await;
        server
    }

    fn health(&self, node: &NodeName) -> Option<Health> {
        let nodes = self.fleet.nodes();
        let known = nodes.into_iter().find(|known| known.name == *node)?;
        Some(known.health)
    }
}

impl Bench {
    async fn start(sandboxes: usize) -> Self {
        Self::with(sandboxes, quick()).await
    }

    async fn with(sandboxes: usize, options: node::Options) -> Self {
        Self::over(sim(sandboxes).await, options).await
    }

    async fn over(sim: sim::Fleet, options: node::Options) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut agent = Running::start(&sim.nodes()[0], state.path(), 0, options).await;
        let server = Server::start(&[agent.published().await]).await;
        let bench = Self {
            sim,
            state,
            agent,
            server,
        };
        bench.is_live().await;
        bench
    }

    fn daemon(&self) -> &Handle {
        &self.sim.nodes()[0]
    }

    async fn is_live(&self) {
        let node = self.daemon().name().clone();
        until("the feed is live", || self.server.inventory.is_live(&node)).await;
    }

    fn lists(&self, claim: &ClaimId) -> bool {
        let node = self.daemon().name();
        self.server.fleet.by_claim(node, claim).is_some()
    }

    /// Waits until a claim is listed, or is not. How long that took.
    async fn shows(&self, claim: &ClaimId, listed: bool) -> Duration {
        let begun = Instant::now();
        let mut changes = self.server.fleet.store().subscribe();
        let shown = async {
            while self.lists(claim) != listed {
                changes.changed().await.unwrap();
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, shown).await;
        in_time.unwrap_or_else(|_| panic!("{claim} listed: {listed}"));
        begun.elapsed()
    }
}

/// An agent that waits for its daemon as long as it takes.
fn patient() -> node::Options {
    node::Options {
        poll_within: Duration::from_secs(3_600),
        ..quick()
    }
}

/// Makes the agent's next look at the daemon one that never ends. Others are answered.
async fn hang_the_next_look(daemon: &Handle) {
    assert!(daemon.inject(Fault::once(FaultKind::Hang, LIST)).await);
    let is_used = || daemon.faults().iter().all(|fault| fault.times == Some(0));
    until("the agent looks", is_used).await;
}

fn quick() -> node::Options {
    node::Options {
        idle_poll_apart: Duration::from_millis(100),
        publish_apart: Duration::from_millis(100),
        ..node::Options::default()
    }
}

async fn sim(sandboxes: usize) -> sim::Fleet {
    let options = sim::Options {
        nodes: 1,
        sandboxes,
        mesh: false,
        ..sim::Options::default()
    };
    sim::Fleet::start(options).await.unwrap()
}

fn client() -> Client {
    let token = TokenSource::Fixed(Token::from("sim".to_owned()));
    let ca_file = None;
    Client::new(ClientOptions { token, ca_file }).unwrap()
}

/// The objects in a directory that an earlier agent may be about to let go of.
async fn opened(state_dir: &Path, counters: &NodeMetrics) -> Objects {
    let begun = Instant::now();
    loop {
        match Objects::open(state_dir, counters.clone()) {
            Ok(objects) => return objects,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn address(port: u16) -> NodeAddress {
    format!("https://127.0.0.1:{port}").parse().unwrap()
}

fn publication(inventory: &NodeInventory) -> Publication {
    Publication::decode(&serde_json::to_vec(inventory).unwrap()).unwrap()
}

fn key() -> PoolKey {
    sim::Options::default().pools[0].clone()
}

fn mk_user(generation: i64) -> UserPart {
    UserPart {
        generation,
        labels: [("team".into(), "a".into())].into(),
        finalizers: vec!["x.io/wait".into()],
        spec: r#"{"podTemplate":{"spec":{"containers":[]}}}"#.into(),
        ..UserPart::default()
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The snapshot's epoch and how many sandboxes it has.
async fn snapshot(feed: &mut feed::Listening) -> (u64, usize) {
    loop {
        match feed.next().await.unwrap() {
            Event::Snapshot {
                epoch, sandboxes, ..
            } => return (epoch, sandboxes.len()),
            Event::Heartbeat { .. } => {}
            other => panic!("{other:?} before the snapshot"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_behind_our_back_shows_within_a_second() {
    let bench = Bench::start(50).await;
    let mut took = Vec::new();
    for n in 0..40 {
        let claim = bench
            .daemon()
            .plant(Planted::new(&format!("default/new-{n}"), key()));
        took.push(bench.shows(&claim, true).await);
        assert!(bench.daemon().lose(&claim));
        took.push(bench.shows(&claim, false).await);
    }
    took.sort();
    let (median, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    println!("change on the node to event in the store: median {median:?}, p99 {p99:?}");
    assert!(p99 < Duration::from_secs(1), "p99 {p99:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sandbox_uses_shows_and_is_no_change_of_it() {
    let bench = Bench::with(
        0,
        node::Options {
            sample_apart: Duration::from_millis(50),
            ..quick()
        },
    )
    .await;
    let daemon = bench.daemon();
    let claim = daemon.plant(Planted::new("default/a", key()));
    bench.shows(&claim, true).await;
    let fleet = &bench.server.fleet;
    let record = || fleet.by_claim(daemon.name(), &claim).unwrap();
    let before = (record().version, fleet.store().head());
    let used = || record().value.usage.get();
    until("it is measured", || {
        used().is_some_and(|used| used.memory_used.is_some())
    })
    .await;
    let known = used().unwrap();
    assert_eq!((known.cpus, known.memory_total), (1, 512));
    let in_use = known.memory_used.unwrap();
    assert!((64..=128).contains(&in_use), "{in_use} MiB");
    assert_eq!((record().version, fleet.store().head()), before);
    // A new life of the server is told all of it again.
    let mut inventory = daemon.inventory();
    inventory.agent = Some(bench.agent.identity.endpoint());
    let later = Server::start(&[inventory]).await;
    until("the later server knows", || {
        let record = later.fleet.by_claim(daemon.name(), &claim);
        record.is_some_and(|record| record.value.usage.get().is_some())
    })
    .await;
    bench.agent.shutdown.cancel();
    until("nobody tells it any more", || used().is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sandbox_is_not_asked_what_it_uses() {
    let bench = Bench::with(
        0,
        node::Options {
            sample_apart: Duration::from_millis(20),
            ..quick()
        },
    )
    .await;
    let daemon = bench.daemon();
    let claim = daemon.plant(Planted::new("default/a", key()));
    bench.shows(&claim, true).await;
    let n_asked = || {
        let log = daemon.log();
        log.iter()
            .filter(|call| call.path.ends_with("/stats"))
            .count()
    };
    until("it is asked", || n_asked() > 0).await;
    client()
        .node(daemon.address(), PATIENCE)
        .hibernate(&claim)
        .await
        .unwrap();
    let fleet = &bench.server.fleet;
    until("the agent knows that it is paused", || {
        let record = fleet.by_claim(daemon.name(), &claim).unwrap();
        record.value.phase == Phase::Paused
    })
    .await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let asked = n_asked();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(n_asked(), asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_told_live_is_not_read() {
    let bench = Bench::start(3).await;
    let claim = bench.daemon().plant(Planted::new("default/new", key()));
    bench.shows(&claim, true).await;
    // An inventory from before the claim is older than the feed, whatever it says.
    let mut old = bench.daemon().inventory();
    old.agent = Some(bench.agent.identity.endpoint());
    old.entries.clear();
    old.pools.clear();
    old.observed_at = Some("2020-01-01T00:00:00Z".to_owned());
    let update = Update::Applied(publication(&old));
    bench.server.inventories.send(update).await.unwrap();
    let later = bench.daemon().plant(Planted::new("default/later", key()));
    bench.shows(&later, true).await;
    assert!(bench.lists(&claim));
    assert_eq!(bench.server.fleet.counts().sandboxes, 5);
    assert!(bench.server.fleet.counts().warm > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_down_keeps_its_sandboxes_and_loses_its_place() {
    let bench = Bench::start(2).await;
    let (kept, lost) = (
        bench.daemon().plant(Planted::new("default/kept", key())),
        bench.daemon().plant(Planted::new("default/lost", key())),
    );
    bench.shows(&lost, true).await;
    let node = bench.daemon().name().clone();
    assert_eq!(bench.server.health(&node), Some(Health::Fresh));
    bench.daemon().stop().await;
    let stale = || bench.server.health(&node) == Some(Health::Stale);
    until("the node gets no new sandboxes", stale).await;
    assert!(bench.lists(&kept) && bench.lists(&lost));
    assert!(bench.daemon().lose(&lost));
    bench.daemon().start().await;
    bench.shows(&lost, false).await;
    let fresh = || bench.server.health(&node) == Some(Health::Fresh);
    until("the node has its place again", fresh).await;
    assert!(bench.lists(&kept));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_starts_although_the_daemon_beside_an_agent_is_down() {
    let mut bench = Bench::start(2).await;
    let node = bench.daemon().name().clone();
    let lost = bench.daemon().claims_of("default/sb-000000")[0].clone();
    bench.daemon().stop().await;
    let mut listed = bench.sim.inventories();
    listed[0].agent = Some(bench.agent.identity.endpoint());
    bench.server = Server::start(&listed).await;
    assert!(bench.lists(&lost));
    assert_eq!(bench.server.health(&node), Some(Health::Stale));
    assert!(!bench.server.inventory.is_live(&node));
    assert!(bench.daemon().lose(&lost));
    bench.daemon().start().await;
    bench.is_live().await;
    // It is live a moment before what it tells is merged, so that nothing older is merged in between.
    bench.shows(&lost, false).await;
    assert_eq!(bench.server.health(&node), Some(Health::Fresh));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_starts_although_an_agent_never_comes_to_its_snapshot() {
    let bench = Bench::with(2, patient()).await;
    hang_the_next_look(bench.daemon()).await;
    let claim = bench.daemon().plant(Planted::new("default/new", key()));
    let mut listed = bench.sim.inventories();
    listed[0].agent = Some(bench.agent.identity.endpoint());
    listed[0].entries.clear();
    listed[0].total = Some(0);
    // It is heard of every three seconds, and its daemon answered the last time.
    let server = Server::start(&listed).await;
    let node = bench.daemon().name();
    assert!(server.fleet.by_claim(node, &claim).is_some(), "it was read");
    assert!(!server.inventory.is_live(node));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_slower_than_the_start_waits_is_told_live_in_the_end() {
    let bench = Bench::start(2).await;
    let late = Fault {
        path: LIST.to_owned(),
        ..Fault::always(FaultKind::Late { millis: 2_500 })
    };
    assert!(bench.daemon().inject(late).await);
    let mut listed = bench.sim.inventories();
    listed[0].agent = Some(bench.agent.identity.endpoint());
    let server = Server::start(&listed).await;
    let node = bench.daemon().name();
    assert!(!server.inventory.is_live(node), "the start did not wait");
    until("the feed is live", || server.inventory.is_live(node)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_late_is_not_left_behind_by_a_feed_that_begins() {
    let bench = Bench::start(2).await;
    let late = Fault {
        path: LIST.to_owned(),
        ..Fault::always(FaultKind::Late { millis: 2_500 })
    };
    assert!(bench.daemon().inject(late).await);
    let mut listed = bench.sim.inventories();
    listed[0].agent = Some(bench.agent.identity.endpoint());
    let server = Server::start(&listed).await;
    let node = bench.daemon().name();
    assert!(!server.inventory.is_live(node), "the start did not wait");
    // Each tells of another sandbox that the node does not have any more.
    let entry = listed[0].entries[0].clone();
    let begun = Instant::now();
    for number in 0.. {
        if begun.elapsed() > Duration::from_secs(8) {
            break;
        }
        let mut published = listed[0].clone();
        published.entries.push(InventoryEntry {
            id: format!("sb_gone{number}"),
            claim_ref: format!("default/gone-{number}"),
            ..entry.clone()
        });
        let update = Update::Applied(publication(&published));
        server.inventories.send(update).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until("the feed is live", || server.inventory.is_live(node)).await;
    until("only what the node has is listed", || {
        server.fleet.store().count(&Scope::All) == 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_sent_brings_back_nothing_that_was_before() {
    let bench = Bench::with(1, patient()).await;
    let claim = bench.daemon().plant(Planted::new("default/mine", key()));
    bench.shows(&claim, true).await;
    hang_the_next_look(bench.daemon()).await;
    let (node, server) = (bench.daemon().name(), &bench.server);
    let now = Now::read();
    server
        .fleet
        .set_phase(node, &claim, Phase::Paused, false, now);
    let kept = server.inventory.keep_user(node, &claim, &mk_user(3)).await;
    kept.unwrap();
    let sandbox = || server.fleet.by_claim(node, &claim).unwrap().value.clone();
    until("it is told", || sandbox().user.is_some()).await;
    assert_eq!(
        sandbox().phase,
        Phase::Paused,
        "the agent has not looked since"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_daemon_is_told_later_and_stays() {
    let bench = Bench::start(2).await;
    let late = Fault {
        path: LIST.to_owned(),
        ..Fault::always(FaultKind::Late { millis: 1_500 })
    };
    assert!(bench.daemon().inject(late).await);
    let claim = bench.daemon().plant(Planted::new("default/new", key()));
    bench.shows(&claim, true).await;
    let node = bench.daemon().name().clone();
    assert_eq!(bench.server.health(&node), Some(Health::Fresh));
    let broken = Fault {
        path: LIST.to_owned(),
        times: Some(3),
        ..Fault::always(FaultKind::Cut)
    };
    bench.daemon().clear_faults().await;
    assert!(bench.daemon().inject(broken).await);
    let another = bench.daemon().plant(Planted::new("default/another", key()));
    bench.shows(&another, true).await;
    assert!(bench.lists(&claim), "half a list is none");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_begins_a_new_epoch_and_has_what_users_sent() {
    let mut bench = Bench::start(2).await;
    let (node, claim) = (
        bench.daemon().name().clone(),
        bench.daemon().plant(Planted::new("default/mine", key())),
    );
    bench.shows(&claim, true).await;
    let inventory = bench.server.inventory.clone();
    inventory
        .keep_user(&node, &claim, &mk_user(3))
        .await
        .unwrap();
    let listen = async |agent: &Running| {
        let connection = agent.agent(TOKEN).connect().await.unwrap();
        let mut feed = connection.listen().await.unwrap();
        snapshot(&mut feed).await
    };
    let (first, n) = listen(&bench.agent).await;
    assert_eq!(n, 3);
    let (port, state) = (bench.agent.port, bench.state.path().to_owned());
    let daemon = bench.daemon().clone();
    bench.agent.stop().await;
    until("the feed is lost", || !inventory.is_live(&node)).await;
    let refused = inventory.keep_user(&node, &claim, &mk_user(4)).await;
    assert!(matches!(refused, Err(NotKept::NoAgent)));
    let unseen = daemon.plant(Planted::new("default/unseen", key()));
    bench.agent = Running::start(&daemon, &state, port, quick()).await;
    bench.is_live().await;
    assert!(bench.lists(&unseen), "a live feed has told everything");
    let (second, _) = listen(&bench.agent).await;
    assert_ne!(first, second);
    // Another server, which knows nothing, learns it all from the agent.
    let server = Server::start(&[bench.agent.published().await]).await;
    let restored = server.fleet.by_claim(&node, &claim).unwrap();
    assert_eq!(restored.value.user.as_deref(), Some(&mk_user(3)));
    inventory.forget_user(&node, &claim).await.unwrap();
    let server = Server::start(&[bench.daemon().inventory()]).await;
    let listed = server.fleet.by_claim(&node, &claim).unwrap();
    assert_eq!(listed.value.user, None, "without agent nobody knows");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_away_is_told_what_users_sent_meanwhile() {
    let mut bench = Bench::start(2).await;
    let daemon = bench.daemon().clone();
    let node = daemon.name().clone();
    let claims = ["new", "changed", "kept"].map(|name| {
        let name = format!("default/{name}");
        daemon.plant(Planted::new(&name, key()))
    });
    for claim in &claims {
        bench.shows(claim, true).await;
    }
    let (fleet, inventory) = (bench.server.fleet.clone(), bench.server.inventory.clone());
    let say = |claim: &ClaimId, generation| {
        let known = fleet.by_claim(&node, claim).unwrap();
        let user = Arc::new(mk_user(generation));
        let said = fleet.set_user(&node, claim, known.version, user);
        said.unwrap();
    };
    for claim in &claims[1..] {
        say(claim, 1);
        inventory
            .keep_user(&node, claim, &mk_user(1))
            .await
            .unwrap();
    }
    let (port, state) = (bench.agent.port, bench.state.path().to_owned());
    bench.agent.stop().await;
    until("the feed is lost", || !inventory.is_live(&node)).await;
    say(&claims[0], 1);
    say(&claims[1], 2);
    bench.agent = Running::start(&daemon, &state, port, quick()).await;
    bench.is_live().await;
    // Another server, which knows nothing, learns it all from the agent.
    let begun = Instant::now();
    loop {
        let server = Server::start(&[bench.agent.published().await]).await;
        let generation = |claim| {
            let record = server.fleet.by_claim(&node, claim).unwrap();
            record.value.user.as_ref().map(|user| user.generation)
        };
        if claims.each_ref().map(generation) == [Some(1), Some(2), Some(1)] {
            break;
        }
        assert!(begun.elapsed() < PATIENCE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_certificate_of_the_inventory_and_a_known_token_will_do() {
    let sim = sim(1).await;
    let state = tempfile::tempdir().unwrap();
    let agent = Running::start(&sim.nodes()[0], state.path(), 0, quick()).await;
    let other = tempfile::tempdir().unwrap();
    let other = Running::start(&sim.nodes()[0], other.path(), 0, quick()).await;
    let mixed = feed::Agent {
        pin: other.agent(TOKEN).pin,
        ..agent.agent(TOKEN)
    };
    assert!(matches!(
        mixed.connect().await,
        Err(Error::WrongCertificate)
    ));
    let misled = feed::Agent {
        node: "another".into(),
        ..agent.agent(TOKEN)
    };
    let connection = misled.connect().await.unwrap();
    let told = connection.listen().await.err();
    let is_told = |error| matches!(error, Error::Refused { status, .. } if status == StatusCode::MISDIRECTED_REQUEST);
    assert!(told.is_some_and(is_told));
    let connection = agent.agent("guessed").connect().await.unwrap();
    let refused = |error| matches!(error, Error::Refused { status, .. } if status == StatusCode::UNAUTHORIZED);
    assert!(connection.listen().await.err().is_some_and(refused));
    let record = mk_user(1);
    let put = connection
        .objects()
        .put(&"sb_1".into(), &record, PATIENCE)
        .await;
    assert!(put.err().is_some_and(refused));
    let file = Credential::File(state.path().join("absent"));
    let unarmed = feed::Agent {
        credential: file,
        ..agent.agent(TOKEN)
    };
    let connection = unarmed.connect().await.unwrap();
    assert!(matches!(
        connection.listen().await,
        Err(Error::NoToken { .. })
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_has_gone_silent_is_given_up() {
    let sim = sim(1).await;
    let state = tempfile::tempdir().unwrap();
    let agent = Running::start(&sim.nodes()[0], state.path(), 0, quick()).await;
    let proxy = Proxy::start(agent.port).await;
    let behind_proxy = feed::Agent {
        address: address(proxy.address.port()),
        ..agent.agent(TOKEN)
    };
    let connection = behind_proxy.connect().await.unwrap();
    let mut feed = connection.listen().await.unwrap();
    snapshot(&mut feed).await;
    proxy.stalled.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let error = loop {
        if let Err(error) = feed.next().await {
            break error;
        }
    };
    assert!(
        matches!(error, Error::Silent { .. } | Error::Broken(_)),
        "{error}"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inventory_is_published_on_change_only() {
    let sim = sim(2).await;
    let (daemon, state) = (&sim.nodes()[0], tempfile::tempdir().unwrap());
    let mut agent = Running::start(daemon, state.path(), 0, quick()).await;
    let first = agent.published().await;
    assert_eq!(
        (first.entries.len(), first.total, first.truncated),
        (2, Some(2), false)
    );
    assert_eq!(first.agent, Some(agent.identity.endpoint()));
    assert_eq!(first.address, daemon.address().authority());
    assert!(first.entries.iter().all(|entry| entry.claimed_at.is_some()));
    let nothing = tokio::time::timeout(Duration::from_secs(2), agent.published.recv()).await;
    assert!(nothing.is_err(), "published without a change");
    daemon.plant(Planted::new("default/new", key()));
    assert_eq!(agent.published().await.entries.len(), 3);
    daemon.set_pool(&key(), 1, 4);
    assert_eq!(agent.published().await.warm, Some(1));
    // Who listens is told, and etcd is spared.
    let connection = agent.agent(TOKEN).connect().await.unwrap();
    let mut feed = connection.listen().await.unwrap();
    snapshot(&mut feed).await;
    let claim = daemon.plant(Planted::new("default/newer", key()));
    daemon.set_pool(&key(), 2, 4);
    let mut told = (false, false);
    while told != (true, true) {
        match feed.next().await.unwrap() {
            Event::Sandbox(sandbox) => told.0 |= sandbox.row.id == claim,
            Event::Node(node) => told.1 |= node.pools[0].warm == 2,
            Event::Heartbeat { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    let nothing = tokio::time::timeout(Duration::from_secs(2), agent.published.recv()).await;
    assert!(nothing.is_err(), "published although somebody listens");
    drop((feed, connection));
    assert_eq!(agent.published().await.entries.len(), 4);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inventory_that_is_cut_says_so() {
    let sim = sim(500).await;
    let state = tempfile::tempdir().unwrap();
    let options = node::Options {
        max_inventory_bytes: 64 << 10,
        ..quick()
    };
    let mut agent = Running::start(&sim.nodes()[0], state.path(), 0, options).await;
    let cut = agent.published().await;
    assert!(cut.truncated && cut.total == Some(500));
    assert!(
        (100..500).contains(&cut.entries.len()),
        "{}",
        cut.entries.len()
    );
    // The feed has no such limit.
    let server = Server::start(&[cut]).await;
    assert_eq!(server.fleet.counts().sandboxes, 500);
}

/// A proxy that can stop to pass anything on while it keeps every connection open.
struct Proxy {
    address: SocketAddr,
    stalled: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Proxy {
    async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stalled = Arc::new(AtomicBool::new(false));
        let of_task = stalled.clone();
        let task = tokio::spawn(async move {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (client, server) = (client.into_split(), server.into_split());
            let up = pass(client.0, server.1, of_task.clone());
            let down = pass(server.0, client.1, of_task);
            tokio::join!(up, down);
        });
        Self {
            address,
            stalled,
            task,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    stalled: Arc<AtomicBool>,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut bytes = vec![0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut bytes).await {
        if stalled.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if to.write_all(&bytes[..n]).await.is_err() {
            return;
        }
    }
}
