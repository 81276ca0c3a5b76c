//! Owners and dependents, as the garbage collector sees them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    caller::Caller,
    stage::{self, SharedStage, TEMPLATE, collection, eventually, item, sandbox},
};

/// The collector looks for new resources every 30 s.
const COLLECTED_WITHIN: Duration = Duration::from_secs(90);

fn config_maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn owner(object: &Value, api_version: &str, kind: &str) -> Value {
    json!([{
        "apiVersion": api_version,
        "kind": kind,
        "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"],
        "blockOwnerDeletion": true,
    }])
}

async fn config_map(admin: &Caller, namespace: &str, name: &str, owners: Value) -> Value {
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "ownerReferences": owners},
    });
    admin.post(&config_maps(namespace), &object).await.ok()
}

async fn is_gone(admin: &Caller, path: &str) -> bool {
    admin.get(path).await.status == 404
}

async fn begin(stage: &SharedStage) -> (Caller, String) {
    (stage.admin(), stage.namespace("garbage").await)
}

#[tokio::test]
async fn a_sandbox_goes_with_the_config_map_that_owns_it() {
    let stage = stage::shared().await;
    let (admin, namespace) = begin(&stage).await;
    let map = config_map(&admin, &namespace, "owner", json!([])).await;
    let mut owned = sandbox("owned", TEMPLATE);
    owned["metadata"]["ownerReferences"] = owner(&map, "v1", "ConfigMap");
    admin.post(&collection(&namespace), &owned).await.ok();
    // Its owner was gone before it came.
    let mut stray = sandbox("stray", TEMPLATE);
    stray["metadata"]["ownerReferences"] = owner(&map, "v1", "ConfigMap");
    stray["metadata"]["ownerReferences"][0]["uid"] = "00000000-0000-4000-8000-000000000000".into();
    admin.post(&collection(&namespace), &stray).await.ok();
    stage.create(&namespace, "free").await;
    let path = format!("{}/owner", config_maps(&namespace));
    admin.delete(&path).await.ok();
    eventually(COLLECTED_WITHIN, "the sandboxes go", async || {
        is_gone(&admin, &item(&namespace, "owned")).await
            && is_gone(&admin, &item(&namespace, "stray")).await
    })
    .await;
    let held = stage.nodes.held(&namespace).await;
    let held: Vec<_> = held.into_iter().map(|held| held.claim_ref).collect();
    assert_eq!(held, [format!("{namespace}/free")]);
}

#[tokio::test]
async fn a_config_map_goes_with_the_sandbox_that_owns_it() {
    let stage = stage::shared().await;
    let (admin, namespace) = begin(&stage).await;
    let created = stage.create(&namespace, "owner").await;
    let owners = owner(&created, "agents.x-k8s.io/v1beta1", "Sandbox");
    config_map(&admin, &namespace, "owned", owners).await;
    admin.delete(&item(&namespace, "owner")).await.ok();
    let path = format!("{}/owned", config_maps(&namespace));
    eventually(COLLECTED_WITHIN, "the ConfigMap goes", async || {
        is_gone(&admin, &path).await
    })
    .await;
}

#[tokio::test]
async fn in_the_foreground_dependents_go_before_their_sandbox() {
    let stage = stage::shared().await;
    let (admin, namespace) = begin(&stage).await;
    let created = stage.create(&namespace, "owner").await;
    let owners = owner(&created, "agents.x-k8s.io/v1beta1", "Sandbox");
    config_map(&admin, &namespace, "owned", owners).await;
    let path = item(&namespace, "owner");
    let foreground = format!("{path}?propagationPolicy=Foreground");
    let pending = admin.delete(&foreground).await.ok();
    assert_eq!(
        pending["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
    assert!(pending["metadata"]["deletionTimestamp"].is_string());
    let map = format!("{}/owned", config_maps(&namespace));
    eventually(COLLECTED_WITHIN, "both go", async || {
        let owner_is_gone = is_gone(&admin, &path).await;
        assert!(
            !owner_is_gone || is_gone(&admin, &map).await,
            "the owner went first"
        );
        owner_is_gone
    })
    .await;
    assert_eq!(stage.nodes.held(&namespace).await, []);
}

#[tokio::test]
async fn an_orphaned_config_map_stays() {
    let stage = stage::shared().await;
    let (admin, namespace) = begin(&stage).await;
    let created = stage.create(&namespace, "owner").await;
    let owners = owner(&created, "agents.x-k8s.io/v1beta1", "Sandbox");
    config_map(&admin, &namespace, "orphan", owners).await;
    let path = item(&namespace, "owner");
    let orphan = format!("{path}?propagationPolicy=Orphan");
    admin.delete(&orphan).await.ok();
    eventually(COLLECTED_WITHIN, "the sandbox goes", async || {
        is_gone(&admin, &path).await
    })
    .await;
    let map = admin
        .get(&format!("{}/orphan", config_maps(&namespace)))
        .await
        .ok();
    assert_eq!(map["metadata"]["ownerReferences"], Value::Null);
}
