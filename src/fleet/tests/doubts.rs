//! What this server did against what is told late, and what is asked when nobody tells.

use super::*;
use crate::api::labels;

fn mk_user(finalizers: &[&str]) -> UserPart {
    UserPart {
        spec: "{}".into(),
        generation: 1,
        finalizers: finalizers.iter().map(|name| (*name).into()).collect(),
        ..UserPart::default()
    }
}

impl Bench {
    fn create_of(&self, key: &str, claim: &str, user: UserPart) {
        self.create(key, "n1", claim).unwrap();
        self.say(claim, user).unwrap();
    }

    fn say(&self, claim: &str, user: UserPart) -> Result<Arc<Stored<Sandbox>>, Overtaken> {
        let version = self.record(claim).ok_or(Overtaken)?.version;
        let user = Arc::new(user);
        self.fleet
            .set_user(&"n1".into(), &claim.into(), version, user)
    }

    fn record(&self, claim: &str) -> Option<Arc<Stored<Sandbox>>> {
        self.fleet.by_claim(&"n1".into(), &claim.into())
    }

    fn observe(&self, row: &Row) {
        self.fleet.observe(&"n1".into(), row, self.now());
    }

    fn pause(&self, claim: &str) {
        let paused = self.fleet.set_phase(
            &"n1".into(),
            &claim.into(),
            Phase::Paused,
            false,
            self.now(),
        );
        paused.unwrap();
    }

    fn release(&self, claim: &str) {
        let last = self.fleet.released(&"n1".into(), &claim.into(), self.now());
        last.unwrap();
    }

    /// The nodes to read after so many seconds.
    fn asks_after(&mut self, seconds: u64) -> Vec<NodeName> {
        self.elapsed += seconds;
        self.fleet.tick(self.now()).read
    }
}

#[test]
fn what_a_feed_saw_before_our_write_does_not_take_it_back() {
    let mut bench = Bench::new();
    let row = mk_row("sb_1", "a");
    bench.publish("n1", std::slice::from_ref(&row));
    bench.pause("sb_1");
    let renewed = UnixTime::from_secs(START + 20_000);
    bench
        .fleet
        .set_deadline(&"n1".into(), &"sb_1".into(), renewed, bench.now());
    let version = bench.fleet.store().head();
    bench.observe(&row);
    assert_eq!(bench.changes(version), "");
    bench.elapsed = 10;
    bench.observe(&row);
    bench.lists("default/a=sb_1@n1");
    assert_eq!(bench.record("sb_1").unwrap().value.deadline, row.deadline);
}

#[test]
fn a_feed_that_was_faster_than_our_call_leaves_nothing_to_ask() {
    let mut bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    bench.observe(&Row {
        phase: Phase::Paused,
        ..mk_row("sb_1", "a")
    });
    bench.pause("sb_1");
    assert_eq!(bench.asks_after(20), []);
}

#[test]
fn what_a_feed_tells_during_a_read_is_not_taken_back_by_its_answer() {
    let bench = Bench::new();
    let row = mk_row("sb_1", "a");
    bench.publish("n1", std::slice::from_ref(&row));
    let read = bench.fleet.begin_read(&"n1".into()).unwrap();
    bench.observe(&Row {
        phase: Phase::Paused,
        ..row.clone()
    });
    bench.observe(&mk_row("sb_2", "b"));
    assert!(bench.fleet.read(read, &[row], bench.now()));
    bench.lists("default/a=sb_1@n1 Paused; default/b=sb_2@n1");
}

