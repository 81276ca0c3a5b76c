//! A node's claim gateway: an agent with the rights of the shipped manifests, and callers with ServiceAccount tokens.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

mod node;

use std::time::Duration;

use futures::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};

use self::node::GatewayNode;
use crate::{
    nodes::Held,
    stage::{Stage, StageOptions, TEMPLATE, collection, eventually, item, sandbox},
    warm_pools,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// A server that listens to agents, one node that publishes by itself, and one with a gateway.
async fn start() -> (Stage, GatewayNode) {
    let files = GatewayNode::files();
    let options = StageOptions {
        nodes: 1,
        warm: 40,
        serve_flags: vec![format!(
            "--agent-token-file={}",
            files.server_token().display()
        )],
        ..StageOptions::default()
    };
    let stage = Stage::start(options).await;
    let node = GatewayNode::start(&stage, files).await;
    node.is_heard(&stage).await;
    (stage, node)
}

/// A namespace with a warm pool.
async fn namespace(stage: &Stage) -> String {
    let namespace = stage.namespace("gateway").await;
    let pool = warm_pools::pool(&namespace, 1);
    let kubectl = stage.control_plane.kubectl();
    kubectl
        .stdout_with_input(&["apply", "--filename=-"], &pool)
        .await;
    namespace
}

fn claims(namespace: &str) -> String {
    format!("/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxclaims")
}

fn claim(namespace: &str, name: &str) -> String {
    format!("{}/{name}", claims(namespace))
}

fn condition(claim: &Value, kind: &str) -> Value {
    let conditions = claim["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == kind);
    found.cloned().unwrap_or_default()
}

async fn wait_for(stage: &Stage, namespace: &str, name: &str, kind: &str) {
    let wait = [
        "wait",
        &format!("--for=condition={kind}"),
        &format!("sandboxclaim/{name}"),
        "--timeout=30s",
        "--namespace",
        namespace,
    ];
    stage.control_plane.kubectl().stdout(&wait).await;
}

fn id_of(granted: &Value) -> String {
    granted["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_a_gateway_hands_over_is_a_sandbox_with_a_claim_like_any_other() {
    let (stage, node) = start().await;
    let namespace = namespace(&stage).await;
    let kubectl = stage.control_plane.kubectl();
    let robot = node.caller(&stage, &namespace, "robot", true).await;
    let nobody = node.caller(&stage, &namespace, "nobody", false).await;

    let (status, body) = nobody.claim(&namespace, "box").await;
    assert_eq!(
        (status.as_u16(), &body["reason"]),
        (403, &json!("Forbidden"))
    );
    let token = stage
        .control_plane
        .service_account_token(&namespace, "robot");
    let astray = robot.showing(Some(&token.await));
    let (status, body) = astray.claim(&namespace, "box").await;
    assert_eq!(
        status,
        StatusCode::UNAUTHORIZED,
        "a token for others: {body:#}"
    );
    assert_eq!(node.held(&namespace).await, []);

    let (status, granted) = robot.claim(&namespace, "box").await;
    assert_eq!(status, StatusCode::CREATED, "{granted:#}");
    let id = id_of(&granted);
    for kind in ["Bound", "Ready"] {
        wait_for(&stage, &namespace, "box", kind).await;
    }
    let shown = stage.admin().get(&item(&namespace, "box")).await.ok();
    let annotations = &shown["metadata"]["annotations"];
    assert_eq!(annotations["sandbox.cocoonstack.io/claim-id"], id);
    let made = stage.admin().get(&claim(&namespace, "box")).await.ok();
    assert_eq!(made["status"]["sandbox"]["name"], "box");
    assert_eq!(condition(&made, "Bound")["reason"], "Delivered");
    let listed = [
        "get",
        "sandboxes,sandboxclaims",
        "--output=name",
        "--namespace",
        &namespace,
    ];
    let listed = kubectl.stdout(&listed).await;
    assert_eq!(listed.lines().count(), 2, "{listed}");
    let (status, _) = robot.claim(&namespace, "box").await;
    assert_eq!(status, StatusCode::CONFLICT);

    let (status, body) = robot.delete(&namespace, &id).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{body:#}");
    assert_eq!(node.held(&namespace).await, []);
    eventually(PATIENCE, "the claim is gone", async || {
        stage.admin().get(&claim(&namespace, "box")).await.status == 404
    })
    .await;

    // Or with kubectl, as any other claim.
    robot.claim(&namespace, "other").await;
    wait_for(&stage, &namespace, "other", "Ready").await;
    let delete = ["delete", "sandboxclaim/other", "--namespace", &namespace];
    kubectl.stdout(&delete).await;
    assert_eq!(node.held(&namespace).await, []);
    node.forget(&stage).await;
}

#[tokio::test]
async fn what_was_handed_over_before_a_kill_is_recorded_after_it_once() {
    let (stage, mut node) = start().await;
    let namespace = namespace(&stage).await;
    let robot = node.caller(&stage, &namespace, "robot", true).await;
    // Of this one nobody asked for a claim.
    let plain = sandbox("plain", TEMPLATE);
    stage
        .admin()
        .post(&collection(&namespace), &plain)
        .await
        .ok();
    let (_, first) = robot.claim(&namespace, "first").await;
    assert!(first["id"].is_string(), "{first:#}");
    wait_for(&stage, &namespace, "first", "Bound").await;

    node.may_record(&stage, false).await;
    let (status, granted) = robot.claim(&namespace, "box").await;
    assert_eq!(status, StatusCode::CREATED, "{granted:#}");
    node.kill();
    node.may_record(&stage, true).await;
    assert_eq!(
        stage.admin().get(&claim(&namespace, "box")).await.status,
        404
    );
    node.start_agent(&stage).await;
    eventually(PATIENCE, "it is recorded", async || {
        let made = stage.admin().get(&claim(&namespace, "box")).await.body;
        let message = format!("node {} handed over {}", node.name, id_of(&granted));
        condition(&made, "Bound")["message"] == message
    })
    .await;
    wait_for(&stage, &namespace, "box", "Ready").await;
    let is_adopted = "a claim that an earlier life handed over is recorded";
    let n_adopted = || node.log().matches(is_adopted).count();
    eventually(PATIENCE, "the agent says so", async || n_adopted() > 0).await;
    assert_eq!(n_adopted(), 1);
    let listed = stage.admin().get(&claims(&namespace)).await.ok();
    let names = listed["items"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(names, ["box", "first"]);
    assert_eq!(
        node.held(&namespace).await.len() + stage.nodes.held(&namespace).await.len(),
        3
    );
    node.forget(&stage).await;
}

#[tokio::test]
async fn of_a_gateway_and_the_controller_one_binds_the_claim_and_nothing_that_was_answered_is_lost()
{
    const NAMES: usize = 30;
    let (stage, node) = start().await;
    let namespace = namespace(&stage).await;
    let robot = node.caller(&stage, &namespace, "robot", true).await;
    robot.claim(&namespace, "first").await;
    let (admin, path) = (stage.admin(), claims(&namespace));
    let held = async || {
        let mut held = node.held(&namespace).await;
        held.extend(stage.nodes.held(&namespace).await);
        held
    };

    let mut granted = Vec::new();
    for batch in 0..NAMES / 5 {
        let races = (0..5).map(|n: usize| {
            let name = format!("race-{}", batch * 5 + n);
            let wanted = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
                "metadata": {"name": name}, "spec": {"warmPoolRef": {"name": "pool"}}});
            let pause = Duration::from_millis(5 * (n * NAMES / 5 + batch) as u64);
            let (robot, namespace, admin, path) = (&robot, &namespace, &admin, &path);
            async move {
                // From well before the controller takes a VM to well after it.
                let made = admin.post(path, &wanted);
                let claimed = async {
                    tokio::time::sleep(pause).await;
                    robot.claim(namespace, &name).await
                };
                let (made, (status, granted)) = tokio::join!(made, claimed);
                assert!(made.status.is_success() || made.status == StatusCode::CONFLICT);
                (name, (status == StatusCode::CREATED).then(|| id_of(&granted)))
            }
        });
        granted.extend(join_all(races).await);
    }
    let answered = granted.iter().filter(|(_, id)| id.is_some()).count();
    let mut doubles = Vec::new();
    for (name, id) in &granted {
        let path = claim(&namespace, name);
        eventually(PATIENCE, "the claim is bound", async || {
            let made = admin.get(&path).await.ok();
            condition(&made, "Ready")["status"] == "True"
        })
        .await;
        let claim_ref = format!("{namespace}/{name}");
        let of_name = async || -> Vec<Held> {
            let held = held().await.into_iter();
            held.filter(|held| held.claim_ref == claim_ref).collect()
        };
        let made = admin.get(&path).await.ok();
        let bound = condition(&made, "Bound")["message"].clone();
        let is_bound = |id: &str| bound.as_str().unwrap().ends_with(id);
        let lost_the_race = id.as_ref().is_some_and(|id| !is_bound(id));
        doubles.extend(id.clone().filter(|_| lost_the_race));
        let expected = 1 + usize::from(lost_the_race);
        let begun = std::time::Instant::now();
        while of_name().await.len() != expected {
            assert!(
                begun.elapsed() < PATIENCE,
                "not exactly what was told of is held: {:#?}, answered {id:?}, {made:#}",
                of_name().await
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let of_name = of_name().await;
        assert!(
            of_name.iter().any(|held| is_bound(&held.id)),
            "{bound} {of_name:?}"
        );
        if let Some(id) = id {
            assert!(
                of_name.iter().any(|held| held.id == *id),
                "{id} {of_name:?}"
            );
        }
    }
    eprintln!(
        "{NAMES} races: the gateway answered {answered}, {} of them too late",
        doubles.len()
    );
    assert!(answered > 0);

    // With the claims goes what they are bound to. What lost is whose it was handed over to, until he gives it back.
    let delete = [
        "delete",
        "sandboxclaims",
        "--all",
        "--namespace",
        &namespace,
    ];
    stage.control_plane.kubectl().stdout(&delete).await;
    doubles.sort();
    eventually(PATIENCE, "what lost is left", async || {
        let mut left: Vec<_> = held().await.into_iter().map(|held| held.id).collect();
        left.sort();
        left == doubles
    })
    .await;
    for id in &doubles {
        let (status, body) = robot.delete(&namespace, id).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{body:#}");
    }
    assert_eq!(held().await, []);
    node.forget(&stage).await;
}

#[tokio::test]
async fn a_label_that_an_agent_does_not_confirm_comes_with_a_warning() {
    let (stage, node) = start().await;
    let namespace = namespace(&stage).await;
    let kubectl = stage.control_plane.kubectl();
    let robot = node.caller(&stage, &namespace, "robot", true).await;
    let (status, granted) = robot.claim(&namespace, "box").await;
    assert_eq!(status, StatusCode::CREATED, "{granted:#}");
    wait_for(&stage, &namespace, "box", "Ready").await;
    let label = async |label: &str| {
        let here = format!("--namespace={namespace}");
        let label = ["label", "sandbox", "box", label, "--overwrite", &here];
        let done = kubectl.run(&label).await;
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success(), "{said}");
        said
    };
    // An agent has a second, which may be short on a busy machine.
    let is_kept = async || {
        let colour = format!("colour={}", rand::random::<u32>());
        label(&colour).await.is_empty()
    };
    eventually(PATIENCE, "a label is kept", is_kept).await;
    node.signal("STOP");
    let said = label("colour=green").await;
    node.signal("CONT");
    assert!(said.contains("the node's agent did not confirm"), "{said}");
    eventually(PATIENCE, "a label is kept again", is_kept).await;
    node.forget(&stage).await;
}
