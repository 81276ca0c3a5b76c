//! UPDATE, PATCH and apply: what all of them keep to, and a whole object in place of the one that is there.

mod applies;
mod commands;
mod metadata;
mod patches;

use serde_json::{Value, json};

use self::{
    applies::{c_163, c_164, c_165},
    commands::{c_166, c_167, c_168},
    metadata::c_162,
    patches::{c_158, c_159, c_160, c_169},
};
use super::{
    client::{APPLY, Client, JSON_PATCH, MERGE},
    subject::Subject,
    writes::{OTHER_UID, fields, held, message, post, version, warnings, with},
};

items! {
    c_154 P0 "An update names the version that it was made from, of an object that is there.";
    c_155 P0 "An update is of the uid, name and namespace in its path.";
    c_156 P0 "A write of the object leaves its status alone, and one of `/status` all but that, which is the server's to say here: it changes nothing, with a warning. `generation` counts changes of the rest.";
    c_157 P1 "A write that changes nothing succeeds, and neither version nor watch tells of it.";
    c_158 P0 "JSON patches, merge patches and applies are taken, any other patch is answered with 415.";
    c_159 P0 "Patches that meet all land, but for one that names a version that is gone.";
    c_160 P0 "A patch that cannot be read, does not fit, is too long or has no object is refused as such.";
    c_161 P0 "What the server keeps overrules what a write says of it, and a field that cannot change is refused by its path.";
    c_162 P0 "Metadata that clients write comes back as it was sent while the object lives; over a restart, if its node has an agent.";
    c_163 P0 "An apply has a manager and a configuration of the path's type, and makes what is not there.";
    c_164 P1 "Applies that want different things conflict until one is forced, and what nobody applies any more is gone.";
    c_165 P0 "Apply is in OpenAPI and is no merge.";
    c_166 P0 "`kubectl apply` creates, then patches what differs, and the second time nothing does.";
    c_167 P0 "kubectl labels, annotates, edits, replaces, shows differences and applies on the server.";
    c_168 P1 "kubectl reads `/status`, as a row too, and its writes go there, where they change nothing but are taken.";
    c_169 P1 "Owners that are listed twice are merged with a warning, and what is being deleted takes no new finalizers.";
}

async fn c_154(subject: &Subject) {
    let read = subject.create("a").await;
    subject.label("a", "changed", "since").await;
    for client in subject.both_ways() {
        let blind = client.put(&subject.item("a"), &subject.mk("a")).await;
        blind.expect(422, "Invalid");
        assert_eq!(fields(&blind), ["metadata.resourceVersion"]);
        assert!(message(&blind).contains("must be specified for an update"));
        let stale = client.put(&subject.item("a"), &read).await;
        stale.expect(409, "Conflict");
        assert_eq!(
            message(&stale),
            r#"Operation cannot be fulfilled on sandboxes.agents.x-k8s.io "a": the object has been modified; please apply your changes to the latest version and try again"#
        );
        let absent = with(
            subject,
            "absent",
            &json!({"metadata": {"resourceVersion": "1"}}),
        );
        let absent = client.put(&subject.item("absent"), &absent).await;
        absent.expect(404, "NotFound");
        // Of what it is now, it is taken.
        let mut now = client.get(&subject.item("a")).await.ok();
        now["metadata"]["labels"]["changed"] = version(&now).into();
        let updated = client.put(&subject.item("a"), &now).await.ok();
        assert_eq!(updated["metadata"]["labels"], now["metadata"]["labels"]);
        assert_ne!(version(&updated), version(&now));
    }
}

async fn c_155(subject: &Subject) {
    let read = subject.create("a").await;
    for client in subject.both_ways() {
        for (field, value, code, reason) in [
            ("uid", OTHER_UID, 409, "Conflict"),
            ("name", "b", 400, "BadRequest"),
            ("namespace", "other", 400, "BadRequest"),
        ] {
            let mut wrong = read.clone();
            wrong["metadata"][field] = value.into();
            let refused = client.put(&subject.item("a"), &wrong).await;
            refused.expect(code, reason);
        }
    }
}

