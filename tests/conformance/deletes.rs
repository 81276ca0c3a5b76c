//! DELETE.

use serde_json::{Value, json};

use super::{
    client::{Client, Events, MERGE, METADATA_LIST},
    command::{Commands, lines},
    subject::Subject,
    writes::{HOLD, OTHER_UID, SOON, cluster, fields, held, names, post, version, with},
};
use crate::stage::{collection, eventually, item, sandbox};

items! {
    c_172 P0 "Options come from a body of any of their types, else from the query, and what cannot be read deletes nothing.";
    c_173 P0 "What is gone at once is answered with a Status that has its uid.";
    c_174 P0 "What is not gone yet is answered with the object, which a watch sees change before it goes, and may be deleted again.";
    c_175 P0 "What is being deleted goes with the update that takes its last finalizer.";
    c_176 P0 "A delete meant for another uid or version is a conflict, one of what is not there is not found.";
    c_177 P0 "A policy is a finalizer for the garbage collector, or none, or refused.";
    c_178 P0 "A dry run deletes nothing.";
    c_179 P0 "A collection is deleted as its selectors and options say, and is empty afterwards.";
    c_180 P0 "kubectl deletes and waits until what it deleted is gone.";
    c_181 P0 "What may still run on a node that cannot be reached is not said to be gone.", ours;
}

fn is_pending(object: &Value) -> bool {
    object["kind"] == "Sandbox" && object["metadata"]["deletionTimestamp"].is_string()
}

async fn is_there(client: &Client, path: &str) -> bool {
    client.get(path).await.status == 200
}

/// Names two sandboxes, and gives each with a way to ask.
fn two(subject: &Subject) -> impl Iterator<Item = (&'static str, Client)> {
    ["a", "b"].into_iter().zip(subject.both_ways())
}

async fn c_172(subject: &Subject) {
    for (n, client) in subject.both_ways().into_iter().enumerate() {
        let name = format!("kept-{n}");
        let path = subject.item(&name);
        subject.create(&name).await;
        let query = format!("{path}?propagationPolicy=Orphan");
        for wrong in [
            "{",
            "[]",
            r#"{"kind":"Pod","apiVersion":"v1"}"#,
            r#"{"gracePeriodSeconds":"now"}"#,
        ] {
            let refused = client.send("DELETE", &path, &[], wrong).await;
            refused.expect(400, "BadRequest");
        }
        assert!(is_there(&client, &path).await);
        // The body counts, and not the query beside it.
        let body =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"});
        let pending = client.delete_with(&query, &body).await.ok();
        assert_eq!(
            pending["metadata"]["finalizers"],
            json!(["foregroundDeletion"])
        );
        let name = format!("query-{n}");
        subject.create_from(held(subject, &name)).await;
        let query = format!("{}?propagationPolicy=Orphan", subject.item(&name));
        let pending = client.delete(&query).await.ok();
        assert_eq!(pending["metadata"]["finalizers"], json!([HOLD, "orphan"]));
        for (m, api_version) in [
            json!("v1"),
            json!("meta.k8s.io/v1"),
            json!("agents.x-k8s.io/v1beta1"),
            json!(null),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("gone-{n}-{m}");
            subject.create(&name).await;
            let mut body = json!({"kind": "DeleteOptions", "propagationPolicy": "Background"});
            match &api_version {
                Value::Null => body = json!({"propagationPolicy": "Background"}),
                version => body["apiVersion"] = version.clone(),
            }
            let path = subject.item(&name);
            let deleted = client.delete_with(&path, &body).await;
            assert_eq!(deleted.status, 200, "{body}: {:#}", deleted.body);
            assert!(!is_there(&client, &path).await);
        }
    }
}

async fn c_173(subject: &Subject) {
    for (name, client) in two(subject) {
        let created = subject.create(name).await;
        let deleted = client.delete(&subject.item(name)).await;
        assert_eq!(deleted.status, 200, "{:#}", deleted.body);
        assert_eq!(deleted.body["kind"], "Status");
        assert_eq!(deleted.body["status"], "Success");
        let details = json!({
            "name": name, "group": "agents.x-k8s.io", "kind": "sandboxes",
            "uid": created["metadata"]["uid"],
        });
        assert_eq!(deleted.body["details"], details);
        client
            .get(&subject.item(name))
            .await
            .expect(404, "NotFound");
        let again = subject.create(name).await;
        assert_ne!(again["metadata"]["uid"], created["metadata"]["uid"]);
    }
}