#[test]
fn a_publication_that_comes_during_a_read_leaves_open_what_the_two_differ_in() {
    let mut bench = Bench::new();
    let (a, b) = (mk_row("sb_1", "a"), mk_row("sb_2", "b"));
    let paused = |row: &Row| Row {
        phase: Phase::Paused,
        ..row.clone()
    };
    let create = "5f0c8a6e-0c9d-4e6a-8b57-0d7c5a2f9a11".to_owned();
    let known_create = Row {
        metadata: [
            (labels::ATTEMPT.to_owned(), create),
            (labels::ATTEMPT_NODE.to_owned(), "1".to_owned()),
        ]
        .into(),
        ..b.clone()
    };
    let read_during = |bench: &Bench, publication: &[Row], answer: &[Row]| {
        let read = bench.fleet.begin_read(&"n1".into()).unwrap();
        bench.publish("n1", publication);
        bench.fleet.read(read, answer, bench.now())
    };
    bench.publish("n1", std::slice::from_ref(&a));
    assert!(
        read_during(&bench, &[], &[]),
        "what was published before is older"
    );
    bench.lists("");
    assert!(!read_during(&bench, &[a.clone(), b.clone()], &[]));
    bench.lists("default/b=sb_2@n1");
    bench.elapsed += 60;
    assert!(!read_during(
        &bench,
        &[paused(&b)],
        std::slice::from_ref(&b)
    ));
    bench.lists("default/b=sb_2@n1 Paused");
    bench.read("n1", std::slice::from_ref(&b));
    bench.lists("default/b=sb_2@n1");
    // They agree, and the node says more.
    bench.elapsed += 60;
    assert!(read_during(&bench, &[paused(&b)], &[paused(&known_create)]));
    let listed = bench.fleet.store().get("default", "b").unwrap();
    assert!(listed.value.attempt.is_some());
    // What an agent tells is of a moment ago, and the answer says nothing about it.
    let read = bench.fleet.begin_read(&"n1".into()).unwrap();
    bench.publish("n1", std::slice::from_ref(&b));
    bench.observe(&b);
    assert!(bench.fleet.read(read, &[], bench.now()));
    bench.lists("default/b=sb_2@n1");
}

#[test]
fn what_a_node_told_outweighs_a_publication_for_a_minute() {
    let mut bench = Bench::new();
    let row = mk_row("sb_1", "a");
    bench.publish("n1", std::slice::from_ref(&row));
    bench.pause("sb_1");
    let paused = Row {
        phase: Phase::Paused,
        ..row.clone()
    };
    bench.read("n1", std::slice::from_ref(&paused));
    // Nothing is held any more, and this one was on its way for long.
    assert_eq!(bench.publish("n1", std::slice::from_ref(&row)).unlisted, 1);
    bench.lists("default/a=sb_1@n1 Paused");
    let longer = row
        .deadline
        .map(|ends| ends.after(Duration::from_secs(600)));
    let renewed = Row {
        deadline: longer,
        ..paused.clone()
    };
    bench.read("n1", std::slice::from_ref(&renewed));
    assert_eq!(
        bench.publish("n1", std::slice::from_ref(&paused)).unlisted,
        1
    );
    assert_eq!(bench.record("sb_1").unwrap().value.deadline, longer);
    bench.elapsed = 60;
    assert!(!bench.publish("n1", std::slice::from_ref(&row)).is_some());
    bench.lists("default/a=sb_1@n1");
}

#[test]
fn a_node_that_comes_back_during_a_read_is_known_by_its_answer() {
    let mut bench = Bench::new();
    let rows = ["a", "b", "c"].map(|name| mk_row(&format!("sb_{name}"), name));
    bench.publish("n1", &rows);
    bench.elapsed = 120;
    bench.fleet.tick(bench.now());
    bench.lists("default/a=sb_a@n1 lost; default/b=sb_b@n1 lost; default/c=sb_c@n1 lost");
    let read = bench.fleet.begin_read(&"n1".into()).unwrap();
    bench.fleet.heard(&"n1".into(), bench.now());
    let labelled = bench.fleet.store().get("default", "a").unwrap();
    let labelled = bench.fleet.set_user(
        &"n1".into(),
        &"sb_a".into(),
        labelled.version,
        Arc::new(mk_user(&[])),
    );
    labelled.expect("nobody else says anything");
    let paused = Row {
        phase: Phase::Paused,
        ..rows[1].clone()
    };
    assert!(bench.fleet.read(read, &[paused], bench.now()));
    bench.lists("default/b=sb_b@n1 Paused");
}

#[test]
fn what_a_node_denied_and_publishes_again_is_asked_for() {
    let bench = Bench::new();
    let row = mk_row("sb_1", "a");
    bench.publish("n1", std::slice::from_ref(&row));
    bench.read("n1", &[]);
    let doubt = bench.publish("n1", std::slice::from_ref(&row));
    assert_eq!((doubt.unlisted, doubt.absent), (1, 0));
    bench.lists("");
    bench.read("n1", std::slice::from_ref(&row));
    bench.lists("default/a=sb_1@n1");
    bench
        .fleet
        .released(&"n1".into(), &"sb_1".into(), bench.now());
    let doubt = bench.publish("n1", &[row]);
    assert_eq!(doubt, Doubt::default(), "what was released stays so");
}

