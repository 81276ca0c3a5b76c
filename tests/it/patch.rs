//! PATCH: changes that find their object whoever else changes it.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Cluster, SANDBOXES, item, mk_node};

async fn mk_cluster() -> Cluster {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    cluster
}

async fn patch(cluster: &Cluster, content_type: &str, body: &str) -> crate::harness::Answer {
    let headers = [("content-type", content_type)];
    cluster
        .client
        .request("PATCH", &item("a"), &headers, body.to_owned())
        .await
}

#[tokio::test]
async fn a_merge_patch_sets_and_removes() {
    let cluster = mk_cluster().await;
    let set = json!({"metadata": {"labels": {"team": "x"}}, "spec": {"shutdownPolicy": "Delete"}});
    let patched = cluster.client.merge(item("a"), &set).await;
    assert_eq!(patched.code(), 200, "{}", patched.text());
    let patched = patched.json();
    assert_eq!(patched["metadata"]["labels"]["team"], "x");
    assert_eq!(patched["spec"]["shutdownPolicy"], "Delete");
    assert_eq!(patched["metadata"]["generation"], 2);
    let unset = json!({"metadata": {"labels": {"team": null}}});
    let unset = cluster.client.merge(item("a"), &unset).await.json();
    assert_eq!(unset["metadata"]["labels"].get("team"), None);
    assert_eq!(unset["metadata"]["generation"], 2);
}

#[tokio::test]
async fn operations_apply_in_order_or_not_at_all() {
    let cluster = mk_cluster().await;
    let operations = json!([
        {"op": "test", "path": "/spec/shutdownPolicy", "value": "Retain"},
        {"op": "add", "path": "/metadata/labels/team", "value": "x"},
        {"op": "replace", "path": "/spec/shutdownPolicy", "value": "Delete"},
    ]);
    let patched = cluster.client.operations(item("a"), &operations).await;
    assert_eq!(patched.code(), 200, "{}", patched.text());
    let again = cluster.client.operations(item("a"), &operations).await;
    again.refusal(422, "Invalid");
    let nowhere = json!([{"op": "remove", "path": "/metadata/nowhere"}]);
    cluster
        .client
        .operations(item("a"), &nowhere)
        .await
        .refusal(422, "Invalid");
    let shown = cluster.client.get(item("a")).await.json();
    assert_eq!(shown["metadata"]["labels"]["team"], "x");
}

#[tokio::test]
async fn no_change_is_no_event() {
    let cluster = mk_cluster().await;
    let before = cluster.fleet.store().head();
    for empty in [
        json!({}),
        json!({"metadata": {}}),
        json!({"spec": {"shutdownPolicy": "Retain"}}),
    ] {
        assert_eq!(cluster.client.merge(item("a"), &empty).await.code(), 200);
    }
    let operations = cluster.client.operations(item("a"), &json!([])).await;
    assert_eq!(operations.code(), 200);
    assert_eq!(cluster.fleet.store().head(), before);
}

#[tokio::test]
async fn other_forms_are_not_read() {
    let cluster = mk_cluster().await;
    for content_type in [
        "application/strategic-merge-patch+json",
        "application/apply-patch+cbor",
        "application/json",
        "",
    ] {
        let refused = patch(&cluster, content_type, "{}").await;
        refused.refusal(415, "UnsupportedMediaType");
    }
}

#[tokio::test]
async fn a_patch_that_is_none_is_a_bad_request() {
    let cluster = mk_cluster().await;
    for body in ["", "{", "[]", "1", "null", "{}{}"] {
        let refused = patch(&cluster, "application/merge-patch+json", body).await;
        refused.refusal(400, "BadRequest");
    }
    for body in [
        "",
        "{}",
        "[1]",
        r#"[{"op":"jump","path":"/a"}]"#,
        r#"[{"op":"add"}]"#,
    ] {
        let refused = patch(&cluster, "application/json-patch+json", body).await;
        refused.refusal(400, "BadRequest");
    }
    let many = json!(vec![
        json!({"op": "test", "path": "/kind", "value": "Sandbox"});
        10_001
    ]);
    let refused = cluster.client.operations(item("a"), &many).await;
    refused.refusal(413, "RequestEntityTooLarge");
    let mut doubling = vec![json!({"op": "add", "path": "/x", "value": ["xxxxxxxxxxxxxxxx"]})];
    doubling.extend((0..40).map(|_| json!({"op": "copy", "from": "/x", "path": "/x/-"})));
    let refused = cluster.client.operations(item("a"), &json!(doubling)).await;
    refused.refusal(413, "RequestEntityTooLarge");
    let path = format!("{}?force=true", item("a"));
    let forced = cluster.client.merge(&path, &json!({})).await;
    forced.refusal(422, "Invalid");
}

