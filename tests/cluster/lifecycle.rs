//! What the nodes are asked for, call by call.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    caller::Caller,
    stage::{self, collection, eventually, item, sandbox},
};

const SOON: Duration = Duration::from_secs(10);

async fn is_ready(caller: &Caller, path: &str) -> Value {
    let object = caller.get(path).await.ok();
    let conditions = object["status"]["conditions"].as_array().cloned();
    let conditions = conditions.unwrap_or_default().into_iter();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    ready
        .next()
        .map(|ready| ready["status"].clone())
        .unwrap_or_default()
}

// cozystack/cozystack#3982, cozystack/cozystack#3971
#[tokio::test]
async fn a_dry_run_of_whatever_call_asks_no_node() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("dry").await, stage.own_node());
    let (admin, all, one) = (
        stage.admin(),
        collection(&namespace),
        item(&namespace, "dry"),
    );
    let wanted = sandbox("dry", &node.template);
    let created = admin.post(&all, &wanted).await.ok();
    let before = stage.nodes.requests(node.index, "POST").await;
    let others = sandbox("other", &node.template);
    let applied = sandbox("applied", &node.template);
    let mut replaced = admin.get(&one).await.ok();
    replaced["metadata"]["labels"]["dry"] = "run".into();
    let (empty, promoted) = (json!({}), json!({"template": "promoted:1"}));
    let suspended = json!({"spec": {"operatingMode": "Suspended"}});
    let operations = json!([{"op": "add", "path": "/spec/operatingMode", "value": "Suspended"}]);
    let (merge, json_patch) = (
        "application/merge-patch+json",
        "application/json-patch+json",
    );
    let (apply, plain) = ("application/apply-patch+yaml", "application/json");
    let absent = item(&namespace, "applied");
    for (method, path, form, body) in [
        ("POST", all.as_str(), plain, &others),
        ("PUT", &one, plain, &replaced),
        ("PATCH", &one, merge, &suspended),
        ("PATCH", &one, json_patch, &operations),
        ("PATCH", &absent, apply, &applied),
        ("DELETE", &one, plain, &empty),
        ("DELETE", &all, plain, &empty),
        ("POST", &format!("{one}/pause"), plain, &empty),
        ("POST", &format!("{one}/resume"), plain, &empty),
        ("POST", &format!("{one}/fork"), plain, &empty),
        ("POST", &format!("{one}/snapshot"), plain, &empty),
        ("POST", &format!("{one}/promote"), plain, &promoted),
    ] {
        let send = async |query: &str, body: &Value| {
            let request = http::Request::builder()
                .method(method)
                .uri(format!("{path}?fieldManager=test&{query}"))
                .header("content-type", form);
            let body = kube::client::Body::from(body.to_string().into_bytes());
            admin.send(request.body(body).expect("a request")).await
        };
        let answer = send("dryRun=All", body).await;
        assert!(
            answer.status.is_success(),
            "{method} {path}: {:#}",
            answer.body
        );
        let some = send("dryRun=Some", body).await;
        assert!(
            matches!(some.status.as_u16(), 400 | 422),
            "{method} {path}: {:#}",
            some.body
        );
    }
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]});
    for path in [&one, &all] {
        admin.call("DELETE", path, Some(&options)).await.ok();
    }
    for method in ["PUT", "PATCH", "DELETE"] {
        assert_eq!(
            stage.nodes.requests(node.index, method).await,
            [],
            "{method}"
        );
    }
    assert_eq!(stage.nodes.requests(node.index, "POST").await, before);
    assert_eq!(stage.nodes.held(&namespace).await.len(), 1);
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    assert_eq!(version(&admin.get(&one).await.ok()), version(&created));
    let taken = admin.post(&format!("{all}?dryRun=All"), &wanted).await;
    taken.expect(409, "AlreadyExists");
}

// mckinsey/agents-at-scale-ark#2907
#[tokio::test]
async fn a_delete_meant_for_another_object_releases_nothing() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("precondition").await, stage.own_node());
    let (admin, all, one) = (
        stage.admin(),
        collection(&namespace),
        item(&namespace, "mine"),
    );
    let wanted = sandbox("mine", &node.template);
    let first = admin.post(&all, &wanted).await.ok();
    admin.delete(&one).await.ok();
    let second = admin.post(&all, &wanted).await.ok();
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    assert_ne!(uid(&first), uid(&second));
    let release = |preconditions: Value| {
        let options =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions});
        let (admin, one) = (&admin, &one);
        async move { admin.call("DELETE", one, Some(&options)).await }
    };
    release(json!({"uid": uid(&first)}))
        .await
        .expect(409, "Conflict");
    let stale = &first["metadata"]["resourceVersion"];
    release(json!({"resourceVersion": stale}))
        .await
        .expect(409, "Conflict");
    let releases = async || {
        let requests = stage.nodes.requests(node.index, "POST").await;
        requests
            .iter()
            .filter(|(path, _)| path.ends_with("/release"))
            .count()
    };
    assert_eq!(releases().await, 1);
    let gone = release(json!({"uid": uid(&second)})).await.ok();
    assert_eq!(gone["details"]["uid"], uid(&second), "{gone:#}");
    assert_eq!(releases().await, 2);
}