#[test]
fn a_node_is_read_when_it_does_not_confirm_what_we_did() {
    let mut bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    bench.create("default/b", "n1", "sb_2").unwrap();
    bench.pause("sb_1");
    assert_eq!(bench.asks_after(9), []);
    assert_eq!(bench.asks_after(1), ["n1".into()]);
    assert_eq!(bench.asks_after(29), [], "the answer may be under way");
    assert_eq!(bench.asks_after(1), ["n1".into()]);
    bench.read("n1", &[mk_row("sb_1", "a")]);
    bench.lists("default/a=sb_1@n1");
    assert_eq!(bench.asks_after(30), []);
}

#[test]
fn a_node_is_read_when_it_does_not_say_that_a_sandbox_went_with_its_lease() {
    let mut bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    assert_eq!(bench.asks_after(10_000), []);
    bench.lists("default/a=sb_1@n1 Expired");
    assert_eq!(bench.asks_after(30), ["n1".into()]);
    bench.read("n1", &[mk_row("sb_1", "a")]);
    assert_eq!(bench.asks_after(30), ["n1".into()], "it still has it");
    bench.read("n1", &[]);
    bench.lists("");
    assert_eq!(bench.asks_after(30), []);
}

#[test]
fn a_publication_that_nobody_made_does_not_find_a_lost_node() {
    let mut bench = Bench::new();
    let rows = [mk_row("sb_1", "a"), mk_row("sb_2", "b")];
    bench.publish("n1", &rows[..1]);
    bench.elapsed = 120;
    bench.fleet.tick(bench.now());
    let report = mk_report(&rows);
    bench
        .fleet
        .publish(&"n1".into(), &report, false, false, bench.now());
    bench.lists("default/a=sb_1@n1 lost; default/b=sb_2@n1 lost");
    bench.publish("n1", &rows);
    bench.lists("default/a=sb_1@n1; default/b=sb_2@n1");
}

#[test]
fn a_suspected_node_gets_nothing_and_is_asked_but_not_lost_before_its_time() {
    let mut bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    bench.fleet.suspect(&"n1".into(), bench.now());
    assert_eq!(bench.fleet.counts().nodes, [0, 1, 0]);
    assert_eq!(bench.fleet.tick(bench.now()).probe.len(), 1);
    bench.elapsed = 119;
    bench.fleet.tick(bench.now());
    bench.lists("default/a=sb_1@n1");
    bench.fleet.heard(&"n1".into(), bench.now());
    assert_eq!(bench.fleet.counts().nodes, [1, 0, 0]);
    assert!(!bench.fleet.is_suspected(&"n1".into()));
}

#[test]
fn a_released_sandbox_that_a_finalizer_keeps_does_not_run_again() {
    let bench = Bench::new();
    bench.create_of("default/a", "sb_1", mk_user(&["x/y"]));
    bench.release("sb_1");
    let version = bench.fleet.store().head();
    let row = mk_row("sb_1", "a");
    bench.publish("n1", std::slice::from_ref(&row));
    bench.read("n1", std::slice::from_ref(&row));
    bench.observe(&row);
    bench.read("n1", &[]);
    bench
        .fleet
        .confirmed_absent(&"n1".into(), &"sb_1".into(), bench.now());
    bench.read("n1", std::slice::from_ref(&row));
    bench.release("sb_1");
    assert_eq!(bench.changes(version), "");
    assert!(bench.record("sb_1").unwrap().value.gone);
    bench.say("sb_1", mk_user(&[])).unwrap();
    bench.lists("");
    bench.read("n1", &[row]);
    bench.lists("");
}

#[test]
fn an_expired_sandbox_is_not_brought_back_by_what_is_late() {
    let mut bench = Bench::new();
    bench.create_of("default/a", "sb_1", mk_user(&[]));
    bench.elapsed = 10_000;
    bench.fleet.tick(bench.now());
    bench.read("n1", &[]);
    let version = bench.fleet.store().head();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    assert_eq!(bench.changes(version), "");
}

#[test]
fn that_the_vm_of_an_expired_sandbox_is_gone_is_no_news() {
    let mut bench = Bench::new();
    bench.create_of("default/a", "sb_1", mk_user(&["x/y"]));
    bench.elapsed = 10_000;
    bench.fleet.tick(bench.now());
    let expired_at = bench.now().wall;
    let version = bench.fleet.store().head();
    bench.elapsed += 5;
    bench.read("n1", &[]);
    assert_eq!(bench.changes(version), "");
    let record = bench.record("sb_1").unwrap();
    assert!(record.value.gone);
    assert_eq!(record.value.changed, expired_at);
}

