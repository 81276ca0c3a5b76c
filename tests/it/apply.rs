//! Server-side apply: several managers, one object, and who owns what in it.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Cluster, SANDBOXES, item, mk_node, mk_sandbox};

async fn apply(client: &Client, name: &str, query: &str, config: &Value) -> Answer {
    let path = format!("{}?{query}", item(name));
    let headers = [("content-type", "application/apply-patch+yaml")];
    client
        .request("PATCH", &path, &headers, config.to_string())
        .await
}

fn labelled(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {"name": name, "labels": labels},
    })
}

/// Managers and operations, in the order of the object.
fn owners(object: &Value) -> Vec<(&str, &str)> {
    let entries = object["metadata"]["managedFields"].as_array();
    let text = |entry: &'_ Value, field: &str| entry[field].as_str().unwrap().to_owned();
    entries
        .into_iter()
        .flatten()
        .map(|entry| {
            assert_eq!(text(entry, "apiVersion"), "agents.x-k8s.io/v1beta1");
            assert_eq!(text(entry, "fieldsType"), "FieldsV1");
            let part = |field: &str| entry[field].as_str().unwrap();
            (part("manager"), part("operation"))
        })
        .collect()
}

/// What one manager owns.
fn owned<'a>(object: &'a Value, manager: &str) -> &'a Value {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["manager"] == manager);
    &entry.unwrap_or_else(|| panic!("{manager} owns nothing of {object}"))["fieldsV1"]
}

