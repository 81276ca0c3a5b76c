//! DELETE: the object that is meant, and no other.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_apiserver::{
    admission::Quotas,
    api::{Delivery, PoolKey, SandboxKey},
    apiserver::{Context, Deleted, Deletion, Dependents, NotUpdated, Resource},
    auth::UserInfo,
    sandboxd::{ClaimRequest, Claimed},
    sim::{Fault, FaultKind},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::harness::{Cluster, SANDBOXES, item, mk_node, mk_sandbox, until};

/// Number of sandboxes that the nodes were told to release.
fn releases(cluster: &Cluster) -> usize {
    let logs = cluster.nodes.nodes().iter().flat_map(|node| node.log());
    logs.filter(|request| request.path.ends_with("/release"))
        .count()
}

#[tokio::test]
async fn success_names_the_uid_that_clients_wait_for() {
    let cluster = Cluster::start(mk_node(4)).await;
    let created = cluster.create("a").await;
    let deleted = cluster.client.delete(item("a"), Value::Null).await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    assert_eq!(
        deleted.json(),
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {
                "name": "a", "group": "agents.x-k8s.io", "kind": "sandboxes",
                "uid": created["metadata"]["uid"],
            },
        })
    );
    assert_eq!(releases(&cluster), 1);
    assert_eq!(cluster.nodes.nodes()[0].claimed(), 0);
    cluster.client.get(item("a")).await.refusal(404, "NotFound");
    let again = cluster.client.delete(item("a"), Value::Null).await;
    again.refusal(404, "NotFound");
    let recreated = cluster.create("a").await;
    assert_ne!(recreated["metadata"]["uid"], created["metadata"]["uid"]);
}

#[tokio::test]
async fn preconditions_protect_a_recreated_object() {
    let cluster = Cluster::start(mk_node(4)).await;
    let created = cluster.create("a").await;
    let uid = created["metadata"]["uid"].clone();
    let version = created["metadata"]["resourceVersion"].clone();
    for wrong in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let options = json!({"preconditions": wrong});
        let refused = cluster.client.delete(item("a"), options).await;
        let status = refused.refusal(409, "Conflict");
        assert!(status["message"].as_str().unwrap().contains("recondition"));
    }
    assert_eq!(releases(&cluster), 0);
    let options = json!({"preconditions": {"uid": uid, "resourceVersion": version}});
    assert_eq!(cluster.client.delete(item("a"), options).await.code(), 200);
    assert_eq!(releases(&cluster), 1);
}

#[tokio::test]
async fn options_are_of_any_group_that_has_them() {
    let cluster = Cluster::start(mk_node(8)).await;
    for (name, api_version) in [
        ("a", json!("v1")),
        ("b", json!("meta.k8s.io/v1")),
        ("c", json!("agents.x-k8s.io/v1beta1")),
        ("d", Value::Null),
    ] {
        cluster.create(name).await;
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": api_version, "propagationPolicy": "Background",
            "gracePeriodSeconds": 0,
        });
        let deleted = cluster.client.delete(item(name), options).await;
        assert_eq!(deleted.code(), 200, "{}", deleted.text());
    }
}

#[tokio::test]
async fn options_that_cannot_be_read_delete_nothing() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    for body in [
        "{",
        "[]",
        "\"x\"",
        r#"{"kind":"Pod"}"#,
        r#"{"apiVersion":"apps/v1"}"#,
        r#"{"dryRun":"All"}"#,
        r#"{"dryRun":[true]}"#,
        r#"{"preconditions":"uid"}"#,
        r#"{"preconditions":{"uid":7}}"#,
        r#"{"preconditions":["uid"]}"#,
        r#"{"propagationPolicy":1}"#,
        r#"{"orphanDependents":"yes"}"#,
        r#"{"gracePeriodSeconds":"now"}"#,
    ] {
        let refused = cluster
            .client
            .request("DELETE", &item("a"), &[], body)
            .await;
        assert_eq!(refused.code(), 400, "{body}: {}", refused.text());
        refused.refusal(400, "BadRequest");
    }
    for options in [
        json!({"dryRun": ["Some"]}),
        json!({"propagationPolicy": "Sideways"}),
        json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
    ] {
        let refused = cluster.client.delete(item("a"), options).await;
        let status = refused.refusal(422, "Invalid");
        assert_eq!(status["details"]["kind"], "DeleteOptions");
    }
    for query in ["propagationPolicy=Sideways", "dryRun=Some"] {
        let path = format!("{}?{query}", item("a"));
        let refused = cluster.client.delete(path, Value::Null).await;
        refused.refusal(422, "Invalid");
    }
    assert_eq!(releases(&cluster), 0);
}