/// Type and, where there is one, uid of the next event of an object.
async fn next_of(watch: &mut Events, name: &str) -> (String, Value) {
    loop {
        let event = watch.event().await;
        if event["object"]["metadata"]["name"] == name {
            let kind = event["type"].as_str().unwrap_or_default();
            return (kind.to_owned(), event["object"].clone());
        }
    }
}

async fn c_174(subject: &Subject) {
    for (name, client) in two(subject) {
        let path = subject.item(name);
        let created = subject.create_from(held(subject, name)).await;
        let since = version(&created);
        let since = format!(
            "{}?watch=true&resourceVersion={since}",
            subject.collection()
        );
        let mut watch = client.watch(&since).await;
        let pending = client.delete(&path).await;
        assert_eq!(pending.status, 200, "{:#}", pending.body);
        assert!(is_pending(&pending.body), "{:#}", pending.body);
        let metadata = &pending.body["metadata"];
        assert_eq!(metadata["deletionGracePeriodSeconds"], 0);
        assert_eq!(metadata["uid"], created["metadata"]["uid"]);
        let (kind, object) = next_of(&mut watch, name).await;
        assert_eq!((kind.as_str(), is_pending(&object)), ("MODIFIED", true));
        let again = client.delete(&path).await;
        assert_eq!(again.status, 200, "{:#}", again.body);
        assert!(is_pending(&again.body), "{:#}", again.body);
        // Accepted is what it is only for who says this, in the older form of the policies.
        let accepted = format!("{path}?orphanDependents=false");
        let accepted = client.delete(&accepted).await;
        assert_eq!(accepted.status, 202, "{:#}", accepted.body);
        assert!(is_pending(&accepted.body), "{:#}", accepted.body);
        let free = json!({"metadata": {"finalizers": null}});
        client.patch(MERGE, &path, &free).await.ok();
        loop {
            let (kind, object) = next_of(&mut watch, name).await;
            assert_eq!(object["metadata"]["uid"], created["metadata"]["uid"]);
            match kind.as_str() {
                "DELETED" => break,
                kind => assert_eq!(kind, "MODIFIED"),
            }
        }
    }
}

async fn c_175(subject: &Subject) {
    for (n, client) in subject.both_ways().into_iter().enumerate() {
        for form in ["put", "merge", "operations"] {
            let name = format!("{form}-{n}");
            let path = subject.item(&name);
            let two = json!({"metadata": {"finalizers": [HOLD, "example.org/more"]}});
            subject.create_from(with(subject, &name, &two)).await;
            client.delete(&path).await.ok();
            let one = json!({"metadata": {"finalizers": [HOLD]}});
            client.patch(MERGE, &path, &one).await.ok();
            assert!(is_there(&client, &path).await, "one is left");
            let free = json!({"metadata": {"finalizers": null}});
            let remove = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
            let mut whole = client.get(&path).await.ok();
            json_patch::merge(&mut whole, &free);
            let freed = match form {
                "put" => client.put(&path, &whole).await,
                "merge" => client.patch(MERGE, &path, &free).await,
                _ => {
                    client
                        .patch("application/json-patch+json", &path, &remove)
                        .await
                }
            };
            assert_eq!(freed.status, 200, "{:#}", freed.body);
            client.get(&path).await.expect(404, "NotFound");
        }
    }
}

async fn c_176(subject: &Subject) {
    let options = |preconditions: Value| json!({"preconditions": preconditions});
    for (name, client) in two(subject) {
        let path = subject.item(name);
        let created = subject.create(name).await;
        let label = json!({"metadata": {"labels": {"new": "x"}}});
        let changed = client.patch(MERGE, &path, &label).await.ok();
        let uid = &created["metadata"]["uid"];
        for wrong in [
            json!({"uid": OTHER_UID}),
            json!({"resourceVersion": version(&created)}),
            json!({"uid": uid, "resourceVersion": version(&created)}),
        ] {
            let refused = client.delete_with(&path, &options(wrong)).await;
            refused.expect(409, "Conflict");
        }
        assert!(is_there(&client, &path).await);
        let right = json!({"uid": uid, "resourceVersion": version(&changed)});
        let gone = client.delete_with(&path, &options(right)).await.ok();
        assert_eq!(gone["details"]["uid"], *uid);
        for body in [json!({}), options(json!({"uid": uid}))] {
            let absent = client.delete_with(&path, &body).await;
            absent.expect(404, "NotFound");
        }
    }
}

