//! CREATE.

mod around;

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Value, json};

use self::around::{c_142, c_148, c_149, c_150};
use super::{
    subject::Subject,
    writes::{OTHER_UID, fields, held, message, post, version, warnings, with},
};
use crate::stage::collection;

items! {
    c_138 P0 "A create is answered with 201 and the stored object, in which the server sets what is its own.";
    c_139 P0 "A name is made from `generateName`; without either a create is refused.";
    c_140 P0 "Name, labels, annotations, owners and finalizers are checked, and each fault is named by its field.";
    c_141 P0 "A taken name is a conflict, and of creates that race one succeeds.";
    c_142 P0 "Nothing is created in a namespace that is absent or ending, and one that ends goes away.";
    c_143 P0 "What a body says of type, namespace and version must be what the path says.";
    c_144 P0 "Unknown and duplicate fields are refused, warned of or ignored as `fieldValidation` says, and never stored.";
    c_145 P0 "A dry run makes all checks, shows the object that would be, and does nothing.";
    c_146 P1 "A field manager is short and printable; without one it is the client's program.";
    c_147 P0 "Defaults are applied by every write and shown in its answer.";
    c_148 P0 "A write is answered with `Retry-After` only if nothing was done.", ours;
    c_149 P1 "Which admission a write passes is told: that of namespaces, and neither webhooks nor policies.", ours;
    c_150 P1 "The quota controller counts the objects, and what is over a quota is refused.";
}

const LONG_AGO: &str = "2001-01-01T00:00:00Z";

