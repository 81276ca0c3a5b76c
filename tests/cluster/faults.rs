//! Nodes that misbehave: what the client is told, and what is left on the node.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, future::join_all, stream};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::stage::{self, OwnNode, Stage, StageOptions, collection, eventually, item, sandbox};

const SOON: Duration = Duration::from_secs(10);
const CLAIM: &str = "/v1/claim";

/// A claim on a node of its own that misbehaves once, and what has to come of it.
struct Case {
    fault: Value,
    code: u16,
    reason: &'static str,
    cause: Option<&'static str>,
    retry_after: Option<u64>,
}

impl Case {
    fn served(fault: Value) -> Self {
        Self {
            fault,
            code: 201,
            reason: "",
            cause: None,
            retry_after: None,
        }
    }

    /// Nothing was done and the client is told to try again.
    fn unavailable(fault: Value, cause: &'static str) -> Self {
        Self {
            fault,
            code: 503,
            reason: "ServiceUnavailable",
            cause: Some(cause),
            retry_after: Some(1),
        }
    }

    /// Nobody knows what was done, or it will not get better: no client may repeat this by itself.
    fn failed(fault: Value) -> Self {
        Self {
            fault,
            code: 500,
            reason: "InternalError",
            cause: None,
            retry_after: None,
        }
    }

    async fn check(self, stage: &Stage, namespace: &str, node: OwnNode) {
        stage
            .nodes
            .fail_once(node.index, self.fault.clone(), CLAIM)
            .await;
        let name = format!("case-{}", node.index);
        let wanted = sandbox(&name, &node.template);
        let answer = stage.direct().post(&collection(namespace), &wanted).await;
        let found = (
            answer.status.as_u16(),
            answer.body["reason"].as_str().unwrap_or_default(),
            answer.causes().first().copied(),
            answer.retry_after(),
        );
        let expected = (self.code, self.reason, self.cause, self.retry_after);
        assert_eq!(found, expected, "{}: {:#}", self.fault, answer.body);
        let held = stage.nodes.held_by(node.index, namespace).await;
        let n_expected = usize::from(self.code == 201);
        assert_eq!(held.len(), n_expected, "{}: {held:?}", self.fault);
        let got = stage.direct().get(&item(namespace, &name)).await;
        assert_eq!(got.status == 200, self.code == 201, "{}", self.fault);
    }
}

#[tokio::test]
async fn a_node_that_misbehaves_at_a_claim_costs_no_sandbox_and_gets_a_clear_answer() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("claims").await;
    let cases = [
        Case::served(json!({"late": {"millis": 500}})),
        Case::served(json!("cut")),
        Case::served(json!("answerLost")),
        Case::unavailable(
            json!({"status": {"status": 429, "text": "full"}}),
            "NoWarmCapacity",
        ),
        Case::unavailable(
            json!({"redirect": {"addresses": ["192.0.2.1:80"]}}),
            "NoWarmCapacity",
        ),
        Case::failed(json!("hang")),
        Case::failed(json!("reset")),
        Case::failed(json!("wrongJson")),
        Case::failed(json!("wrongTypes")),
        Case::failed(json!("unauthorized")),
        Case::failed(json!({"oversized": {"bytes": 100_000_000}})),
        Case::failed(json!({"status": {"status": 500, "text": "oops"}})),
    ];
    let checks = cases.map(|case| case.check(&stage, &namespace, stage.own_node()));
    join_all(checks).await;

    let down = stage.own_node();
    stage.nodes.stop(down.index).await;
    let wanted = sandbox("down", &down.template);
    let direct = stage.direct();
    let answer = direct.post(&collection(&namespace), &wanted).await;
    answer.expect(503, "ServiceUnavailable");
    assert_eq!(answer.causes(), ["NodeUnavailable"], "{:#}", answer.body);
    assert_eq!(answer.retry_after(), Some(1));
}

