//! Actions on a sandbox: done once, refused for nothing, and only when they are meant.

use std::time::Duration;

use sandbox_apiserver::{
    gateway::GatewayOptions,
    sim::{Fault, FaultKind},
};
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Cluster, SANDBOXES, TABLE, item, mk_node, until};

const ACTIONS: [&str; 5] = ["pause", "resume", "fork", "snapshot", "token"];

async fn mk_cluster() -> Cluster {
    let cluster = Cluster::start(mk_node(8)).await;
    cluster.create("a").await;
    cluster
}

async fn post(client: &Client, action: &str, body: &str) -> Answer {
    let path = format!("{}/{action}", item("a"));
    client.request("POST", &path, &[], body.to_owned()).await
}

#[tokio::test]
async fn pause_and_resume_may_be_repeated_and_need_no_body() {
    let cluster = mk_cluster().await;
    for (action, mode, ready, generation) in [
        ("resume", "Running", "True", 1),
        ("pause", "Suspended", "False", 2),
        ("pause", "Suspended", "False", 2),
        ("resume", "Running", "True", 3),
        ("resume", "Running", "True", 3),
    ] {
        let would = post(&cluster.client, &format!("{action}?dryRun=All"), "").await;
        assert_eq!(would.json()["metadata"]["generation"], generation);
        let done = post(&cluster.client, action, "").await;
        assert_eq!(done.code(), 200, "{}", done.text());
        let object = done.json();
        assert_eq!(object["kind"], "Sandbox");
        assert_eq!(object["spec"]["operatingMode"], mode);
        assert_eq!(object["metadata"]["generation"], generation);
        let condition = &object["status"]["conditions"][0];
        assert_eq!(condition["status"], ready);
        assert_eq!(condition["observedGeneration"], generation);
        assert_eq!(cluster.client.get(item("a")).await.json(), object);
    }
}

#[tokio::test]
async fn on_a_node_that_is_to_be_emptied_nothing_starts() {
    let cluster = mk_cluster().await;
    let node = cluster.nodes.nodes()[0].name().clone();
    assert_eq!(post(&cluster.client, "pause", "").await.code(), 200);
    cluster.fleet.set_cordoned(&node, true);
    let writes = cluster.writes_at_nodes();
    for action in ["resume", "fork"] {
        let refused = post(&cluster.client, action, "").await;
        let status = refused.refusal(409, "Conflict");
        assert!(
            status["message"].as_str().unwrap().contains("cordoned"),
            "{status}"
        );
    }
    let running = json!({"spec": {"operatingMode": "Running"}});
    let refused = cluster.client.merge(item("a"), &running).await;
    refused.refusal(409, "Conflict");
    assert_eq!(cluster.writes_at_nodes(), writes);
    cluster.fleet.set_cordoned(&node, false);
    assert_eq!(post(&cluster.client, "resume", "").await.code(), 200);
}

