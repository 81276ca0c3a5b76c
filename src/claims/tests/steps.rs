//! From a new claim to its end.

use super::*;

#[test]
fn a_new_claim_is_protected_before_a_vm_is_taken() {
    Case::new().then("protect");
    Case::new()
        .protected()
        .then("claim team/box from python:3.12|none|small");
    Case::new()
        .protected()
        .with_sandbox(Phase::Running, Some("u-1"))
        .then("say True DependenciesReady Some(\"box\")")
        .said()
        .then("rest None");
}

#[test]
fn one_write_tells_name_addresses_and_conditions() {
    let case = Case::new()
        .protected()
        .with_sandbox(Phase::Failed, Some("u-1"))
        .said();
    let status = case.claim.status.as_ref().unwrap();
    assert_eq!(status.sandbox.as_ref().unwrap().pod_ips, ["10.0.0.7"]);
    let finished = condition(&case.claim, FINISHED).unwrap();
    assert_eq!(
        (finished.status.as_str(), finished.reason.as_str()),
        ("True", "PodFailed")
    );
}

#[test]
fn what_is_missing_is_said_before_anything_is_done() {
    let pool = || NoTemplate::NoPool("p".to_owned());
    Case::new()
        .without_template(pool())
        .then("say False WarmPoolNotFound None")
        .said()
        .then("rest None");
    let template = NoTemplate::NoTemplate {
        pool: "p".to_owned(),
        template: "t".to_owned(),
    };
    Case::new()
        .without_template(template)
        .then("say False TemplateNotFound None");
    Case::new()
        .protected()
        .without_template(pool())
        .with_sandbox(Phase::Running, Some("u-1"))
        .then("say True DependenciesReady Some(\"box\")");
}

#[test]
fn a_bound_claim_never_gets_a_second_sandbox() {
    let mut case = Case::new()
        .protected()
        .with_sandbox(Phase::Running, Some("u-1"))
        .said();
    case.sandbox = None;
    case.then("say False SandboxMissing Some(\"box\")")
        .said()
        .then("rest None");
}

#[test]
fn a_deleted_claim_stays_until_its_sandbox_is_released() {
    let deleted = || Case::new().protected().deleted();
    deleted()
        .with_sandbox(Phase::Running, Some("u-1"))
        .then("release sb_1");
    deleted()
        .with_sandbox(Phase::Running, None)
        .then("release sb_1");
    deleted().then("unprotect");
    Case::new().deleted().then("rest None");
}

#[test]
fn a_claim_ends_as_its_policy_says() {
    let ended = |policy| Case::new().protected().ending(policy, 0);
    ended("Delete").then("delete");
    ended("DeleteForeground").then("delete");
    ended("Retain")
        .with_sandbox(Phase::Running, Some("u-1"))
        .then("release sb_1");
    ended("Retain")
        .then("say False ClaimExpired None")
        .said()
        .then("rest None");
    Case::new()
        .protected()
        .ending("Delete", 90)
        .with_sandbox(Phase::Running, Some("u-1"))
        .said()
        .then("rest Some(90)");
}

#[test]
fn a_finished_claim_ends_after_its_time() {
    let mut case = Case::new()
        .protected()
        .with_sandbox(Phase::Failed, Some("u-1"))
        .said();
    let mut ttl = |seconds: i32| {
        let lifecycle = json!({"ttlSecondsAfterFinished": seconds, "shutdownPolicy": "Delete"});
        case.claim.spec.lifecycle = serde_json::from_value(lifecycle).unwrap();
        format!("{:?}", case.facts().step())
    };
    assert_eq!(ttl(30), "Rest(Some(30s))");
    assert_eq!(ttl(0), "Delete");
}

#[test]
fn waiting_for_capacity_takes_longer_the_longer_it_has_taken() {
    let mut case = Case::new().protected();
    let pending = |case: &Case, after: i64| {
        let facts = Facts {
            now: Timestamp::from_second(NOW + after).unwrap(),
            ..case.facts()
        };
        facts.pending("SandboxCreatePending", "no warm sandbox").1
    };
    assert_eq!(pending(&case, 0), FIRST_TRY);
    case.claim.status = match case.facts().pending("SandboxCreatePending", "").0 {
        Step::Say(status) => Some(*status),
        other => panic!("{other:?}"),
    };
    assert_eq!(pending(&case, 8), Duration::from_secs(2));
    assert_eq!(pending(&case, 60), LAST_TRY);
}