// e2b-dev/E2B#879
#[tokio::test]
async fn the_lease_reaches_the_shutdown_time() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("lease").await, stage.own_node());
    let (admin, all, one) = (
        stage.admin(),
        collection(&namespace),
        item(&namespace, "leased"),
    );
    let mut wanted = sandbox("leased", &node.template);
    let end = |seconds: i64| {
        (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds))
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string()
    };
    let deadline = |object: &Value| {
        let text = object["metadata"]["annotations"]["sandbox.cocoonstack.io/deadline"].as_str();
        text.unwrap_or_default()
            .parse::<jiff::Timestamp>()
            .expect("a time")
            .as_second()
    };
    let near = |one: i64, other: &str| {
        (one - other.parse::<jiff::Timestamp>().unwrap().as_second()).abs() <= 2
    };
    let first = end(3600);
    wanted["spec"]["shutdownTime"] = first.clone().into();
    let created = admin.post(&all, &wanted).await.ok();
    assert!(near(deadline(&created), &first), "{created:#}");
    let later = end(7200);
    let patch = json!({"spec": {"shutdownTime": later}}).to_string();
    let here = format!("--namespace={namespace}");
    let args = [
        "patch",
        "sandbox",
        "leased",
        "--type=merge",
        "-p",
        &patch,
        &here,
    ];
    stage.control_plane.kubectl().stdout(&args).await;
    let renewed = admin.get(&one).await.ok();
    assert!(near(deadline(&renewed), &later), "{renewed:#}");
    assert_eq!(renewed["spec"]["shutdownTime"], json!(later));

    // Without one the node's default lease holds, and the client is told when it ends.
    let plain = admin.post(&all, &sandbox("plain", &node.template)).await;
    let warnings: Vec<_> = plain.headers.get_all("warning").iter().collect();
    let tells_the_end = |text: &&http::HeaderValue| {
        let text = text.to_str().unwrap_or_default();
        text.contains("ends with its lease")
    };
    assert!(warnings.iter().any(tells_the_end), "{warnings:?}");
}

#[tokio::test]
async fn a_lease_that_ends_is_told_and_the_object_stays_for_who_asked() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("expiry").await, stage.own_node());
    let (admin, all) = (stage.admin(), collection(&namespace));
    for (name, policy) in [("kept", "Retain"), ("dropped", "Delete")] {
        let mut wanted = sandbox(name, &node.template);
        wanted["metadata"]["annotations"] = json!({"sandbox.cocoonstack.io/ttl-seconds": "2"});
        wanted["spec"]["shutdownPolicy"] = policy.into();
        admin.post(&all, &wanted).await.ok();
    }
    let kept = item(&namespace, "kept");
    eventually(SOON, "it is known to have ended", async || {
        is_ready(&admin, &kept).await == "False"
    })
    .await;
    eventually(SOON, "the node has destroyed both", async || {
        stage.nodes.held_by(node.index, &namespace).await.is_empty()
    })
    .await;
    // Gone is what the node has left out of its inventory and denies having.
    stage.publish(node.index).await;
    eventually(SOON, "one goes", async || {
        admin.get(&item(&namespace, "dropped")).await.status == 404
    })
    .await;
    let object = admin.get(&kept).await.ok().to_string();
    assert!(object.contains("SandboxExpired"), "{object}");
    admin.delete(&kept).await.ok();
    admin.get(&kept).await.expect(404, "NotFound");
}

#[tokio::test]
async fn forks_and_snapshots_are_made_where_the_sandbox_is() {
    let stage = stage::shared().await;
    let (namespace, node) = (stage.namespace("fork").await, stage.own_node());
    let (admin, all, one) = (
        stage.admin(),
        collection(&namespace),
        item(&namespace, "parent"),
    );
    admin
        .post(&all, &sandbox("parent", &node.template))
        .await
        .ok();
    let forked = admin
        .post(&format!("{one}/fork"), &json!({"count": 3}))
        .await
        .ok();
    let children = forked["items"].as_array().cloned().unwrap_or_default();
    assert_eq!(children.len(), 3, "{forked:#}");
    for child in &children {
        let metadata = &child["metadata"];
        assert!(metadata["annotations"]["sandbox.cocoonstack.io/token"].is_string());
        let name = metadata["name"].as_str().unwrap_or_default();
        let shown = admin.get(&item(&namespace, name)).await.ok();
        assert_eq!(shown["metadata"]["uid"], metadata["uid"]);
        assert_eq!(
            shown["status"]["nodeName"],
            format!("sim-{:04}", node.index)
        );
        assert!(!shown.to_string().contains("sandbox.cocoonstack.io/token"));
    }
    let snapshot = admin
        .post(&format!("{one}/snapshot"), &json!({"name": "before"}))
        .await
        .ok();
    assert!(!snapshot.is_null(), "{snapshot:#}");
    stage.publish(node.index).await;
    let listed = admin.get(&all).await.ok();
    assert_eq!(
        listed["items"].as_array().map(Vec::len),
        Some(4),
        "no double after a publication"
    );
    admin.delete(&all).await.ok();
    assert_eq!(stage.nodes.held_by(node.index, &namespace).await, []);
}
