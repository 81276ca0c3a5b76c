//! Server-side apply.

use serde_json::{Value, json};

use super::step::{Step, apply, get, plain};

pub(super) fn applies() -> Vec<Step> {
    let labelled = |labels: Value| {
        json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "b", "labels": labels},
        })
    };
    let named = |change: Value| {
        let mut object = plain("c");
        json_patch::merge(&mut object, &change);
        object
    };
    vec![
        apply("apply a new one", "/b?fieldManager=one", plain("b")),
        apply("apply it again", "/b?fieldManager=one", plain("b")),
        apply(
            "apply as another",
            "/b?fieldManager=two",
            labelled(json!({"team": "two"})),
        ),
        apply(
            "apply with a conflict",
            "/b?fieldManager=three",
            labelled(json!({"team": "three"})),
        ),
        apply(
            "apply with force",
            "/b?fieldManager=three&force=true",
            labelled(json!({"team": "three"})),
        ),
        apply("apply less", "/b?fieldManager=three", labelled(json!({}))),
        apply("apply without a manager", "/b", plain("b")),
        apply(
            "apply dry",
            "/b?fieldManager=four&dryRun=All",
            labelled(json!({"team": "four"})),
        ),
        apply(
            "apply a new one dry",
            "/c?fieldManager=one&dryRun=All",
            plain("c"),
        ),
        apply("apply another name", "/c?fieldManager=one", plain("d")),
        apply(
            "apply no name",
            "/c?fieldManager=one",
            named(json!({"metadata": {"name": null}})),
        ),
        apply(
            "apply a generated name",
            "/c?fieldManager=one",
            named(json!({"metadata": {"name": null, "generateName": "c-"}})),
        ),
        apply(
            "apply in another namespace",
            "/c?fieldManager=one",
            named(json!({"metadata": {"namespace": "other"}})),
        ),
        apply(
            "apply owners",
            "/c?fieldManager=one",
            named(json!({"metadata": {"managedFields": []}})),
        ),
        apply(
            "apply a version to nothing",
            "/c?fieldManager=one&dryRun=All",
            named(json!({"metadata": {"resourceVersion": "5"}})),
        ),
        apply(
            "apply a uid to nothing",
            "/c?fieldManager=one",
            named(json!({"metadata": {"uid": "6e3b2cc1-2a36-4f0d-8a5e-8f0ad6a0a4a1"}})),
        ),
        apply(
            "apply another type",
            "/c?fieldManager=one",
            named(json!({"apiVersion": "v1"})),
        ),
        apply(
            "apply a wrong type",
            "/c?fieldManager=one",
            named(json!({"spec": {"podTemplate": 5}})),
        ),
        apply(
            "apply an unknown field",
            "/c?fieldManager=one",
            named(json!({"spec": {"x": 5}})),
        ),
        apply(
            "apply a wrong mode",
            "/c?fieldManager=one",
            named(json!({"spec": {"operatingMode": "Idle"}})),
        ),
        apply("apply a list", "/c?fieldManager=one", "[]"),
        apply("apply no YAML", "/c?fieldManager=one", "{"),
        apply(
            "apply to the status of nothing",
            "/c/status?fieldManager=one",
            plain("c"),
        ),
        apply("apply to a collection", "?fieldManager=one", plain("c")),
        get("get what was applied", "/b"),
    ]
}
