//! PATCH: a change that finds its object whoever else changes it.

use futures::future::join_all;
use serde_json::{Value, json};

use super::super::{
    client::{APPLY, JSON_PATCH, MERGE},
    command::Commands,
    subject::Subject,
    writes::{HOLD, OTHER_UID, fields, held, labelled, message, post, version, warnings, with},
};

const STRATEGIC: &str = "application/strategic-merge-patch+json";

pub(super) async fn c_158(subject: &Subject) {
    subject.create("a").await;
    let path = subject.item("a");
    let config = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": "a", "labels": {"apply": "x"}},
    });
    let operations = json!([{"op": "add", "path": "/metadata/labels/json", "value": "x"}]);
    for client in subject.both_ways() {
        for (media_type, patch, label) in [
            (MERGE, &labelled("merge", "x"), "merge"),
            (JSON_PATCH, &operations, "json"),
            (APPLY, &config, "apply"),
        ] {
            let path = format!("{path}?fieldManager=m");
            let patched = client.patch(media_type, &path, patch).await.ok();
            assert_eq!(patched["metadata"]["labels"][label], "x");
        }
        for other in [
            STRATEGIC,
            "application/json",
            "application/yaml",
            "text/plain",
        ] {
            let refused = client.patch(other, &path, &json!({})).await;
            refused.expect(415, "UnsupportedMediaType");
            for taken in [MERGE, JSON_PATCH, APPLY] {
                assert!(message(&refused).contains(taken), "{:#}", refused.body);
            }
        }
    }
    let commands = Commands::new(subject);
    let patch = r#"{"metadata":{"labels":{"x":"y"}}}"#;
    let refused = commands
        .run(&["patch", "sandbox", "a", "-p", patch], &Value::Null)
        .await;
    assert!(!refused.succeeded);
    assert!(
        refused.stderr.contains("accepted media types include"),
        "{refused:#?}"
    );
    let merge = ["patch", "sandbox", "a", "--type=merge", "-p", patch];
    commands.ok(&merge, &Value::Null).await;
}

pub(super) async fn c_159(subject: &Subject) {
    let read = subject.create("a").await;
    let (path, ways) = (subject.item("a"), subject.both_ways());
    let path = path.as_str();
    // Operations add to a map that is there.
    subject.label("a", "first", "x").await;
    let patches = (0..8).map(|n| {
        let (client, label) = (&ways[n % 2], format!("l{n}"));
        async move {
            let add =
                json!([{"op": "add", "path": format!("/metadata/labels/{label}"), "value": "x"}]);
            match n % 4 {
                0 | 1 => client.patch(MERGE, path, &labelled(&label, "x")).await,
                _ => client.patch(JSON_PATCH, path, &add).await,
            }
        }
    });
    for answer in join_all(patches).await {
        assert_eq!(answer.status, 200, "{:#}", answer.body);
    }
    for client in &ways {
        let shown = client.get(path).await.ok();
        for n in 0..8 {
            assert_eq!(shown["metadata"]["labels"][format!("l{n}")], "x");
        }
        let versioned = |version: &str| json!({"metadata": {"resourceVersion": version, "labels": {"at": version}}});
        let stale = client.patch(MERGE, path, &versioned(version(&read))).await;
        stale.expect(409, "Conflict");
        assert!(message(&stale).contains("please apply your changes to the latest version"));
        let replace = json!([{"op": "replace", "path": "/metadata/resourceVersion", "value": version(&read)}]);
        let stale = client.patch(JSON_PATCH, path, &replace).await;
        stale.expect(409, "Conflict");
        let now = client
            .patch(MERGE, path, &versioned(version(&shown)))
            .await
            .ok();
        assert_eq!(now["metadata"]["labels"]["at"], version(&shown));
    }
}

pub(super) async fn c_160(subject: &Subject) {
    subject.create("a").await;
    let path = subject.item("a");
    let send = async |client: &super::super::client::Client, media_type, body: &str| {
        let headers = [("content-type", media_type)];
        client.send("PATCH", &path, &headers, body).await
    };
    let test = json!({"op": "test", "path": "/kind", "value": "Sandbox"});
    let many = Value::from(vec![test; 10_001]).to_string();
    for client in subject.both_ways() {
        for (media_type, malformed) in [
            (MERGE, "{"),
            (MERGE, "[]"),
            (JSON_PATCH, "{"),
            (JSON_PATCH, "{}"),
            (APPLY, "{"),
        ] {
            let query = format!("{path}?fieldManager=m");
            let headers = [("content-type", media_type)];
            let refused = client.send("PATCH", &query, &headers, malformed).await;
            refused.expect(400, "BadRequest");
        }
        for unfit in [
            r#"[{"op":"test","path":"/spec/shutdownPolicy","value":"Never"}]"#,
            r#"[{"op":"remove","path":"/spec/nothing"}]"#,
        ] {
            send(&client, JSON_PATCH, unfit)
                .await
                .expect(422, "Invalid");
        }
        let long = send(&client, JSON_PATCH, &many).await;
        long.expect(413, "RequestEntityTooLarge");
        for (media_type, body) in [(MERGE, "{}"), (JSON_PATCH, "[]")] {
            let forced = format!("{path}?force=true");
            let headers = [("content-type", media_type)];
            let forced = client.send("PATCH", &forced, &headers, body).await;
            forced.expect(422, "Invalid");
            assert_eq!(fields(&forced), ["force"]);
            let absent = subject.item("absent");
            let absent = client.send("PATCH", &absent, &headers, body).await;
            absent.expect(404, "NotFound");
        }
        let applied = format!("{}?fieldManager=m&dryRun=All", subject.item("absent"));
        let applied = client.patch(APPLY, &applied, &subject.mk("absent")).await;
        assert_eq!(applied.status, 201, "{:#}", applied.body);
    }
}

pub(super) async fn c_169(subject: &Subject) {
    // Of a kind that is none, so that the garbage collector does not look for it.
    let owner = json!({"apiVersion": "absent.example.org/v1", "kind": "Owner", "name": "p", "uid": OTHER_UID});
    let twice = json!({"metadata": {"ownerReferences": [owner, owner]}});
    for (n, client) in subject.both_ways().into_iter().enumerate() {
        let name = format!("twice-{n}");
        let path = subject.item(&name);
        let created = post(
            &client,
            &subject.collection(),
            &with(subject, &name, &twice),
        )
        .await;
        assert_eq!(created.status, 201, "{:#}", created.body);
        let patched = client.patch(MERGE, &path, &twice).await;
        for answer in [created, patched] {
            let told = warnings(&answer);
            let tells = |text: &&str| {
                text.contains("ownerReferences contains duplicate entries")
                    && text.contains(OTHER_UID)
            };
            assert!(told.iter().any(tells), "{told:?}");
            assert_eq!(answer.ok()["metadata"]["ownerReferences"], json!([owner]));
        }

        let name = format!("held-{n}");
        let path = subject.item(&name);
        subject.create_from(held(subject, &name)).await;
        client.delete(&path).await.ok();
        let more = json!({"metadata": {"finalizers": [HOLD, "example.org/more"]}});
        let mut whole = client.get(&path).await.ok();
        json_patch::merge(&mut whole, &more);
        let put = client.put(&path, &whole).await;
        let patch = client.patch(MERGE, &path, &more).await;
        for refused in [put, patch] {
            refused.expect(422, "Invalid");
            assert!(fields(&refused).contains(&"metadata.finalizers"));
        }
        let shown = client.get(&path).await.ok();
        assert_eq!(shown["metadata"]["finalizers"], json!([HOLD]));
    }
}