#[tokio::test]
async fn a_dry_run_deletes_nothing_wherever_it_is_asked_for() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let calls = cluster.writes_at_nodes();
    let options = json!({"dryRun": ["All"]});
    assert_eq!(cluster.client.delete(item("a"), options).await.code(), 200);
    let path = format!("{}?dryRun=All", item("a"));
    assert_eq!(cluster.client.delete(&path, Value::Null).await.code(), 200);
    let with_body = json!({"propagationPolicy": "Background"});
    assert_eq!(cluster.client.delete(&path, with_body).await.code(), 200);
    assert_eq!(cluster.client.get(item("a")).await.code(), 200);
    assert_eq!(cluster.writes_at_nodes(), calls);
}

#[tokio::test]
async fn foreground_and_orphan_leave_the_object_for_the_garbage_collector() {
    let cluster = Cluster::start(mk_node(4)).await;
    for (name, policy, finalizer) in [
        ("a", "Foreground", "foregroundDeletion"),
        ("b", "Orphan", "orphan"),
    ] {
        cluster.create(name).await;
        let options = json!({"propagationPolicy": policy});
        let pending = cluster.client.delete(item(name), options.clone()).await;
        assert_eq!(pending.code(), 200, "{}", pending.text());
        let pending = pending.json();
        assert_eq!(pending["kind"], "Sandbox");
        assert!(pending["metadata"]["deletionTimestamp"].is_string());
        assert_eq!(pending["metadata"]["deletionGracePeriodSeconds"], 0);
        assert_eq!(pending["metadata"]["finalizers"], json!([finalizer]));
        let again = cluster.client.delete(item(name), options).await;
        assert_eq!(again.code(), 200, "a repeated delete is no error");

        let version = &again.json()["metadata"]["resourceVersion"];
        let patch = json!({"metadata": {"finalizers": null, "resourceVersion": version}});
        let finished = cluster.client.merge(item(name), &patch).await;
        assert_eq!(finished.code(), 200, "{}", finished.text());
        cluster
            .client
            .get(item(name))
            .await
            .refusal(404, "NotFound");
    }
}

