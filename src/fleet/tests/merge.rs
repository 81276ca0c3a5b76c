//! What is told, and what of it counts.

use super::*;
use crate::api::NodeAddress;

#[test]
fn a_sandbox_that_ended_before_any_publication_is_in_doubt() {
    let mut bench = Bench::new();
    bench.create("team/a", "n1", "sb_1").unwrap();
    assert_eq!(bench.publish("n1", &[]), Doubt::default(), "it is held");
    bench.elapsed = 10_000;
    bench.fleet.tick(bench.now());
    let doubt = Doubt {
        absent: 1,
        unlisted: 0,
    };
    assert_eq!(bench.publish("n1", &[]), doubt);
    bench.read("n1", &[]);
    bench.lists("");
}

#[test]
fn a_publication_lists_its_sandboxes() {
    let bench = Bench::new();
    assert_eq!(
        bench.publish(
            "n1",
            &[
                mk_row("sb_1", "team/a"),
                mk_row("sb_2", "b"),
                mk_row("sb_3", "")
            ]
        ),
        Doubt::default()
    );
    bench.lists("default/b=sb_2@n1; default/sb-3=sb_3@n1; team/a=sb_1@n1");
}

#[test]
fn a_sandbox_whose_address_nobody_says_is_reached_through_its_daemon() {
    let bench = Bench::new();
    let address = |name: &str| {
        let found = bench.fleet.store().get("default", name);
        found.unwrap().value.reached_at().unwrap().to_string()
    };
    let mk_row = |claim: &str, claim_ref: &str, address: &str| Row {
        address: address.into(),
        ..mk_row(claim, claim_ref)
    };
    let unsaid = mk_row("sb_1", "a", "");
    bench.publish("n1", &[unsaid.clone(), mk_row("sb_2", "b", "10.0.0.7:90")]);
    let daemon = mk_report(&[]).address.unwrap().authority();
    assert_eq!(address("a"), daemon);
    assert_eq!(address("b"), "10.0.0.7:90");
    // What was said is not unsaid.
    bench.read("n1", &[unsaid.clone(), mk_row("sb_2", "b", "")]);
    assert_eq!(address("b"), "10.0.0.7:90");
    // A node that moved takes those along of which nobody said more.
    let moved: NodeAddress = "https://10.9.9.9:7777".parse().unwrap();
    let report = Report {
        address: Some(moved.clone()),
        ..mk_report(&[unsaid])
    };
    let fleet = &bench.fleet;
    fleet.publish(&"n1".into(), &report, true, true, Now::read());
    assert_eq!(address("a"), moved.origin());
}

#[test]
fn a_republication_that_says_the_same_is_no_change() {
    let bench = Bench::new();
    let mut rows = [mk_row("sb_1", "a"), mk_row("sb_2", "b")];
    bench.publish("n1", &rows);
    let version = bench.fleet.store().head();
    bench.publish("n1", &rows);
    rows.reverse();
    bench.publish("n1", &rows);
    assert_eq!(bench.changes(version), "");
}

#[test]
fn absence_in_a_publication_is_only_a_doubt() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a"), mk_row("sb_2", "b")]);
    assert_eq!(
        bench.publish("n1", &[mk_row("sb_2", "b")]),
        Doubt {
            absent: 1,
            unlisted: 0
        }
    );
    bench.lists("default/a=sb_1@n1; default/b=sb_2@n1");
    bench.read("n1", &[mk_row("sb_2", "b")]);
    bench.lists("default/b=sb_2@n1");
    bench.publish("n1", &[mk_row("sb_1", "a"), mk_row("sb_2", "b")]);
    bench.lists("default/b=sb_2@n1");
}

#[test]
fn a_node_that_lists_a_sandbox_again_after_its_restart_gets_it_back_with_the_same_uid() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    let uid = bench.fleet.store().get("default", "a").unwrap().value.uid;
    bench.read("n1", &[]);
    bench.lists("");
    bench.read("n1", &[mk_row("sb_1", "a")]);
    assert_eq!(
        bench.fleet.store().get("default", "a").unwrap().value.uid,
        uid
    );
}

#[test]
fn a_cut_publication_says_nothing_about_absence() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    let cut = Report {
        complete: false,
        ..mk_report(&[])
    };
    assert_eq!(
        bench
            .fleet
            .publish(&"n1".into(), &cut, true, false, bench.now()),
        Doubt::default()
    );
}

#[test]
fn a_created_sandbox_outlives_publications_that_do_not_know_it_yet() {
    let bench = Bench::new();
    bench.publish("n1", &[]);
    bench.create("team/a", "n1", "sb_1").unwrap();
    bench.lists("team/a=sb_1@n1");
    assert_eq!(bench.publish("n1", &[]), Doubt::default());
    bench.lists("team/a=sb_1@n1");
    let version = bench.fleet.store().head();
    bench.publish("n1", &[mk_row("sb_1", "team/a")]);
    assert_eq!(bench.changes(version), "", "catching up is no change");
    assert_eq!(
        bench.publish("n1", &[]),
        Doubt {
            absent: 1,
            unlisted: 0
        },
        "once listed it can be missed"
    );
}

#[test]
fn a_released_sandbox_never_comes_back() {
    let bench = Bench::new();
    let rows = [mk_row("sb_1", "a")];
    bench.publish("n1", &rows);
    bench
        .fleet
        .released(&"n1".into(), &"sb_1".into(), bench.now())
        .unwrap();
    bench.lists("");
    for _ in 0..3 {
        bench.publish("n1", &rows);
        bench.read("n1", &rows);
        bench.publish("n1", &[]);
    }
    bench.lists("");
    assert!(
        bench
            .fleet
            .released(&"n1".into(), &"sb_1".into(), bench.now())
            .is_none(),
        "one release, one DELETED"
    );
}

