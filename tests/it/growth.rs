//! A get, a page, a change and a claim cost among many sandboxes what they cost among few.
//!
//! Time is measured, of which the least of many short batches counts: whatever else the machine does can only add to a batch. The
//! few and the many take turns, and a measurement that shows growth is made again, for a machine may be busy for all of one.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_apiserver::{
    api::{ClaimId, NodeName, PoolKey, SandboxKey},
    fleet::{Fleet, Granted, HealthLimits, Now, Phase, Pool, Report, Row},
    meta::{ResourceVersion, UnixTime},
    store::{Change, Key, Limits, Scope},
};
use serde_json::Value;

use crate::harness::{Cluster, SANDBOXES, item, mk_node};

const FEW: usize = 1_000;
const MANY: usize = 64_000;
/// There are more nodes where there are more sandboxes.
const ROWS_A_NODE: usize = 250;
const PAGE: usize = 500;

/// What looks at every sandbox takes 64 times as long. A tree of 64 times as many is 1.6 times as deep.
const INDEX_GROWS_AT_MOST: f64 = 3.0;
/// Next to TLS, HTTP and JSON the depth of a tree is nothing.
const SERVER_GROWS_AT_MOST: f64 = 2.0;

const ROUNDS: usize = 5;
const BATCHES: usize = 20;
const TURNS: usize = 5;
/// Few, so that they stay in the caches of the CPU, whose misses are no work of ours.
const NAMES: usize = 16;

#[tokio::test]
async fn the_index_works_as_little_among_more_sandboxes() {
    let sides = [Index::of(FEW), Index::of(MANY)];
    let most = INDEX_GROWS_AT_MOST;
    check("a look-up", &sides, most, look_up).await;
    check("a look-up of nothing", &sides, most, look_up_nothing).await;
    check("the first page", &sides, most, first_page).await;
    check("the last page", &sides, most, last_page).await;
    check("a change", &sides, most, change).await;
    check("a claim and its release", &sides, most, claim_and_release).await;
}

#[tokio::test]
async fn the_server_answers_as_soon_among_more_sandboxes() {
    let sides = [Server::of(FEW).await, Server::of(MANY).await];
    let most = SERVER_GROWS_AT_MOST;
    check("a get", &sides, most, get).await;
    check("a get of nothing", &sides, most, get_nothing).await;
    check("a page that says how many follow", &sides, most, get_page).await;
    check("a create and its delete", &sides, most, create_and_delete).await;
}

/// Fails when a turn of the work takes that much longer on the second side. Each turn has a number of its own.
async fn check<Side>(
    what: &str,
    sides: &[Side; 2],
    at_most: f64,
    work: impl AsyncFn(&Side, usize),
) {
    let mut growth = f64::INFINITY;
    for round in 0..ROUNDS {
        let mut least = [Duration::MAX; 2];
        for batch in 0..BATCHES {
            let first = (round * BATCHES + batch) * TURNS;
            for (side, least) in sides.iter().zip(&mut least) {
                let begun = Instant::now();
                for turn in first..first + TURNS {
                    work(side, turn).await;
                }
                *least = begun.elapsed().min(*least);
            }
        }
        let [few, many] = least.map(|time| time.as_secs_f64());
        growth = growth.min(many / few);
        if growth <= at_most {
            return;
        }
    }
    panic!("{what} takes {growth:.1} times as long among {MANY} sandboxes as among {FEW}");
}

/// The index without a server, filled as nodes fill it that take claims.
struct Index {
    fleet: Arc<Fleet>,
    names: Vec<String>,
    before_the_last_page: Key,
}

impl Index {
    fn of(n_sandboxes: usize) -> Self {
        let start = ResourceVersion::first_of_epoch(1).unwrap();
        let fleet = Fleet::new(start, Limits::default(), HealthLimits::default());
        fill(&fleet, n_sandboxes, |rows| Report {
            address: Some("10.1.2.3:7777".parse().unwrap()),
            pools: Some(vec![Pool {
                key: mk_pool(),
                warm: 100,
                target: 100,
            }]),
            ..mk_report(rows)
        });
        Self {
            fleet: Arc::new(fleet),
            names: names(n_sandboxes),
            before_the_last_page: Key::new("default", name(n_sandboxes - PAGE - 1)),
        }
    }

    fn page(&self, after: Option<&Key>) {
        let store = self.fleet.store();
        let page = store.page(&Scope::All, after, store.head(), PAGE).unwrap();
        assert_eq!((page.items.len(), page.more), (PAGE, after.is_none()));
    }
}

async fn look_up(index: &Index, turn: usize) {
    let name = &index.names[turn % NAMES];
    assert!(index.fleet.store().get("default", name).is_some());
}

