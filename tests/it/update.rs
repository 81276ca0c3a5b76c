//! UPDATE: a whole object in place of the one that was read.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use sandbox_apiserver::{
    meta::UnixTime,
    sim::{Fault, FaultKind, Planted},
};
use serde_json::{Value, json};

use crate::harness::{Cluster, SANDBOXES, item, mk_node, mk_sandbox, until};

#[tokio::test]
async fn an_update_stores_what_is_the_clients_and_counts_changes_of_the_spec() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let mut object = cluster.client.get(item("a")).await.json();
    object["metadata"]["labels"]["team"] = "x".into();
    object["status"] = json!({"nodeName": "mine"});
    object["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
    object["metadata"]["generation"] = 77.into();
    let labelled = cluster.client.put(item("a"), &object).await;
    assert_eq!(labelled.code(), 200, "{}", labelled.text());
    let labelled = labelled.json();
    assert_eq!(labelled["metadata"]["labels"]["team"], "x");
    assert_eq!(
        labelled["metadata"]["generation"], 1,
        "no change of the spec"
    );
    assert_ne!(
        labelled["status"]["nodeName"], "mine",
        "status is not the client's"
    );
    assert_ne!(
        labelled["metadata"]["creationTimestamp"],
        "2001-01-01T00:00:00Z"
    );
    let version = |object: &Value| -> u64 {
        object["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    };
    assert!(version(&labelled) > version(&object));
    assert_eq!(cluster.client.get(item("a")).await.json(), labelled);

    let mut object = labelled;
    object["spec"]["shutdownPolicy"] = "Delete".into();
    let changed = cluster.client.put(item("a"), &object).await.json();
    assert_eq!(changed["metadata"]["generation"], 2);
    assert_eq!(changed["spec"]["shutdownPolicy"], "Delete");
    assert_eq!(cluster.writes_at_nodes(), 1, "the claim and nothing else");
}

#[tokio::test]
async fn no_change_is_no_event() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let object = cluster.client.get(item("a")).await.json();
    let same = cluster.client.put(item("a"), &object).await;
    assert_eq!((same.code(), same.json()), (200, object));
}

#[tokio::test]
async fn an_update_names_the_version_that_it_was_made_from() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let read = cluster.client.get(item("a")).await.json();
    let mut blind = read.clone();
    blind["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    let status = cluster
        .client
        .put(item("a"), &blind)
        .await
        .refusal(422, "Invalid");
    assert_eq!(
        status["details"]["causes"][0]["field"],
        "metadata.resourceVersion"
    );
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("must be specified for an update")
    );

    let mut first = read.clone();
    first["metadata"]["labels"]["by"] = "one".into();
    assert_eq!(cluster.client.put(item("a"), &first).await.code(), 200);
    let mut second = read.clone();
    second["metadata"]["labels"]["by"] = "two".into();
    let status = cluster
        .client
        .put(item("a"), &second)
        .await
        .refusal(409, "Conflict");
    assert_eq!(
        status["message"],
        "Operation cannot be fulfilled on sandboxes.agents.x-k8s.io \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
}

#[tokio::test]
async fn an_update_is_of_the_object_in_the_path() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let read = cluster.client.get(item("a")).await.json();
    let with = |field: &str, value: &str| {
        let mut object = read.clone();
        object["metadata"][field] = value.into();
        object
    };
    for (field, value, code, reason) in [
        ("uid", "other", 409, "Conflict"),
        ("name", "b", 400, "BadRequest"),
        ("namespace", "other", 400, "BadRequest"),
    ] {
        let refused = cluster.client.put(item("a"), &with(field, value)).await;
        refused.refusal(code, reason);
    }
    let missing = cluster.client.put(item("b"), &with("name", "b")).await;
    missing.refusal(404, "NotFound");
    let collection = cluster.client.put(SANDBOXES, &read).await;
    collection.refusal(405, "MethodNotAllowed");
}