async fn c_177(subject: &Subject) {
    for (name, client) in two(subject) {
        let path = subject.item(name);
        // The collector takes its own finalizers away; this one is there to see them come.
        subject.create_from(held(subject, name)).await;
        for wrong in [
            json!({"propagationPolicy": "Sideways"}),
            json!({"propagationPolicy": "Background", "orphanDependents": true}),
        ] {
            let refused = client.delete_with(&path, &wrong).await;
            refused.expect(422, "Invalid");
            assert!(!fields(&refused).is_empty(), "{:#}", refused.body);
        }
        let shown = client.get(&path).await.ok();
        assert!(!is_pending(&shown));
        for (options, added) in [
            (json!({"propagationPolicy": "Background"}), None),
            (json!({"propagationPolicy": "Orphan"}), Some("orphan")),
            (json!({"orphanDependents": true}), Some("orphan")),
            (
                json!({"propagationPolicy": "Foreground"}),
                Some("foregroundDeletion"),
            ),
        ] {
            let pending = client.delete_with(&path, &options).await.ok();
            let finalizers = &pending["metadata"]["finalizers"];
            let expected: Vec<_> = [HOLD].into_iter().chain(added).collect();
            assert_eq!(*finalizers, json!(expected), "{options}");
        }
    }
}

async fn c_178(subject: &Subject) {
    let all = subject.collection();
    let dry = json!({"dryRun": ["All"]});
    for name in ["a", "b"] {
        subject.create(name).await;
    }
    for client in subject.both_ways() {
        let path = subject.item("a");
        let before = client.get(&path).await.ok();
        let answers = [
            client.delete(&format!("{path}?dryRun=All")).await,
            client.delete_with(&path, &dry).await,
            client.delete(&format!("{all}?dryRun=All")).await,
            client.delete_with(&all, &dry).await,
        ];
        for answer in answers {
            assert_eq!(answer.status, 200, "{:#}", answer.body);
        }
        client
            .delete(&format!("{path}?dryRun=Some"))
            .await
            .expect(422, "Invalid");
        client
            .delete(&format!("{}?dryRun=All", subject.item("absent")))
            .await
            .expect(404, "NotFound");
        let after = client.get(&path).await.ok();
        assert_eq!(version(&after), version(&before));
        assert_eq!(names(&client.get(&all).await.ok()), ["a", "b"]);
    }
    if subject.has_nodes() {
        let held = subject.nodes().held(&subject.namespace).await;
        assert_eq!(held.len(), 2, "{held:?}");
    }
}

async fn c_179(subject: &Subject) {
    let all = subject.collection();
    for (n, client) in subject.both_ways().into_iter().enumerate() {
        for (name, team) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "x")] {
            let change = json!({"metadata": {"labels": {"team": team}}});
            subject.create_from(with(subject, name, &change)).await;
        }
        for wrong in ["labelSelector=a%3Db%3Dc", "fieldSelector=spec.none%3Dx"] {
            let refused = client.delete(&format!("{all}?{wrong}")).await;
            refused.expect(400, "BadRequest");
        }
        let some = format!("{all}?labelSelector=team%3Dx&fieldSelector=metadata.name!%3Dc");
        let deleted = client.delete(&some).await.ok();
        assert_eq!(deleted["kind"], "SandboxList");
        assert_eq!(names(&deleted), ["a", "d"]);
        assert_eq!(names(&client.get(&all).await.ok()), ["b", "c"]);
        // Options as for one: this one lets each wait for the garbage collector.
        subject.create_from(held(subject, "e")).await;
        let orphan = json!({"propagationPolicy": "Orphan"});
        let named = format!("{all}?fieldSelector=metadata.name%3De");
        let pending = client.delete_with(&named, &orphan).await.ok();
        assert_eq!(names(&pending), ["e"]);
        // Custom resources are listed as they were before.
        let pending = client.get(&subject.item("e")).await.ok();
        let finalizers = &pending["metadata"]["finalizers"];
        assert_eq!(*finalizers, json!([HOLD, "orphan"]));
        let free = json!({"metadata": {"finalizers": null}});
        client.patch(MERGE, &subject.item("e"), &free).await.ok();
        // Who comes second finds some of them gone.
        let background = json!({"propagationPolicy": "Background"});
        let (one, other) = tokio::join!(
            client.delete_with(&all, &background),
            client.delete_with(&all, &background)
        );
        for answer in [one, other] {
            assert_eq!(answer.status, 200, "{n}: {:#}", answer.body);
            assert_eq!(answer.body["kind"], "SandboxList");
        }
        let left = client.get_as(&all, METADATA_LIST).await.ok();
        assert_eq!(left["kind"], "PartialObjectMetadataList");
        assert_eq!(names(&left), [""; 0]);
    }
    let ending = subject.other_namespace().await;
    let made = post(&subject.proxied(), &collection(&ending), &subject.mk("a")).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let (cluster, path) = (cluster(subject), format!("/api/v1/namespaces/{ending}"));
    cluster.delete(&path).await.ok();
    eventually(SOON, "the namespace goes", async || {
        cluster.get(&path).await.status == 404
    })
    .await;
    if subject.has_nodes() {
        assert_eq!(subject.nodes().held(&ending).await, []);
    }
}