#[tokio::test]
async fn finalizers_outlive_the_vm_and_no_new_ones_come() {
    let cluster = Cluster::start(mk_node(4)).await;
    let mut sandbox = mk_sandbox("a");
    sandbox["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_eq!(cluster.client.post(SANDBOXES, &sandbox).await.code(), 201);
    let from = cluster.client.get(SANDBOXES).await.json();
    let from = from["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{SANDBOXES}?watch=true&resourceVersion={from}");
    let mut watch = cluster.client.watch(path).await;
    let pending = cluster.client.delete(item("a"), Value::Null).await;
    let pending = pending.json();
    assert!(pending["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(pending["metadata"]["generation"], 2);
    assert_eq!(watch.next().await, "MODIFIED a");
    assert_eq!(
        cluster.nodes.nodes()[0].claimed(),
        0,
        "the VM is not held back"
    );
    let shown = cluster.client.get(item("a")).await.json();
    assert_eq!(
        shown["status"]["conditions"][0]["status"], "False",
        "{shown}"
    );
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    let refused = cluster.client.merge(item("a"), &more).await;
    refused.refusal(422, "Invalid");
    let taken = cluster.client.post(SANDBOXES, &mk_sandbox("a")).await;
    let status = taken.refusal(409, "AlreadyExists");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .starts_with("object is being deleted: ")
    );
    let label = json!({"metadata": {"labels": {"seen": "yes"}}});
    let labelled = cluster.client.merge(item("a"), &label).await.json();
    assert_eq!(labelled["metadata"]["generation"], 2);
    let none = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
    let finished = cluster.client.operations(item("a"), &none).await;
    assert_eq!(finished.code(), 200, "{}", finished.text());
    loop {
        let next = watch.next().await;
        if next == "DELETED a" {
            break;
        }
        assert_eq!(next, "MODIFIED a");
    }
    cluster.client.get(item("a")).await.refusal(404, "NotFound");
}

#[tokio::test]
async fn what_a_node_does_not_find_any_more_is_released_all_the_same() {
    let cluster = Cluster::start(mk_node(4)).await;
    let mut sandbox = mk_sandbox("a");
    sandbox["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_eq!(cluster.client.post(SANDBOXES, &sandbox).await.code(), 201);
    let node = &cluster.nodes.nodes()[0];
    assert!(node.lose(&node.claims_of("default/a")[0]));
    cluster.publish().await;
    let shown = || cluster.fleet.store().get("default", "a");
    until("only its finalizer keeps it", || {
        shown().is_some_and(|record| record.value.gone)
    })
    .await;
    assert_eq!(releases(&cluster), 0);
    let label = json!({"metadata": {"labels": {"seen": "yes"}}});
    let labelled = cluster.client.merge(item("a"), &label).await;
    let warning = labelled.header("warning").to_owned();
    assert!(warning.contains("is gone from its node"), "{warning}");
    let deleted = cluster.client.delete(item("a"), Value::Null).await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    until("the node is told", || releases(&cluster) == 1).await;
    assert!(shown().is_some(), "the finalizer is still there");
    for _ in 0..3 {
        let again = cluster.client.delete(item("a"), Value::Null).await;
        assert_eq!(again.code(), 200, "{}", again.text());
    }
    assert_eq!(releases(&cluster), 1, "once");
}

#[tokio::test]
async fn what_a_starting_daemon_denies_is_released_when_it_has_found_it() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let node = &cluster.nodes.nodes()[0];
    let denied = Fault {
        times: Some(2),
        path: "/v1/sandboxes/*".to_owned(),
        ..Fault::always(FaultKind::Status {
            status: 404,
            text: "sandbox not found".to_owned(),
        })
    };
    assert!(node.inject(denied).await);
    let deleted = cluster.client.delete(item("a"), Value::Null).await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    assert_eq!(node.claimed(), 1, "it has found it");
    cluster.publish().await;
    until("it is released", || node.claimed() == 0).await;
    cluster.client.get(item("a")).await.refusal(404, "NotFound");
}

#[tokio::test]
async fn an_unreachable_node_leaves_the_object_pending() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let node = &cluster.nodes.nodes()[0];
    assert!(node.inject(Fault::always(FaultKind::Refuse)).await);
    let pending = cluster.client.delete(item("a"), Value::Null).await;
    assert_eq!(pending.code(), 200, "{}", pending.text());
    assert!(pending.json()["metadata"]["deletionTimestamp"].is_string());
    let shown = cluster.client.get(item("a")).await;
    assert_eq!(
        shown.code(),
        200,
        "what may still run is not said to be gone"
    );

    // The object says what holds it, and nobody takes that away or over.
    let own = json!(["sandbox.cocoonstack.io/release"]);
    let mut shown = shown.json();
    assert_eq!(shown["metadata"]["finalizers"], own);
    let none = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
    let kept = cluster.client.operations(item("a"), &none).await.json();
    assert_eq!(kept["metadata"]["finalizers"], own, "{kept}");
    shown["metadata"]["labels"]["seen"] = "yes".into();
    let replaced = cluster.client.put(item("a"), &shown).await;
    assert_eq!(replaced.code(), 200, "{}", replaced.text());
    assert_eq!(replaced.json()["metadata"]["finalizers"], own);
    node.clear_faults().await;
    until("it is gone", || {
        cluster.fleet.store().get("default", "a").is_none()
    })
    .await;
    assert_eq!(node.claimed(), 0);
}

#[tokio::test]
async fn the_servers_own_finalizer_is_nobody_elses_to_set() {
    let cluster = Cluster::start(mk_node(4)).await;
    let mut wanted = mk_sandbox("a");
    wanted["metadata"]["finalizers"] = json!(["sandbox.cocoonstack.io/release", "example.com/x"]);
    let created = cluster.client.post(SANDBOXES, &wanted).await;
    let warning = created.header("warning").to_owned();
    assert!(
        warning.contains("metadata.finalizers[sandbox.cocoonstack.io/release]: dropped"),
        "{warning}"
    );
    assert_eq!(
        created.json()["metadata"]["finalizers"],
        json!(["example.com/x"])
    );
}

#[tokio::test]
async fn a_release_that_hangs_holds_up_no_other() {
    let cluster = Cluster::start(mk_node(8)).await;
    let node = &cluster.nodes.nodes()[0];
    let names = ["a", "b", "c", "d"];
    let mut claims = Vec::new();
    for name in names {
        let created = cluster.create(name).await;
        let claim = &created["metadata"]["annotations"]["sandbox.cocoonstack.io/claim-id"];
        claims.push(claim.as_str().unwrap().to_owned());
    }
    assert!(node.inject(Fault::always(FaultKind::Refuse)).await);
    for name in names {
        cluster.client.delete(item(name), Value::Null).await.json();
    }
    node.clear_faults().await;
    let path = format!("/v1/sandboxes/{}/release", claims[0]);
    let hangs = Fault {
        path,
        ..Fault::always(FaultKind::Hang)
    };
    assert!(node.inject(hangs).await);
    until("the others are released", || node.claimed() == 1).await;
    let left = cluster.fleet.store().get("default", "a");
    assert!(left.is_some_and(|left| left.value.deleted_at.is_some()));
}

#[tokio::test]
async fn a_client_that_leaves_leaves_nothing_half_done() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let late = FaultKind::Late { millis: 500 };
    let node = &cluster.nodes.nodes()[0];
    let late = Fault::once(late, "/v1/sandboxes/*/release");
    assert!(node.inject(late).await);
    let delete = cluster.client.delete(item("a"), Value::Null);
    timeout(Duration::from_millis(200), delete)
        .await
        .expect_err("the node is slow");
    until("it is released and gone", || {
        let listed = cluster.fleet.store().get("default", "a");
        listed.is_none() && node.claimed() == 0
    })
    .await;
    assert_eq!(releases(&cluster), 1);
}

