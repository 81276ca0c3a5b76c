//! The merge rule, a sentence a test; then random histories against what must always hold.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use proptest::prelude::*;

mod doubts;

use super::*;
use crate::{
    api::{ClaimId, NodeName, PoolKey, SandboxKey, UserPart},
    meta::{ResourceVersion, UnixTime},
    store::{EventKind, Limits, Scope, Stored},
};

const START: i64 = 1_000_000;

struct Bench {
    fleet: Arc<Fleet>,
    begun: Instant,
    elapsed: u64,
}

impl Bench {
    fn new() -> Self {
        let start = ResourceVersion::first_of_epoch(1).unwrap();
        let fleet = Arc::new(Fleet::new(
            start,
            Limits::default(),
            HealthLimits::default(),
        ));
        Self {
            fleet,
            begun: Instant::now(),
            elapsed: 0,
        }
    }

    fn now(&self) -> Now {
        Now {
            instant: self.begun + Duration::from_secs(self.elapsed),
            wall: UnixTime::from_secs(START + self.elapsed as i64),
        }
    }

    fn publish(&self, node: &str, rows: &[Row]) -> Doubt {
        self.fleet
            .publish(&node.into(), &mk_report(rows), true, false, self.now())
    }

    fn read(&self, node: &str, rows: &[Row]) {
        let guard = self
            .fleet
            .begin_read(&node.into())
            .expect("no read is under way");
        self.fleet.read(guard, rows, self.now());
    }

    fn create(&self, key: &str, node: &str, claim: &str) -> Result<(), ClaimLost> {
        let (namespace, name) = key.split_once('/').unwrap();
        let reserved = self
            .fleet
            .reserve(SandboxKey::new(namespace, name))
            .expect("the name is free");
        self.fleet
            .granted(
                &reserved,
                mk_granted(node, claim, self.now().wall),
                &[],
                self.now(),
            )
            .map(|_| ())
    }

    /// What is listed: `namespace/name=claim@node`, with a mark where the state is not plain.
    #[track_caller]
    fn lists(&self, expected: &str) {
        let page = self
            .fleet
            .store()
            .page(&Scope::All, None, self.fleet.store().head(), 1_000)
            .unwrap();
        let show = |s: &Sandbox| {
            let lost = if s.node_lost { " lost" } else { "" };
            let phase = if s.phase == Phase::Running {
                String::new()
            } else {
                format!(" {}", s.phase.as_str())
            };
            format!(
                "{}/{}={}@{}{phase}{lost}",
                s.namespace, s.name, s.claim, s.node
            )
        };
        let found: Vec<_> = page.items.iter().map(|item| show(&item.value)).collect();
        assert_eq!(found.join("; "), expected);
    }

    /// The changes since `version`: `+name`, `~name`, `-name`.
    fn changes(&self, version: ResourceVersion) -> String {
        let sign = |kind| match kind {
            EventKind::Added => '+',
            EventKind::Modified => '~',
            EventKind::Deleted => '-',
        };
        let events = self.fleet.store().changes_after(version, 1_000).unwrap();
        let shown: Vec<_> = events
            .iter()
            .map(|e| format!("{}{}", sign(e.kind()), e.object().value.name))
            .collect();
        shown.join(" ")
    }
}

fn mk_row(claim: &str, claim_ref: &str) -> Row {
    Row {
        claim: claim.into(),
        claim_ref: claim_ref.into(),
        phase: Phase::Running,
        deadline: Some(UnixTime::from_secs(START + 10_000)),
        claimed_at: Some(UnixTime::from_secs(START - 10)),
        pool: Some(mk_pool_key()),
        address: "10.0.0.9:80".into(),
        from_checkpoint: None,
        metadata: BTreeMap::new(),
    }
}

fn mk_pool_key() -> PoolKey {
    PoolKey {
        template: "t".into(),
        net: "none".into(),
        size: "small".into(),
    }
}

fn mk_report(rows: &[Row]) -> Report {
    Report {
        address: Some("127.0.0.1:7777".parse().unwrap()),
        rows: rows.to_vec(),
        pools: None,
        complete: true,
        published_since: UnixTime::from_secs(START - 1_000),
    }
}

fn mk_granted(node: &str, claim: &str, claimed_at: UnixTime) -> Granted {
    Granted {
        node: node.into(),
        claim: claim.into(),
        pool: Some(Arc::new(mk_pool_key())),
        address: "10.0.0.9:80".into(),
        from_checkpoint: None,
        claimed_at,
        deadline: Some(UnixTime::from_secs(START + 10_000)),
        phase: Phase::Running,
        user: None,
    }
}

