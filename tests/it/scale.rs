//! The scale of a sandbox, which the deprecated version has.

use serde_json::{Value, json};

use crate::harness::{Answer, Cluster, item, mk_node};

const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn scale(name: &str) -> String {
    format!("{}/scale", item(name)).replace("/v1beta1/", "/v1alpha1/")
}

async fn patch(cluster: &Cluster, kind: &str, path: &str, body: &Value) -> Answer {
    let headers = [("content-type", kind)];
    let request = cluster
        .client
        .request("PATCH", path, &headers, body.to_string());
    request.await
}

async fn put(cluster: &Cluster, path: &str, body: &Value) -> Answer {
    let headers = [("content-type", "application/json")];
    let request = cluster
        .client
        .request("PUT", path, &headers, body.to_string());
    request.await
}

/// A cluster with the sandbox `a`.
async fn with_sandbox() -> Cluster {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    cluster
}

async fn mode(cluster: &Cluster) -> Value {
    cluster.client.get(item("a")).await.json()["spec"]["operatingMode"].clone()
}

/// Who owns the field that a scale writes: manager, operation, subresource.
async fn owner(cluster: &Cluster) -> [Value; 3] {
    let sandbox = cluster.client.get(item("a")).await.json();
    let entries = sandbox["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .clone();
    let owns = |entry: &&Value| {
        let spec = &entry["fieldsV1"]["f:spec"];
        spec.get("f:replicas").is_some() || spec.get("f:operatingMode").is_some()
    };
    let entry = entries.iter().find(owns).expect("somebody owns it");
    ["manager", "operation", "subresource"].map(|field| entry[field].clone())
}

#[tokio::test]
async fn it_shows_what_an_autoscaler_needs() {
    let cluster = with_sandbox().await;
    let shown = cluster.client.get(scale("a")).await;
    assert!(!shown.headers("warning").is_empty(), "of the version");
    let object = cluster.client.get(item("a")).await.json();
    let metadata = &object["metadata"];
    let expected = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": "a",
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {"replicas": 1},
        "status": {"replicas": 1, "selector": object["status"]["selector"]},
    });
    assert_eq!(shown.json(), expected);
    let preferred = format!("{}/scale", item("a"));
    cluster.client.get(preferred).await.refusal(404, "NotFound");
    let missing = cluster.client.get(scale("x")).await;
    assert_eq!(
        missing.refusal(404, "NotFound")["details"]["kind"],
        "sandboxes"
    );
}

#[tokio::test]
async fn an_update_suspends_and_resumes() {
    let cluster = with_sandbox().await;
    let mut wanted = cluster.client.get(scale("a")).await.json();
    // As Go writes a zero.
    wanted["spec"] = json!({});
    let dry = format!("{}?dryRun=All", scale("a"));
    let dry = put(&cluster, &dry, &wanted).await.json();
    assert_eq!(
        (&dry["kind"], &dry["spec"]["replicas"]),
        (&json!("Scale"), &json!(0))
    );
    assert_eq!(mode(&cluster).await, "Running");
    let path = format!("{}?fieldManager=hpa", scale("a"));
    let scaled = put(&cluster, &path, &wanted).await;
    assert_eq!(scaled.code(), 200, "{}", scaled.text());
    assert_eq!(scaled.json()["spec"]["replicas"], 0);
    assert_eq!(mode(&cluster).await, "Suspended");
    assert_eq!(owner(&cluster).await, ["hpa", "Update", "scale"]);
    put(&cluster, &path, &wanted).await.refusal(409, "Conflict");
    let unconditional = json!({"metadata": {"name": "a"}, "spec": {"replicas": 1}});
    assert_eq!(put(&cluster, &path, &unconditional).await.code(), 200);
    assert_eq!(mode(&cluster).await, "Running");
}

#[tokio::test]
async fn patches_and_configurations_are_of_the_scale() {
    let cluster = with_sandbox().await;
    let path = format!("{}?fieldManager=me", scale("a"));
    let suspended = patch(&cluster, MERGE, &path, &json!({"spec": {"replicas": 0}})).await;
    assert_eq!(suspended.json()["kind"], "Scale", "{}", suspended.text());
    assert_eq!(mode(&cluster).await, "Suspended");
    let operations = json!([
        {"op": "test", "path": "/spec/replicas", "value": 0},
        {"op": "replace", "path": "/spec/replicas", "value": 1},
    ]);
    let resumed = patch(&cluster, "application/json-patch+json", &path, &operations).await;
    assert_eq!(resumed.json()["spec"]["replicas"], 1);
    assert_eq!(mode(&cluster).await, "Running");
    let config = json!({
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": "a"},
        "spec": {"replicas": 0},
    });
    let other = format!("{}?fieldManager=other", scale("a"));
    let conflict = patch(&cluster, APPLY, &other, &config).await;
    conflict.refusal(409, "Conflict");
    let forced = patch(&cluster, APPLY, &format!("{other}&force=true"), &config).await;
    assert_eq!(forced.json()["spec"]["replicas"], 0, "{}", forced.text());
    assert_eq!(owner(&cluster).await, ["other", "Apply", "scale"]);
    let absent = format!("{}?fieldManager=me", scale("x"));
    let absent = patch(&cluster, APPLY, &absent, &config).await;
    absent.refusal(404, "NotFound");
}

#[tokio::test]
async fn what_is_no_scale_of_the_object_is_refused() {
    let cluster = with_sandbox().await;
    let check = async |change: Value, code: u16, reason: &str| {
        let mut body = cluster.client.get(scale("a")).await.json();
        json_patch::merge(&mut body, &change);
        let path = format!("{}?fieldValidation=Strict", scale("a"));
        put(&cluster, &path, &body).await.refusal(code, reason);
    };
    check(json!({"kind": "Sandbox"}), 400, "BadRequest").await;
    check(json!({"apiVersion": "autoscaling/v2"}), 400, "BadRequest").await;
    check(json!({"metadata": {"name": "b"}}), 400, "BadRequest").await;
    check(json!({"metadata": {"name": null}}), 400, "BadRequest").await;
    check(
        json!({"metadata": {"namespace": "other"}}),
        400,
        "BadRequest",
    )
    .await;
    check(json!({"metadata": {"uid": "other"}}), 409, "Conflict").await;
    check(
        json!({"metadata": {"resourceVersion": "1"}}),
        409,
        "Conflict",
    )
    .await;
    check(json!({"spec": {"replicas": "one"}}), 400, "BadRequest").await;
    check(json!({"spec": {"size": 1}}), 400, "BadRequest").await;
    check(json!({"spec": {"replicas": 2}}), 422, "Invalid").await;
    check(json!({"spec": {"replicas": -1}}), 422, "Invalid").await;
    for method in ["POST", "DELETE"] {
        let answer = cluster.client.request(method, &scale("a"), &[], "{}").await;
        answer.refusal(405, "MethodNotAllowed");
    }
    for body in ["[]", "null", "1", ""] {
        let answer = cluster.client.request("PUT", &scale("a"), &[], body).await;
        answer.refusal(400, "BadRequest");
    }
    assert_eq!(mode(&cluster).await, "Running");
}