async fn c_138(subject: &Subject) {
    let mut uids = BTreeSet::new();
    for (name, client) in ["a", "b"].into_iter().zip(subject.both_ways()) {
        let forged = json!({
            "metadata": {
                "uid": OTHER_UID, "selfLink": "/mine", "generation": 7,
                "creationTimestamp": LONG_AGO, "deletionTimestamp": LONG_AGO,
            },
            "status": {"nodeName": "mine"},
        });
        let sent = with(subject, name, &forged);
        let answer = post(&client, &subject.collection(), &sent).await;
        assert_eq!(answer.status, 201, "{:#}", answer.body);
        let created = answer.body;
        let metadata = &created["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        assert_ne!(text("uid"), OTHER_UID);
        let groups = text("uid").split('-').map(str::len);
        assert_eq!(groups.collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(uids.insert(text("uid").to_owned()));
        let made: jiff::Timestamp = text("creationTimestamp").parse().expect("a time");
        let age = jiff::Timestamp::now().duration_since(made);
        assert!(age.as_secs().abs() < 60, "{made}");
        assert!(!text("resourceVersion").is_empty());
        assert_eq!(metadata["generation"], 1);
        assert_eq!(text("namespace"), subject.namespace);
        for dropped in ["deletionTimestamp", "selfLink"] {
            assert_eq!(metadata.get(dropped), None);
        }
        assert_ne!(created["status"]["nodeName"], "mine");
        let owner = &metadata["managedFields"][0];
        assert_eq!(owner["operation"], "Update");
        assert!(owner["fieldsV1"]["f:spec"].is_object(), "{owner}");
        let shown = client.get(&subject.item(name)).await.ok();
        assert_eq!(shown["spec"], created["spec"]);
        for field in ["uid", "creationTimestamp", "generation", "managedFields"] {
            assert_eq!(shown["metadata"][field], metadata[field]);
        }
    }
}

/// Eight collisions in a row cannot be had from outside; `tests/it/create.rs` has a resource that is always taken.
async fn c_139(subject: &Subject) {
    let all = subject.collection();
    let long = "g".repeat(70);
    for client in subject.both_ways() {
        let mut made = BTreeSet::new();
        for (base, kept) in [
            ("job-", "job-"),
            ("job-", "job-"),
            (long.as_str(), &long[..58]),
        ] {
            let change = json!({"metadata": {"name": null, "generateName": base}});
            let answer = post(&client, &all, &with(subject, "", &change)).await;
            assert_eq!(answer.status, 201, "{:#}", answer.body);
            let metadata = &answer.body["metadata"];
            assert_eq!(metadata["generateName"], base);
            let name = metadata["name"].as_str().unwrap_or_default();
            let suffix = name.strip_prefix(kept).unwrap_or_default();
            assert_eq!(suffix.len(), 5, "{name}");
            let is_known = |letter: char| "bcdfghjklmnpqrstvwxz2456789".contains(letter);
            assert!(suffix.chars().all(is_known), "{name}");
            assert!(made.insert(name.to_owned()));
        }
        let change = json!({"metadata": {"name": null}});
        let neither = client.post(&all, &with(subject, "", &change)).await;
        neither.expect(422, "Invalid");
        assert_eq!(fields(&neither), ["metadata.name"]);
        assert_eq!(neither.causes(), ["FieldValueRequired"]);
    }
}

async fn c_140(subject: &Subject) {
    let dry = format!("{}?dryRun=All", subject.collection());
    let owner = |uid| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true});
    let metadata = |field: &str, value: Value| json!({"metadata": {field: value}});
    let longest = "a".repeat(253);
    let full = metadata("annotations", json!({"a": "x".repeat((256 << 10) - 1)}));
    for client in subject.both_ways() {
        for good in [
            subject.mk(&longest),
            subject.mk("a.b-c.1"),
            with(subject, "x", &full),
        ] {
            assert_eq!(post(&client, &dry, &good).await.status, 201);
        }
        for (field, change) in [
            ("metadata.name", metadata("name", json!("a".repeat(254)))),
            ("metadata.name", metadata("name", json!("A_"))),
            ("metadata.name", metadata("name", json!("a..b"))),
            ("metadata.labels", metadata("labels", json!({"a b": "c"}))),
            (
                "metadata.labels",
                metadata("labels", json!({"a": "x".repeat(64)})),
            ),
            (
                "metadata.annotations",
                metadata("annotations", json!({"a b": "c"})),
            ),
            (
                "metadata.annotations",
                metadata("annotations", json!({"a": "x".repeat(256 << 10)})),
            ),
            (
                "metadata.ownerReferences[0].uid",
                metadata("ownerReferences", json!([owner("")])),
            ),
            (
                "metadata.ownerReferences",
                metadata("ownerReferences", json!([owner("u1"), owner("u2")])),
            ),
            (
                "metadata.finalizers",
                metadata("finalizers", json!(["a b"])),
            ),
            (
                "spec.operatingMode",
                json!({"spec": {"operatingMode": "Idle"}}),
            ),
        ] {
            let refused = client.post(&dry, &with(subject, "x", &change)).await;
            refused.expect(422, "Invalid");
            assert!(fields(&refused).contains(&field), "{:#}", refused.body);
            let details = &refused.body["details"];
            assert_eq!(details["kind"], "Sandbox");
            assert_eq!(details["group"], "agents.x-k8s.io");
            for cause in details["causes"].as_array().into_iter().flatten() {
                for part in ["reason", "message", "field"] {
                    assert_ne!(cause[part].as_str().unwrap_or_default(), "", "{cause}");
                }
            }
        }
        let two = json!({"metadata": {"labels": {"a b": "c"}, "finalizers": ["a b"]}});
        let refused = client.post(&dry, &with(subject, "x", &two)).await;
        let fields = fields(&refused);
        assert!(fields.contains(&"metadata.labels") && fields.contains(&"metadata.finalizers"));
    }
}

