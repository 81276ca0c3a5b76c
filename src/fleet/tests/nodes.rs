//! Nodes: their health, and which of them gets a claim.

use super::*;
use crate::api::NodeAddress;

#[test]
fn a_silent_node_is_stale_then_lost_and_comes_back() {
    let mut bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a"), mk_row("sb_2", "b")]);
    let uid = bench.fleet.store().get("default", "a").unwrap().value.uid;
    let version = bench.fleet.store().head();
    bench.elapsed = 59;
    assert!(bench.fleet.tick(bench.now()).probe.is_empty());
    bench.elapsed = 60;
    assert_eq!(bench.fleet.tick(bench.now()).probe.len(), 1);
    bench.elapsed = 61;
    assert!(
        bench.fleet.tick(bench.now()).probe.is_empty(),
        "asked once in 30 s"
    );
    bench.elapsed = 90;
    bench.fleet.tick(bench.now());
    assert_eq!(bench.fleet.counts().nodes, [0, 1, 0]);
    assert_eq!(bench.changes(version), "");
    bench.elapsed = 120;
    bench.fleet.tick(bench.now());
    bench.lists("default/a=sb_1@n1 lost; default/b=sb_2@n1 lost");
    bench.elapsed = 130;
    bench.publish("n1", &[mk_row("sb_1", "a"), mk_row("sb_2", "b")]);
    bench.lists("default/a=sb_1@n1; default/b=sb_2@n1");
    assert_eq!(
        bench.changes(version).len(),
        "~a ~b ~a ~b".len(),
        "one MODIFIED each way"
    );
    assert_eq!(
        bench.fleet.store().get("default", "a").unwrap().value.uid,
        uid
    );
}

#[test]
fn a_node_that_gets_no_sandboxes_is_no_target_of_a_redirect() {
    let mut bench = Bench::new();
    let address: NodeAddress = "10.0.0.1:7777".parse().unwrap();
    let report = Report {
        address: Some(address.clone()),
        ..mk_report(&[])
    };
    let (n1, fleet) = (NodeName::from("n1"), bench.fleet.clone());
    fleet.publish(&n1, &report, true, false, bench.now());
    let open = || fleet.open_node_at(&address).is_some();
    assert!(open());
    for set in [Fleet::set_cordoned, Fleet::set_draining] {
        set(&fleet, &n1, true);
        assert!(!open());
        set(&fleet, &n1, false);
        assert!(open());
    }
    bench.elapsed = 90;
    fleet.tick(bench.now());
    assert!(!open(), "silent");
    assert_eq!(fleet.node_at(&address), Some(n1));
}

#[test]
fn a_lease_that_is_over_is_not_changed_by_its_node_coming_back() {
    let mut bench = Bench::new();
    let ends = UnixTime::from_secs(START + 200);
    let row = Row {
        deadline: Some(ends),
        ..mk_row("sb_1", "a")
    };
    bench.publish("n1", std::slice::from_ref(&row));
    bench.elapsed = 150;
    bench.fleet.tick(bench.now());
    bench.lists("default/a=sb_1@n1 lost");
    bench.elapsed = 250;
    bench.fleet.tick(bench.now());
    bench.lists("default/a=sb_1@n1 Expired");
    let version = bench.fleet.store().head();
    bench.publish("n1", &[row]);
    assert_eq!(bench.changes(version), "");
}

#[test]
fn a_publication_that_lay_there_is_no_sign_of_life() {
    let bench = Bench::new();
    bench
        .fleet
        .publish(&"n1".into(), &mk_report(&[]), false, false, bench.now());
    assert_eq!(bench.fleet.counts().nodes, [0, 1, 0]);
    bench.read("n1", &[]);
    assert_eq!(bench.fleet.counts().nodes, [1, 0, 0]);
}

#[test]
fn what_a_read_without_an_answer_was_to_settle_is_asked_again_once_the_node_is_heard_of() {
    let mut bench = Bench::new();
    let n1 = NodeName::from("n1");
    let report = Report {
        address: Some("10.0.0.1:7777".parse().unwrap()),
        ..mk_report(&[mk_row("sb_1", "a")])
    };
    bench.fleet.publish(&n1, &report, false, false, bench.now());
    let asked = |bench: &Bench| bench.fleet.tick(bench.now()).read.contains(&n1);
    assert!(!asked(&bench), "nobody has asked in vain");
    bench.fleet.not_heard(&n1, bench.now());
    assert!(!asked(&bench), "it is silent");
    bench.fleet.heard(&n1, bench.now());
    assert!(asked(&bench));
    assert!(!asked(&bench), "once in 30 s");
    bench.elapsed = 30;
    assert!(asked(&bench));
    bench.read("n1", &[mk_row("sb_1", "a")]);
    bench.elapsed = 59;
    bench.fleet.heard(&n1, bench.now());
    bench.elapsed = 60;
    assert!(!asked(&bench), "it has answered");
}

#[test]
fn deleting_the_inventory_deletes_its_sandboxes() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    bench.publish("n2", &[mk_row("sb_2", "b")]);
    bench.fleet.forget_node(&"n1".into());
    bench.lists("default/b=sb_2@n2");
}

