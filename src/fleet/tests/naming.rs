//! Who has a name.

use super::*;

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
            unlisted: 1
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
fn of_two_claims_of_one_create_the_one_that_was_answered_has_the_name() {
    let row = |claim: &str, node: &str, claimed_at| {
        let create = "0f8fad5bd9cb469fa16570867728950e".to_owned();
        let metadata = [
            ("sandbox.cocoonstack.io/attempt".to_owned(), create),
            (
                "sandbox.cocoonstack.io/attempt-node".to_owned(),
                node.to_owned(),
            ),
        ];
        Row {
            claimed_at: Some(UnixTime::from_secs(START + claimed_at)),
            metadata: metadata.into(),
            ..mk_row(claim, "a")
        }
    };
    // The first node's answer was lost, so that another one was asked; then the server was killed.
    let (lost, answered) = (row("sb_1", "1", -3), row("sb_2", "2", -1));
    for lost_first in [true, false] {
        let bench = Bench::new();
        match lost_first {
            true => bench.publish("n1", std::slice::from_ref(&lost)),
            false => bench.publish("n2", std::slice::from_ref(&answered)),
        };
        bench.publish("n1", std::slice::from_ref(&lost));
        bench.publish("n2", std::slice::from_ref(&answered));
        bench.lists("default/a=sb_2@n2; default/sb-1=sb_1@n1");
    }
}

/// A publication's row: it says nothing of the create.
fn published(row: &Row) -> Row {
    Row {
        metadata: BTreeMap::new(),
        ..row.clone()
    }
}

#[test]
fn whose_create_a_claim_is_of_may_be_learnt_late() {
    let row = |claim: &str, create: u8, node: &str, claimed_at| Row {
        claimed_at: Some(UnixTime::from_secs(START + claimed_at)),
        metadata: BTreeMap::from([
            (
                "sandbox.cocoonstack.io/attempt".to_owned(),
                format!("{create:x}{:031x}", 0),
            ),
            (
                "sandbox.cocoonstack.io/attempt-node".to_owned(),
                node.to_owned(),
            ),
        ]),
        ..mk_row(claim, "a")
    };
    let (lost, answered) = (row("sb_1", 1, "1", -9), row("sb_3", 1, "2", -5));
    let stranger = row("sb_2", 2, "1", -7);
    // A restarted server hears of them from publications first, and asks the nodes then, in whatever order.
    let claims = [("n1", &lost), ("n2", &stranger), ("n3", &answered)];
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let bench = Bench::new();
        for (node, row) in claims {
            bench.publish(node, &[published(row)]);
        }
        bench.lists("default/a=sb_1@n1; default/sb-2=sb_2@n2; default/sb-3=sb_3@n3");
        for (node, row) in order.map(|index| claims[index]) {
            bench.read(node, std::slice::from_ref(row));
        }
        bench.lists("default/a=sb_2@n2; default/sb-1=sb_1@n1; default/sb-3=sb_3@n3");
        // With the stranger goes its right, and the lost double has none.
        bench.read("n2", &[]);
        bench.lists("default/a=sb_3@n3; default/sb-1=sb_1@n1");
    }
}

#[test]
fn what_was_answered_keeps_its_name_when_its_create_is_learnt() {
    let bench = Bench::new();
    let reserved = bench.fleet.reserve(SandboxKey::new("default", "a"));
    let reserved = reserved.unwrap();
    let granted = mk_granted("n2", "sb_2", bench.now().wall);
    let granted = bench.fleet.granted(&reserved, granted, &[], bench.now());
    granted.unwrap();
    // Older, and of somebody else.
    bench.publish("n1", &[mk_row("sb_1", "a")]);
    drop(reserved);
    let ours = Row {
        metadata: BTreeMap::from([
            (
                "sandbox.cocoonstack.io/attempt".to_owned(),
                "0f8fad5bd9cb469fa16570867728950e".to_owned(),
            ),
            (
                "sandbox.cocoonstack.io/attempt-node".to_owned(),
                "1".to_owned(),
            ),
        ]),
        ..mk_row("sb_2", "a")
    };
    bench.read("n2", &[ours]);
    bench.lists("default/a=sb_2@n2; default/sb-1=sb_1@n1");
}
