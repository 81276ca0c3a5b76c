//! Server-side apply.

use serde_json::{Value, json};

use super::super::{
    client::{APPLY, MERGE},
    subject::Subject,
    writes::{apply, fields, message, warm, with},
};

/// A configuration of labels alone.
fn labels(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "labels": labels},
    })
}

pub(super) async fn c_163(subject: &Subject) {
    for (n, client) in subject.both_ways().into_iter().enumerate() {
        let name = format!("a-{n}");
        let path = subject.item(&name);
        let with = |change: Value| with(subject, &name, &change);
        for wrong in [
            with(json!({"apiVersion": "v1"})),
            with(json!({"apiVersion": "agents.x-k8s.io/v1"})),
            with(json!({"metadata": {"managedFields": [{"manager": "x"}]}})),
            with(json!({"metadata": {"name": "other"}})),
        ] {
            let refused = apply(&client, &path, "fieldManager=m", &wrong).await;
            refused.expect(400, "BadRequest");
        }
        let nobody = apply(&client, &path, "", &subject.mk(&name)).await;
        nobody.expect(422, "Invalid");
        assert_eq!(fields(&nobody), ["fieldManager"]);
        client.get(&path).await.expect(404, "NotFound");

        let yaml = format!(
            "apiVersion: agents.x-k8s.io/v1beta1\nkind: Sandbox\nmetadata:\n  name: {name}\n  \
             annotations: {{lines: \"1\"}}\nspec: {}\n",
            subject.mk(&name)["spec"]
        );
        let query = format!("{path}?fieldManager=m");
        let headers = [("content-type", APPLY)];
        let made = warm(async || client.send("PATCH", &query, &headers, &yaml).await).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
        assert_eq!(made.body["metadata"]["annotations"]["lines"], "1");
        let json = apply(&client, &path, "fieldManager=m", &subject.mk(&name)).await;
        assert_eq!(json.status, 200, "{:#}", json.body);
        let uid = &json.body["metadata"]["uid"];
        assert_eq!(*uid, made.body["metadata"]["uid"]);
    }
}

/// Nobody owns anything of a sandbox's status, which is the server's, so no entry of its `managedFields` has a `subresource`.
pub(super) async fn c_164(subject: &Subject) {
    for (name, client) in ["a", "b"].into_iter().zip(subject.both_ways()) {
        subject.create(name).await;
        let path = subject.item(name);
        let apply = async |query: &str, config: Value| {
            super::super::writes::apply(&client, &path, query, &labels(name, config)).await
        };
        let both = apply("fieldManager=one", json!({"team": "1", "tier": "x"}));
        let first = both.await.ok();
        let entries = first["metadata"]["managedFields"].as_array().cloned();
        let entries = entries.unwrap_or_default();
        let mine = entries.iter().find(|entry| entry["manager"] == "one");
        let mine = mine.unwrap_or_else(|| panic!("{first:#}"));
        assert_eq!(mine["operation"], "Apply");
        assert_eq!(mine["apiVersion"], "agents.x-k8s.io/v1beta1");
        assert_eq!(mine["fieldsType"], "FieldsV1");
        let owned = json!({"f:metadata": {"f:labels": {"f:team": {}, "f:tier": {}}}});
        assert_eq!(mine["fieldsV1"], owned);
        assert!(mine["time"].is_string());
        assert!(entries.iter().any(|entry| entry["operation"] == "Update"));

        let refused = apply("fieldManager=two", json!({"team": "2", "tier": "y"})).await;
        refused.expect(409, "Conflict");
        assert_eq!(refused.causes(), ["FieldManagerConflict"; 2]);
        assert_eq!(
            fields(&refused),
            [".metadata.labels.team", ".metadata.labels.tier"]
        );
        let cause = &refused.body["details"]["causes"][0];
        assert_eq!(cause["message"], r#"conflict with "one""#);
        assert!(message(&refused).starts_with("Apply failed with 2 conflicts: "));
        let patch = json!({"metadata": {"annotations": {"note": "x"}}});
        let patched = format!("{path}?fieldManager=patcher");
        client.patch(MERGE, &patched, &patch).await.ok();
        let mut config = labels(name, json!({}));
        config["metadata"]["annotations"]["note"] = "y".into();
        let refused = super::super::writes::apply(&client, &path, "fieldManager=two", &config);
        let refused = refused.await;
        refused.expect(409, "Conflict");
        let expected = r#"Apply failed with 1 conflict: conflict with "patcher" using agents.x-k8s.io/v1beta1"#;
        assert!(
            message(&refused).starts_with(expected),
            "{:#}",
            refused.body
        );

        let forced = apply("fieldManager=two&force=true", json!({"team": "2"}))
            .await
            .ok();
        assert_eq!(forced["metadata"]["labels"]["team"], "2");
        let less = apply("fieldManager=one", json!({})).await.ok();
        let left = &less["metadata"]["labels"];
        assert_eq!((left.get("tier"), &left["team"]), (None, &json!("2")));
    }
}

pub(super) async fn c_165(subject: &Subject) {
    let client = subject.direct();
    let document = client
        .get("/openapi/v3/apis/agents.x-k8s.io/v1beta1")
        .await
        .ok();
    let path = "/apis/agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxes/{name}";
    let taken = &document["paths"][path]["patch"]["requestBody"]["content"];
    assert!(taken.get(APPLY).is_some(), "{taken}");
    for (name, client) in ["a", "b"].into_iter().zip(subject.both_ways()) {
        let path = subject.item(name);
        let query = "fieldManager=m";
        let mut config = subject.mk(name);
        config["metadata"]["labels"] = json!({"kept": "x", "left": "x"});
        apply(&client, &path, query, &config).await.ok();
        let config = labels(name, json!({"kept": "x"}));
        // A merge would keep the label and ask for no manager.
        let refused = apply(&client, &path, "", &config).await;
        refused.expect(422, "Invalid");
        let dry = format!("{query}&dryRun=All&force=true");
        let less = apply(&client, &path, &dry, &with(subject, name, &config))
            .await
            .ok();
        let left = &less["metadata"]["labels"];
        assert_eq!((&left["kept"], left.get("left")), (&json!("x"), None));
    }
}