#[tokio::test]
async fn who_asks_for_what_is_owed_is_answered_at_once() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    cluster.create("b").await;
    let node = &cluster.nodes.nodes()[0];
    assert!(node.inject(Fault::always(FaultKind::Hang)).await);
    let delete = async |name: &str| {
        let begun = Instant::now();
        let deleted = cluster.client.delete(item(name), Value::Null).await;
        let object = deleted.json();
        assert!(
            object["metadata"]["deletionTimestamp"].is_string(),
            "{object}"
        );
        begun.elapsed() < Duration::from_millis(1_500)
    };
    assert!(!delete("a").await, "the node is waited for");
    assert!(delete("a").await, "it is owed");
    assert!(delete("b").await, "the node is silent");
    node.clear_faults().await;
    until("the debts are paid", || {
        cluster
            .fleet
            .store()
            .count(&sandbox_apiserver::store::Scope::All)
            == 0
    })
    .await;
    // What it paid shows that the node is there: it takes sandboxes again.
    cluster.create("c").await;
}

#[tokio::test]
async fn what_changes_an_object_meanwhile_does_not_cost_it_its_finalizer() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let before = cluster.fleet.store().get("default", "a").unwrap();
    let patch = json!({"metadata": {"labels": {"team": "x"}}});
    let patched = cluster.client.merge(item("a"), &patch).await;
    assert_eq!(patched.code(), 200, "{}", patched.text());
    let user = Arc::new(UserInfo::new("admin", &[]));
    let context = Context::new(user, String::new(), String::new(), Quotas::none());
    let deletion = Deletion {
        dependents: Dependents::Orphan,
        exact: false,
    };
    let deleted = cluster.sandboxes.delete(&context, before, deletion).await;
    let Ok(Deleted::Pending(object)) = deleted else {
        panic!("{deleted:?}")
    };
    let user = object.value.user.as_ref().unwrap();
    assert_eq!(user.finalizers, ["orphan"]);
    assert_eq!(user.labels["team"], "x");
}

#[tokio::test]
async fn the_last_word_on_dependents_counts() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let held = json!({"metadata": {"finalizers": ["example.com/x"]}});
    assert_eq!(cluster.client.merge(item("a"), &held).await.code(), 200);
    for (options, finalizers) in [
        (
            json!({"propagationPolicy": "Orphan"}),
            json!(["example.com/x", "orphan"]),
        ),
        (json!({}), json!(["example.com/x", "orphan"])),
        (
            json!({"propagationPolicy": "Foreground"}),
            json!(["example.com/x", "foregroundDeletion"]),
        ),
        (
            json!({"propagationPolicy": "Background"}),
            json!(["example.com/x"]),
        ),
        (
            json!({"orphanDependents": true}),
            json!(["example.com/x", "orphan"]),
        ),
        (json!({"orphanDependents": false}), json!(["example.com/x"])),
    ] {
        let deleted = cluster.client.delete(item("a"), options.clone()).await;
        let is_accepted = options["orphanDependents"] == false;
        let code = if is_accepted { 202 } else { 200 };
        assert_eq!(deleted.code(), code, "{options}: {}", deleted.text());
        assert_eq!(
            deleted.json()["metadata"]["finalizers"],
            finalizers,
            "{options}"
        );
        let label = json!({"metadata": {"labels": {"x": options.to_string().len().to_string()}}});
        let labelled = cluster.client.merge(item("a"), &label).await;
        assert_eq!(labelled.code(), 200, "{options}: {}", labelled.text());
    }
    // Alone, it keeps the object until another word is said.
    let orphan = json!({"propagationPolicy": "Orphan"});
    cluster.client.delete(item("a"), orphan).await;
    let left = json!({"metadata": {"finalizers": ["orphan"]}});
    assert_eq!(cluster.client.merge(item("a"), &left).await.code(), 200);
    let background = json!({"propagationPolicy": "Background"});
    assert_eq!(
        cluster.client.delete(item("a"), background).await.code(),
        200
    );
    cluster.client.get(item("a")).await.refusal(404, "NotFound");
}

