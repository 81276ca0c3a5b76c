//! Objects that are created, or refused.

use serde_json::{Value, json};

use super::step::{Step, plain, post, with};

pub(super) fn creates() -> Vec<Step> {
    vec![
        post("create", "?fieldManager=m", plain("a")),
        post("create again", "", plain("a")),
        post(
            "create without a name",
            "",
            with("", json!({"metadata": {"name": null}})),
        ),
        post(
            "create generated",
            "",
            with(
                "",
                json!({"metadata": {"name": null, "generateName": "gen-"}}),
            ),
        ),
        post(
            "create from the longest base",
            "?dryRun=All",
            with("", based("b".repeat(253))),
        ),
        post("create with a bad name", "", plain("A_")),
        post(
            "create with another version",
            "",
            with("x", json!({"apiVersion": "agents.x-k8s.io/v1"})),
        ),
        post("create another kind", "", with("x", json!({"kind": "Pod"}))),
        post(
            "create without a type",
            "?dryRun=All&fieldManager=m",
            with("x", json!({"kind": null, "apiVersion": null})),
        ),
        post("create from no JSON", "", "{"),
        post("create from nothing", "", ""),
        post("create from an array", "", "[]"),
        post("create from null", "", "null"),
        post("create from text", "", "\"x\""),
        post(
            "create in another namespace",
            "",
            with("x", json!({"metadata": {"namespace": "other"}})),
        ),
        post(
            "create with a version",
            "",
            with("x", json!({"metadata": {"resourceVersion": "5"}})),
        ),
        post(
            "create in no namespace",
            "/apis/agents.x-k8s.io/v1beta1/sandboxes",
            plain("x"),
        ),
        post(
            "create where no namespace is",
            "/apis/agents.x-k8s.io/v1beta1/namespaces/absent/sandboxes",
            plain("x"),
        ),
        post(
            "create with a strict unknown field",
            "?fieldValidation=Strict",
            with("x", json!({"spec": {"x": 1}, "y": 2})),
        ),
        post(
            "create with an unknown field",
            "?dryRun=All&fieldManager=m",
            with("x", json!({"spec": {"x": 1}})),
        ),
        post(
            "create with an ignored unknown field",
            "?dryRun=All&fieldValidation=Ignore&fieldManager=m",
            with("x", json!({"spec": {"x": 1}})),
        ),
        post(
            "create with a strict double field",
            "?fieldValidation=Strict",
            r#"{"apiVersion":"agents.x-k8s.io/v1beta1","kind":"Sandbox","metadata":{"name":"x","name":"x"},"spec":{}}"#,
        ),
        post("create dry", "?dryRun=All&fieldManager=m", plain("dry")),
        post("create with a wrong dryRun", "?dryRun=Some", plain("x")),
        post(
            "create with a wrong validation",
            "?fieldValidation=Loose",
            plain("x"),
        ),
        post(
            "create with a long manager",
            concat!(
                "?fieldManager=",
                "mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm"
            ),
            plain("x"),
        ),
        Step::new(
            "create from plain text",
            "POST",
            "",
            "text/plain",
            plain("x"),
        ),
        post("create for plain text", "", plain("x")).accept("text/plain"),
        post(
            "create with bad labels",
            "",
            with("x", json!({"metadata": {"labels": {"a b": "c d"}}})),
        ),
        post(
            "create with labels that are no text",
            "",
            with("x", json!({"metadata": {"labels": {"a": 1}}})),
        ),
        post(
            "create with bad annotations",
            "",
            with("x", json!({"metadata": {"annotations": {"a b": "c"}}})),
        ),
        post(
            "create with an owner without uid",
            "",
            with(
                "x",
                json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}}),
            ),
        ),
        post(
            "create with bad finalizers",
            "",
            with("x", json!({"metadata": {"finalizers": ["a b"]}})),
        ),
        post(
            "create with a wrong type",
            "",
            with("x", json!({"spec": {"podTemplate": 5}})),
        ),
        post(
            "create with a wrong mode",
            "",
            with("x", json!({"spec": {"operatingMode": "Idle"}})),
        ),
        post(
            "create without a template",
            "",
            with("x", json!({"spec": {"podTemplate": null}})),
        ),
        post(
            "create without a spec",
            "",
            with("x", json!({"spec": null})),
        ),
        post("create on an object", "/a", plain("a")),
        post(
            "create with everything",
            "?fieldManager=m",
            with(
                "full",
                json!({
                    "metadata": {
                        "labels": {"team": "x"},
                        "annotations": {"note": "y"},
                        "uid": "mine",
                        "generation": 7,
                        "creationTimestamp": "2020-01-01T00:00:00Z",
                        "managedFields": [{"manager": "forged"}],
                    },
                    "spec": {"shutdownPolicy": "Delete"},
                    "status": {"nodeName": "mine"},
                }),
            ),
        ),
    ]
}

/// Metadata of an object whose name is to be made from `base`.
fn based(base: String) -> Value {
    json!({"metadata": {"name": null, "generateName": base}})
}
