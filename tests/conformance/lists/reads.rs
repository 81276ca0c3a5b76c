//! That what is shown is true: nothing is left out, nothing lags, and what is not understood is refused.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    conformance::{
        client::{Client, MERGE},
        shown::{items, name, names, said, version},
        subject::Subject,
    },
    stage::{self, API},
};

/// For how long a silent node's sandboxes are looked at, and what a late publication has changed. Sandboxes are shown as
/// unknown after two minutes, which the tests of the index show on a clock of their own.
const LOOKED_AT_FOR: Duration = Duration::from_secs(3);
const QUIET: Duration = Duration::from_millis(200);

pub(super) async fn c_098(subject: &Subject) {
    for name in ["b", "a", "c"] {
        subject.create(name).await;
    }
    let all = subject.collection();
    for (client, later) in subject.both_ways().into_iter().zip(["d", "e"]) {
        let list = client.get(&all).await.ok();
        assert_eq!(
            (&list["kind"], &list["apiVersion"]),
            (&json!("SandboxList"), &json!("agents.x-k8s.io/v1beta1"))
        );
        assert!(names(&list).is_sorted() && names(&list).starts_with(&["a", "b", "c"]));
        for item in items(&list) {
            assert_eq!(item["kind"], "Sandbox");
            assert_eq!(item["apiVersion"], "agents.x-k8s.io/v1beta1");
            assert!(version(item) <= version(&list));
            assert_eq!(*item, client.get(&subject.item(name(item))).await.ok());
        }
        // Written before the watch begins, and seen all the same.
        subject.create(later).await;
        let from = version(&list);
        let path = format!("{all}?watch=true&resourceVersion={from}");
        let event = client.watch(&path).await.event().await;
        assert_eq!(said(&event), format!("ADDED {later}"));

        let everywhere = client.get(&format!("{API}/sandboxes")).await.ok();
        let place = |item: &Value| {
            let text = |field: &str| item["metadata"][field].as_str().unwrap().to_owned();
            (text("namespace"), text("name"))
        };
        assert!(items(&everywhere).iter().map(place).is_sorted());

        let nowhere = client.get(&stage::collection("no-such-namespace")).await;
        let nowhere = nowhere.ok();
        assert_eq!(
            (&nowhere["kind"], items(&nowhere)),
            (&json!("SandboxList"), &[][..])
        );
        assert!(version(&nowhere) >= version(&list));
    }
}

