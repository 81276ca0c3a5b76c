//! Publications of nodes whose clocks are off.

use sandbox_apiserver::{
    fleet::Phase,
    meta::UnixTime,
    sim::{Fault, FaultKind, Planted},
    store::EventKind,
};

use super::{Bench, LIST, Setting, eventually, mk_pool};

const HOUR: i64 = 3_600;

/// Half an hour before its end by our clock, whatever its node's shows.
fn half_an_hour() -> Planted {
    Planted {
        ttl_seconds: 1_800,
        ..Planted::new("team/new", mk_pool())
    }
}

#[track_caller]
fn ends_in_half_an_hour(deadline: Option<UnixTime>) {
    let left = deadline.unwrap().as_secs() - UnixTime::now().as_secs();
    assert!((1_790..=1_804).contains(&left), "{left} s are left");
}

#[tokio::test]
async fn a_node_that_joins_is_heard_before_its_times_are_shown() {
    let mut bench = Bench::new(Setting::default()).await;
    bench.listed.truncate(1);
    bench.list().await;
    bench.ready().await;
    let (node, store) = (bench.node(1).clone(), bench.fleet.store().clone());
    node.set_clock(-HOUR);
    let claim = node.plant(half_an_hour());
    let version = store.head();
    bench.publish(&node.inventory()).await;
    let known = || bench.fleet.by_claim(node.name(), &claim);
    eventually("it is listed", || known().is_some()).await;
    ends_in_half_an_hour(known().unwrap().value.deadline);
    for event in store.changes_after(version, 100).unwrap() {
        let shown = &event.object().value;
        let first = (event.kind(), shown.phase);
        assert_eq!(first, (EventKind::Added, Phase::Running), "{}", shown.name);
    }
}

#[tokio::test]
async fn a_node_whose_clock_is_set_is_read_until_it_answers() {
    let bench = Bench::started(Setting::default()).await;
    let node = bench.node(1);
    let claim = node.plant(half_an_hour());
    bench.publish(&node.inventory()).await;
    let known = || bench.fleet.by_claim(node.name(), &claim);
    eventually("it is listed", || known().is_some()).await;
    let before = known().unwrap().value.clone();
    let broken = Fault::once(FaultKind::WrongJson, LIST);
    assert!(node.inject(broken).await);
    node.set_clock(900);
    bench.inventory.refresh(node.name()).await;
    // Its end by the node's clock is the same, so it comes earlier.
    let moved = || {
        let now = known().unwrap().value.deadline.unwrap().as_secs();
        before.deadline.unwrap().as_secs() - now
    };
    eventually("its end is another one", || moved() != 0).await;
    assert!((898..=902).contains(&moved()), "by {} s", moved());
    assert_eq!(known().unwrap().value.phase, Phase::Running);
    assert_eq!(known().unwrap().value.created, before.created);
    assert_eq!(bench.metric("clocks_off"), 1.0);
    let largest = bench.metric("largest_clock_offset_seconds");
    assert!((898.0..=902.0).contains(&largest), "{largest}");
}