async fn c_180(subject: &Subject) {
    let commands = Commands::new(subject);
    subject.create("a").await;
    let deleted = commands
        .requests(&["delete", "sandbox", "a"], &Value::Null)
        .await;
    assert_eq!(lines(&deleted), ["DELETE /a", "GET /a"]);
    assert_eq!(deleted[0].body, json!({"propagationPolicy": "Background"}));
    assert!(!is_there(&subject.proxied(), &subject.item("a")).await);

    // It waits for what stays, on a watch of this one name, and ends with it.
    subject.create_from(held(subject, "slow")).await;
    let path = subject.item("slow");
    let args = ["delete", "sandbox", "slow"];
    let free = async {
        let client = subject.proxied();
        eventually(SOON, "the deletion has begun", async || {
            is_pending(&client.get(&path).await.ok())
        })
        .await;
        let patch = json!({"metadata": {"finalizers": null}});
        client.patch(MERGE, &path, &patch).await.ok();
    };
    let (deleted, ()) = tokio::join!(commands.requests(&args, &Value::Null), free);
    let is_watch =
        |target: &str| target.contains("metadata.name%3Dslow") && target.contains("watch=true");
    assert!(
        deleted.iter().any(|request| is_watch(&request.target)),
        "{deleted:#?}"
    );
    assert!(!is_there(&subject.proxied(), &path).await);

    for team in ["x", "x", "y"].into_iter().enumerate() {
        let (n, team) = team;
        let change = json!({"metadata": {"labels": {"team": team}}});
        subject
            .create_from(with(subject, &format!("m-{n}"), &change))
            .await;
    }
    for (chosen, expected) in [("-l=team=x", vec!["m-0", "m-1"]), ("--all", vec!["m-2"])] {
        let deleted = commands
            .requests(&["delete", "sandboxes", chosen], &Value::Null)
            .await;
        assert_eq!(lines(&deleted)[0], "GET ");
        let gone: Vec<_> = deleted
            .iter()
            .filter(|request| request.verb == "DELETE")
            .map(|request| request.line())
            .collect();
        let expected: Vec<_> = expected
            .into_iter()
            .map(|name| format!("DELETE /{name}"))
            .collect();
        assert_eq!(gone, expected);
    }
    let left = subject.proxied().get(&subject.collection()).await.ok();
    assert_eq!(left["items"], json!([]));
}

/// That it is released over a restart of the server too: `tests/cluster/owed.rs`.
async fn c_181(subject: &Subject) {
    let (node, nodes) = (subject.own_node(), subject.nodes());
    let path = |name: &str| item(&subject.namespace, name);
    for (name, client) in two(subject) {
        let wanted = sandbox(name, &node.template);
        let made = client.post(&subject.collection(), &wanted).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
    }
    nodes.stop(node.index).await;
    for (name, client) in two(subject) {
        for _ in 0..2 {
            let pending = client.delete(&path(name)).await;
            assert_eq!(pending.status, 200, "{:#}", pending.body);
            assert!(is_pending(&pending.body), "{:#}", pending.body);
        }
        let shown = client.get(&path(name)).await.ok();
        assert!(is_pending(&shown), "{shown:#}");
        let listed = client.get(&subject.collection()).await.ok();
        assert!(names(&listed).contains(&name));
    }
    nodes.start(node.index).await;
    for (name, client) in two(subject) {
        eventually(SOON, "it goes when the node says so", async || {
            // In this order: what is gone has to be released before.
            let is_gone = !is_there(&client, &path(name)).await;
            let held = nodes.held_by(node.index, &subject.namespace).await;
            let claim = format!("{}/{name}", subject.namespace);
            let runs = held.iter().any(|held| held.claim_ref == claim);
            assert!(!is_gone || !runs, "it is said to be gone and runs");
            is_gone
        })
        .await;
    }
}
