//! One object in two versions.

use serde_json::{Value, json};

use crate::harness::{Cluster, SANDBOXES, item, mk_node, mk_sandbox};

/// The path in the deprecated version.
fn old(path: &str) -> String {
    path.replace("/v1beta1/", "/v1alpha1/")
}

fn mk_old(name: &str, replicas: i64) -> Value {
    let mut sandbox = mk_sandbox(name);
    sandbox["apiVersion"] = "agents.x-k8s.io/v1alpha1".into();
    sandbox["spec"]["replicas"] = replicas.into();
    sandbox
}

#[tokio::test]
async fn both_versions_show_one_object() {
    let cluster = Cluster::start(mk_node(4)).await;
    let client = &cluster.client;
    let mut sent = mk_old("a", 1);
    sent["spec"]["service"] = true.into();
    let created = client.post(old(SANDBOXES), &sent).await;
    assert_eq!(created.code(), 201, "{}", created.text());
    let warning = r#"299 - "agents.x-k8s.io/v1alpha1 Sandbox is deprecated; use agents.x-k8s.io/v1beta1 Sandbox instead""#;
    assert!(created.headers("warning").contains(&warning));
    assert_eq!(created.json()["spec"]["replicas"], 1);

    let (new, old_one) = (
        client.get(item("a")).await.json(),
        client.get(old(&item("a"))).await.json(),
    );
    assert_eq!(new["apiVersion"], "agents.x-k8s.io/v1beta1");
    assert_eq!(old_one["apiVersion"], "agents.x-k8s.io/v1alpha1");
    assert_eq!(new["metadata"], old_one["metadata"]);
    assert_eq!(new["spec"]["operatingMode"], "Running");
    assert_eq!(new["spec"].get("replicas"), None);
    assert_eq!(old_one["spec"].get("operatingMode"), None);
    for field in ["service", "podTemplate", "shutdownPolicy"] {
        assert_eq!(new["spec"][field], old_one["spec"][field], "{field}");
    }
    assert_eq!(old_one["status"]["replicas"], 1);
    assert_eq!(old_one["status"].get("nodeName"), None);
    let listed = client.get(old(SANDBOXES)).await.json();
    assert_eq!(listed["apiVersion"], "agents.x-k8s.io/v1alpha1");
    assert_eq!(listed["items"][0], old_one);
}

#[tokio::test]
async fn replicas_are_the_operating_mode() {
    let cluster = Cluster::start(mk_node(4)).await;
    let client = &cluster.client;
    cluster.create("a").await;
    let from = client.get(old(SANDBOXES)).await.json();
    let from = from["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{}?watch=true&resourceVersion={from}", old(SANDBOXES));
    let mut watch = client.watch(path).await;

    let none = json!({"spec": {"replicas": 0}});
    let path = format!("{}?dryRun=All", old(&item("a")));
    let would = client.merge(&path, &none).await.json();
    assert_eq!(would["apiVersion"], "agents.x-k8s.io/v1alpha1");
    assert_eq!(would["spec"]["replicas"], 0);
    assert_eq!(cluster.writes_at_nodes(), 1);

    let suspended = client.merge(old(&item("a")), &none).await;
    assert_eq!(suspended.code(), 200, "{}", suspended.text());
    let suspended = suspended.json();
    assert_eq!(suspended["spec"]["replicas"], 0);
    assert_eq!(suspended["metadata"]["generation"], 2);
    let shown = client.get(item("a")).await.json();
    assert_eq!(shown["spec"]["operatingMode"], "Suspended");
    let seen = watch.event().await["object"].clone();
    assert_eq!(seen["apiVersion"], "agents.x-k8s.io/v1alpha1");
    assert_eq!(seen["spec"]["replicas"], 0);

    let mut object = client.get(old(&item("a"))).await.json();
    object["spec"]["replicas"] = 1.into();
    let mut resumed = client.put(old(&item("a")), &object).await.json();
    assert_eq!(resumed["status"]["conditions"][0]["status"], "True");
    resumed["spec"]["replicas"] = 2.into();
    let many = client.put(old(&item("a")), &resumed).await;
    many.refusal(422, "Invalid");
}

#[tokio::test]
async fn owners_are_known_across_versions() {
    let cluster = Cluster::start(mk_node(4)).await;
    let client = &cluster.client;
    let apply = async |path: String, config: &Value| {
        let headers = [("content-type", "application/apply-patch+yaml")];
        client
            .request("PATCH", &path, &headers, config.to_string())
            .await
    };
    let path = |manager: &str| format!("{}?fieldManager={manager}", item("a"));
    let one = apply(old(&path("one")), &mk_old("a", 1)).await;
    assert_eq!(one.code(), 201, "{}", one.text());

    let mut two = mk_sandbox("a");
    two["spec"] = json!({"podTemplate": two["spec"]["podTemplate"], "operatingMode": "Suspended"});
    let refused = apply(path("two"), &two).await.refusal(409, "Conflict");
    let cause = &refused["details"]["causes"][0];
    // In the words of the version that its owner speaks.
    assert_eq!(cause["field"], ".spec.replicas");
    let forced = apply(format!("{}&force=true", path("two")), &two).await;
    assert_eq!(forced.code(), 200, "{}", forced.text());
    let owners = forced.json()["metadata"]["managedFields"].clone();
    let of_one = owners.as_array().unwrap().iter();
    let of_one: Vec<_> = of_one.filter(|owner| owner["manager"] == "one").collect();
    assert_eq!(of_one[0]["apiVersion"], "agents.x-k8s.io/v1alpha1");
    assert_eq!(of_one[0]["fieldsV1"]["f:spec"].get("f:replicas"), None);
}

#[tokio::test]
async fn actions_are_of_the_preferred_version() {
    let cluster = Cluster::start(mk_node(4)).await;
    let client = &cluster.client;
    cluster.create("a").await;
    let path = format!("{}/pause", item("a"));
    let refused = client.post(old(&path), &json!({})).await;
    refused.refusal(404, "NotFound");
    let resources = client.get("/apis/agents.x-k8s.io/v1alpha1").await.json();
    let names = resources["resources"].as_array().unwrap().iter();
    let names: Vec<_> = names
        .map(|resource| resource["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["sandboxes", "sandboxes/status", "sandboxes/scale"]);
    let group = client.get("/apis/agents.x-k8s.io").await.json();
    assert_eq!(group["preferredVersion"]["version"], "v1beta1");
    assert_eq!(group["versions"][1]["version"], "v1alpha1");
}