#[test]
fn an_expired_sandbox_with_a_finalizer_is_deleted_after_its_time_and_stays_until_it_may_go() {
    let mut bench = Bench::new();
    bench.create_of("default/a", "sb_1", mk_user(&["x/y"]));
    bench.elapsed = 10_000;
    bench.fleet.tick(bench.now());
    bench.read("n1", &[]);
    assert_eq!(bench.record("sb_1").unwrap().value.deleted_at, None);
    bench.elapsed += 3_601;
    bench.fleet.tick(bench.now());
    let deleted_at = bench.record("sb_1").unwrap().value.deleted_at;
    assert_eq!(deleted_at, Some(bench.now().wall));
    bench.elapsed += 100_000;
    bench.fleet.tick(bench.now());
    assert!(bench.record("sb_1").is_some());
    bench.say("sb_1", mk_user(&[])).unwrap();
    bench.lists("");
}

#[test]
fn objects_that_finalizers_keep_are_bounded() {
    let bench = Bench::new();
    let kept = 10_000;
    for n in 0..=kept {
        let claim = format!("sb_{n}");
        bench.create_of(&format!("default/a{n}"), &claim, mk_user(&["x/y"]));
        bench.release(&claim);
    }
    assert_eq!(bench.fleet.store().count(&Scope::All), kept);
    assert!(bench.record("sb_0").is_none());
    // Those that may go make room.
    for n in 2..=kept {
        bench.say(&format!("sb_{n}"), mk_user(&[])).unwrap();
    }
    for n in 0..kept {
        let claim = format!("again_{n}");
        bench.create_of("default/again", &claim, mk_user(&["x/y"]));
        bench.release(&claim);
        bench.say(&claim, mk_user(&[])).unwrap();
    }
    bench.lists("default/a1=sb_1@n1");
}

#[test]
fn a_double_of_a_create_gives_way_to_what_its_client_got() {
    let bench = Bench::new();
    let key = SandboxKey::new("default", "a");
    let reserved = bench.fleet.reserve(key.clone()).unwrap();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    // The winner may be listed before its answer as well.
    bench.publish("n2", &[mk_row("sb_2", "a")]);
    let granted = mk_granted("n2", "sb_2", bench.now().wall);
    let asked = ["n1".into()];
    let record = bench.fleet.granted(&reserved, granted, &asked, bench.now());
    assert_eq!(record.unwrap().value.name, "a");
    bench.lists("default/a=sb_2@n2; default/sb-1=sb_1@n1");
    assert_eq!(bench.fleet.counts().name_conflicts, 1);
    bench.release("sb_1");
    bench.lists("default/a=sb_2@n2");
    assert_eq!(bench.fleet.counts().name_conflicts, 0);
}

#[test]
fn what_was_deleted_before_its_grant_was_heard_of_does_not_come_back() {
    let bench = Bench::new();
    let key = SandboxKey::new("default", "a");
    let reserved = bench.fleet.reserve(key.clone()).unwrap();
    bench.publish("n1", &[mk_row("sb_1", "a"), mk_row("sb_2", "")]);
    bench.lists("default/a=sb_1@n1; default/sb-2=sb_2@n1");
    let listed = bench.record("sb_1").unwrap();
    bench.release("sb_1");
    bench.release("sb_2");
    let head = bench.fleet.store().head();
    let grant = |claim| mk_granted("n1", claim, bench.now().wall);
    let granted = bench
        .fleet
        .granted(&reserved, grant("sb_1"), &[], bench.now());
    let granted = granted.unwrap();
    assert_eq!(granted.version, listed.version, "as it was created");
    assert_eq!(granted.value.uid, listed.value.uid);
    let child = bench
        .fleet
        .granted_unnamed(None, grant("sb_2"), bench.now());
    assert!(child.is_none());
    bench.lists("");
    assert_eq!(bench.fleet.store().head(), head, "nothing has changed");
    // The name is free for the next one.
    drop(reserved);
    let reserved = bench.fleet.reserve(key).unwrap();
    let granted = bench
        .fleet
        .granted(&reserved, grant("sb_3"), &[], bench.now());
    assert_eq!(granted.unwrap().value.claim, "sb_3".into());
}