async fn look_up_nothing(index: &Index, _turn: usize) {
    let name = format!("{}x", name(PAGE));
    assert!(index.fleet.store().get("default", &name).is_none());
}

async fn first_page(index: &Index, _turn: usize) {
    index.page(None);
}

async fn last_page(index: &Index, _turn: usize) {
    index.page(Some(&index.before_the_last_page));
}

async fn change(index: &Index, turn: usize) {
    let store = index.fleet.store();
    let known = store.get("default", &index.names[turn % NAMES]).unwrap();
    store.commit([Change::Put(known.value.clone())]);
}

/// What a create does to the index, without the node that it asks in between.
async fn claim_and_release(index: &Index, turn: usize) {
    let (fleet, pool, now) = (&index.fleet, mk_pool(), Now::read());
    let key = SandboxKey::new("default", format!("claimed-{turn}"));
    let reservation = fleet.reserve(key).unwrap();
    let placement = fleet.place(&pool, &[]).expect("all nodes have warm VMs");
    let claim = ClaimId::from(format!("sb_f{turn:015x}"));
    let granted = Granted {
        node: placement.node.clone(),
        claim: claim.clone(),
        pool: Some(pool.clone()),
        address: "10.1.2.3:8080".into(),
        from_checkpoint: None,
        claimed_at: now.wall,
        deadline: Some(tomorrow()),
        phase: Phase::Running,
        user: None,
    };
    fleet.granted(&reservation, granted, &[], now).unwrap();
    drop(reservation);
    assert!(fleet.released(&placement.node, &claim, now).is_some());
    fleet.give_back(&pool, &placement.node);
}

/// The server over one simulated node, with sandboxes of further nodes in its index. Those have no address: nobody asks them.
struct Server {
    cluster: Cluster,
    names: Vec<String>,
}

impl Server {
    async fn of(n_sandboxes: usize) -> Self {
        let cluster = Cluster::start(mk_node(2_000)).await;
        fill(&cluster.fleet, n_sandboxes, mk_report);
        Self {
            cluster,
            names: names(n_sandboxes),
        }
    }
}

async fn get(server: &Server, turn: usize) {
    let path = item(&server.names[turn % NAMES]);
    assert_eq!(server.cluster.client.get(path).await.code(), 200);
}

async fn get_nothing(server: &Server, _turn: usize) {
    assert_eq!(server.cluster.client.get(item("absent")).await.code(), 404);
}

async fn get_page(server: &Server, _turn: usize) {
    let path = format!("{SANDBOXES}?limit=10");
    let page = server.cluster.client.get(path).await;
    let remaining = page.json()["metadata"]["remainingItemCount"].as_u64();
    assert!(
        remaining.is_some_and(|remaining| remaining > 900),
        "{}",
        page.text()
    );
}

async fn create_and_delete(server: &Server, turn: usize) {
    let name = format!("claimed-{turn}");
    server.cluster.create(&name).await;
    let deleted = server.cluster.client.delete(item(&name), Value::Null).await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
}

fn fill(fleet: &Fleet, n_sandboxes: usize, report: impl Fn(Vec<Row>) -> Report) {
    let now = Now::read();
    for first in (0..n_sandboxes).step_by(ROWS_A_NODE) {
        let node = NodeName::from(format!("node-{first:05}"));
        let rows = (first..first + ROWS_A_NODE).map(mk_row).collect();
        fleet.publish(&node, &report(rows), true, true, now);
    }
    assert_eq!(fleet.store().count(&Scope::All), n_sandboxes);
}

/// A report of rows alone.
fn mk_report(rows: Vec<Row>) -> Report {
    Report {
        address: None,
        rows,
        pools: None,
        complete: true,
        published_since: UnixTime::now(),
    }
}

fn mk_row(number: usize) -> Row {
    Row {
        claim: format!("sb_{number:016x}").into(),
        claim_ref: format!("default/{}", name(number)).into(),
        phase: Phase::Running,
        deadline: Some(tomorrow()),
        claimed_at: Some(UnixTime::now()),
        pool: Some(mk_pool()),
        address: "10.1.2.3:8080".into(),
        from_checkpoint: None,
        metadata: BTreeMap::new(),
    }
}

fn mk_pool() -> PoolKey {
    PoolKey {
        template: "python:3.12".into(),
        net: PoolKey::DEFAULT_NET.into(),
        size: PoolKey::DEFAULT_SIZE.into(),
    }
}

fn tomorrow() -> UnixTime {
    UnixTime::now().after(Duration::from_secs(86_400))
}

/// Names from all over the list.
fn names(n_sandboxes: usize) -> Vec<String> {
    let spread = (0..NAMES).map(|turn| turn * n_sandboxes / NAMES);
    spread.map(name).collect()
}

fn name(number: usize) -> String {
    format!("sb-{number:05}")
}