async fn c_141(subject: &Subject) {
    let (all, ways) = (subject.collection(), subject.both_ways());
    subject.create("a").await;
    subject.create_from(held(subject, "ending")).await;
    subject.proxied().delete(&subject.item("ending")).await.ok();
    for client in &ways {
        let taken = client.post(&all, &subject.mk("a")).await;
        taken.expect(409, "AlreadyExists");
        let expected = r#"sandboxes.agents.x-k8s.io "a" already exists"#;
        assert_eq!(message(&taken), expected);
        let taken = client.post(&all, &subject.mk("ending")).await;
        taken.expect(409, "AlreadyExists");
        let expected =
            r#"object is being deleted: sandboxes.agents.x-k8s.io "ending" already exists"#;
        assert_eq!(message(&taken), expected);
    }
    let wanted = subject.mk("race");
    let racing = (0..10).map(|n| post(&ways[n % 2], &all, &wanted));
    let answers = join_all(racing).await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 201);
    assert_eq!(won.len(), 1);
    for answer in lost {
        answer.expect(409, "AlreadyExists");
    }
}

/// Custom resources answer a version with 500, another kind with 422, and do not take an object without a type.
async fn c_143(subject: &Subject) {
    let dry = format!("{}?dryRun=All", subject.collection());
    for client in subject.both_ways() {
        for wrong in [
            json!({"metadata": {"namespace": "other"}}),
            json!({"apiVersion": "agents.x-k8s.io/v1"}),
            json!({"apiVersion": "v1"}),
            json!({"kind": "Pod"}),
            json!({"metadata": {"resourceVersion": "5"}}),
        ] {
            let refused = client.post(&dry, &with(subject, "x", &wrong)).await;
            refused.expect(400, "BadRequest");
        }
        for none in ["{", "[]", "", "null"] {
            let refused = client.send("POST", &dry, &[], none).await;
            refused.expect(400, "BadRequest");
        }
        for untyped in [
            json!({"apiVersion": null, "kind": null}),
            json!({"apiVersion": "", "kind": ""}),
            json!({"metadata": {"namespace": subject.namespace}}),
        ] {
            let taken = client.post(&dry, &with(subject, "x", &untyped)).await;
            assert_eq!(taken.status, 201, "{:#}", taken.body);
            assert_eq!(taken.body["kind"], "Sandbox");
            assert_eq!(taken.body["apiVersion"], "agents.x-k8s.io/v1beta1");
        }
    }
}

