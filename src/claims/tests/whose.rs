//! Of several sandboxes under one name, which is the claim's to have and to release.

use super::*;

#[test]
fn what_a_node_handed_over_wins_until_the_status_tells_of_another() {
    let other = |case: Case| case.bound_to("n2", "sb_2");
    // Ours, which nobody was told of.
    let ours = || {
        Case::new()
            .protected()
            .with_sandbox(Phase::Running, Some("u-1"))
    };
    other(ours()).then("release double sb_1");
    ours()
        .bound_to("n1", "sb_1")
        .then("say True DependenciesReady Some(\"box\")");
    // Ours, which lost its name to the one that was handed over.
    let mut lost = Case::new().protected().with_sandbox(Phase::Running, None);
    let mut beside = ours().sandbox.unwrap();
    beside.claim = "sb_7".into();
    lost.contenders = vec![beside];
    let mut lost = lost.then("release double sb_7");
    lost.contenders.clear();
    lost.then("say True DependenciesReady Some(\"box\")");
    // Once the status tells of ours, nothing is released.
    other(ours().said()).then("rest None");
    // What was handed over and is not reported is waited for, whoever has the name.
    let waits = |case: Case| {
        let waiting = case.then("say False SandboxMissing None").said();
        waiting.then("rest None");
    };
    waits(other(Case::new().protected()));
    waits(Case::new().protected().made_for("n2", "sb_2"));
    let theirs = || Case::new().protected().with_sandbox(Phase::Running, None);
    waits(other(theirs()));
    waits(theirs().made_for("n2", "sb_2"));
    waits(theirs().made_for("n2", "sb_1"));
    other(Case::new()).then("protect");
}

#[test]
fn what_may_be_released_as_nobodys_is_no_claims() {
    let told_by_its_node = || Case::new().protected().with_sandbox(Phase::Running, None);
    told_by_its_node().then("say True DependenciesReady Some(\"box\")");
    let mut unsettled = told_by_its_node();
    unsettled.unsettled = true;
    unsettled.then("claim team/box from python:3.12|none|small");
    let mut going = told_by_its_node();
    going.sandbox.as_mut().unwrap().deleted_at = Some(UnixTime::from_secs(NOW));
    going.then("claim team/box from python:3.12|none|small");
    // What was claimed for it here, it has.
    let mut owned = Case::new()
        .protected()
        .with_sandbox(Phase::Running, Some("u-1"));
    owned.unsettled = true;
    owned.then("say True DependenciesReady Some(\"box\")");
}

#[test]
fn a_claim_has_the_sandbox_that_it_is_bound_to_under_any_name() {
    let mut case = Case::new()
        .protected()
        .with_sandbox(Phase::Running, None)
        .bound_to("n2", "sb_2")
        .beside("n2", "sb_2", None)
        .then("say True DependenciesReady Some(\"sb-2\")")
        .said()
        .then("adopt sb_2");
    // Also when another claim's sandbox has its name.
    case = case.with_sandbox(Phase::Running, Some("u-2"));
    case.then("adopt sb_2");
}

#[test]
fn who_inherits_the_name_of_a_lost_sandbox_is_not_the_claims() {
    let lost = || {
        let mut case = Case::new()
            .protected()
            .with_sandbox(Phase::Running, None)
            .said();
        case.sandbox = None;
        case.then("say False SandboxMissing Some(\"box\")").said()
    };
    let inherited = lost().beside("n2", "sb_2", None).named("sb_2");
    let inherited = inherited.then("say False SandboxMissing None").said();
    let inherited = inherited.then("rest None");
    // It comes back, as after the silence of its node.
    inherited
        .beside("n1", "sb_1", None)
        .then("say True DependenciesReady Some(\"sb-1\")");
}

#[test]
fn nothing_that_the_claim_is_not_bound_to_ends_with_it() {
    // Handed over under the name while the node of the claim's own did not confirm its release, or after it did.
    let later = |case: Case| case.protected().with_sandbox(Phase::Running, None);
    let told = |case: Case| later(case).said().beside("n2", "sb_2", None);
    told(Case::new())
        .deleted()
        .named("sb_2")
        .then("release sb_1");
    let released = |case: Case| told(case).named("sb_2").without("sb_1");
    released(Case::new()).deleted().then("unprotect");
    released(Case::new())
        .ending("Retain", -1)
        .then("say False ClaimExpired None");
    // Made by an agent for a sandbox of its own node, under the name of another.
    let forged = |node, claim| later(Case::new()).made_for(node, claim).deleted();
    forged("n2", "sb_2").then("release sb_2 unseen");
    forged("n2", "sb_1").then("release sb_1 unseen");
    forged("n1", "sb_1").then("release sb_1");
    // What has the claim's part is its own, whatever else it is bound to.
    let given = Case::new()
        .protected()
        .with_sandbox(Phase::Running, Some("u-1"))
        .said();
    let both = given.bound_to("n2", "sb_2").beside("n2", "sb_2", None);
    let mut both = both.deleted().then("release sb_1");
    // One after the other, also while the node of the first does not confirm.
    both.sandbox.as_mut().unwrap().deleted_at = Some(UnixTime::from_secs(NOW));
    both.then("release sb_2")
        .without("sb_2")
        .then("release sb_1");
}

