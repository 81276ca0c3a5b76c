//! What Kubernetes' own controllers and waiting clients need of objects.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::{
    client::{Client, JSON_PATCH, MERGE, METADATA, METADATA_LIST},
    subject::Subject,
};
use crate::stage::{TEMPLATE, collection, eventually};

/// The garbage collector looks for new resources every 30 s, and the first that asks may have just registered one.
const COLLECTED_WITHIN: Duration = Duration::from_secs(90);
/// The size of a namespace that is deleted as a whole.
const SANDBOXES: usize = 50;

items! {
    c_195 P0 "An object's uid and creationTimestamp last as long as it does, whoever serves it in whatever version; a recreated name has a new uid.", ours;
    c_196 P0 "The garbage collector sees owners, finalizers and uids in the metadata alone, and collects sandboxes of their owners and dependents of sandboxes.";
    c_197 P0 "The garbage collector's patches of finalizers work: a merge patch with the version that it means.";
    c_198 P1 "`kubectl wait --for=condition=Ready` waits for conditions that have all their fields.", ours;
    c_199 P1 "A namespace with sandboxes is gone within 60 seconds of its deletion.";
}

fn identity(object: &Value) -> (&Value, &Value) {
    let metadata = &object["metadata"];
    (&metadata["uid"], &metadata["creationTimestamp"])
}

async fn c_195(subject: &Subject) {
    let node = subject.own_node();
    let created = subject
        .create_from(crate::stage::sandbox("a", &node.template))
        .await;
    let path = subject.item("a");
    for client in subject.both_ways() {
        let shown = client.get(&path).await.ok();
        assert!(
            shown["metadata"]["creationTimestamp"].is_string(),
            "{shown:#}"
        );
        assert_eq!(identity(&shown), identity(&created));
        let old = client.get(&path.replace("v1beta1", "v1alpha1")).await.ok();
        assert_eq!(identity(&old), identity(&created));
    }
    // The node tells of it anew, the user changes it, and it is listed again.
    subject.publish(node.index).await;
    subject.label("a", "x", "y").await;
    let listed = subject.proxied().get(&subject.collection()).await.ok();
    assert_eq!(identity(&listed["items"][0]), identity(&created));
    // A process that has just begun is what a restart leaves, and what another replica is: it knows the nodes alone.
    let mut other = subject.server(&[]);
    other.ready().await;
    let seen = other.client().get(&path).await.ok();
    assert_eq!(identity(&seen), identity(&created));

    subject.proxied().delete(&path).await.ok();
    let again = subject.create("a").await;
    assert_ne!(again["metadata"]["uid"], created["metadata"]["uid"]);
}

fn config_maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn owned_by(owner: &Value, api_version: &str, kind: &str) -> Value {
    json!([{
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": true,
    }])
}

async fn config_map(client: &Client, namespace: &str, name: &str, owners: Value) -> Value {
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "ownerReferences": owners},
    });
    client.post(&config_maps(namespace), &object).await.ok()
}