#[tokio::test]
async fn what_cannot_change_is_refused_by_its_field() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let mut object = cluster.client.get(item("a")).await.json();
    object["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "v"}, "spec": {}}]);
    let status = cluster
        .client
        .put(item("a"), &object)
        .await
        .refusal(422, "Invalid");
    let field = status["details"]["causes"][0]["field"].as_str().unwrap();
    assert!(field.starts_with("spec"), "{status}");
    let mut object = cluster.client.get(item("a")).await.json();
    object["spec"]["podTemplate"]["spec"]["containers"] = json!("none");
    let status = cluster
        .client
        .put(item("a"), &object)
        .await
        .refusal(422, "Invalid");
    let field = status["details"]["causes"][0]["field"].as_str().unwrap();
    assert_eq!(field, "spec.podTemplate.spec.containers");
    // Nobody deletes by an update.
    let mut object = cluster.client.get(item("a")).await.json();
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let refused = cluster.client.put(item("a"), &object).await;
    let status = refused.refusal(422, "Invalid");
    let field = &status["details"]["causes"][0]["field"];
    assert_eq!(field, "metadata.deletionTimestamp");
    object["metadata"]["deletionTimestamp"] = Value::Null;
    object["metadata"]["labels"]["a"] = json!(1);
    let refused = cluster.client.put(item("a"), &object).await;
    refused.refusal(400, "BadRequest");
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    let (calls, version) = (cluster.writes_at_nodes(), cluster.fleet.store().head());
    let mut object = cluster.client.get(item("a")).await.json();
    object["metadata"]["labels"]["team"] = "x".into();
    object["spec"]["operatingMode"] = "Suspended".into();
    let path = format!("{}?dryRun=All", item("a"));
    let would = cluster.client.put(&path, &object).await;
    assert_eq!(would.code(), 200, "{}", would.text());
    assert_eq!(would.json()["metadata"]["labels"]["team"], "x");
    assert_eq!(cluster.fleet.store().head(), version);
    assert_eq!(cluster.writes_at_nodes(), calls);
}

#[tokio::test]
async fn metadata_comes_back_as_it_was_sent() {
    let cluster = Cluster::start(mk_node(4)).await;
    let mut sandbox = mk_sandbox("a");
    sandbox["metadata"]["labels"] = json!({"a": "1", "z/y": ""});
    sandbox["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": "{\"a\":\"\\n\"}\n", "b": ""});
    sandbox["metadata"]["finalizers"] = json!(["example.com/x"]);
    sandbox["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true, "blockOwnerDeletion": false}]);
    assert_eq!(cluster.client.post(SANDBOXES, &sandbox).await.code(), 201);
    cluster.publish().await;
    let shown = cluster.client.get(item("a")).await.json();
    for field in ["labels", "annotations"] {
        for (key, value) in sandbox["metadata"][field].as_object().unwrap() {
            assert_eq!(&shown["metadata"][field][key], value, "{key}");
        }
    }
    assert_eq!(
        shown["metadata"]["finalizers"],
        sandbox["metadata"]["finalizers"]
    );
    assert_eq!(
        shown["metadata"]["ownerReferences"],
        sandbox["metadata"]["ownerReferences"]
    );
}

/// Makes every such call at the only node take so long.
async fn slow_down(cluster: &Cluster, call: &str, millis: u64) {
    let late = Fault {
        path: format!("/v1/sandboxes/*/{call}"),
        ..Fault::always(FaultKind::Late { millis })
    };
    assert!(cluster.nodes.nodes()[0].inject(late).await);
}