#[test]
fn placement_spreads_a_burst_and_stops_when_nothing_is_warm() {
    let bench = Bench::new();
    let pool = mk_pool_key();
    for node in ["n1", "n2", "n3"] {
        let pools = Some(vec![Pool {
            key: pool.clone(),
            warm: 10,
            target: 10,
        }]);
        bench.fleet.publish(
            &node.into(),
            &Report {
                pools,
                ..mk_report(&[])
            },
            true,
            false,
            bench.now(),
        );
    }
    let mut placed: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..15 {
        let placement = bench.fleet.place(&pool, &[]).unwrap();
        *placed.entry(placement.node.to_string()).or_default() += 1;
    }
    assert!(
        placed.len() == 3 && placed.values().all(|n| *n <= 10),
        "{placed:?}"
    );
    while bench.fleet.place(&pool, &[]).is_some() {}
    bench.fleet.give_back(&pool, &"n2".into());
    assert_eq!(bench.fleet.place(&pool, &[]).unwrap().node, "n2".into());
    assert!(bench.fleet.place(&pool, &[]).is_none());
    let keepers = |tried: &[NodeName]| bench.fleet.keepers(&pool, tried, 2);
    assert_eq!(keepers(&[]).len(), 2);
    assert_eq!(keepers(&["n1".into(), "n3".into()]), ["n2".into()]);
    // Not the same ones again and again.
    let mut drawn: Vec<_> = (0..100).flat_map(|_| keepers(&[])).collect();
    drawn.sort();
    drawn.dedup();
    assert_eq!(drawn.len(), 3);
    assert!(bench.fleet.knows_template("t") && !bench.fleet.knows_template("u"));
}

#[test]
fn stale_draining_and_tried_nodes_get_nothing() {
    let mut bench = Bench::new();
    let pool = mk_pool_key();
    let pools = Some(vec![Pool {
        key: pool.clone(),
        warm: 1_000,
        target: 1_000,
    }]);
    let report = Report {
        pools,
        ..mk_report(&[])
    };
    bench
        .fleet
        .publish(&"n1".into(), &report, true, false, bench.now());
    assert!(bench.fleet.place(&pool, &["n1".into()]).is_none());
    bench.fleet.set_draining(&"n1".into(), true);
    assert!(bench.fleet.place(&pool, &[]).is_none());
    bench.fleet.set_draining(&"n1".into(), false);
    assert!(bench.fleet.place(&pool, &[]).is_some());
    bench.fleet.found_empty(&pool, &"n1".into());
    assert!(bench.fleet.place(&pool, &[]).is_none());
    bench
        .fleet
        .publish(&"n1".into(), &report, true, false, bench.now());
    bench.elapsed = 90;
    bench.fleet.tick(bench.now());
    assert!(bench.fleet.place(&pool, &[]).is_none());
}

#[test]
fn a_cordoned_node_gets_nothing_until_both_reasons_are_gone() {
    let bench = Bench::new();
    let (node, pool) = (NodeName::from("n1"), mk_pool_key());
    let report = Report {
        pools: Some(vec![Pool {
            key: pool.clone(),
            warm: 1_000,
            target: 1_000,
        }]),
        ..mk_report(&[])
    };
    bench.fleet.set_cordoned(&node, true);
    bench
        .fleet
        .publish(&node, &report, true, false, bench.now());
    assert!(
        bench.fleet.place(&pool, &[]).is_some(),
        "a node must be known to be cordoned"
    );
    bench.fleet.set_cordoned(&node, true);
    bench.fleet.set_draining(&node, true);
    assert!(bench.fleet.place(&pool, &[]).is_none());
    bench.fleet.set_draining(&node, false);
    assert!(bench.fleet.place(&pool, &[]).is_none());
    bench.fleet.set_cordoned(&node, false);
    assert!(bench.fleet.place(&pool, &[]).is_some());
}

#[test]
fn what_a_lost_node_must_have_reaped_gives_its_name_free() {
    let mut bench = Bench::new();
    let row = Row {
        deadline: Some(UnixTime::from_secs(START + 200)),
        ..mk_row("sb_1", "a")
    };
    let kept = Row {
        deadline: Some(UnixTime::from_secs(START + 100_000)),
        ..mk_row("sb_2", "b")
    };
    let rows = [row, kept];
    bench.publish("n1", &rows);
    bench.elapsed = 200 + 3_599;
    bench.fleet.tick(bench.now());
    bench.lists("default/a=sb_1@n1 Expired; default/b=sb_2@n1 lost");
    bench.elapsed += 1;
    bench.fleet.tick(bench.now());
    bench.lists("default/b=sb_2@n1 lost");
    // Somebody else renewed the lease there.
    bench.read(
        "n1",
        &rows.map(|row| Row {
            deadline: None,
            ..row
        }),
    );
    bench.lists("default/a=sb_1@n1; default/b=sb_2@n1");
}

#[test]
fn a_node_that_was_never_heard_may_have_a_clock_that_is_behind() {
    let mut bench = Bench::new();
    let row = Row {
        deadline: Some(UnixTime::from_secs(START + 200)),
        ..mk_row("sb_1", "a")
    };
    let report = mk_report(&[row]);
    let lain = |bench: &Bench| {
        bench
            .fleet
            .publish(&"n1".into(), &report, false, false, bench.now())
    };
    lain(&bench);
    bench.elapsed = 200 + 3_600 + 86_399;
    bench.fleet.tick(bench.now());
    bench.lists("default/a=sb_1@n1 Expired");
    bench.elapsed += 1;
    bench.fleet.tick(bench.now());
    bench.lists("");
}