async fn c_196(subject: &Subject) {
    let (client, namespace) = (subject.proxied(), &subject.namespace);
    let map = config_map(&client, namespace, "owner", json!([])).await;
    let mut owned = subject.mk("owned");
    owned["metadata"]["ownerReferences"] = owned_by(&map, "v1", "ConfigMap");
    owned["metadata"]["finalizers"] = json!(["example.com/held"]);
    let owned = subject.create_from(owned).await;
    let owner = subject.create("owner").await;
    let dependents = owned_by(&owner, "agents.x-k8s.io/v1beta1", "Sandbox");
    config_map(&client, namespace, "owned", dependents).await;

    client
        .delete(&format!("{}/owner", config_maps(namespace)))
        .await
        .ok();
    let mut shown = metadata_of(subject, &client, "owned").await;
    for field in ["uid", "ownerReferences", "finalizers"] {
        assert_eq!(shown["metadata"][field], owned["metadata"][field]);
    }
    client.delete(&subject.item("owner")).await.ok();
    // Held by its finalizer, so that the collector's deletion can be seen.
    let deadline = Instant::now() + COLLECTED_WITHIN;
    while shown["metadata"]["deletionTimestamp"].is_null() {
        assert!(Instant::now() < deadline, "not collected: {shown:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        shown = metadata_of(subject, &client, "owned").await;
    }
    let free = json!({"metadata": {"finalizers": null}});
    client
        .patch(MERGE, &subject.item("owned"), &free)
        .await
        .ok();
    client
        .get(&subject.item("owned"))
        .await
        .expect(404, "NotFound");
    let dependent = format!("{}/owned", config_maps(namespace));
    eventually(COLLECTED_WITHIN, "the dependent goes", async || {
        client.get(&dependent).await.status == 404
    })
    .await;
}

/// The metadata of a sandbox, as the collector lists and gets it in the preferred version.
async fn metadata_of(subject: &Subject, client: &Client, name: &str) -> Value {
    let list = client
        .get_as(&subject.collection(), METADATA_LIST)
        .await
        .ok();
    assert_eq!(list["kind"], "PartialObjectMetadataList", "{list:#}");
    let items = list["items"].as_array().unwrap();
    let listed = items.iter().find(|item| item["metadata"]["name"] == name);
    let got = client.get_as(&subject.item(name), METADATA).await.ok();
    assert_eq!(got["kind"], "PartialObjectMetadata");
    assert_eq!(
        listed.map(|item| &item["metadata"]["uid"]),
        Some(&got["metadata"]["uid"])
    );
    got
}

async fn c_197(subject: &Subject) {
    let client = subject.proxied();
    let mut held = subject.mk("held");
    held["metadata"]["finalizers"] = json!(["example.com/one", "example.com/other"]);
    let created = subject.create_from(held).await;
    let path = subject.item("held");
    let pending = client.delete(&path).await.ok();
    assert!(
        pending["metadata"]["deletionTimestamp"].is_string(),
        "{pending:#}"
    );
    let patch = |finalizers: Value, version: &Value| json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
    // The collector tries this one first, and falls back on nothing but 415.
    let strategic = "application/strategic-merge-patch+json";
    let one = json!(["example.com/one"]);
    let newest = patch(one.clone(), &pending["metadata"]["resourceVersion"]);
    let refused = client.patch(strategic, &path, &newest).await;
    refused.expect(415, "UnsupportedMediaType");
    let stale = patch(one.clone(), &created["metadata"]["resourceVersion"]);
    let refused = client.patch(MERGE, &path, &stale).await;
    refused.expect(409, "Conflict");
    let left = client.patch(MERGE, &path, &newest).await.ok();
    assert_eq!(left["metadata"]["finalizers"], one);
    let last = patch(json!([]), &left["metadata"]["resourceVersion"]);
    client.patch(MERGE, &path, &last).await.ok();
    client.get(&path).await.expect(404, "NotFound");

    // And the collector itself: it takes away its own finalizer when the dependents are told.
    subject.create("parent").await;
    let orphan = format!("{}?propagationPolicy=Orphan", subject.item("parent"));
    let pending = client.delete(&orphan).await.ok();
    assert_eq!(pending["metadata"]["finalizers"], json!(["orphan"]));
    eventually(COLLECTED_WITHIN, "the parent goes", async || {
        client.get(&subject.item("parent")).await.status == 404
    })
    .await;
}

async fn c_198(subject: &Subject) {
    subject.create("a").await;
    let (kubectl, here) = (
        subject.kubectl(),
        format!("--namespace={}", subject.namespace),
    );
    let wait = async |condition: &str| {
        let condition = format!("--for=condition={condition}");
        let wait = ["wait", "sandbox/a", &condition, "--timeout=20s", &here];
        kubectl.stdout(&wait).await
    };
    assert!(wait("Ready").await.contains("condition met"));
    let client = subject.proxied();
    let mut generation = 1;
    for (mode, status) in [("Suspended", "False"), ("Running", "True")] {
        let waiting = wait(if status == "True" {
            "Ready"
        } else {
            "Ready=false"
        });
        let change = json!([{"op": "replace", "path": "/spec/operatingMode", "value": mode}]);
        let path = subject.item("a");
        let (_, changed) = futures::join!(waiting, client.patch(JSON_PATCH, &path, &change));
        generation += 1;
        let object = changed.ok();
        let conditions = object["status"]["conditions"].as_array().unwrap();
        let ready = conditions.iter().find(|it| it["type"] == "Ready").unwrap();
        assert_eq!(ready["status"], status);
        for field in ["reason", "message", "lastTransitionTime"] {
            assert!(
                ready[field].as_str().is_some_and(|text| !text.is_empty()),
                "{ready:#}"
            );
        }
        assert_eq!(ready["observedGeneration"], generation);
    }
}

async fn c_199(subject: &Subject) {
    // In a namespace of its own, so that what the check itself needs stays.
    let namespace = subject.other_namespace().await;
    let (client, path) = (subject.proxied(), collection(&namespace));
    let creates = (0..SANDBOXES).map(|n| {
        let (client, path) = (&client, &path);
        let object = crate::stage::sandbox(&format!("box-{n}"), TEMPLATE);
        async move {
            loop {
                let answer = client.post(path, &object).await;
                if answer.causes() != ["NoWarmCapacity"] {
                    break answer.ok();
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    });
    stream::iter(creates)
        .buffer_unordered(8)
        .for_each(async |_| {})
        .await;
    let listed = client.get(&path).await.ok();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(SANDBOXES));
    let space = format!("/api/v1/namespaces/{namespace}");
    client.delete(&space).await.ok();
    eventually(
        Duration::from_secs(60),
        "the namespace is gone",
        async || client.get(&space).await.status == 404,
    )
    .await;
    let left = client.get(&path).await.ok();
    assert_eq!(left["items"], json!([]));
}