#[test]
fn a_sandbox_that_ended_before_any_publication_is_in_doubt() {
    let mut bench = Bench::new();
    bench.create("team/a", "n1", "sb_1").unwrap();
    assert_eq!(bench.publish("n1", &[]), Doubt::default(), "it is held");
    bench.elapsed = 10_000;
    bench.fleet.tick(bench.now());
    let doubt = Doubt {
        absent: 1,
        undated: 0,
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
            undated: 0
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
            undated: 0
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
    bench.fleet.read(
        guard,
        &[mk_row("sb_1", "a"), mk_row("sb_2", "b")],
        bench.now(),
    );
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
    bench.fleet.read(late, &[mk_row("sb_1", "a")], bench.now());
    bench.lists("");
    bench
        .fleet
        .read(current, &[mk_row("sb_2", "b")], bench.now());
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
fn an_undated_newcomer_waits_for_a_read() {
    let bench = Bench::new();
    let undated = Row {
        claimed_at: None,
        ..mk_row("sb_1", "a")
    };
    assert_eq!(
        bench.publish("n1", std::slice::from_ref(&undated)),
        Doubt {
            absent: 0,
            undated: 1
        }
    );
    bench.lists("");
    bench.read("n1", &[mk_row("sb_1", "a")]);
    assert_eq!(
        bench.publish("n1", std::slice::from_ref(&undated)),
        Doubt::default()
    );
    let created = bench
        .fleet
        .store()
        .get("default", "a")
        .unwrap()
        .value
        .created;
    assert_eq!(created, UnixTime::from_secs(START - 10));

    let report = mk_report(&[Row {
        claim: "sb_2".into(),
        claim_ref: "b".into(),
        ..undated
    }]);
    bench
        .fleet
        .publish(&"n2".into(), &report, true, true, bench.now());
    assert_eq!(
        bench
            .fleet
            .store()
            .get("default", "b")
            .unwrap()
            .value
            .created,
        report.published_since
    );
}

#[test]
fn a_name_belongs_to_the_earlier_claim_and_passes_on_when_it_goes() {
    let bench = Bench::new();
    let later = Row {
        claimed_at: Some(UnixTime::from_secs(START)),
        ..mk_row("sb_2", "a")
    };
    bench.publish("n2", &[later]);
    let version = bench.fleet.store().head();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    bench.lists("default/a=sb_1@n1; default/sb-2=sb_2@n2");
    assert_eq!(
        bench.changes(version),
        "-a +a +sb-2",
        "a change of holder is no modification"
    );
    assert!(
        bench
            .fleet
            .store()
            .get("default", "sb-2")
            .unwrap()
            .value
            .name_taken
    );
    assert_eq!(bench.fleet.counts().name_conflicts, 1);
    bench
        .fleet
        .released(&"n1".into(), &"sb_1".into(), bench.now());
    bench.lists("default/a=sb_2@n2");
    assert_eq!(bench.fleet.counts().name_conflicts, 0);
    assert!(
        !bench
            .fleet
            .store()
            .get("default", "a")
            .unwrap()
            .value
            .name_taken
    );
}

#[test]
fn two_nodes_that_report_one_id_are_two_sandboxes() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "")]);
    bench.publish("n2", &[mk_row("sb_1", "")]);
    assert_eq!(bench.fleet.store().count(&Scope::All), 2);
    bench
        .fleet
        .released(&"n1".into(), &"sb_1".into(), bench.now());
    bench.lists("default/sb-1=sb_1@n2");
}

#[test]
fn hostile_names_are_listed_under_the_id() {
    let bench = Bench::new();
    bench.publish(
        "n1",
        &[
            mk_row("sb_1", "Bad Name/x"),
            mk_row("sb_2", "team/UPPER"),
            mk_row("///", "x/y/z"),
        ],
    );
    let names: Vec<_> = bench
        .changes(ResourceVersion::first_of_epoch(1).unwrap())
        .split(' ')
        .map(str::to_owned)
        .collect();
    assert_eq!(names[..2], ["+sb-1", "+sb-2"]);
    assert!(
        bench.fleet.store().get("team", "sb-2").is_some(),
        "a usable namespace is kept"
    );
    assert!(names[2].starts_with("+sb-"));
}

#[test]
fn a_forks_child_shows_its_id_without_the_underscore() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "team/child-sb_1")]);
    bench.lists("team/child-sb-1=sb_1@n1");
}

#[test]
fn a_name_is_reserved_for_one_create() {
    let bench = Bench::new();
    let key = SandboxKey::new("default", "a");
    let first = bench.fleet.reserve(key.clone()).unwrap();
    assert!(bench.fleet.reserve(key.clone()).is_err());
    drop(first);
    let again = bench.fleet.reserve(key.clone()).unwrap();
    bench.publish("n2", &[mk_row("sb_2", "a")]);
    let granted = mk_granted("n1", "sb_1", bench.now().wall);
    assert_eq!(
        bench
            .fleet
            .granted(&again, granted, &[], bench.now())
            .map(|_| ()),
        Err(ClaimLost)
    );
    bench.lists("default/a=sb_2@n2");
    assert!(bench.fleet.reserve(key).is_err());
}

