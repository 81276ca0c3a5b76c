//! The engine against simulated nodes, over real sockets.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    WarmPoolMetrics,
    engine::{Engine, Intent},
    members::{Members, Written},
    plan::Demand,
};
use crate::{
    api::{NodeAddress, NodeInventory, PoolKey, Token},
    fleet::{Fleet, HealthLimits, Now, Pool, Report},
    meta::{ResourceVersion, UnixTime},
    sandboxd::{Client, ClientOptions, TokenSource},
    sim::{self, Fault, FaultKind, Handle, Planted},
    store::Limits,
};

/// Generous: other builds may share the machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Claims that a node takes.
const MAX_CLAIMS: usize = 16;

struct Bench {
    sim: sim::Fleet,
    fleet: Arc<Fleet>,
    engine: Engine,
    intent: Intent,
    saves: usize,
    /// The most that all nodes together were ever told to keep, by key.
    most: BTreeMap<PoolKey, u32>,
}

pub(super) fn mk_key(template: &str) -> PoolKey {
    PoolKey {
        template: template.into(),
        net: "none".into(),
        size: "small".into(),
    }
}

pub(super) fn mk_demand(template: &str, replicas: u32) -> Demand {
    Demand {
        key: mk_key(template),
        replicas,
        node_selector: BTreeMap::new(),
    }
}

fn mk_daemons() -> Client {
    let token = TokenSource::Fixed(Token::from("sim".to_owned()));
    let ca_file = None;
    Client::new(ClientOptions { token, ca_file }).unwrap()
}

impl Bench {
    async fn new(nodes: usize, pools: &[&str]) -> Self {
        Self::with(nodes, pools, Written::new(), false).await
    }

    async fn with(nodes: usize, pools: &[&str], written: Written, takeover: bool) -> Self {
        let sim = sim::Fleet::start(sim::Options {
            nodes,
            pools: pools.iter().map(|template| mk_key(template)).collect(),
            warm: 2,
            max_claims: MAX_CLAIMS,
            latency: sim::Latency {
                refill: Duration::from_millis(20),
                ..sim::Latency::default()
            },
            ..sim::Options::default()
        });
        let sim = sim.await.unwrap();
        let start = ResourceVersion::first_of_epoch(1).unwrap();
        let fleet = Arc::new(Fleet::new(
            start,
            Limits::default(),
            HealthLimits::default(),
        ));
        let engine = Engine::new(
            fleet.clone(),
            mk_daemons(),
            Members::new(written, takeover),
            WarmPoolMetrics::default(),
        );
        let bench = Self {
            sim,
            fleet,
            engine,
            intent: Intent::default(),
            saves: 0,
            most: BTreeMap::new(),
        };
        (0..nodes).for_each(|index| bench.publish(index));
        bench
    }

    fn node(&self, index: usize) -> &Handle {
        &self.sim.nodes()[index]
    }

    /// As if the node's inventory had come in.
    fn publish(&self, index: usize) {
        let NodeInventory { address, pools, .. } = self.node(index).inventory();
        let pool = |pool: crate::api::InventoryPool| Pool {
            key: PoolKey {
                template: pool.template.into(),
                net: pool.net.into(),
                size: pool.size.into(),
            },
            warm: pool.warm as u32,
            target: pool.target as u32,
        };
        let report = Report {
            address: address.parse::<NodeAddress>().ok(),
            rows: Vec::new(),
            pools: Some(pools.into_iter().map(pool).collect()),
            complete: true,
            published_since: UnixTime::from_secs(0),
        };
        let name = self.node(index).name();
        self.fleet.publish(name, &report, true, false, Now::read());
    }

    fn want(&mut self, demands: &[Demand]) {
        self.intent.demands = demands.to_vec();
    }

    /// One turn of the driver's loop.
    async fn turn(&mut self) {
        if self.engine.advance(&self.intent).is_some() {
            self.saves += 1;
            self.engine.members.recorded(true);
        }
        let _ = tokio::time::timeout(Duration::from_millis(20), self.engine.next()).await;
        for demand in self.intent.demands.clone() {
            let told = self.total(&demand.key.template);
            let most = self.most.entry(demand.key).or_default();
            *most = told.max(*most);
        }
    }

