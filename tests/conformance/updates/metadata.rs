//! What clients say of an object beside its spec.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::super::{
    agent_node::AgentNode,
    client::{Client, MERGE},
    server::Server,
    subject::Subject,
    writes::{HOLD, OTHER_UID, SOON, labelled, post, warnings, with},
};
use crate::stage::eventually;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn mk_metadata() -> Value {
    json!({
        "labels": {"a": "1", "example.org/b": ""},
        "annotations": {LAST_APPLIED: "{\"a\":\"\\n\"}\n", "b": "", "c": "<é>&\u{2028}\t\"\\"},
        "finalizers": [HOLD, "example.org/more"],
        "ownerReferences": [{
            // Of a kind that is none, so that the garbage collector does not look for it.
            "apiVersion": "absent.example.org/v1", "kind": "Owner", "name": "p", "uid": OTHER_UID,
            "controller": true, "blockOwnerDeletion": false,
        }],
    })
}

/// What was sent is shown, and the creator's entry in `managedFields` as the create showed it.
#[track_caller]
fn compare(shown: &Value, created: &Value) {
    for (field, sent) in mk_metadata().as_object().into_iter().flatten() {
        let shown = &shown["metadata"][field];
        match sent.as_object() {
            None => assert_eq!(shown, sent),
            Some(pairs) => pairs
                .iter()
                .for_each(|(key, value)| assert_eq!(&shown[key], value, "{key}")),
        }
    }
    let entries = |object: &Value| {
        let entries = object["metadata"]["managedFields"].as_array().cloned();
        entries.unwrap_or_default()
    };
    let (creator, shown) = (entries(created), entries(shown));
    assert_eq!(creator.len(), 1);
    assert!(shown.contains(&creator[0]), "{shown:#?}");
}

/// Creates the object, and lets another manager label it.
async fn make(client: &Client, subject: &Subject, object: &Value) -> Value {
    let created = post(client, &subject.collection(), object).await.ok();
    let name = created["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("{}?fieldManager=later", subject.item(name));
    let label = labelled("later", "x");
    client.patch(MERGE, &path, &label).await.ok();
    created
}

/// That it also comes back from a restarted agent: `tests/it/agent.rs`.
pub(super) async fn c_162(subject: &Subject) {
    for (name, client) in ["a", "b"].into_iter().zip(subject.both_ways()) {
        let sent = with(subject, name, &json!({"metadata": mk_metadata()}));
        let created = make(&client, subject, &sent).await;
        if subject.has_nodes() {
            // What the node tells of the sandbox takes nothing of its metadata away.
            let held = subject.nodes().held(&subject.namespace).await;
            assert!(!held.is_empty());
            subject.publish(held[0].node).await;
        }
        let shown = client.get(&subject.item(name)).await.ok();
        compare(&shown, &created);
    }
    if subject.has_nodes() {
        outlives_the_server(subject).await;
    }
}

async fn outlives_the_server(subject: &Subject) {
    let node = AgentNode::start(subject).await;
    let token = format!("--agent-token-file={}", node.token_file().display());
    let mut server = subject.server(&[&token]);
    server.ready().await;
    let client = server.client();
    let mut sent = with(subject, "restarted", &json!({"metadata": mk_metadata()}));
    sent["spec"]["podTemplate"]["spec"]["containers"][0]["image"] = node.template.clone().into();
    let path = subject.item("restarted");
    eventually(SOON, "the agent's node takes sandboxes", async || {
        let made = client.post(&subject.collection(), &sent).await;
        made.status == 201
    })
    .await;
    let created = client.get(&path).await.ok();
    let later = format!("{path}?fieldManager=later");
    let n_changes = AtomicU32::new(0);
    eventually(SOON, "what is written is kept by the agent", async || {
        let n = n_changes.fetch_add(1, Ordering::Relaxed).to_string();
        let changed = client.patch(MERGE, &later, &labelled("later", &n)).await;
        assert_eq!(changed.status, 200, "{:#}", changed.body);
        // Of what would be forgotten, a client is told.
        warnings(&changed).is_empty()
    })
    .await;
    let before = client.get(&path).await.ok();
    end(&mut server).await;

    let mut server = subject.server(&[&token]);
    server.ready().await;
    let client = server.client();
    eventually(SOON, "the agent's node is known again", async || {
        client.get(&path).await.status == 200
    })
    .await;
    let shown = client.get(&path).await.ok();
    compare(&shown, &created);
    for part in ["metadata", "spec"] {
        let without_version = |object: &Value| {
            let mut part = object[part].clone();
            part["resourceVersion"] = Value::Null;
            part
        };
        assert_eq!(without_version(&shown), without_version(&before));
    }
    node.forget(subject).await;
}

/// Ends the server in order.
async fn end(server: &mut Server) {
    let process = &mut server.running().process;
    process.terminate();
    let deadline = std::time::Instant::now() + SOON;
    while process.exited().unwrap().is_none() {
        assert!(std::time::Instant::now() < deadline, "it does not end");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