#[test]
fn a_read_says_nothing_about_what_changed_since_it_was_sent() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a"), mk_row("sb_2", "b")]);
    let guard = bench.fleet.begin_read(&"n1".into()).unwrap();
    assert!(
        bench.fleet.begin_read(&"n1".into()).is_none(),
        "one at a time"
    );
    bench.create("default/c", "n1", "sb_3").unwrap();
    bench.fleet.set_phase(
        &"n1".into(),
        &"sb_1".into(),
        Phase::Paused,
        false,
        bench.now(),
    );
    bench
        .fleet
        .released(&"n1".into(), &"sb_2".into(), bench.now());
    let late = [mk_row("sb_1", "a"), mk_row("sb_2", "b")];
    assert!(bench.fleet.read(guard, &late, bench.now()));
    bench.lists("default/a=sb_1@n1 Paused; default/c=sb_3@n1");
    bench.read("n1", &[mk_row("sb_1", "a")]);
    bench.lists("default/a=sb_1@n1");
}

#[test]
fn a_dropped_read_leaves_no_trace() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    drop(bench.fleet.begin_read(&"n1".into()).unwrap());
    bench.read("n1", &[]);
    bench.lists("");
}

#[test]
fn a_forgotten_node_is_not_brought_back_by_a_late_answer() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    let late = bench.fleet.begin_read(&"n1".into()).unwrap();
    bench.fleet.forget_node(&"n1".into());
    bench
        .fleet
        .observe(&"n1".into(), &mk_row("sb_1", "a"), bench.now());
    bench.publish("n1", &[]);
    let current = bench.fleet.begin_read(&"n1".into()).unwrap();
    assert!(bench.fleet.read(late, &[mk_row("sb_1", "a")], bench.now()));
    bench.lists("");
    let answer = [mk_row("sb_2", "b")];
    assert!(bench.fleet.read(current, &answer, bench.now()));
    bench.lists("default/b=sb_2@n1");
}

#[test]
fn a_phase_we_set_holds_until_the_node_agrees() {
    let bench = Bench::new();
    let mut row = mk_row("sb_1", "a");
    bench.publish("n1", &[row.clone()]);
    bench.fleet.set_phase(
        &"n1".into(),
        &"sb_1".into(),
        Phase::Paused,
        false,
        bench.now(),
    );
    bench.publish("n1", &[row.clone()]);
    bench.lists("default/a=sb_1@n1 Paused");
    row.phase = Phase::Paused;
    bench.publish("n1", &[row.clone()]);
    row.phase = Phase::Running;
    bench.publish("n1", &[row]);
    bench.lists("default/a=sb_1@n1");
}

#[test]
fn a_lease_we_got_holds_until_the_node_agrees() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    let renewed = UnixTime::from_secs(START + 20_000);
    bench
        .fleet
        .set_deadline(&"n1".into(), &"sb_1".into(), renewed, bench.now());
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    assert_eq!(
        bench
            .fleet
            .store()
            .get("default", "a")
            .unwrap()
            .value
            .deadline,
        Some(renewed)
    );
}

#[test]
fn a_lease_that_ends_shows_as_expired_and_then_goes() {
    let mut bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    let user = UserPart {
        spec: "{}".into(),
        generation: 1,
        ..UserPart::default()
    };
    let reserved = bench
        .fleet
        .reserve(SandboxKey::new("default", "b"))
        .unwrap();
    let granted = Granted {
        user: Some(Arc::new(user)),
        ..mk_granted("n1", "sb_2", bench.now().wall)
    };
    bench
        .fleet
        .granted(&reserved, granted, &[], bench.now())
        .unwrap();
    bench.elapsed = 10_000;
    bench.fleet.heard(&"n1".into(), bench.now());
    bench.fleet.tick(bench.now());
    bench.lists("default/a=sb_1@n1 Expired; default/b=sb_2@n1 Expired");
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    bench.lists("default/a=sb_1@n1 Expired; default/b=sb_2@n1 Expired");
    bench.read("n1", &[]);
    bench.lists("default/b=sb_2@n1 Expired");
    bench.elapsed += 3_601;
    bench.fleet.tick(bench.now());
    bench.lists("");
}

#[test]
fn what_the_node_kept_for_the_user_fills_in_but_never_overwrites() {
    let bench = Bench::new();
    bench.publish("n0", &[mk_row("sb_1", "a/x")]);
    let (node, claim): (NodeName, ClaimId) = ("n0".into(), "sb_1".into());
    let user = || {
        bench
            .fleet
            .by_claim(&node, &claim)
            .unwrap()
            .value
            .user
            .clone()
    };
    let mk_part = |generation, spec: &str, label: &str| {
        Arc::new(UserPart {
            generation,
            spec: spec.into(),
            labels: [("of".into(), label.into())].into(),
            ..UserPart::default()
        })
    };
    let restore = |part: &Arc<UserPart>| bench.fleet.restore_user(&node, &claim, part);
    let (labels_only, first) = (mk_part(1, "", "daemon"), mk_part(1, "{}", "agent"));
    assert!(restore(&labels_only));
    assert!(restore(&first), "a spec is more than labels alone");
    assert!(!restore(&mk_part(1, "{}", "echo")));
    assert_eq!(user(), Some(first));
    let second = mk_part(2, "{}", "agent");
    assert!(restore(&second) && !restore(&labels_only));
    assert_eq!(user(), Some(second.clone()));
    assert!(!bench.fleet.restore_user(&node, &"sb_2".into(), &second));
}