#[test]
fn our_claim_may_be_listed_before_its_answer() {
    let bench = Bench::new();
    let reserved = bench
        .fleet
        .reserve(SandboxKey::new("default", "a"))
        .unwrap();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    let user = Arc::new(UserPart {
        generation: 1,
        ..UserPart::default()
    });
    let granted = Granted {
        user: Some(user),
        ..mk_granted("n1", "sb_1", bench.now().wall)
    };
    let record = bench
        .fleet
        .granted(&reserved, granted, &[], bench.now())
        .unwrap();
    assert!(record.value.user.is_some());
    bench.lists("default/a=sb_1@n1");
}

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
fn deleting_the_inventory_deletes_its_sandboxes() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    bench.publish("n2", &[mk_row("sb_2", "b")]);
    bench.fleet.forget_node(&"n1".into());
    bench.lists("default/b=sb_2@n2");
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
    assert_eq!(bench.fleet.keepers(&pool, 2).len(), 2);
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

/// One step of a random history on two nodes, three ids each and three names.
#[derive(Clone, Debug)]
enum Step {
    Publish {
        node: usize,
        listed: Vec<(usize, usize)>,
    },
    Read {
        node: usize,
        listed: Vec<(usize, usize)>,
    },
    Create {
        node: usize,
        claim: usize,
        name: usize,
    },
    Release {
        node: usize,
        claim: usize,
    },
    Forget {
        node: usize,
    },
    Wait {
        seconds: u64,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let listed = || prop::collection::vec((0_usize..3, 0_usize..4), 0..4);
    prop_oneof![
        3 => (0_usize..2, listed()).prop_map(|(node, listed)| Step::Publish { node, listed }),
        2 => (0_usize..2, listed()).prop_map(|(node, listed)| Step::Read { node, listed }),
        3 => (0_usize..2, 3_usize..9, 0_usize..3).prop_map(|(node, claim, name)| Step::Create { node, claim, name }),
        2 => (0_usize..2, 0_usize..9).prop_map(|(node, claim)| Step::Release { node, claim }),
        1 => (0_usize..2).prop_map(|node| Step::Forget { node }),
        1 => (1_u64..100).prop_map(|seconds| Step::Wait { seconds }),
    ]
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

proptest! {
    #[test]
    fn whatever_happens_one_claim_is_one_object_and_the_released_stay_dead(steps in prop::collection::vec(any_step(), 1..50)) {
        let mut bench = Bench::new();
        let mut released: BTreeSet<(NodeName, ClaimId)> = BTreeSet::new();
        let name = |index: usize| ["default/a", "default/b", "default/sb-0", ""][index];
        let rows = |listed: &[(usize, usize)]| -> Vec<Row> {
            listed.iter().map(|(claim, index)| Row {
                claimed_at: Some(UnixTime::from_secs(START - *claim as i64 % 2)),
                ..mk_row(&format!("sb_{claim}"), name(*index))
            }).collect()
        };
        for step in steps {
            match step {
                Step::Publish { node, listed } => { bench.publish(["n0", "n1"][node], &rows(&listed)); }
                Step::Read { node, listed } => {
                    let node: NodeName = ["n0", "n1"][node].into();
                    if let Some(guard) = bench.fleet.begin_read(&node) {
                        bench.fleet.read(guard, &rows(&listed), bench.now());
                    }
                }
                Step::Create { node, claim, name: index } => {
                    let (namespace, name) = name(index).split_once('/').unwrap();
                    if let Ok(reserved) = bench.fleet.reserve(SandboxKey::new(namespace, name)) {
                        let granted = mk_granted(["n0", "n1"][node], &format!("sb_{claim}"), bench.now().wall);
                        // A daemon never grants one id twice.
                        if bench.fleet.by_claim(&granted.node, &granted.claim).is_none()
                            && !released.contains(&(granted.node.clone(), granted.claim.clone())) {
                            let _ = bench.fleet.granted(&reserved, granted, &[], bench.now());
                        }
                    }
                }
                Step::Release { node, claim } => {
                    let (node, claim): (NodeName, ClaimId) = (["n0", "n1"][node].into(), format!("sb_{claim}").into());
                    if bench.fleet.released(&node, &claim, bench.now()).is_some() {
                        released.insert((node, claim));
                    }
                }
                Step::Forget { node } => {
                    let node: NodeName = ["n0", "n1"][node].into();
                    bench.fleet.forget_node(&node);
                    released.retain(|(of, _)| *of != node);
                }
                Step::Wait { seconds } => {
                    bench.elapsed += seconds;
                    bench.fleet.tick(bench.now());
                }
            }
            let store = bench.fleet.store();
            let page = store.page(&Scope::All, None, store.head(), 1_000).unwrap();
            let mut seen = BTreeSet::new();
            for item in &page.items {
                let sandbox = &item.value;
                let id = (sandbox.node.clone(), sandbox.claim.clone());
                prop_assert!(!released.contains(&id), "{id:?} came back");
                prop_assert!(seen.insert(id), "a claim is listed twice");
                let by_claim = bench.fleet.by_claim(&sandbox.node, &sandbox.claim);
                prop_assert_eq!(by_claim.as_ref(), Some(item), "list and node agree");
            }
            let held: usize = bench.fleet.lock().nodes.values().map(|node| node.claims.iter().count()).sum();
            prop_assert_eq!(held, page.items.len(), "nothing is held that is not listed");
            let losers: usize = page.items.iter().filter(|item| item.value.name_taken).count();
            prop_assert_eq!(losers, bench.fleet.counts().name_conflicts);
        }
    }
}