#[tokio::test]
async fn a_deletion_of_a_version_is_of_no_other() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let before = cluster.fleet.store().get("default", "a").unwrap();
    let version = before.version.to_string();
    let patch = json!({"metadata": {"labels": {"team": "x"}}});
    assert_eq!(cluster.client.merge(item("a"), &patch).await.code(), 200);
    let user = Arc::new(UserInfo::new("admin", &[]));
    let context = Context::new(user, String::new(), String::new(), Quotas::none());
    let deletion = Deletion {
        dependents: Dependents::Orphan,
        exact: true,
    };
    let deleted = cluster.sandboxes.delete(&context, before, deletion).await;
    assert!(matches!(deleted, Err(NotUpdated::Overtaken)), "{deleted:?}");
    let object = cluster.client.get(item("a")).await.json();
    assert_eq!(object["metadata"].get("deletionTimestamp"), None);
    assert_eq!(object["metadata"].get("finalizers"), None);
    assert_eq!(releases(&cluster), 0);
    let options = json!({"preconditions": {"resourceVersion": version}});
    let refused = cluster.client.delete(item("a"), options).await;
    refused.refusal(409, "Conflict");

    // From when it has begun, whoever writes sees that it has.
    let late = FaultKind::Late { millis: 300 };
    let late = Fault::once(late, "/v1/sandboxes/*/release");
    assert!(cluster.nodes.nodes()[0].inject(late).await);
    let version = &object["metadata"]["resourceVersion"];
    let options = json!({"preconditions": {"resourceVersion": version}});
    let delete = cluster.client.delete(item("a"), options);
    let patch = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let patch = json!({"metadata": {"labels": {"team": "y"}}});
        cluster.client.merge(item("a"), &patch).await
    };
    let (deleted, patched) = futures::join!(delete, patch);
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    assert_eq!(patched.code(), 200, "{}", patched.text());
    assert!(patched.json()["metadata"]["deletionTimestamp"].is_string());
    cluster.client.get(item("a")).await.refusal(404, "NotFound");
}

#[tokio::test]
async fn what_is_not_listed_yet_is_released_for_the_name_it_is_of_and_no_other() {
    let cluster = Cluster::start(mk_node(4)).await;
    let (name, address) = cluster.fleet.addresses().remove(0);
    let node = &cluster.nodes.nodes()[0];
    let pool = PoolKey {
        template: "python:3.12".into(),
        net: "none".into(),
        size: "small".into(),
    };
    let request = ClaimRequest {
        claim_ref: "team/box".to_owned(),
        ..ClaimRequest::new(pool)
    };
    let daemon = cluster.daemons.node(&address, Duration::from_secs(10));
    let Ok(Claimed::Granted(granted)) = daemon.claim(&request).await else {
        panic!("nothing is granted");
    };
    let delivery = Delivery {
        node: name,
        claim: granted.id,
    };
    let release = async |name: &str, delivery: &Delivery| {
        let key = SandboxKey::new("team", name);
        cluster.gateway.release_unreported(&key, delivery).await
    };
    assert!(release("other", &delivery).await);
    assert_eq!(node.claimed(), 1);
    let elsewhere = Delivery {
        node: "no-such-node".into(),
        ..delivery.clone()
    };
    assert!(release("box", &elsewhere).await);
    assert!(node.inject(Fault::always(FaultKind::Refuse)).await);
    assert!(!release("box", &delivery).await);
    node.clear_faults().await;
    assert!(release("box", &delivery).await);
    assert_eq!(node.claimed(), 0);
    assert!(release("box", &delivery).await, "a repeat");
}