#[tokio::test]
async fn a_pause_that_takes_long_goes_on_and_is_shown_when_it_is_done() {
    let waits = GatewayOptions {
        patience: Duration::from_millis(50),
        ..GatewayOptions::default()
    };
    let cluster = Cluster::waiting(mk_node(8), waits).await;
    cluster.create("a").await;
    let before = cluster.client.get(item("a")).await.json();
    let slow = FaultKind::Late { millis: 1_500 };
    let slow = Fault::once(slow, "/v1/sandboxes/*/hibernate");
    assert!(cluster.nodes.nodes()[0].inject(slow).await);
    // Whoever asks again meanwhile waits for the same call.
    for _ in 0..2 {
        let going = post(&cluster.client, "pause", "").await;
        assert_eq!(going.code(), 202, "{}", going.text());
        assert_eq!(going.json(), before, "nothing is promised yet");
    }
    let mode = async || {
        let shown = cluster.client.get(item("a")).await.json();
        shown["spec"]["operatingMode"].clone()
    };
    assert_eq!(mode().await, "Running");
    let begun = std::time::Instant::now();
    while mode().await != "Suspended" {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it is never done"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let paused = post(&cluster.client, "pause", "").await;
    assert_eq!(paused.code(), 200, "{}", paused.text());
    let log = cluster.nodes.nodes()[0].log();
    let calls = log.iter().filter(|call| call.path.ends_with("/hibernate"));
    assert_eq!(calls.count(), 1, "three pauses are one call");
}

#[tokio::test]
async fn a_fork_answers_with_its_copies_and_their_tokens() {
    let cluster = mk_cluster().await;
    let body = r#"{"apiVersion":"agents.x-k8s.io/v1beta1","kind":"SandboxForkOptions","count":2,"namePrefix":"copy-"}"#;
    let forked = post(&cluster.client, "fork", body).await;
    assert_eq!(forked.code(), 201, "{}", forked.text());
    let list = forked.json();
    assert_eq!(list["kind"], "SandboxList");
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 2);
    for copy in items {
        let name = copy["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("copy-"));
        let token = &copy["metadata"]["annotations"]["sandbox.cocoonstack.io/token"];
        let shown = cluster.client.get(item(name)).await;
        assert_eq!(shown.code(), 200);
        assert!(
            !shown.text().contains(token.as_str().unwrap()),
            "shown once"
        );
    }
}

#[tokio::test]
async fn a_snapshot_of_a_name_is_taken_once() {
    let cluster = mk_cluster().await;
    let first = post(&cluster.client, "snapshot", r#"{"name":"s1"}"#).await;
    assert_eq!(first.code(), 201, "{}", first.text());
    let first = first.json();
    assert_eq!(first["kind"], "SandboxSnapshot");
    let again = post(&cluster.client, "snapshot", r#"{"name":"s1"}"#).await;
    assert_eq!(again.json()["status"]["id"], first["status"]["id"]);
}

#[tokio::test]
async fn a_promoted_sandbox_is_a_template_of_its_node() {
    let cluster = mk_cluster().await;
    let body = r#"{"template":"mine"}"#;
    let would = post(&cluster.client, "promote?dryRun=All", body).await;
    assert!(
        cluster.nodes.nodes()[0]
            .log()
            .iter()
            .all(|call| !call.path.ends_with("/promote"))
    );
    for _ in 0..2 {
        let promoted = post(&cluster.client, "promote", body).await;
        assert_eq!(promoted.code(), 201, "{}", promoted.text());
        let promoted = promoted.json();
        assert_eq!(promoted["kind"], "SandboxPromotion");
        assert_eq!(promoted["template"], "mine");
        assert_eq!(promoted["net"], "none");
        assert_eq!(promoted["size"], "small");
        let object = cluster.client.get(item("a")).await.json();
        assert_eq!(promoted["node"], object["status"]["nodeName"]);
        assert_eq!(promoted, would.json());
    }
    let unnamed = post(&cluster.client, "promote", "").await;
    let refusal = unnamed.refusal(422, "Invalid");
    assert_eq!(refusal["details"]["causes"][0]["field"], "template");
    // A template that is a configured pool is not replaced.
    let taken = post(&cluster.client, "promote", r#"{"template":"python:3.12"}"#).await;
    taken.refusal(409, "Conflict");
}

#[tokio::test]
async fn a_token_is_that_of_the_create_and_a_dry_run_shows_none() {
    let cluster = Cluster::start(mk_node(8)).await;
    let created = cluster.create("a").await;
    let token = &created["metadata"]["annotations"]["sandbox.cocoonstack.io/token"];
    let shown = post(&cluster.client, "token", "").await;
    assert_eq!(shown.code(), 201, "{}", shown.text());
    assert_eq!(shown.json()["kind"], "SandboxToken");
    assert_eq!(shown.json()["token"], *token);
    let would = post(&cluster.client, "token?dryRun=All", "").await;
    assert_eq!(would.json()["token"], "");
}

#[tokio::test]
async fn stats_are_read_from_the_node_and_what_was_not_measured_is_absent() {
    let cluster = mk_cluster().await;
    let path = format!("{}/stats", item("a"));
    let stats = cluster.client.get(&path).await;
    assert_eq!(stats.code(), 200, "{}", stats.text());
    let stats = stats.json();
    assert_eq!(stats["kind"], "SandboxStats");
    assert_eq!(
        stats["metadata"],
        json!({"namespace": "default", "name": "a"})
    );
    assert_eq!(
        (&stats["cpuCount"], &stats["paused"]),
        (&json!(1), &json!(false))
    );
    let used = stats["memUsedBytes"].as_u64().unwrap();
    assert!(0 < used && used <= stats["memTotalBytes"].as_u64().unwrap());
    post(&cluster.client, "pause", "").await;
    let stats = cluster.client.get(&path).await.json();
    assert_eq!(stats["paused"], true);
    assert!(stats.get("memUsedBytes").is_none(), "{stats}");

    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let refused = cluster.client.request(method, &path, &[], "{}").await;
        refused.refusal(405, "MethodNotAllowed");
    }
    let absent = cluster.client.get(format!("{}/stats", item("b"))).await;
    absent.refusal(404, "NotFound");
}

#[tokio::test]
async fn a_dry_run_asks_no_node() {
    let cluster = mk_cluster().await;
    let (calls, version) = (cluster.writes_at_nodes(), cluster.fleet.store().head());
    for action in ACTIONS {
        let would = post(&cluster.client, &format!("{action}?dryRun=All"), "").await;
        assert!(would.status.is_success(), "{action}: {}", would.text());
        let refused = post(&cluster.client, &format!("{action}?dryRun=Some"), "").await;
        refused.refusal(422, "Invalid");
    }
    assert_eq!(cluster.writes_at_nodes(), calls);
    assert_eq!(cluster.fleet.store().head(), version);
    assert_eq!(cluster.client.get(SANDBOXES).await.names(), ["a"]);
}

#[tokio::test]
async fn what_is_not_meant_is_not_done() {
    let cluster = mk_cluster().await;
    let calls = cluster.writes_at_nodes();
    for (action, body, code, reason) in [
        (
            "pause",
            r#"{"kind":"SandboxForkOptions"}"#,
            400,
            "BadRequest",
        ),
        ("pause", r#"{"apiVersion":"v1"}"#, 400, "BadRequest"),
        ("pause", "[]", 400, "BadRequest"),
        ("pause", "{", 400, "BadRequest"),
        (
            "pause?fieldValidation=Strict",
            r#"{"x":1}"#,
            400,
            "BadRequest",
        ),
        ("fork", r#"{"count":0}"#, 422, "Invalid"),
        ("fork", r#"{"count":17}"#, 422, "Invalid"),
        ("fork", r#"{"count":"two"}"#, 422, "Invalid"),
        ("fork", r#"{"namePrefix":"Upper"}"#, 422, "Invalid"),
        ("fork", r#"{"ttlSeconds":0}"#, 422, "Invalid"),
        ("snapshot", r#"{"name":"a b"}"#, 422, "Invalid"),
        ("explode", "{}", 404, "NotFound"),
        ("pause/more", "{}", 404, "NotFound"),
    ] {
        let refused = post(&cluster.client, action, body).await;
        assert_eq!(refused.code(), code, "{action} {body}: {}", refused.text());
        refused.refusal(code, reason);
    }
    for method in ["GET", "PUT", "PATCH", "DELETE"] {
        let path = format!("{}/pause", item("a"));
        let refused = cluster.client.request(method, &path, &[], "{}").await;
        refused.refusal(405, "MethodNotAllowed");
        let path = format!("{}/nothing", item("a"));
        let refused = cluster.client.request(method, &path, &[], "{}").await;
        refused.refusal(404, "NotFound");
    }
    assert_eq!(cluster.writes_at_nodes(), calls);
}

#[tokio::test]
async fn an_object_that_is_not_there_is_not_found() {
    let cluster = mk_cluster().await;
    for action in ACTIONS {
        let path = format!("{}/{action}", item("b"));
        let missing = cluster.client.request("POST", &path, &[], "").await;
        let status = missing.refusal(404, "NotFound");
        assert_eq!(status["details"]["name"], "b");
    }
}

#[tokio::test]
async fn unknown_fields_are_told() {
    let cluster = mk_cluster().await;
    let warned = post(&cluster.client, "pause", r#"{"x":1}"#).await;
    assert_eq!(warned.code(), 200);
    assert!(
        warned
            .headers("warning")
            .contains(&r#"299 - "unknown field \"x\"""#)
    );
}

#[tokio::test]
async fn a_wrong_phase_is_a_conflict() {
    let cluster = mk_cluster().await;
    let mut held: Value = json!({"metadata": {"finalizers": ["example.com/x"]}});
    assert_eq!(cluster.client.merge(item("a"), &held).await.code(), 200);
    held = cluster.client.delete(item("a"), Value::Null).await.json();
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    for action in ACTIONS {
        let refused = post(&cluster.client, action, "").await;
        refused.refusal(409, "Conflict");
    }
}

#[tokio::test]
async fn the_status_is_read_as_the_object_and_written_by_nobody() {
    let cluster = mk_cluster().await;
    let path = format!("{}/status", item("a"));
    let object = cluster.client.get(item("a")).await.json();
    assert_eq!(cluster.client.get(&path).await.json(), object);
    let table = cluster.client.get_as(&path, TABLE).await.json();
    assert_eq!(table["rows"][0]["cells"][0], "a");

    let version = cluster.fleet.store().head();
    let mut mine = object.clone();
    mine["status"]["nodeName"] = "mine".into();
    mine["metadata"]["labels"]["x"] = "y".into();
    mine["spec"]["operatingMode"] = "Suspended".into();
    let patch = json!({"status": {"nodeName": "mine"}, "spec": {"shutdownPolicy": "Delete"}});
    let operations = json!([{"op": "replace", "path": "/status/nodeName", "value": "mine"}]);
    for written in [
        cluster.client.put(&path, &mine).await,
        cluster.client.merge(&path, &patch).await,
        cluster.client.operations(&path, &operations).await,
    ] {
        assert_eq!((written.code(), written.json()), (200, object.clone()));
        let warnings = written.headers("warning");
        assert!(
            warnings.iter().any(|text| text.contains("status")),
            "{warnings:?}"
        );
    }
    let same = cluster.client.put(&path, &object).await;
    assert_eq!(same.headers("warning"), Vec::<&str>::new());
    assert_eq!(cluster.fleet.store().head(), version);

    mine["metadata"]["resourceVersion"] = "1".into();
    cluster
        .client
        .put(&path, &mine)
        .await
        .refusal(409, "Conflict");
    cluster
        .client
        .post(&path, &object)
        .await
        .refusal(405, "MethodNotAllowed");
    cluster
        .client
        .delete(&path, Value::Null)
        .await
        .refusal(405, "MethodNotAllowed");
    let missing = format!("{}/status", item("b"));
    cluster.client.get(&missing).await.refusal(404, "NotFound");
}

/// Makes the next such call at the only node slow.
async fn delay(cluster: &Cluster, call: &str) {
    let late = FaultKind::Late { millis: 700 };
    let fault = Fault::once(late, &format!("/v1/sandboxes/*/{call}"));
    assert!(cluster.nodes.nodes()[0].inject(fault).await);
}

#[tokio::test]
async fn a_resume_during_a_pause_is_refused_not_forgotten() {
    let cluster = mk_cluster().await;
    delay(&cluster, "hibernate").await;
    let pause = post(&cluster.client, "pause", "");
    let resume = async {
        // Until the pause is under way the sandbox runs.
        let mut resumed = post(&cluster.client, "resume", "").await;
        for _ in 0..100 {
            if resumed.code() == 409 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            resumed = post(&cluster.client, "resume", "").await;
        }
        resumed
    };
    let (paused, refused) = futures::join!(pause, resume);
    assert_eq!(paused.code(), 200, "{}", paused.text());
    let status = refused.refusal(409, "Conflict");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("a pause is under way")
    );
    assert_eq!(post(&cluster.client, "resume", "").await.code(), 200);
    let object = cluster.client.get(item("a")).await.json();
    assert_eq!(object["spec"]["operatingMode"], "Running");
}

#[tokio::test]
async fn a_snapshot_of_another_name_is_another_snapshot() {
    let cluster = mk_cluster().await;
    delay(&cluster, "checkpoint").await;
    let (one, other) = futures::join!(
        post(&cluster.client, "snapshot", r#"{"name":"s1"}"#),
        post(&cluster.client, "snapshot", r#"{"name":"s2"}"#),
    );
    let (one, other) = (one.json(), other.json());
    assert_ne!(one["status"]["id"], other["status"]["id"]);
    let name = |snapshot: &Value| snapshot["metadata"]["name"].clone();
    assert_eq!((name(&one), name(&other)), (json!("s1"), json!("s2")));
}

#[tokio::test]
async fn a_fork_of_an_id_is_made_once() {
    let cluster = mk_cluster().await;
    let fork = async || post(&cluster.client, "fork", r#"{"count":2,"id":"x"}"#).await;
    delay(&cluster, "fork").await;
    let (one, other) = futures::join!(fork(), fork());
    let (made, refused) = match one.code() {
        201 => (one, other),
        _ => (other, one),
    };
    assert_eq!(made.code(), 201, "{}", made.text());
    refused.refusal(409, "Conflict");
    let mut names = made.names();
    names.sort();
    assert!(
        names.iter().all(|name| name.starts_with("a-x-")),
        "{names:?}"
    );

    let again = fork().await;
    assert_eq!((again.code(), again.names()), (200, names.clone()));
    assert!(made.text().contains("sandbox.cocoonstack.io/token"));
    assert!(!again.text().contains("sandbox.cocoonstack.io/token"));
    let other = post(&cluster.client, "fork", r#"{"id":"y"}"#).await;
    assert_eq!(other.code(), 201, "{}", other.text());

    for name in names {
        cluster.client.delete(item(&name), Value::Null).await;
    }
    assert_eq!(fork().await.code(), 201, "nothing of it is left");
}

#[tokio::test]
async fn a_fork_whose_answer_was_lost_is_found_by_its_id() {
    let cluster = mk_cluster().await;
    let fork = async || post(&cluster.client, "fork", r#"{"id":"x"}"#).await;
    let lost = Fault::once(FaultKind::AnswerLost, "/v1/sandboxes/*/fork");
    assert!(cluster.nodes.nodes()[0].inject(lost).await);
    fork().await.refusal(500, "InternalError");
    fork().await.refusal(409, "Conflict");
    cluster.publish().await;
    let mut found = fork().await;
    while found.code() == 409 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        found = fork().await;
    }
    assert_eq!((found.code(), found.names().len()), (200, 1));
    assert_eq!(cluster.nodes.nodes()[0].claimed(), 2);
}

#[tokio::test]
async fn forks_of_other_ids_and_parents_are_other_copies() {
    let cluster = mk_cluster().await;
    cluster.create("b").await;
    let mut uids = std::collections::BTreeSet::new();
    for (parent, prefix, id) in [
        ("a", "x", "yz"),
        ("a", "xy", "z"),
        ("b", "x", "yz"),
        ("a", "x", "y"),
    ] {
        let body = json!({"namePrefix": prefix, "id": id});
        let forked = cluster
            .client
            .post(format!("{}/fork", item(parent)), &body)
            .await;
        assert_eq!(forked.code(), 201, "{}", forked.text());
        let copy = forked.json()["items"][0]["metadata"]["uid"].to_string();
        assert!(uids.insert(copy), "{parent} {prefix} {id}");
        let again = cluster
            .client
            .post(format!("{}/fork", item(parent)), &body)
            .await;
        assert_eq!(again.code(), 200, "{}", again.text());
        assert!(uids.contains(&again.json()["items"][0]["metadata"]["uid"].to_string()));
    }
}

/// Who comes late at the node: the action, or the release.
#[derive(Clone, Copy, Debug)]
enum Late {
    Action,
    Release,
}

/// Deletes the sandbox while an action of it is under way. Whoever wins: the VM goes, what the action made is listed or gone, and
/// whatever the node holds is listed.
async fn race(action: &str, call: &str, body: &str, late: Late) {
    let what = format!("{action}, late: {late:?}");
    let cluster = mk_cluster().await;
    let node = &cluster.nodes.nodes()[0];
    if action == "resume" {
        assert_eq!(post(&cluster.client, "pause", "").await.code(), 200);
    }
    let (method, path) = match late {
        Late::Action => ("POST", format!("/v1/sandboxes/*/{call}")),
        Late::Release => ("DELETE", "/v1/sandboxes/*".to_owned()),
    };
    let fault = Fault {
        method: Some(method.to_owned()),
        ..Fault::once(FaultKind::Late { millis: 300 }, &path)
    };
    assert!(node.inject(fault).await, "{what}");
    let act = async {
        if matches!(late, Late::Release) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        post(&cluster.client, action, body).await
    };
    let delete = async {
        if matches!(late, Late::Action) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        cluster.client.delete(item("a"), json!({})).await
    };
    let (acted, deleted) = futures::join!(act, delete);
    assert_eq!(deleted.code(), 200, "{what}: {}", deleted.text());
    let refused = [404, 409, 500, 503].contains(&acted.code());
    assert!(refused || acted.code() < 300, "{what}: {}", acted.text());

    // A release that was refused for the moment is repeated.
    until("the sandbox is gone", || {
        node.claims_of("default/a").is_empty()
    })
    .await;
    cluster.publish().await;
    cluster.client.get(item("a")).await.refusal(404, "NotFound");
    let listed = cluster.client.get(SANDBOXES).await.names();
    assert_eq!(listed.len(), node.claimed(), "{what}: {listed:?}");
    if action == "fork" {
        let copies = if refused { 0 } else { 2 };
        assert_eq!(listed.len(), copies, "{what}: {}", acted.text());
    }
    if action == "snapshot" {
        let shown = cluster.client.get(snapshot("s1")).await.code();
        assert_eq!(shown == 200, !refused, "{what}: {}", acted.text());
    }
}

#[tokio::test]
async fn a_delete_during_an_action_leaves_nothing_unlisted() {
    for late in [Late::Action, Late::Release] {
        race("resume", "wake", "", late).await;
        race("fork", "fork", r#"{"count":2}"#, late).await;
        race("snapshot", "checkpoint", r#"{"name":"s1"}"#, late).await;
    }
}

fn snapshot(name: &str) -> String {
    format!(
        "{}/{name}",
        SANDBOXES.replace("sandboxes", "sandboxsnapshots")
    )
}