    /// Drives until the nodes keep these numbers of VMs.
    #[track_caller]
    fn until<'a>(
        &'a mut self,
        template: &'a str,
        expected: &'a [u32],
    ) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let deadline = Instant::now() + PATIENCE;
            loop {
                self.turn().await;
                let mut warm: Vec<_> = self
                    .sim
                    .nodes()
                    .iter()
                    .map(|node| node.warm(&mk_key(template)))
                    .collect();
                // Which node gets the odd VM is the planner's affair.
                warm.sort_unstable();
                if warm == expected {
                    return;
                }
                assert!(
                    Instant::now() < deadline,
                    "{caller}: warm are {warm:?}, not {expected:?}"
                );
            }
        }
    }

    async fn turns(&mut self, n: usize) {
        for _ in 0..n {
            self.turn().await;
        }
    }

    /// What all nodes together are told to keep.
    fn total(&self, template: &str) -> u32 {
        let targets = self
            .sim
            .nodes()
            .iter()
            .map(|node| self.target(node, template));
        targets.sum()
    }

    fn target(&self, node: &Handle, template: &str) -> u32 {
        let pools = node.inventory().pools;
        let pool = pools.iter().find(|pool| pool.template == template);
        pool.map_or(0, |pool| pool.target as u32)
    }

    fn puts(&self, index: usize) -> usize {
        let log = self.node(index).log();
        log.iter().filter(|request| request.method == "PUT").count()
    }
}