#[tokio::test]
async fn a_patch_cannot_nest_without_end() {
    let cluster = mk_cluster().await;
    let nested = (0..100).fold(json!({}), |inner, _| json!({"a": inner}));
    let below = "/a".repeat(100);
    let round = json!([
        {"op": "add", "path": "/y", "value": nested},
        {"op": "move", "from": "/x", "path": format!("/y{below}/z")},
        {"op": "move", "from": "/y", "path": "/x"},
    ]);
    let mut operations = vec![json!({"op": "add", "path": "/x", "value": {}})];
    for _ in 0..1_000 {
        operations.extend(round.as_array().unwrap().clone());
    }
    let refused = cluster
        .client
        .operations(item("a"), &json!(operations))
        .await;
    refused.refusal(422, "Invalid");
    // Once is no harm: the schema knows no such field.
    let once = &operations[..4];
    let once = cluster.client.operations(item("a"), &json!(once)).await;
    assert_eq!(once.code(), 200, "{}", once.text());
}

#[tokio::test]
async fn an_object_does_not_grow_without_end() {
    let cluster = mk_cluster().await;
    let args = |bytes: usize| json!(["x".repeat(bytes)]);
    let path = "/spec/podTemplate/spec/containers/0/args";
    let large = json!([{"op": "add", "path": path, "value": args(400 << 10)}]);
    let large = cluster.client.operations(item("a"), &large).await;
    assert_eq!(large.code(), 200, "{}", large.text());
    let twice = json!([{"op": "copy", "from": format!("{path}/0"), "path": format!("{path}/1")}]);
    let twice = cluster.client.operations(item("a"), &twice).await;
    twice.refusal(413, "RequestEntityTooLarge");

    let calls = cluster.writes_at_nodes();
    let mut sandbox = crate::harness::mk_sandbox("b");
    sandbox["spec"]["podTemplate"]["spec"]["containers"][0]["args"] = args(600 << 10);
    let created = cluster.client.post(SANDBOXES, &sandbox).await;
    created.refusal(413, "RequestEntityTooLarge");
    assert_eq!(cluster.writes_at_nodes(), calls);
}

#[tokio::test]
async fn metadata_is_of_its_types() {
    let cluster = mk_cluster().await;
    for metadata in [
        json!({"resourceVersion": 5}),
        json!({"uid": 5}),
        json!({"namespace": ["x"]}),
        json!({"managedFields": "x"}),
        json!({"managedFields": [{"time": "then"}]}),
        json!({"managedFields": [{"manager": "m".repeat(129)}]}),
    ] {
        let patch = json!({"metadata": metadata});
        let refused = cluster.client.merge(item("a"), &patch).await;
        refused.refusal(422, "Invalid");
    }
    for metadata in [json!({"uid": 5}), json!({"resourceVersion": 5})] {
        let mut sandbox = crate::harness::mk_sandbox("b");
        json_patch::merge(&mut sandbox["metadata"], &metadata);
        let refused = cluster.client.post(SANDBOXES, &sandbox).await;
        refused.refusal(400, "BadRequest");
    }
}

#[tokio::test]
async fn a_patch_is_of_an_object_that_is_there() {
    let cluster = mk_cluster().await;
    let missing = cluster.client.merge(item("b"), &json!({})).await;
    missing.refusal(404, "NotFound");
    let collection = cluster.client.merge(SANDBOXES, &json!({})).await;
    collection.refusal(405, "MethodNotAllowed");
    for other in [
        json!({"metadata": {"name": "b"}}),
        json!({"metadata": {"name": null}}),
        json!({"metadata": {"namespace": "other"}}),
        json!({"metadata": null}),
        json!({"metadata": "x"}),
        json!({"kind": "Pod"}),
    ] {
        let refused = cluster.client.merge(item("a"), &other).await;
        refused.refusal(400, "BadRequest");
    }
    let refused = cluster
        .client
        .merge(item("a"), &json!({"metadata": {"uid": "u"}}))
        .await;
    refused.refusal(422, "Invalid");
    for broken in [
        json!({"spec": null}),
        json!({"spec": 5}),
        json!({"metadata": {"labels": "x"}}),
    ] {
        let refused = cluster.client.merge(item("a"), &broken).await;
        refused.refusal(422, "Invalid");
    }
}