#[tokio::test]
async fn what_was_granted_behind_a_lost_answer_is_released_and_never_listed() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("lost").await, stage.own_node());
    // The quick question finds no answer either.
    let faults = json!([
        {"kind": "answerLost", "path": CLAIM, "times": 1},
        {"kind": {"late": {"millis": 700}}, "path": "/v1/sandboxes", "times": 1},
    ]);
    stage.nodes.set_faults(node.index, faults).await;
    let direct = stage.direct();
    let wanted = sandbox("lost", &node.template);
    let answer = direct.post(&collection(&namespace), &wanted).await;
    answer.expect(500, "InternalError");
    assert_eq!(answer.retry_after(), None, "{:#}", answer.body);
    let granted = (CLAIM.to_owned(), "answer lost".to_owned());
    let requests = stage.nodes.requests(node.index, "POST").await;
    assert_eq!(requests.first(), Some(&granted), "it was granted");
    eventually(SOON, "it is released", async || {
        let listed = direct.get(&item(&namespace, "lost")).await;
        assert_eq!(listed.status, 404);
        stage.nodes.held_by(node.index, &namespace).await.is_empty()
    })
    .await;
    eventually(SOON, "the name is free again", async || {
        direct.post(&collection(&namespace), &wanted).await.status == 201
    })
    .await;
}

// e2b-dev/infra#3637
#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_create_leaves_nothing_invisible() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("left").await;
    for (caller, door) in [(stage.direct(), "direct"), (stage.admin(), "proxied")] {
        let node = stage.own_node();
        let late = json!({"late": {"millis": 1500}});
        stage.nodes.fail_once(node.index, late, CLAIM).await;
        let (path, wanted) = (collection(&namespace), sandbox(door, &node.template));
        let call = caller.post(&path, &wanted);
        let left = timeout(Duration::from_millis(300), call).await;
        assert!(left.is_err(), "{door}: the node was quicker than its fault");
        let claims = async || {
            let requests = stage.nodes.requests(node.index, "POST").await;
            requests.into_iter().any(|(path, _)| path == CLAIM)
        };
        eventually(SOON, "the node is asked", claims).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        eventually(SOON, "what is held is listed", async || {
            let listed = caller.get(&item(&namespace, door)).await.status == 200;
            let held = stage.nodes.held_by(node.index, &namespace).await;
            held.len() == usize::from(listed)
        })
        .await;
    }
}

// kubernetes-sigs/agent-sandbox#418
#[tokio::test]
async fn of_fifty_creates_of_one_name_one_succeeds() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("race").await, stage.own_node());
    let (direct, path) = (stage.direct(), collection(&namespace));
    let wanted = sandbox("one", &node.template);
    let answers = join_all((0..50).map(|_| direct.post(&path, &wanted))).await;
    let (won, lost): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.status == 201);
    assert_eq!(won.len(), 1);
    for answer in &lost {
        answer.expect(409, "AlreadyExists");
    }
    assert_eq!(stage.nodes.held(&namespace).await.len(), 1);
    let asked = stage.nodes.requests(node.index, "POST").await;
    let granted = (CLAIM.to_owned(), "200".to_owned());
    assert_eq!(
        asked,
        [granted],
        "no second VM is bound to the name, not even for a moment"
    );
}

// kubernetes-sigs/agent-sandbox#418, opensandbox-group/OpenSandbox#1578
#[tokio::test]
async fn a_pool_of_ten_gives_ten_and_refuses_the_rest_at_once() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("ten").await, stage.own_node());
    stage
        .nodes
        .set_pool(node.index, &node.template, 10, 0)
        .await;
    stage.publish(node.index).await;
    let (direct, path) = (stage.direct(), collection(&namespace));
    let began = Instant::now();
    let calls = (0..50).map(|n| {
        let wanted = sandbox(&format!("box-{n}"), &node.template);
        let (direct, path) = (&direct, &path);
        async move { direct.post(path, &wanted).await }
    });
    let answers = join_all(calls).await;
    eprintln!("50 creates on a pool of 10 took {:?}", began.elapsed());
    let (won, lost): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.status == 201);
    let uids: BTreeSet<_> = won
        .iter()
        .map(|answer| answer.body["metadata"]["uid"].to_string())
        .collect();
    assert_eq!((won.len(), uids.len()), (10, 10));
    for answer in &lost {
        answer.expect(503, "ServiceUnavailable");
        assert_eq!(answer.causes(), ["NoWarmCapacity"]);
        assert_eq!(answer.retry_after(), Some(1));
    }
    assert_eq!(stage.nodes.held(&namespace).await.len(), 10);
}

