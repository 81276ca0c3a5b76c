//! Feeds of nodes whose clocks are off, and of nodes whose clocks are set.

use sandbox_apiserver::{fleet::Sandbox, meta::UnixTime};

use super::*;

const HOUR: i64 = 3_600;

impl Bench {
    async fn with_clock(ahead: i64, sandboxes: usize) -> Self {
        let options = sim::Options {
            nodes: 1,
            sandboxes,
            mesh: false,
            clock_offsets: vec![ahead],
            ..sim::Options::default()
        };
        Self::over(sim::Fleet::start(options).await.unwrap(), quick()).await
    }

    fn sandbox(&self, claim: &ClaimId) -> Sandbox {
        let known = self.server.fleet.by_claim(self.daemon().name(), claim);
        known.unwrap().value.clone()
    }

    /// Names and ends of all.
    fn ends(&self) -> Vec<(String, i64)> {
        let store = self.server.fleet.store();
        let page = store.page(&Scope::All, None, store.head(), 1_000).unwrap();
        let ends = page.items.iter().map(|it| {
            let end = it.value.deadline.unwrap().as_secs();
            (it.value.name.to_string(), end)
        });
        ends.collect()
    }
}

#[track_caller]
fn is_about(time: UnixTime, expected: i64) {
    let apart = time.as_secs() - expected;
    assert!(apart.abs() <= 10, "{apart} s apart");
}

fn now() -> i64 {
    UnixTime::now().as_secs()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_of_a_clock_that_is_off_shows_by_the_servers() {
    for ahead in [HOUR, -HOUR] {
        let bench = Bench::with_clock(ahead, 3).await;
        for (_, end) in bench.ends() {
            is_about(UnixTime::from_secs(end), now() + 86_400);
        }
        let mut planted = Planted::new("default/theirs", key());
        planted.ttl_seconds = 600;
        let claim = bench.daemon().plant(planted);
        bench.shows(&claim, true).await;
        let shown = bench.sandbox(&claim);
        assert_eq!(shown.phase, Phase::Running);
        is_about(shown.created, now());
        is_about(shown.deadline.unwrap(), now() + 600);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jitter_of_a_clock_is_no_change_of_a_feed() {
    for ahead in [0, HOUR] {
        let bench = Bench::with_clock(ahead, 3).await;
        let version = bench.server.fleet.store().head();
        for (round, jitter) in [2, -2, 2, -2].into_iter().enumerate() {
            bench.daemon().set_clock(ahead + jitter);
            // Two looks later, it was told.
            let before = bench.daemon().log().len();
            until("the agent looks", || {
                bench.daemon().log().len() >= before + 4
            })
            .await;
            let node = bench.daemon().name();
            assert!(bench.server.inventory.refresh(node).await, "round {round}");
        }
        let listener = bench.agent.agent(TOKEN).connect().await.unwrap();
        let mut feed = listener.listen().await.unwrap();
        snapshot(&mut feed).await;
        heartbeat(&mut feed).await;
        let events = bench.server.fleet.store().changes_after(version, 100);
        assert!(events.unwrap().is_empty());
        assert!(bench.server.inventory.is_live(bench.daemon().name()));
    }
}

async fn heartbeat(feed: &mut feed::Listening) {
    while !matches!(feed.next().await.unwrap(), Event::Heartbeat { .. }) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_moves_every_end_once() {
    for (before, after) in [(0, HOUR), (HOUR, 0), (0, -HOUR)] {
        let bench = Bench::with_clock(before, 5).await;
        let store = bench.server.fleet.store();
        let (ends, version) = (bench.ends(), store.head());
        bench.daemon().set_clock(after);
        let changes = || store.changes_after(version, 100).unwrap().len();
        until("the feed was taken again", || changes() >= 5).await;
        bench.is_live().await;
        for (old, new) in ends.iter().zip(bench.ends()) {
            let moved = (old.1 - new.1) - (after - before);
            assert!(moved.abs() <= 2, "{old:?} to {new:?}");
        }
        let claim = bench.daemon().plant(Planted::new("default/last", key()));
        bench.shows(&claim, true).await;
        is_about(bench.sandbox(&claim).deadline.unwrap(), now() + 300);
        assert_eq!(changes(), 6, "each once, and the last");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_be_asked_shows_what_it_published() {
    let mut bench = Bench::with_clock(HOUR, 2).await;
    let known = bench.ends();
    bench.daemon().stop().await;
    let mut listed = bench.sim.inventories();
    listed[0].agent = Some(bench.agent.identity.endpoint());
    bench.server = Server::start(&listed).await;
    assert_eq!(
        bench.ends().len(),
        2,
        "its clock is not known, its sandboxes are"
    );
    bench.daemon().start().await;
    bench.is_live().await;
    let is_known = |ends: &[(String, i64)]| {
        let pairs = ends.iter().zip(&known);
        pairs
            .into_iter()
            .all(|(one, other)| (one.1 - other.1).abs() <= 2)
    };
    until("they are by our clock", || is_known(&bench.ends())).await;
}
