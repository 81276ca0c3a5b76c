//! SandboxClaim objects, bound by the server: with kubectl, and with the unmodified Python SDK.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    stage::{Stage, eventually, item, sandbox},
    users::ADMIN,
    warm_pools::{driven, fill},
};

const SOON: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) fn claim(namespace: &str, name: &str, pool: &str, lifecycle: Option<Value>) -> String {
    let mut claim = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"warmPoolRef": {"name": pool}},
    });
    if let Some(lifecycle) = lifecycle {
        claim["spec"]["lifecycle"] = lifecycle;
    }
    claim.to_string()
}

pub(crate) fn path(namespace: &str, name: &str) -> String {
    format!("/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxclaims/{name}")
}

pub(crate) async fn create(stage: &Stage, claim: &str) {
    let kubectl = stage.control_plane.kubectl();
    let create = ["create", "--filename=-"];
    kubectl.stdout_with_input(&create, claim).await;
}

/// Status and reason of Ready.
pub(crate) async fn ready(stage: &Stage, namespace: &str, name: &str) -> String {
    let claim = stage.admin().get(&path(namespace, name)).await;
    let conditions = claim.body["status"]["conditions"].as_array().cloned();
    let ready = conditions
        .unwrap_or_default()
        .into_iter()
        .find(|c| c["type"] == "Ready");
    let ready = ready.unwrap_or_default();
    let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
    format!("{} {}", text("status"), text("reason"))
}

#[track_caller]
fn until_ready<'a>(
    stage: &'a Stage,
    namespace: &'a str,
    name: &'a str,
    expected: &'a str,
) -> impl Future<Output = ()> + 'a {
    eventually(SOON, expected, async move || {
        ready(stage, namespace, name).await == expected
    })
}

/// How many sandboxes the nodes hold for the namespace.
async fn held(stage: &Stage, namespace: &str) -> usize {
    stage.nodes.held(namespace).await.len()
}

#[tokio::test]
async fn a_claim_made_with_kubectl_is_bound_and_released_with_it() {
    let stage = driven(2).await;
    let namespace = stage.namespace("claims").await;
    let kubectl = stage.control_plane.kubectl();
    fill(&stage, &namespace, 8).await;

    create(&stage, &claim(&namespace, "one", "pool", None)).await;
    let wait = [
        "wait",
        "--for=condition=Ready",
        "sandboxclaim/one",
        "--timeout=5s",
        "--namespace",
        &namespace,
    ];
    kubectl.stdout(&wait).await;
    let bound = stage.admin().get(&path(&namespace, "one")).await.ok();
    assert_eq!(
        bound["status"]["sandbox"],
        json!({"name": "one", "podIPs": ["127.0.0.1"]})
    );
    let made = stage.admin().get(&item(&namespace, "one")).await.ok();
    assert_eq!(
        made["metadata"]["ownerReferences"][0]["uid"],
        bound["metadata"]["uid"]
    );
    assert_eq!(held(&stage, &namespace).await, 1);

    kubectl
        .stdout(&["delete", "sandboxclaim/one", "--namespace", &namespace])
        .await;
    assert_eq!(
        held(&stage, &namespace).await,
        0,
        "kubectl waits until the claim is gone"
    );
    stage
        .admin()
        .get(&item(&namespace, "one"))
        .await
        .expect(404, "NotFound");

    create(&stage, &claim(&namespace, "astray", "no-such-pool", None)).await;
    until_ready(&stage, &namespace, "astray", "False WarmPoolNotFound").await;
    kubectl
        .stdout(&["delete", "sandboxclaim/astray", "--namespace", &namespace])
        .await;
}