#[tokio::test]
async fn an_unknown_template_is_the_clients_fault() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("unknown").await;
    let wanted = sandbox("nowhere", "no-such-image:9");
    let answer = stage.admin().post(&collection(&namespace), &wanted).await;
    answer.expect(422, "Invalid");
    let cause = &answer.body["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.podTemplate.spec.containers[0].image");
    assert_eq!(answer.retry_after(), None);
}

// kubernetes-sigs/agent-sandbox#1629
#[tokio::test]
async fn what_is_invalid_is_refused_before_any_node_is_asked() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("invalid").await, stage.own_node());
    let (admin, path) = (stage.admin(), collection(&namespace));
    let long = "x".repeat(254);
    let mut cases = Vec::new();
    for name in ["", "Upper", "a/b", "-dash", "under_score", long.as_str()] {
        cases.push(sandbox(name, &node.template));
    }
    for (field, value) in [
        ("labels", json!({"bad key!": "x"})),
        ("labels", json!({"key": "x".repeat(64)})),
        ("annotations", json!({"big": "x".repeat(300 << 10)})),
        ("finalizers", json!(["no slash or dots but spaces"])),
    ] {
        let mut wanted = sandbox("valid", &node.template);
        wanted["metadata"][field] = value;
        cases.push(wanted);
    }
    let mut past = sandbox("past", &node.template);
    past["spec"]["shutdownTime"] = "2020-01-01T00:00:00Z".into();
    cases.push(past);
    for wanted in cases {
        let answer = admin.post(&path, &wanted).await;
        answer.expect(422, "Invalid");
        assert!(!answer.causes().is_empty(), "{:#}", answer.body);
    }
    let mut huge = sandbox("huge", &node.template);
    huge["metadata"]["annotations"] = json!({"huge": "x".repeat(4 << 20)});
    let answer = admin.post(&path, &huge).await;
    answer.expect(413, "RequestEntityTooLarge");
    assert_eq!(stage.nodes.requests(node.index, "POST").await, []);
}

// kubernetes-sigs/agent-sandbox#1629
#[tokio::test]
async fn a_name_of_any_allowed_length_does_all_that_a_short_one_does() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("names").await, stage.own_node());
    let (admin, path) = (stage.admin(), collection(&namespace));
    for n_characters in [63, 64, 253] {
        let name = "n".repeat(n_characters);
        let wanted = sandbox(&name, &node.template);
        let created = admin.post(&path, &wanted).await.ok();
        let one = item(&namespace, &name);
        for action in ["pause", "resume", "fork", "snapshot"] {
            admin
                .post(&format!("{one}/{action}"), &json!({}))
                .await
                .ok();
        }
        stage.publish(node.index).await;
        let shown = admin.get(&one).await.ok();
        assert_eq!(shown["metadata"]["uid"], created["metadata"]["uid"]);
        // What is derived from the name is a label value that selects.
        for (key, value) in shown["metadata"]["labels"]
            .as_object()
            .into_iter()
            .flatten()
        {
            let value = value.as_str().unwrap_or_default();
            let selected = admin
                .get(&format!("{path}?labelSelector={key}%3D{value}"))
                .await
                .ok();
            let items = selected["items"].as_array().cloned().unwrap_or_default();
            let names = items.iter().map(|item| &item["metadata"]["name"]);
            assert!(
                names.into_iter().any(|it| *it == name.as_str()),
                "{key}={value}"
            );
        }
        let by_name = admin
            .get(&format!("{path}?fieldSelector=metadata.name%3D{name}"))
            .await
            .ok();
        assert_eq!(by_name["items"].as_array().map(Vec::len), Some(1));
        admin.delete(&path).await.ok();
    }
    let mut names = BTreeSet::new();
    for base in ["a-", "a-", &"b".repeat(253)] {
        let mut wanted = sandbox("", &node.template);
        wanted["metadata"] = json!({"generateName": base});
        let created = admin.post(&path, &wanted).await.ok();
        let name = created["metadata"]["name"].as_str().unwrap_or_default();
        assert!(name.len() <= 253 && name.starts_with(&base[..1]), "{name}");
        names.insert(name.to_owned());
    }
    assert_eq!(names.len(), 3, "{names:?}");
    admin.delete(&path).await.ok();
    assert_eq!(stage.nodes.held(&namespace).await, []);
}