async fn c_144(subject: &Subject) {
    for (n, client) in subject.both_ways().into_iter().enumerate() {
        let send = async |validation: &str, name: &str| {
            let mut text = with(subject, name, &json!({"spec": {"x": 1}})).to_string();
            // Twice the same field, which no JSON value has.
            text.insert_str(1, r#""kind":"Sandbox","#);
            let path = format!("{}?{validation}", subject.collection());
            super::writes::warm(async || client.send("POST", &path, &[], &text).await).await
        };
        let strict = send("fieldValidation=Strict", "strict").await;
        strict.expect(400, "BadRequest");
        let told = message(&strict);
        assert!(told.contains("strict decoding error: "), "{told}");
        for fault in [r#"unknown field "spec.x""#, r#"duplicate field "kind""#] {
            assert!(told.contains(fault), "{told}");
        }
        let loose = send("fieldValidation=Loose", "loose").await;
        loose.expect(422, "Invalid");
        for name in ["strict", "loose"] {
            client
                .get(&subject.item(name))
                .await
                .expect(404, "NotFound");
        }
        for (validation, is_told) in [
            ("", true),
            ("fieldValidation=Warn", true),
            ("fieldValidation=Ignore", false),
        ] {
            let name = format!("made-{n}-{}", validation.len());
            let answer = send(validation, &name).await;
            assert_eq!(answer.status, 201, "{:#}", answer.body);
            for warning in [
                r#"299 - "unknown field \"spec.x\"""#,
                r#"299 - "duplicate field \"kind\"""#,
            ] {
                assert_eq!(warnings(&answer).contains(&warning), is_told);
            }
            let shown = client.get(&subject.item(&name)).await.ok();
            for object in [answer.body, shown] {
                assert_eq!(object["spec"].get("x"), None);
            }
        }
    }
}

/// That no node is asked: `tests/cluster/lifecycle.rs`.
async fn c_145(subject: &Subject) {
    let all = subject.collection();
    let dry = format!("{all}?dryRun=All");
    subject.create("a").await;
    let list = subject.proxied().get(&all).await.ok();
    for (n, client) in subject.both_ways().into_iter().enumerate() {
        let since = format!("{all}?watch=true&resourceVersion={}", version(&list));
        let mut watch = client.watch(&since).await;
        let would = client.post(&dry, &subject.mk("dry")).await;
        assert_eq!(would.status, 201, "{:#}", would.body);
        let metadata = &would.body["metadata"];
        assert_eq!(metadata["name"], "dry");
        assert!(metadata["uid"].is_string() && metadata["creationTimestamp"].is_string());
        assert_eq!(version(&would.body), "");
        assert_eq!(would.body["spec"]["operatingMode"], "Running");
        client
            .post(&dry, &subject.mk("a"))
            .await
            .expect(409, "AlreadyExists");
        client
            .post(&dry, &subject.mk("A_"))
            .await
            .expect(422, "Invalid");
        let nowhere = format!("{}?dryRun=All", collection("no-such-place"));
        client
            .post(&nowhere, &subject.mk("dry"))
            .await
            .expect(404, "NotFound");
        let some = client
            .post(&format!("{all}?dryRun=Some"), &subject.mk("dry"))
            .await;
        some.expect(422, "Invalid");
        client
            .get(&subject.item("dry"))
            .await
            .expect(404, "NotFound");
        let name = format!("after-{n}");
        subject.create(&name).await;
        let mut seen = watch.event().await;
        if n == 1 {
            // What the other round made.
            seen = watch.event().await;
        }
        assert_eq!(seen["type"], "ADDED");
        assert_eq!(seen["object"]["metadata"]["name"], name, "the first event");
    }
    if subject.has_nodes() {
        let held = subject.nodes().held(&subject.namespace).await;
        assert_eq!(held.len(), 3, "{held:?}");
    }
}

async fn c_146(subject: &Subject) {
    let dry = format!("{}?dryRun=All", subject.collection());
    for client in subject.both_ways() {
        let send = async |manager: &str, program: &str| {
            let path = format!("{dry}&fieldManager={manager}");
            let headers = [("user-agent", program)];
            let body = subject.mk("a").to_string();
            client.send("POST", &path, &headers, &body).await
        };
        for wrong in ["m".repeat(129), "a%07b".to_owned()] {
            let refused = send(&wrong, "x/1").await;
            refused.expect(422, "Invalid");
            assert_eq!(fields(&refused), ["fieldManager"]);
        }
        let longest = "m".repeat(128);
        for (sent, program, expected) in [
            (longest.as_str(), "x/1", longest.as_str()),
            ("", "my-agent/1.2 (linux)", "my-agent"),
            ("", "plain", "plain"),
        ] {
            let answer = send(sent, program).await;
            assert_eq!(answer.status, 201, "{:#}", answer.body);
            let owner = &answer.body["metadata"]["managedFields"][0];
            assert_eq!(owner["manager"], expected);
        }
    }
}

async fn c_147(subject: &Subject) {
    let defaults = |object: &Value| {
        assert_eq!(object["spec"]["operatingMode"], "Running", "{object:#}");
        assert_eq!(object["spec"]["shutdownPolicy"], "Retain", "{object:#}");
    };
    for (name, client) in ["a", "b"].into_iter().zip(subject.both_ways()) {
        let path = subject.item(name);
        let created = post(&client, &subject.collection(), &subject.mk(name)).await;
        defaults(&created.ok());
        let mut object = client.get(&path).await.ok();
        defaults(&object);
        let spec = object["spec"].as_object_mut().expect("a spec");
        spec.remove("operatingMode");
        spec.remove("shutdownPolicy");
        defaults(&client.put(&path, &object).await.ok());
        let none = json!({"spec": {"operatingMode": null, "shutdownPolicy": null}});
        let patched = client.patch(super::client::MERGE, &path, &none).await;
        defaults(&patched.ok());
    }
}