#[tokio::test]
async fn a_pool_is_spread_with_one_put_a_node_and_then_it_is_quiet() {
    let mut bench = Bench::new(3, &[]).await;
    bench.want(&[mk_demand("a", 31)]);
    bench.until("a", &[10, 10, 11]).await;
    bench.turns(40).await;
    assert_eq!([0, 1, 2].map(|index| bench.puts(index)), [1, 1, 1]);
    assert_eq!(bench.saves, 1);
    bench.want(&[mk_demand("a", 61)]);
    bench.until("a", &[20, 20, 21]).await;
    assert_eq!([0, 1, 2].map(|index| bench.puts(index)), [2, 2, 2]);
    bench.want(&[]);
    bench.until("a", &[0, 0, 0]).await;
    assert!(bench.node(0).inventory().pools.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_fill_from_one_change_with_one_put_a_node() {
    let mut bench = Bench::new(200, &[]).await;
    bench.want(&[mk_demand("a", 50_000)]);
    let begun = Instant::now();
    bench.until("a", &[250; 200]).await;
    eprintln!("50 000 over 200 nodes in {:?}", begun.elapsed());
    let puts: usize = (0..200).map(|index| bench.puts(index)).sum();
    assert_eq!((puts, bench.saves), (200, 1));
    assert_eq!(bench.most[&mk_key("a")], 50_000);
}

#[tokio::test]
async fn a_changed_template_moves_the_pool_and_never_doubles_it() {
    let mut bench = Bench::new(2, &[]).await;
    bench.want(&[mk_demand("old", 8), mk_demand("kept", 2)]);
    bench.until("old", &[4, 4]).await;
    bench.until("kept", &[1, 1]).await;
    // A sandbox of the old template lives on, whatever its pool becomes.
    let claimed = bench.node(0);
    let id = claimed.plant(Planted::new("default/x", mk_key("old")));
    bench.want(&[mk_demand("new", 8), mk_demand("kept", 2)]);
    bench.until("new", &[4, 4]).await;
    bench.until("old", &[0, 0]).await;
    bench.until("kept", &[1, 1]).await;
    assert_eq!(bench.most[&mk_key("new")], 8);
    assert!(bench.node(0).token_of(&id).is_some());
    let kept: Vec<_> = bench.node(0).inventory().pools;
    let kept: Vec<_> = kept.iter().map(|pool| pool.template.as_str()).collect();
    assert_eq!(kept, ["kept", "new"], "the old image is let go");
}

#[tokio::test]
async fn selectors_and_sizes_of_nodes_reach_the_nodes() {
    let mut bench = Bench::new(3, &[]).await;
    let node = |index: usize, zone: &str, memory: &str| {
        let name = bench.node(index).name().to_string();
        let node = serde_json::json!({
            "metadata": {"name": name, "labels": {"zone": zone}},
            "status": {"allocatable": {"memory": memory}},
        });
        (name, Arc::new(serde_json::from_value(node).unwrap()))
    };
    let nodes = [
        node(0, "a", "10Gi"),
        node(1, "a", "30Gi"),
        node(2, "b", "20Gi"),
    ];
    bench.intent.nodes = Arc::new(nodes.into());
    let in_zone = |zone: &str| BTreeMap::from([("zone".to_owned(), zone.to_owned())]);
    let of_zone = |template, replicas, zone| Demand {
        node_selector: in_zone(zone),
        ..mk_demand(template, replicas)
    };
    bench.want(&[
        of_zone("a", 8, "a"),
        of_zone("b", 5, "b"),
        mk_demand("c", 6),
    ]);
    bench.until("a", &[0, 2, 6]).await;
    bench.until("b", &[0, 0, 5]).await;
    bench.until("c", &[1, 2, 3]).await;
    let of = |index, template| bench.target(bench.node(index), template);
    assert_eq!([of(0, "a"), of(1, "a"), of(2, "a")], [2, 6, 0]);
    assert_eq!([of(0, "c"), of(1, "c"), of(2, "c")], [1, 3, 2]);
}

#[tokio::test]
async fn nodes_that_come_take_their_share_and_those_that_go_leave_it() {
    let mut bench = Bench::new(3, &[]).await;
    let gone = bench.node(2).name().clone();
    bench.fleet.forget_node(&gone);
    bench.want(&[mk_demand("a", 12)]);
    bench.until("a", &[0, 6, 6]).await;
    bench.publish(2);
    bench.until("a", &[4, 4, 4]).await;
    assert_eq!(bench.most[&mk_key("a")], 12);
    bench.node(0).stop().await;
    let gone = bench.node(0).name().clone();
    bench.fleet.forget_node(&gone);
    let others = |bench: &Bench| [1, 2].map(|index| bench.target(bench.node(index), "a"));
    let begun = Instant::now();
    while others(&bench) != [6, 6] && begun.elapsed() < PATIENCE {
        bench.turn().await;
    }
    assert_eq!(others(&bench), [6, 6]);
}

#[tokio::test]
async fn a_failing_node_waits_alone_and_is_filled_when_it_is_well() {
    let mut bench = Bench::new(3, &[]).await;
    let fails = Fault {
        method: Some("PUT".to_owned()),
        ..Fault::always(FaultKind::Status {
            status: 500,
            text: "disk full".to_owned(),
        })
    };
    assert!(bench.node(1).inject(fails).await);
    bench.want(&[mk_demand("a", 30)]);
    bench.until("a", &[0, 10, 10]).await;
    bench.turns(20).await;
    let tried = bench.puts(1);
    assert!((1..=3).contains(&tried), "{tried} tries");
    let (_, member) = bench.engine.members.iter().nth(1).unwrap();
    let error = member.last_error.clone().unwrap();
    assert!(error.contains("disk full"), "{error}");
    bench.node(1).clear_faults().await;
    bench.until("a", &[10, 10, 10]).await;
    assert_eq!(bench.most[&mk_key("a")], 30);
}

#[tokio::test]
async fn an_unreachable_node_gives_its_share_to_the_others() {
    let mut bench = Bench::new(3, &[]).await;
    bench.node(2).stop().await;
    bench.want(&[mk_demand("a", 30)]);
    bench.until("a", &[0, 15, 15]).await;
    bench.node(2).start().await;
    bench.publish(2);
    bench.until("a", &[10, 10, 10]).await;
    assert_eq!(
        bench.most[&mk_key("a")],
        30,
        "VMs that move are taken away first"
    );
}

#[tokio::test]
async fn a_lost_answer_is_counted_until_it_is_known() {
    let mut bench = Bench::new(2, &[]).await;
    let lost = Fault::once(FaultKind::AnswerLost, "/v1/pools");
    assert!(bench.node(0).inject(lost).await);
    bench.want(&[mk_demand("a", 10)]);
    bench.until("a", &[5, 5]).await;
    bench.want(&[mk_demand("a", 4)]);
    bench.until("a", &[2, 2]).await;
    assert_eq!(bench.most[&mk_key("a")], 10);
}

#[tokio::test]
async fn nodes_that_drain_or_are_cordoned_give_their_share_away_and_keep_the_image() {
    let mut bench = Bench::new(3, &[]).await;
    bench.want(&[mk_demand("a", 30)]);
    bench.until("a", &[10, 10, 10]).await;
    let (node, address) = (
        bench.node(0).name().clone(),
        bench.node(0).address().clone(),
    );
    let daemons = mk_daemons();
    daemons.node(&address, PATIENCE).drain().await.unwrap();
    bench.fleet.set_draining(&node, true);
    bench.until("a", &[0, 15, 15]).await;
    assert_eq!(bench.node(0).inventory().pools.len(), 1);
    daemons.node(&address, PATIENCE).undrain().await.unwrap();
    bench.fleet.set_draining(&node, false);
    bench.until("a", &[10, 10, 10]).await;
    bench.fleet.set_cordoned(&node, true);
    bench.until("a", &[0, 15, 15]).await;
    assert_eq!(bench.most[&mk_key("a")], 30);
}

#[tokio::test]
async fn a_drain_behind_our_back_is_noticed() {
    let mut bench = Bench::new(2, &[]).await;
    bench.want(&[mk_demand("a", 8)]);
    bench.until("a", &[4, 4]).await;
    let address = bench.node(0).address().clone();
    let drained = mk_daemons().node(&address, PATIENCE).drain().await;
    drained.unwrap();
    // Its next publication shows that nothing is warm there, but not why.
    bench.publish(0);
    bench.until("a", &[0, 8]).await;
}

#[tokio::test]
async fn a_node_with_pools_of_others_is_left_alone_until_they_are_gone() {
    let mut bench = Bench::new(3, &[]).await;
    bench.node(1).set_pool(&mk_key("theirs"), 2, 2);
    bench.publish(1);
    bench.want(&[mk_demand("a", 30)]);
    bench.until("a", &[0, 15, 15]).await;
    bench.turns(10).await;
    assert_eq!(bench.puts(1), 0);
    assert_eq!(bench.engine.foreign(), [bench.node(1).name().clone()]);
    assert_eq!(bench.node(1).warm(&mk_key("theirs")), 2);
}

#[tokio::test]
async fn a_pool_of_the_same_key_that_the_driver_did_not_write_is_foreign_too() {
    let mut bench = Bench::new(2, &["a"]).await;
    bench.want(&[mk_demand("a", 30)]);
    bench.turns(20).await;
    assert_eq!([bench.puts(0), bench.puts(1)], [0, 0]);
    assert_eq!(bench.engine.foreign().len(), 2);
}

#[tokio::test]
async fn takeover_replaces_the_pools_of_others() {
    let mut bench = Bench::with(2, &["theirs"], Written::new(), true).await;
    bench.want(&[mk_demand("a", 4)]);
    bench.until("a", &[2, 2]).await;
    assert_eq!(bench.total("theirs"), 0);
}

#[tokio::test]
async fn a_restarted_driver_knows_its_own_pools() {
    let names = ["sim-0000", "sim-0001"];
    let own = [mk_key("a"), mk_key("gone")];
    let written = names.map(|name| (name.into(), own.clone().into()));
    let mut bench = Bench::with(2, &["a", "gone"], written.into(), false).await;
    // As it was when the last driver ended, but for a pool that was deleted meanwhile.
    bench.want(&[mk_demand("a", 4)]);
    bench.until("gone", &[0, 0]).await;
    bench.until("a", &[2, 2]).await;
    assert!(bench.engine.foreign().is_empty());
    assert_eq!([bench.puts(0), bench.puts(1)], [1, 1]);
}

#[tokio::test]
async fn a_change_by_somebody_else_is_put_right_and_an_old_publication_is_not_believed() {
    let mut bench = Bench::new(2, &[]).await;
    bench.publish(0);
    bench.want(&[mk_demand("a", 4)]);
    bench.until("a", &[2, 2]).await;
    // An inventory from before the write: only the node itself is believed.
    let report = Report {
        address: Some(bench.node(0).address().clone()),
        rows: Vec::new(),
        pools: Some(Vec::new()),
        complete: true,
        published_since: UnixTime::from_secs(0),
    };
    let name = bench.node(0).name().clone();
    bench
        .fleet
        .publish(&name, &report, true, false, Now::read());
    bench.turns(10).await;
    assert_eq!(bench.puts(0), 1);
    bench.node(1).set_pool(&mk_key("a"), 7, 7);
    bench.publish(1);
    bench.until("a", &[2, 2]).await;
    assert_eq!([bench.puts(0), bench.puts(1)], [1, 2]);
}

#[tokio::test]
async fn a_pool_that_a_node_refuses_does_not_keep_others_from_it() {
    let mut bench = Bench::new(2, &[]).await;
    let refuses = Fault {
        method: Some("PUT".to_owned()),
        times: Some(2),
        ..Fault::always(FaultKind::Status {
            status: 409,
            text: "node has no egress attachment".to_owned(),
        })
    };
    assert!(bench.node(0).inject(refuses).await);
    // The set of two is refused, then the first of them alone; it goes to the other node.
    bench.want(&[mk_demand("a", 4), mk_demand("b", 4)]);
    bench.until("b", &[2, 2]).await;
    bench.until("a", &[0, 4]).await;
}

#[tokio::test]
async fn a_full_node_is_filled_and_counts_as_having_nothing_warm() {
    let mut bench = Bench::new(2, &[]).await;
    while bench.node(0).claimed() < MAX_CLAIMS {
        bench.node(0).plant(Planted::new("default/x", mk_key("a")));
    }
    bench.want(&[mk_demand("a", 8)]);
    bench.until("a", &[4, 4]).await;
    let warm = |bench: &Bench| {
        let nodes = bench.fleet.nodes();
        [0, 1].map(|n| nodes[n].pools.first().map(|pool| pool.warm))
    };
    let begun = Instant::now();
    while warm(&bench)[1] != Some(4) && begun.elapsed() < PATIENCE {
        bench.turn().await;
    }
    assert_eq!(warm(&bench), [Some(0), Some(4)]);
}