#[tokio::test]
async fn what_is_not_there_is_claimed_once() {
    let cluster = Cluster::start(mk_node(4)).await;
    let config = mk_sandbox("a");
    let dry = apply(&cluster.client, "a", "fieldManager=ci&dryRun=All", &config).await;
    assert_eq!(dry.code(), 201, "{}", dry.text());
    assert_eq!(owners(&dry.json()), [("ci", "Apply")]);
    assert_eq!(cluster.writes_at_nodes(), 0);

    let created = apply(&cluster.client, "a", "fieldManager=ci", &config).await;
    assert_eq!(created.code(), 201, "{}", created.text());
    let created = created.json();
    assert_eq!(owners(&created), [("ci", "Apply")]);
    let containers = json!({r#"k:{"name":"main"}"#: {".": {}, "f:image": {}, "f:name": {}}});
    assert_eq!(
        *owned(&created, "ci"),
        json!({"f:spec": {"f:podTemplate": {"f:spec": {"f:containers": containers}}}})
    );
    let calls = cluster.writes_at_nodes();
    let again = apply(&cluster.client, "a", "fieldManager=ci", &config).await;
    assert_eq!(again.code(), 200);
    let again = again.json();
    for field in ["resourceVersion", "managedFields", "generation"] {
        assert_eq!(again["metadata"][field], created["metadata"][field]);
    }
    assert_eq!(cluster.writes_at_nodes(), calls);
}

#[tokio::test]
async fn everyone_who_applies_at_once_gets_the_one_object() {
    let cluster = Cluster::start(mk_node(8)).await;
    let applies = (0..8).map(async |number| {
        let mut config = mk_sandbox("a");
        config["metadata"]["labels"] = json!({format!("l{number}"): "x"});
        let query = format!("fieldManager=m{number}");
        apply(&cluster.client, "a", &query, &config).await.code()
    });
    let codes = join_all(applies).await;
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 1);
    assert!(
        codes.iter().all(|code| [200, 201].contains(code)),
        "{codes:?}"
    );
    let shown = cluster.client.get(item("a")).await.json();
    assert_eq!(owners(&shown).len(), 8);
    for number in 0..8 {
        assert_eq!(shown["metadata"]["labels"][format!("l{number}")], "x");
    }
    assert_eq!(cluster.writes_at_nodes(), 1);
}

#[tokio::test]
async fn what_another_owns_is_a_conflict_until_it_is_forced() {
    let cluster = Cluster::start(mk_node(4)).await;
    let client = &cluster.client;
    cluster.create("a").await;
    let one = labelled("a", json!({"team": "one", "tier": "web"}));
    let first = apply(client, "a", "fieldManager=one", &one).await;
    assert_eq!(first.code(), 200, "{}", first.text());
    assert_eq!(
        *owned(&first.json(), "one"),
        json!({"f:metadata": {"f:labels": {"f:team": {}, "f:tier": {}}}})
    );

    let two = labelled("a", json!({"team": "two"}));
    let refused = apply(client, "a", "fieldManager=two", &two).await;
    let refused = refused.refusal(409, "Conflict");
    let causes = json!([{
        "reason": "FieldManagerConflict",
        "message": "conflict with \"one\"",
        "field": ".metadata.labels.team",
    }]);
    assert_eq!(refused["details"]["causes"], causes);
    assert_eq!(
        refused["message"],
        "Apply failed with 1 conflict: conflict with \"one\": .metadata.labels.team"
    );

    let forced = apply(client, "a", "fieldManager=two&force=true", &two).await;
    assert_eq!(forced.code(), 200, "{}", forced.text());
    let forced = forced.json();
    assert_eq!(forced["metadata"]["labels"]["team"], "two");
    assert_eq!(
        *owned(&forced, "one"),
        json!({"f:metadata": {"f:labels": {"f:tier": {}}}})
    );

    // What nobody applies any more is gone; what others say stays.
    let gone = apply(client, "a", "fieldManager=one", &labelled("a", json!({}))).await;
    let gone = gone.json();
    assert_eq!(gone["metadata"]["labels"].get("tier"), None);
    assert_eq!(gone["metadata"]["labels"]["team"], "two");
    let node = &gone["metadata"]["labels"]["sandbox.cocoonstack.io/node"];
    assert!(node.is_string(), "{gone}");
}

#[tokio::test]
async fn every_write_has_an_owner() {
    let cluster = Cluster::start(mk_node(4)).await;
    let client = &cluster.client;
    let path = format!("{SANDBOXES}?fieldManager=creator");
    let created = client.post(&path, &mk_sandbox("a")).await.json();
    assert_eq!(owners(&created), [("creator", "Update")]);
    let spec = &owned(&created, "creator")["f:spec"];
    assert_eq!(spec["f:operatingMode"], json!({}));

    let path = format!("{}?fieldManager=patcher", item("a"));
    let patch = json!({"metadata": {"labels": {"team": "x"}}});
    let patched = client.merge(&path, &patch).await.json();
    assert_eq!(
        *owned(&patched, "patcher"),
        json!({"f:metadata": {"f:labels": {".": {}, "f:team": {}}}})
    );
    let mut replaced = patched.clone();
    replaced["metadata"]["labels"]["team"] = "y".into();
    let path = format!("{}?fieldManager=replacer", item("a"));
    let replaced = client.put(&path, &replaced).await.json();
    let writers = ["creator", "patcher", "replacer"].map(|writer| (writer, "Update"));
    assert_eq!(owners(&replaced), writers);
    // There are labels since the patcher was there.
    assert_eq!(
        *owned(&replaced, "patcher"),
        json!({"f:metadata": {"f:labels": {}}})
    );

    // What changes nothing owns nothing, and is no event.
    let before = cluster.fleet.store().head();
    let path = format!("{}?fieldManager=idle", item("a"));
    assert_eq!(client.put(&path, &replaced).await.json(), replaced);
    assert_eq!(client.merge(&path, &patch_of("y")).await.json(), replaced);
    assert_eq!(cluster.fleet.store().head(), before);

    // One empty entry says that nobody is to own anything.
    let reset = json!({"metadata": {"managedFields": [{}]}});
    let reset = client.merge(item("a"), &reset).await.json();
    assert_eq!(owners(&reset), []);
}

fn patch_of(team: &str) -> Value {
    json!({"metadata": {"labels": {"team": team}}})
}

#[tokio::test]
async fn the_servers_own_is_nobodys() {
    let cluster = Cluster::start(mk_node(4)).await;
    let client = &cluster.client;
    let mut config = labelled("a", json!({"sandbox.cocoonstack.io/node": "mine"}));
    config["spec"] = mk_sandbox("a")["spec"].clone();
    config["status"] = json!({"nodeName": "mine"});
    let created = apply(client, "a", "fieldManager=ci", &config).await;
    assert_eq!(created.code(), 201, "{}", created.text());
    let told = created.headers("warning");
    assert!(
        told.iter().any(|text| text.contains("set by the server")),
        "{told:?}"
    );
    let mut created = created.json();
    assert_ne!(
        created["metadata"]["labels"]["sandbox.cocoonstack.io/node"],
        "mine"
    );
    assert_eq!(owned(&created, "ci").get("f:status"), None);
    assert_eq!(owned(&created, "ci").get("f:metadata"), None);
    let others = labelled("a", json!({"sandbox.cocoonstack.io/node": "theirs"}));
    let others = apply(client, "a", "fieldManager=other", &others).await;
    assert_eq!(others.code(), 200, "{}", others.text());
    assert_eq!(owners(&others.json()).len(), 1);

    let path = format!("{}/status", item("a"));
    let status = [("content-type", "application/apply-patch+yaml")];
    let status = client
        .request(
            "PATCH",
            &format!("{path}?fieldManager=s"),
            &status,
            config.to_string(),
        )
        .await;
    assert_eq!(status.code(), 200, "{}", status.text());
    // Shown once.
    let annotations = created["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove("sandbox.cocoonstack.io/token").unwrap();
    assert_eq!(status.json(), created);
}

#[tokio::test]
async fn a_configuration_that_is_none_spends_nothing() {
    let cluster = Cluster::start(mk_node(4)).await;
    let client = &cluster.client;
    let good = mk_sandbox("a");
    let nobody = apply(client, "a", "", &good).await.refusal(422, "Invalid");
    assert_eq!(nobody["details"]["causes"][0]["field"], "fieldManager");
    let with = |change: Value| {
        let mut config = good.clone();
        json_patch::merge(&mut config, &change);
        config
    };
    for wrong in [
        with(json!({"metadata": {"name": "b"}})),
        with(json!({"metadata": {"name": null, "generateName": "a-"}})),
        with(json!({"metadata": {"namespace": "other"}})),
        with(json!({"metadata": {"managedFields": []}})),
        with(json!({"metadata": {"resourceVersion": "5"}})),
        with(json!({"apiVersion": "v1"})),
        with(json!({"kind": null})),
        with(json!({"spec": {"podTemplate": 5}})),
        with(json!({"spec": {"operatingMod": "Running"}})),
        json!([]),
        json!("x"),
        json!(null),
    ] {
        let refused = apply(client, "a", "fieldManager=ci", &wrong).await;
        refused.refusal(400, "BadRequest");
    }
    let uid = with(json!({"metadata": {"uid": "6e3b2cc1-2a36-4f0d-8a5e-8f0ad6a0a4a1"}}));
    let uid = apply(client, "a", "fieldManager=ci", &uid).await;
    uid.refusal(409, "Conflict");
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{}?fieldManager=ci", item("a"));
    for text in ["{", "a: b: c", "&a [*a]", "- - -", "\u{0}"] {
        let refused = client.request("PATCH", &path, &headers, text).await;
        refused.refusal(400, "BadRequest");
    }
    let absent = format!("{}/status?fieldManager=ci", item("a"));
    let absent = client
        .request("PATCH", &absent, &headers, good.to_string())
        .await;
    absent.refusal(404, "NotFound");
    assert_eq!(cluster.writes_at_nodes(), 0);
}