#[test]
fn what_was_handed_over_and_never_listed_ends_with_its_claim() {
    let deleted = || Case::new().protected().deleted();
    deleted().made_for("n1", "sb_1").then("release sb_1 unseen");
    deleted()
        .made_for("n1", "sb_1")
        .bound_to("n2", "sb_2")
        .then("release sb_2 unseen");
    // It was listed once, so that it is gone.
    let mut told = Case::new()
        .protected()
        .with_sandbox(Phase::Running, None)
        .said();
    told.sandbox = None;
    told = told.then("say False SandboxMissing Some(\"box\")").said();
    assert!(told.claim.is_released());
    // That is known to the next life of the server, whose node may be down for good.
    told.told = false;
    told = told.then("rest None");
    // Unless a daemon that had just begun finds it again.
    told = told.with_sandbox(Phase::Running, Some("u-1"));
    told.told = true;
    told = told.then("say True DependenciesReady Some(\"box\")").said();
    assert!(!told.claim.is_released());
    told.sandbox = None;
    told = told.said().untold();
    told.deleted().then("unprotect");
    // The same, but its node has not answered since the server started.
    let bound = || {
        let bound = Case::new().protected();
        bound.with_sandbox(Phase::Running, None).said().untold()
    };
    bound().then("say False SandboxMissing Some(\"box\")");
    bound().deleted().then("release sb_1 unseen");
    let day = 24 * 3_600;
    bound().deleted_before(day).then("release sb_1 unseen");
    bound().deleted_before(day + 30).then("unprotect");
    // It is listed, and somebody else's.
    let others = deleted().with_sandbox(Phase::Running, Some("u-2"));
    others.made_for("n1", "sb_1").then("unprotect");
}

#[test]
fn what_a_node_handed_over_is_bound_and_nothing_is_claimed() {
    Case::new()
        .with_sandbox(Phase::Running, None)
        .then("protect");
    Case::new()
        .protected()
        .with_sandbox(Phase::Running, None)
        .then("say True DependenciesReady Some(\"box\")")
        .said()
        .then("adopt sb_1");
}

#[test]
fn a_sandbox_of_somebody_else_is_neither_bound_nor_released() {
    let others = |case: Case| case.with_sandbox(Phase::Running, Some("u-2"));
    others(Case::new()).then("say False AdoptionConflict None");
    others(Case::new().protected().deleted()).then("unprotect");
    others(Case::new().protected().ending("Retain", -1)).then("say False ClaimExpired None");
}

#[test]
fn a_label_tells_whose_a_sandbox_is_after_a_restart() {
    let bound = |case: Case| case.protected().with_sandbox(Phase::Running, None);
    let deleted = |uid| bound(Case::new().deleted()).forgotten(&[(CLAIM_UID, uid)]);
    deleted("u-1").then("release sb_1");
    deleted("u-2").then("unprotect");
    let alive = |labels: &[_]| bound(Case::new()).forgotten(labels);
    alive(&[(CLAIM_UID, "u-1")]).said().then("adopt sb_1");
    alive(&[]).said().then("adopt sb_1");
    alive(&[(CLAIM_UID, "u-2")]).then("say False AdoptionConflict None");
    // The conflict outlives the knowledge of it.
    let conflict = Case::new()
        .with_sandbox(Phase::Running, Some("u-2"))
        .said()
        .forgotten(&[]);
    conflict.then("rest None");
}

#[test]
fn an_ended_claim_whose_sandbox_is_gone_asks_no_node_when_it_is_deleted() {
    let mut ended = Case::new().protected();
    ended = ended.with_sandbox(Phase::Running, None).said();
    ended = ended.ending("Retain", 0).then("release sb_1");
    // The node may have it yet, which has not answered since the server started.
    let known = ended.sandbox.clone();
    ended = ended.untold().then("say False ClaimExpired Some(\"box\")");
    (ended.told, ended.sandbox) = (true, known);
    ended = ended.then("release sb_1");
    ended.sandbox = None;
    ended = ended.then("say False ClaimExpired None").said();
    ended.told = false;
    ended = ended.then("rest None").deleted().then("unprotect");
    // Another one of its name, of which nobody knows whose it is.
    ended = ended.beside("n2", "sb_2", None).named("sb_2");
    ended.then("unprotect");
}

#[test]
fn a_claim_knows_its_sandbox_whatever_its_labels_say() {
    let mut claim = Case::new().protected();
    let labels = [(CLAIM_UID.to_owned(), "copied".to_owned())];
    claim.claim.metadata.labels = Some(labels.into());
    let Step::Claim(order) = claim.facts().step() else {
        panic!("it waits for a sandbox");
    };
    assert_eq!(order.user.labels[CLAIM_UID], "u-1");
}