#[tokio::test]
async fn a_release_that_goes_wrong_is_tried_until_the_node_confirms_it() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("release").await;
    let faults = [
        json!("hang"),
        json!("reset"),
        json!("answerLost"),
        json!("unauthorized"),
        json!({"status": {"status": 404, "text": "no such sandbox"}}),
        json!({"status": {"status": 500, "text": "oops"}}),
    ];
    let checks = faults.into_iter().map(async |fault| {
        let node = stage.own_node();
        let name = format!("freed-{}", node.index);
        let direct = stage.direct();
        let wanted = sandbox(&name, &node.template);
        direct.post(&collection(&namespace), &wanted).await.ok();
        stage
            .nodes
            .fail_once(node.index, fault.clone(), "/v1/sandboxes/*/release")
            .await;
        let path = item(&namespace, &name);
        let deleted = direct.delete(&path).await.ok();
        let is_gone = deleted["kind"] == "Status";
        assert_eq!(direct.get(&path).await.status == 404, is_gone, "{fault}");
        eventually(SOON * 2, "it is gone", async || {
            direct.get(&path).await.status == 404
        })
        .await;
        let held = stage.nodes.held_by(node.index, &namespace).await;
        assert_eq!(held, [], "{fault}");
    });
    join_all(checks).await;
}

#[tokio::test]
async fn without_a_token_for_the_nodes_all_can_be_read_and_nothing_written() {
    let stage = Stage::start(StageOptions {
        sandboxes: 3,
        token: false,
        ..StageOptions::default()
    })
    .await;
    let direct = stage.direct();
    let path = collection("default");
    let created = direct.post(&path, &sandbox("new", stage::TEMPLATE)).await;
    assert_eq!(
        created.causes(),
        ["NoSandboxdToken"],
        "also before any node was heard of"
    );
    let listed = direct.get(&path).await.ok();
    let items = listed["items"].as_array().cloned().unwrap_or_default();
    assert_eq!(items.len(), 3, "{listed:#}");
    let name = items[0]["metadata"]["name"].as_str().unwrap_or_default();
    let one = format!("{path}/{name}");
    let calls = stream::iter([
        direct.post(&path, &sandbox("new", stage::TEMPLATE)).await,
        direct.delete(&one).await,
        direct.post(&format!("{one}/pause"), &json!({})).await,
        direct.post(&format!("{one}/fork"), &json!({})).await,
        direct.post(&format!("{one}/snapshot"), &json!({})).await,
    ]);
    calls
        .for_each(async |answer| {
            answer.expect(503, "ServiceUnavailable");
            assert_eq!(answer.causes(), ["NoSandboxdToken"], "{:#}", answer.body);
            assert_eq!(answer.retry_after(), None);
            let message = answer.body["message"].as_str().unwrap_or_default();
            assert!(message.contains("--sandboxd-token-file"), "{message}");
        })
        .await;
    let shown = direct.get(&one).await.ok();
    assert_eq!(shown["metadata"]["deletionTimestamp"], Value::Null);
}