pub(super) async fn c_099(subject: &Subject) {
    let node = subject.own_node();
    let mut object = subject.mk("a");
    let containers = &mut object["spec"]["podTemplate"]["spec"]["containers"];
    containers[0]["image"] = node.template.into();
    subject.create_from(object).await;
    let last = subject.label("a", "colour", "red").await;
    let from = version(&last);
    let path = format!("{}?watch=true&resourceVersion={from}", subject.collection());
    let mut watch = subject.proxied().watch(&path).await;
    subject.publish(node.index).await;
    subject.nodes().stop(node.index).await;

    let is_shown = async |client: &Client, state: fn(&Value) -> Value| {
        let shown = client.get(&subject.item("a")).await;
        assert_eq!(shown.status, 200);
        assert_eq!(state(&shown.body), state(&last));
        let list = client.get(&subject.collection()).await;
        assert_eq!(list.status, 200);
        assert_eq!(names(&list.body), ["a"]);
        assert_eq!(state(&items(&list.body)[0]), state(&last));
    };
    let began = Instant::now();
    while began.elapsed() < LOOKED_AT_FOR {
        for client in subject.both_ways() {
            is_shown(&client, state).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(watch.is_silent(QUIET).await, "nothing has happened to it");
    // A server that starts now says nothing until it knows, and then the same.
    let mut server = subject.server(&[]);
    let client = server.client();
    let ready = server.ready();
    tokio::pin!(ready);
    loop {
        tokio::select! {
            () = &mut ready => break,
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        // Refused connections are no answers.
        for path in [subject.item("a"), subject.collection()] {
            if let Some(answer) = client.try_get(&path).await
                && !answer.status.is_server_error()
            {
                is_shown(&client, told_by_node).await;
            }
        }
    }
    is_shown(&client, told_by_node).await;
    while let Ok(event) = tokio::time::timeout(QUIET, watch.next()).await {
        assert_ne!(event.expect("the watch goes on")["type"], "DELETED");
    }
    subject.nodes().start(node.index).await;
}

/// What the node has published of an object. What users wrote is kept by its agent, and here there is none.
fn told_by_node(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!([
        metadata["uid"],
        metadata["creationTimestamp"],
        object["status"]
    ])
}

/// What an object says, but for its version.
fn state(object: &Value) -> Value {
    let mut state = object.clone();
    let metadata = state["metadata"].as_object_mut().expect("an object");
    metadata.remove("resourceVersion");
    state
}

pub(super) async fn c_112(subject: &Subject) {
    for client in subject.both_ways() {
        let path = subject.item("absent");
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        for answer in [
            client.get(&path).await,
            client.delete(&path).await,
            client.patch(MERGE, &path, &label).await,
        ] {
            answer.expect(404, "NotFound");
            assert_eq!(
                answer.body["message"],
                r#"sandboxes.agents.x-k8s.io "absent" not found"#
            );
            let details =
                json!({"name": "absent", "group": "agents.x-k8s.io", "kind": "sandboxes"});
            assert_eq!(answer.body["details"], details);
        }
    }
}

/// A custom resource has other codes where the path and the method do not go together: see `docs/differences.md`.
pub(super) async fn c_113(subject: &Subject) {
    let object = subject.create("a").await.to_string();
    for client in subject.both_ways() {
        for (method, path, body) in [
            ("PUT", subject.collection(), &*object),
            ("PATCH", subject.collection(), "{}"),
            ("POST", subject.item("a"), &object),
            ("POST", format!("{API}/sandboxes"), &object),
            ("OPTIONS", subject.item("a"), ""),
        ] {
            let headers: &[_] = match method {
                "PATCH" => &[("content-type", MERGE)],
                _ => &[],
            };
            let answer = client.send(method, &path, headers, body).await;
            answer.expect(405, "MethodNotAllowed");
        }
    }
}

pub(super) async fn c_114(subject: &Subject) {
    subject.create("a").await;
    let (all, item) = (subject.collection(), subject.item("a"));
    for client in subject.both_ways() {
        for unknown in ["shardSelector=x", "more=1&of=&&"] {
            let list = client.get(&format!("{all}?{unknown}")).await.ok();
            assert_eq!(names(&list), ["a"], "{unknown}");
            let got = client.get(&format!("{item}?{unknown}")).await.ok();
            assert_eq!(name(&got), "a", "{unknown}");
            let mut watch = client.watch(&format!("{all}?watch=true&{unknown}")).await;
            assert_eq!(watch.event().await["type"], "ADDED", "{unknown}");
        }
        for path in [
            format!("{all}?limit=x"),
            format!("{all}?limit=1.5"),
            format!("{all}?timeoutSeconds=x"),
            format!("{all}?watch=true&timeoutSeconds=x"),
            format!("{all}?timeout=abc"),
            format!("{item}?timeout=abc"),
        ] {
            client.get(&path).await.expect(400, "BadRequest");
        }
    }
}

/// The nodes publish every 30 s: the test `freshness` looks for a minute. There is one replica, which is every one.
pub(super) async fn c_115(subject: &Subject) {
    let all = subject.collection();
    let [proxied, direct] = subject.both_ways();
    for (round, (writer, reader)) in [(&proxied, &direct), (&direct, &proxied)]
        .into_iter()
        .cycle()
        .take(6)
        .enumerate()
    {
        let created = subject.create(&format!("n{round}")).await;
        let path = subject.item(&format!("n{round}"));
        let shown = reader.get(&path).await.ok();
        assert_eq!(shown["metadata"]["uid"], created["metadata"]["uid"]);
        assert!(version(&shown) >= version(&created));
        assert_eq!(items(&reader.get(&all).await.ok()).len(), 1);

        let label = json!({"metadata": {"labels": {"round": round.to_string()}}});
        let labelled = writer.patch(MERGE, &path, &label).await.ok();
        let list = reader.get(&all).await.ok();
        let shown = &items(&list)[0];
        assert_eq!(shown["metadata"]["labels"]["round"], round.to_string());
        assert!(version(shown) >= version(&labelled));

        // The nodes' last word is that it is there.
        if round < 2 {
            for node in 0..3 {
                subject.publish(node).await;
            }
        }
        writer.delete(&path).await.ok();
        reader.get(&path).await.expect(404, "NotFound");
        assert_eq!(items(&reader.get(&all).await.ok()), [] as [Value; 0]);
    }
    if subject.has_nodes() {
        late_publications_change_nothing(subject).await;
    }
}

/// Of a publisher that read its node before a write, and is heard after the answer.
async fn late_publications_change_nothing(subject: &Subject) {
    let (node, nodes) = (subject.own_node(), subject.nodes());
    let sandbox = |name: &str| stage::sandbox(name, &node.template);
    let before_create = nodes.inventory(node.index).await;
    subject.create_from(sandbox("kept")).await;
    subject.create_from(sandbox("gone")).await;
    let before_delete = nodes.inventory(node.index).await;
    let gone = subject.item("gone");
    subject.proxied().delete(&gone).await.ok();
    for late in [before_create, before_delete] {
        subject.publish_late(late).await;
        // By when the server hears of it is not seen from outside.
        let began = Instant::now();
        while began.elapsed() < LOOKED_AT_FOR {
            for client in subject.both_ways() {
                client.get(&subject.item("kept")).await.ok();
                client.get(&gone).await.expect(404, "NotFound");
                let list = client.get(&subject.collection()).await.ok();
                assert_eq!(names(&list), ["kept"]);
            }
            tokio::time::sleep(QUIET).await;
        }
    }
    subject.publish(node.index).await;
}