#[test]
fn a_double_that_turns_up_late_takes_no_name() {
    let bench = Bench::new();
    let reserved = bench
        .fleet
        .reserve(SandboxKey::new("default", "a"))
        .unwrap();
    let granted = mk_granted("n2", "sb_2", bench.now().wall);
    bench
        .fleet
        .granted(&reserved, granted, &[], bench.now())
        .unwrap();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    bench.lists("default/a=sb_2@n2; default/sb-1=sb_1@n1");
    let kept = [reserved.keep(), reserved.keep()];
    drop(reserved);
    bench.publish("n3", &[mk_row("sb_3", "a")]);
    bench.lists("default/a=sb_2@n2; default/sb-1=sb_1@n1; default/sb-3=sb_3@n3");
    drop(kept);
    bench.publish("n4", &[mk_row("sb_4", "a")]);
    assert_eq!(
        bench.fleet.store().get("default", "a").unwrap().value.claim,
        "sb_4".into()
    );
}

#[test]
fn leases_that_end_before_their_users_want_are_found_wherever_they_come_from() {
    let mut bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a"), mk_row("sb_2", "b")]);
    let by = UnixTime::from_secs(START + 10_000);
    let due = |bench: &Bench, by| {
        let due = bench.fleet.leases_to_renew(by).into_iter().flatten();
        due.map(|record| record.value.claim.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(due(&bench, by), [""; 0]);
    let user = UserPart {
        shutdown_time: Some(UnixTime::from_secs(START + 1_000_000)),
        ..mk_user(&[])
    };
    let restored = bench
        .fleet
        .restore_user(&"n1".into(), &"sb_1".into(), &Arc::new(user.clone()));
    assert!(restored);
    assert_eq!(due(&bench, by), ["sb_1"]);
    assert_eq!(due(&bench, UnixTime::from_secs(START + 9_999)), [""; 0]);
    bench.fleet.set_deadline(
        &"n1".into(),
        &"sb_1".into(),
        by.after(Duration::from_secs(1)),
        bench.now(),
    );
    assert_eq!(due(&bench, by), [""; 0]);
    bench.say("sb_2", user).unwrap();
    assert_eq!(due(&bench, by), ["sb_2"]);
    bench.elapsed = 10_000;
    bench.fleet.tick(bench.now());
    assert_eq!(due(&bench, by), [""; 0], "what is over is not renewed");
}

#[test]
fn a_lease_that_two_clocks_leave_short_is_not_renewed() {
    let bench = Bench::new();
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    let ends = START + 10_000;
    for (short, is_due) in [(0, false), (10, false), (11, true)] {
        let user = UserPart {
            shutdown_time: Some(UnixTime::from_secs(ends + short)),
            ..mk_user(&[])
        };
        bench.say("sb_1", user).unwrap();
        let due = bench.fleet.leases_to_renew(UnixTime::from_secs(ends));
        assert_eq!(!due.is_empty(), is_due, "short of {short} s");
    }
}

#[test]
fn objects_without_a_machine_are_bounded_by_their_bytes() {
    let mut bench = Bench::new();
    let mk_large = |finalizers: &[&str]| UserPart {
        spec: format!(r#"{{"x":"{}"}}"#, "x".repeat(500_000)).into(),
        ..mk_user(finalizers)
    };
    // Whether they were large before, or have become so since.
    for n in 0..200 {
        let claim = format!("sb_{n}");
        bench.create_of(&format!("default/a{n:03}"), &claim, mk_user(&["x/y"]));
        match n % 2 {
            0 => {
                bench.say(&claim, mk_large(&["x/y"])).unwrap();
                bench.release(&claim);
            }
            _ => {
                bench.release(&claim);
                bench.say(&claim, mk_large(&["x/y"])).unwrap();
            }
        }
    }
    let kept = || bench.fleet.store().count(&Scope::All);
    bench.fleet.tick(bench.now());
    assert!((100..135).contains(&kept()), "{}", kept());
    assert!(bench.record("sb_0").is_none() && bench.record("sb_199").is_some());
    // Those that only tell that they expired go first.
    for n in 0..100 {
        let claim = format!("old_{n}");
        bench.create_of(&format!("default/b{n:03}"), &claim, mk_large(&[]));
    }
    let before = kept();
    bench.elapsed = 10_000;
    bench.fleet.tick(bench.now());
    bench.read("n1", &[]);
    bench.fleet.tick(bench.now());
    assert!(bench.record("old_0").is_none() && bench.record("sb_199").is_some());
    let kept = bench.fleet.store().count(&Scope::All);
    assert_eq!(kept, before - 100, "each of those that expired made room");
}
