//! Namespaces as a real kube-apiserver keeps them.

use std::time::Duration;

use sandbox_apiserver::{
    admission::{Denied, Namespaces},
    telemetry::{Readiness, Tasks},
};
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::control_plane;

const SOON: Duration = Duration::from_secs(30);

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let poll = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, poll)
        .await
        .unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn a_namespace_takes_objects_from_its_creation_to_its_deletion() {
    let control_plane = control_plane::shared();
    let (readiness, mut tasks) = (Readiness::new(), Tasks::new(CancellationToken::new()));
    let check = readiness.check("namespaces");
    let namespaces = Namespaces::follow(control_plane.client(), &mut tasks, check);
    // Before the first list is there, a live read answers.
    assert!(namespaces.check("default").await.is_ok());
    until("the list is read", async || readiness.is_ready()).await;

    let absent = namespaces.check("no-such-namespace").await;
    assert!(
        matches!(&absent, Err(Denied::NotFound(name)) if name == "no-such-namespace"),
        "{absent:?}"
    );
    let namespace = control_plane.create_namespace("admission").await;
    assert!(
        namespaces.check(&namespace).await.is_ok(),
        "right after its creation"
    );

    // What has a finalizer keeps its namespace in termination.
    let held = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    let kubectl = control_plane.kubectl();
    kubectl
        .stdout_with_input(
            &["create", "--filename=-", "--namespace", &namespace],
            &held.to_string(),
        )
        .await;
    kubectl
        .stdout(&["delete", "namespace", &namespace, "--wait=false"])
        .await;
    until("it is known to end", async || {
        matches!(
            namespaces.check(&namespace).await,
            Err(Denied::Terminating(_))
        )
    })
    .await;

    let release = r#"{"metadata": {"finalizers": null}}"#;
    kubectl
        .stdout(&[
            "patch",
            "configmap",
            "held",
            "--namespace",
            &namespace,
            "--type=merge",
            "--patch",
            release,
        ])
        .await;
    until("it is known to be gone", async || {
        matches!(namespaces.check(&namespace).await, Err(Denied::NotFound(_)))
    })
    .await;
}

#[tokio::test]
async fn who_may_not_read_namespaces_creates_nothing() {
    let control_plane = control_plane::shared();
    let (readiness, mut tasks) = (Readiness::new(), Tasks::new(CancellationToken::new()));
    let client = control_plane.client_as("admission-powerless");
    let namespaces = Namespaces::follow(client, &mut tasks, readiness.check("namespaces"));
    let denied = namespaces.check("default").await;
    assert!(matches!(denied, Err(Denied::Unknown { .. })), "{denied:?}");
    assert!(!readiness.is_ready());
}
