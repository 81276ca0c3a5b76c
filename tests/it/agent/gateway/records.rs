//! What becomes of claims after their answers: records, orphans, forks and releases.

use sandbox_apiserver::sandboxd::ForkRequest;

use super::*;

const ONE: &str = "/v1/sandboxes/*";

/// The daemon says of every single sandbox that there is none, and lists them all.
fn denied() -> Fault {
    let kind = FaultKind::Status {
        status: 404,
        text: "not found".to_owned(),
    };
    Fault {
        method: Some("GET".to_owned()),
        path: ONE.to_owned(),
        ..Fault::always(kind)
    }
}

/// A bench whose node has more warm VMs.
async fn mk_bench(warm: u32) -> Bench {
    Bench::with(sim::Options {
        warm,
        ..sim::Options::default()
    })
    .await
}

async fn given(bench: &Bench, name: &str) -> String {
    let (status, granted) = bench.caller.claim("team", name).await;
    assert_eq!(status, StatusCode::CREATED, "{granted:#}");
    id_of(&granted)
}

#[tokio::test(flavor = "multi_thread")]
async fn children_of_what_was_handed_over_are_nobodys_orphans() {
    let mut bench = mk_bench(8).await;
    let parent = given(&bench, "box").await;
    bench.until_bound("box", &parent).await;
    let client = client();
    let node = client.node(bench.daemon().address(), PATIENCE);
    let fork = ForkRequest {
        count: 16,
        ttl_seconds: 0,
        claim_ref_prefix: "team/child-".to_owned(),
    };
    let children = node.fork(&parent.as_str().into(), &fork).await.unwrap();
    bench.cluster.set_down(true);
    let late = given(&bench, "late").await;
    bench.kill_and_restart().await;
    bench.cluster.set_down(false);
    bench.until_bound("late", &late).await;
    until("all is looked at", || bench.agent.metric("owed") == 0).await;
    assert_eq!(bench.cluster.names(), ["box", "late"]);

    let child = children[0].id.as_str();
    let answer = bench.caller.delete("team", child).await;
    expect_status(&answer, 404, "NotFound", &Value::Null);
    let held = bench.daemon().claims_of(&format!("team/child-{child}"));
    assert_eq!(held.len(), 1, "it is its maker's");
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_that_are_refused_keep_no_other_from_its_record() {
    let mut bench = mk_bench(32).await;
    bench.cluster.set_down(true);
    for number in 0..20 {
        given(&bench, &format!("refused-{number}")).await;
    }
    let id = given(&bench, "box").await;
    bench.kill_and_restart().await;
    bench.cluster.set_down(false);
    bench.until_bound("box", &id).await;
    assert_eq!(bench.cluster.names(), ["box"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_that_is_listed_and_gone_is_given_to_no_claim() {
    let mut bench = Bench::start().await;
    bench.cluster.set_down(true);
    given(&bench, "old").await;
    given(&bench, "box").await;
    bench.agent.task.abort();
    assert!(bench.daemon().inject(denied()).await);
    // The user has made a claim of the name anew.
    bench.cluster.make("box", json!({}));
    bench.kill_and_restart().await;
    // Now, when nothing of the earlier life is under way any more.
    bench.cluster.set_down(false);
    until("both are looked up", || {
        bench.agent.metric("owed") == 0 && bench.agent.outcome("records_total", "gone") == 2
    })
    .await;
    assert_eq!(bench.cluster.names(), ["box"]);
    assert_eq!(bench.cluster.claim("box").unwrap()["status"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_comes_late_does_not_bring_back_what_was_deleted() {
    let bench = Bench::start().await;
    bench.cluster.make("box", json!({}));
    bench.cluster.set_down(true);
    let id = given(&bench, "box").await;
    until("it has failed", || {
        bench.agent.outcome("records_total", "failed") > 0
    })
    .await;
    bench.cluster.hold(Some("sandboxclaims"));
    until("it is tried again", || bench.cluster.waiting() == 1).await;
    bench.daemon().lose(&id.as_str().into());
    bench.cluster.forget("box");
    bench.cluster.set_down(false);
    bench.cluster.hold(None);
    until("it is settled", || bench.agent.metric("owed") == 0).await;
    assert_eq!(bench.cluster.names(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_is_gone_when_its_claim_is_gone_too() {
    let bench = Bench::start().await;
    let id = given(&bench, "box").await;
    bench.until_bound("box", &id).await;
    bench.cluster.set_down(true);
    // The second is asked of a daemon that has it no more.
    for _ in 0..2 {
        let answer = bench.caller.delete("team", &id).await;
        expect_status(&answer, 503, "ServiceUnavailable", &Value::Null);
        assert_eq!(bench.daemon().claims_of("team/box"), []);
    }
    assert!(!bench.cluster.is_being_deleted("box"));
    bench.cluster.set_down(false);
    let (status, body) = bench.caller.delete("team", &id).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{body:#}");
    assert!(bench.cluster.is_being_deleted("box"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_leaves_does_not_keep_what_he_gave_back() {
    let bench = Bench::start().await;
    let id = given(&bench, "box").await;
    bench.until_bound("box", &id).await;
    bench.cluster.hold(Some("sandboxclaims"));
    let left = bench.caller.delete("team", &id);
    let left = tokio::time::timeout(Duration::from_millis(300), left);
    assert!(left.await.is_err());
    bench.cluster.hold(None);
    until("it is withdrawn and released", || {
        bench.cluster.is_being_deleted("box") && bench.daemon().claims_of("team/box").is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_given_back_can_be_claimed_at_once() {
    let bench = Bench::start().await;
    let id = given(&bench, "box").await;
    bench.until_bound("box", &id).await;
    let hang = Fault {
        times: None,
        ..Fault::once(FaultKind::Hang, crate::agent::LIST)
    };
    assert!(bench.daemon().inject(hang).await);
    let (status, _) = bench.caller.delete("team", &id).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    bench.cluster.forget("box");
    let again = given(&bench, "box").await;
    assert_ne!(again, id);
    bench.until_bound("box", &again).await;
    assert_eq!(bench.daemon().claims_of("team/box").len(), 1);
}