#[tokio::test]
async fn a_claim_ends_as_its_policy_says_and_waits_for_what_it_lacks() {
    let stage = driven(2).await;
    let namespace = stage.namespace("ends").await;
    fill(&stage, &namespace, 4).await;

    let end = jiff::Timestamp::now() + Duration::from_secs(4);
    let end = end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    for (name, policy) in [
        ("goes", "Delete"),
        ("fore", "DeleteForeground"),
        ("stays", "Retain"),
    ] {
        let lifecycle = json!({"shutdownTime": end, "shutdownPolicy": policy});
        create(&stage, &claim(&namespace, name, "pool", Some(lifecycle))).await;
        until_ready(&stage, &namespace, name, "True DependenciesReady").await;
    }
    assert_eq!(held(&stage, &namespace).await, 3);
    eventually(PATIENCE, "all have ended", async || {
        let gone = [path(&namespace, "goes"), path(&namespace, "fore")];
        stage.admin().get(&gone[0]).await.status == 404
            && stage.admin().get(&gone[1]).await.status == 404
            && ready(&stage, &namespace, "stays").await == "False ClaimExpired"
    })
    .await;
    assert_eq!(held(&stage, &namespace).await, 0);

    // A sandbox that was made without a claim is not a claim's to take, nor to release.
    let plain = sandbox("mine", crate::stage::TEMPLATE);
    let collection = crate::stage::collection(&namespace);
    stage.admin().post(&collection, &plain).await.ok();
    create(&stage, &claim(&namespace, "mine", "pool", None)).await;
    until_ready(&stage, &namespace, "mine", "False AdoptionConflict").await;
    let kubectl = stage.control_plane.kubectl();
    kubectl
        .stdout(&["delete", "sandboxclaim/mine", "--namespace", &namespace])
        .await;
    stage.admin().get(&item(&namespace, "mine")).await.ok();

    // More claims than there are warm VMs: the rest is typed, and served as the pool refills.
    for index in 0..8 {
        create(
            &stage,
            &claim(&namespace, &format!("many-{index}"), "pool", None),
        )
        .await;
    }
    for index in 0..8 {
        let name = format!("many-{index}");
        eventually(PATIENCE, "every claim is bound", async || {
            ready(&stage, &namespace, &name).await == "True DependenciesReady"
        })
        .await;
    }
}

#[tokio::test]
async fn a_claim_that_was_deleted_while_the_server_was_down_is_released() {
    let mut stage = driven(1).await;
    let namespace = stage.namespace("down").await;
    fill(&stage, &namespace, 2).await;
    for name in ["kept", "left"] {
        create(&stage, &claim(&namespace, name, "pool", None)).await;
        until_ready(&stage, &namespace, name, "True DependenciesReady").await;
    }
    stage.kill_serve();
    let kubectl = stage.control_plane.kubectl();
    let delete = [
        "delete",
        "sandboxclaim/left",
        "--wait=false",
        "--namespace",
        &namespace,
    ];
    kubectl.stdout(&delete).await;
    stage.start_serve().await;
    eventually(PATIENCE, "the claim is released", async || {
        stage.admin().get(&path(&namespace, "left")).await.status == 404
    })
    .await;
    let held = stage.nodes.held(&namespace).await;
    let held: Vec<_> = held.iter().map(|held| held.claim_ref.clone()).collect();
    assert_eq!(held, [format!("{namespace}/kept")]);
    eventually(PATIENCE, "the kept one is the claim's again", async || {
        let made = stage.admin().get(&item(&namespace, "kept")).await.body;
        made["metadata"]["ownerReferences"][0]["name"] == "kept"
    })
    .await;
}

// kubernetes-sigs/agent-sandbox#574, cozystack/cozystack#1860
#[tokio::test]
async fn the_python_sdk_creates_gets_lists_and_deletes() {
    let python = std::env::var("PYTHON_SDK")
        .expect("PYTHON_SDK is not set: run the tests with `hack/test`, which installs the SDK");
    let stage = driven(2).await;
    let namespace = stage.namespace("python").await;
    fill(&stage, &namespace, 8).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/python_sdk.py");
    let begun = Instant::now();
    let output = tokio::process::Command::new(python)
        .arg(script)
        .args([&namespace, "pool"])
        .env("KUBECONFIG", stage.control_plane.kubeconfig_as(ADMIN))
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(60), output).await;
    let output = output.expect("the SDK ends").unwrap();
    assert!(
        output.status.success(),
        "after {:?}: {}{}",
        begun.elapsed(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(held(&stage, &namespace).await, 0);
}