#[tokio::test]
async fn what_others_say_while_the_mode_changes_is_not_lost() {
    const TURNS: usize = 8;
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("a").await;
    slow_down(&cluster, "hibernate", 30).await;
    slow_down(&cluster, "wake", 30).await;
    let turning = AtomicBool::new(true);
    let turn = async {
        for mode in ["Suspended", "Running"].into_iter().cycle().take(TURNS) {
            let patch = json!({"spec": {"operatingMode": mode}});
            let turned = cluster.client.merge(item("a"), &patch).await;
            assert_eq!(turned.code(), 200, "{}", turned.text());
            assert_eq!(turned.json()["spec"]["operatingMode"], mode);
        }
        turning.store(false, Ordering::Relaxed);
    };
    let label = async {
        let mut said = Vec::new();
        while turning.load(Ordering::Relaxed) {
            let label = format!("l{}", said.len());
            let patch = json!({"metadata": {"labels": {&label: "x"}}});
            let labelled = cluster.client.merge(item("a"), &patch).await;
            assert_eq!(labelled.code(), 200, "{}", labelled.text());
            said.push(label);
        }
        said
    };
    let ((), said) = futures::join!(turn, label);
    let metadata = &cluster.client.get(item("a")).await.json()["metadata"];
    let lost = said
        .iter()
        .filter(|label| metadata["labels"][label].is_null());
    assert_eq!(
        lost.collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "of {}",
        said.len()
    );
    assert!(said.len() > TURNS);
    assert_eq!(
        metadata["generation"],
        1 + TURNS,
        "each turn is one change of the spec"
    );
}

#[tokio::test]
async fn an_update_that_the_node_takes_long_for_is_still_of_its_version() {
    let cluster = Cluster::start(mk_node(4)).await;
    let shutdown = UnixTime::now()
        .after(Duration::from_secs(3_000))
        .to_string();
    for (name, call, field, value) in [
        ("a", "hibernate", "operatingMode", "Suspended"),
        ("b", "renew", "shutdownTime", &shutdown),
    ] {
        cluster.create(name).await;
        slow_down(&cluster, call, 300).await;
        let mut object = cluster.client.get(item(name)).await.json();
        object["spec"][field] = value.into();
        let put = cluster.client.put(item(name), &object);
        let hold = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let patch = json!({"metadata": {"finalizers": ["example.com/x"]}});
            cluster.client.merge(item(name), &patch).await
        };
        let (put, held) = futures::join!(put, hold);
        assert_eq!(held.code(), 200, "{}", held.text());
        put.refusal(409, "Conflict");
        let shown = cluster.client.get(item(name)).await.json();
        assert_eq!(shown["metadata"]["finalizers"], json!(["example.com/x"]));
        // What nobody else says meanwhile is stored.
        let mut object = shown;
        object["spec"]["shutdownPolicy"] = "Delete".into();
        object["spec"]["operatingMode"] = "Running".into();
        let put = cluster.client.put(item(name), &object).await;
        assert_eq!(put.code(), 200, "{}", put.text());
        assert_eq!(put.json()["spec"]["shutdownPolicy"], "Delete");
    }
}

#[tokio::test]
async fn a_label_on_what_only_its_node_knows_says_nothing_of_its_spec() {
    let cluster = Cluster::start(mk_node(4)).await;
    let node = &cluster.nodes.nodes()[0];
    node.plant(Planted::new("default/a", mk_node(1).pools[0].clone()));
    cluster.publish().await;
    let record = || cluster.fleet.store().get("default", "a");
    until("it is listed", || record().is_some()).await;
    let user = || record().unwrap().value.user.clone().unwrap();
    let label = json!({"metadata": {"labels": {"seen": "yes"}}});
    let labelled = cluster.client.merge(item("a"), &label).await;
    assert_eq!(labelled.json()["metadata"]["labels"]["seen"], "yes");
    // Whoever it was handed over for can tell that nobody else made it.
    assert_eq!((&*user().spec, user().labels.len()), ("", 1));
    let policy = json!({"spec": {"shutdownPolicy": "Retain"}});
    assert_eq!(cluster.client.merge(item("a"), &policy).await.code(), 200);
    assert!(user().spec.contains("shutdownPolicy"));
}