/// The status of a sandbox is what its node says: who writes it is warned. Where it is the clients' to write, it changes.
async fn c_156(subject: &Subject) {
    for (name, client) in ["a", "b"].into_iter().zip(subject.both_ways()) {
        subject.create(name).await;
        let path = subject.item(name);
        let at_status = format!("{path}/status");
        let generation = |object: &Value| object["metadata"]["generation"].clone();
        let node = |object: &Value| object["status"]["nodeName"].clone();
        let mut object = client.get(&path).await.ok();
        let before = object.clone();
        object["metadata"]["annotations"]["note"] = "x".into();
        object["status"] = json!({"nodeName": "mine"});
        let updated = client.put(&path, &object).await.ok();
        assert_eq!(updated["metadata"]["annotations"]["note"], "x");
        assert_eq!(
            (node(&updated), generation(&updated)),
            (node(&before), json!(1))
        );
        let merge = json!({"spec": {"shutdownPolicy": "Delete"}, "status": {"nodeName": "mine"}});
        let patched = client.patch(MERGE, &path, &merge).await.ok();
        assert_eq!(
            (node(&patched), generation(&patched)),
            (node(&before), json!(2))
        );
        let mut object = patched;
        object["spec"]["shutdownPolicy"] = "Retain".into();
        let mut before = client.put(&path, &object).await.ok();
        assert_eq!(generation(&before), 3);

        let change = json!({
            "metadata": {"annotations": {"note": "y"}, "labels": {"new": "x"}},
            "spec": {"shutdownPolicy": "Delete"},
            "status": {"nodeName": "mine"},
        });
        let mut whole = before.clone();
        json_patch::merge(&mut whole, &change);
        let put = client.put(&at_status, &whole).await;
        let patch = client.patch(MERGE, &at_status, &change).await;
        for answer in [put, patch] {
            let is_told = warnings(&answer)
                .iter()
                .any(|text| text.contains("status: dropped"));
            let mut after = answer.ok();
            match subject.has_nodes() {
                true => assert!(is_told && node(&after) == node(&before), "{after:#}"),
                false => assert_eq!(node(&after), "mine"),
            }
            for object in [&mut before, &mut after] {
                let metadata = object["metadata"].as_object_mut().expect("metadata");
                // Of the status.
                metadata.remove("resourceVersion");
                metadata.remove("managedFields");
            }
            assert_eq!(after["metadata"], before["metadata"]);
            assert_eq!(after["spec"], before["spec"]);
        }
        let shown = client.get(&path).await.ok();
        assert_eq!(
            (&shown["spec"], generation(&shown)),
            (&before["spec"], json!(3))
        );
    }
}

async fn c_157(subject: &Subject) {
    subject.create("a").await;
    let (path, all) = (subject.item("a"), subject.collection());
    let whole = subject.mk("a");
    for (n, client) in subject.both_ways().into_iter().enumerate() {
        // Owned by who applies it from now on.
        super::writes::apply(&client, &path, "fieldManager=m", &whole)
            .await
            .ok();
        let before = client.get(&path).await.ok();
        let since = format!("{all}?watch=true&resourceVersion={}", version(&before));
        let mut watch = client.watch(&since).await;
        let same = json!({"spec": {"shutdownPolicy": "Retain"}});
        let writes = [
            client.put(&path, &before).await,
            client.patch(MERGE, &path, &json!({})).await,
            client.patch(MERGE, &path, &same).await,
            client.patch(JSON_PATCH, &path, &json!([])).await,
            client
                .patch(APPLY, &format!("{path}?fieldManager=m"), &whole)
                .await,
        ];
        for answer in writes {
            assert_eq!(answer.status, 200, "{:#}", answer.body);
            assert_eq!(answer.body["metadata"], before["metadata"]);
        }
        let label = format!("after-{n}");
        let after = subject.label("a", &label, "x").await;
        let event = watch.event().await;
        assert_eq!(event["type"], "MODIFIED");
        assert_eq!(
            version(&event["object"]),
            version(&after),
            "the first event"
        );
    }
}

/// A deletion is not begun by an update: there is no stored value for it, and Kubernetes refuses one from the client. That
/// volumes cannot change is a rule that the schema of the custom resource leaves out.
async fn c_161(subject: &Subject) {
    const LONG_AGO: &str = "2001-01-01T00:00:00Z";
    for (name, client) in ["a", "b"].into_iter().zip(subject.both_ways()) {
        let path = subject.item(name);
        let created = post(&client, &subject.collection(), &held(subject, name)).await;
        let created = created.ok();
        let kept = |object: &Value| {
            for field in ["creationTimestamp", "generation"] {
                assert_eq!(object["metadata"][field], created["metadata"][field]);
            }
        };
        let forged = json!({"metadata": {"creationTimestamp": LONG_AGO, "generation": 70, "labels": {"x": "y"}}});
        let mut whole = client.get(&path).await.ok();
        json_patch::merge(&mut whole, &forged);
        kept(&client.put(&path, &whole).await.ok());
        kept(&client.patch(MERGE, &path, &forged).await.ok());
        if subject.has_nodes() {
            refuses_volumes(&client, &path).await;
        }
        let ends = json!({"metadata": {"deletionTimestamp": LONG_AGO}});
        let refused = client.patch(MERGE, &path, &ends).await;
        refused.expect(422, "Invalid");

        client.delete(&path).await.ok();
        let pending = client.get(&path).await.ok();
        for forged in [json!(null), json!(LONG_AGO)] {
            let change = json!({"metadata": {"deletionTimestamp": forged}});
            let mut whole = client.get(&path).await.ok();
            json_patch::merge(&mut whole, &change);
            let put = client.put(&path, &whole).await;
            let patch = client.patch(MERGE, &path, &change).await;
            for answer in [put, patch] {
                let stored = &answer.ok()["metadata"]["deletionTimestamp"];
                assert!(stored.is_string());
                assert_eq!(*stored, pending["metadata"]["deletionTimestamp"]);
            }
        }
    }
}

async fn refuses_volumes(client: &Client, path: &str) {
    let volumes =
        json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]}});
    let refused = client.patch(MERGE, path, &volumes).await;
    refused.expect(422, "Invalid");
    assert_eq!(fields(&refused), ["spec.volumeClaimTemplates"]);
    assert!(message(&refused).contains("volumeClaimTemplates is immutable"));
}