#[tokio::test]
async fn two_patches_of_different_fields_both_land() {
    let cluster = mk_cluster().await;
    let patches = (0..8).map(async |number| {
        let patch = json!({"metadata": {"labels": {format!("l{number}"): "x"}}});
        cluster.client.merge(item("a"), &patch).await.code()
    });
    assert_eq!(join_all(patches).await, [200; 8]);
    let shown = cluster.client.get(item("a")).await.json();
    for number in 0..8 {
        assert_eq!(shown["metadata"]["labels"][format!("l{number}")], "x");
    }
}

#[tokio::test]
async fn a_patch_that_names_a_version_is_of_that_version() {
    let cluster = mk_cluster().await;
    let read = cluster.client.get(item("a")).await.json();
    let version = &read["metadata"]["resourceVersion"];
    let patch =
        |label: &str| json!({"metadata": {"labels": {"by": label}, "resourceVersion": version}});
    assert_eq!(
        cluster.client.merge(item("a"), &patch("one")).await.code(),
        200
    );
    cluster
        .client
        .merge(item("a"), &patch("two"))
        .await
        .refusal(409, "Conflict");
}

#[tokio::test]
async fn unknown_fields_are_treated_as_asked() {
    let cluster = mk_cluster().await;
    let body = r#"{"spec":{"x":1},"metadata":{"labels":{"a":"1","a":"2"}}}"#;
    let send = async |query: &str| {
        let path = format!("{}{query}", item("a"));
        let headers = [("content-type", "application/merge-patch+json")];
        cluster.client.request("PATCH", &path, &headers, body).await
    };
    let strict = send("?fieldValidation=Strict")
        .await
        .refusal(422, "Invalid");
    let message = strict["message"].as_str().unwrap();
    assert!(message.contains("unknown field \"spec.x\""), "{message}");
    assert!(
        message.contains("duplicate field \"metadata.labels.a\""),
        "{message}"
    );
    let warned = send("").await;
    assert_eq!(warned.code(), 200);
    assert!(
        warned
            .headers("warning")
            .contains(&r#"299 - "unknown field \"spec.x\"""#)
    );
    assert_eq!(warned.json()["spec"].get("x"), None);
    let ignored = send("?fieldValidation=Ignore").await;
    assert!(
        !ignored
            .headers("warning")
            .iter()
            .any(|text| text.contains("unknown"))
    );
}

#[tokio::test]
async fn the_operating_mode_does_what_it_says_and_a_dry_run_does_not() {
    let cluster = mk_cluster().await;
    let suspend = json!({"spec": {"operatingMode": "Suspended"}});
    let calls = cluster.writes_at_nodes();
    let path = format!("{}?dryRun=All", item("a"));
    let would = cluster.client.merge(&path, &suspend).await;
    assert_eq!(
        (would.code(), &would.json()["spec"]["operatingMode"]),
        (200, &json!("Suspended"))
    );
    assert_eq!(cluster.writes_at_nodes(), calls);
    let suspended = cluster.client.merge(item("a"), &suspend).await;
    assert_eq!(suspended.code(), 200, "{}", suspended.text());
    let ready = &suspended.json()["status"]["conditions"][0];
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("SandboxSuspended"))
    );
    assert_eq!(cluster.writes_at_nodes(), calls + 1);
    let resume = json!([{"op": "replace", "path": "/spec/operatingMode", "value": "Running"}]);
    let resumed = cluster.client.operations(item("a"), &resume).await.json();
    assert_eq!(resumed["status"]["conditions"][0]["status"], "True");
}

#[tokio::test]
async fn the_servers_keys_and_the_status_stay() {
    let cluster = mk_cluster().await;
    let before = cluster.client.get(item("a")).await.json();
    let patch = json!({
        "metadata": {
            "labels": {"sandbox.cocoonstack.io/node": "mine"},
            "annotations": {"sandbox.cocoonstack.io/claim-id": null},
            "generation": 50,
        },
        "status": {"nodeName": "mine"},
    });
    let patched = cluster.client.merge(item("a"), &patch).await;
    assert_eq!(patched.code(), 200);
    let after: Value = patched.json();
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    assert_eq!(
        after["metadata"]["annotations"],
        before["metadata"]["annotations"]
    );
    assert_eq!(after["status"], before["status"]);
    assert_eq!(
        after["metadata"]["generation"],
        before["metadata"]["generation"]
    );
}
