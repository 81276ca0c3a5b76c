//! Merge patches and operations.

use serde_json::json;

use super::step::{JSON, Step, merge, operations};

pub(super) fn patches() -> Vec<Step> {
    vec![
        merge(
            "merge",
            "/a?fieldManager=p",
            json!({"metadata": {"labels": {"colour": "red"}}}),
        ),
        merge("merge nothing", "/a?fieldManager=q", json!({})),
        merge(
            "merge away",
            "/a?fieldManager=p",
            json!({"metadata": {"labels": {"colour": null}}}),
        ),
        merge(
            "merge the spec",
            "/a?fieldManager=p",
            json!({"spec": {"shutdownPolicy": "Retain"}}),
        ),
        merge("merge what is absent", "/absent", json!({})),
        merge("merge a list", "/a", "[]"),
        merge("merge no JSON", "/a", "{"),
        merge(
            "merge another name",
            "/a",
            json!({"metadata": {"name": "b"}}),
        ),
        merge(
            "merge another uid",
            "/a",
            json!({"metadata": {"uid": "6e3b2cc1-2a36-4f0d-8a5e-8f0ad6a0a4a1"}}),
        ),
        merge(
            "merge an old version",
            "/a",
            json!({"metadata": {"resourceVersion": "1"}}),
        ),
        merge(
            "merge a wrong type",
            "/a",
            json!({"spec": {"podTemplate": 5}}),
        ),
        merge(
            "merge a wrong mode",
            "/a",
            json!({"spec": {"operatingMode": "Idle"}}),
        ),
        merge(
            "merge strictly",
            "/a?fieldValidation=Strict",
            json!({"spec": {"x": 1}}),
        ),
        merge(
            "merge an unknown field",
            "/a?fieldManager=p",
            json!({"spec": {"x": 1}}),
        ),
        merge("merge with force", "/a?force=true", json!({})),
        merge(
            "merge dry",
            "/a?dryRun=All&fieldManager=p",
            json!({"metadata": {"labels": {"colour": "blue"}}}),
        ),
        merge(
            "merge the status here",
            "/a?fieldManager=p",
            json!({"status": {"nodeName": "mine"}}),
        ),
        merge("merge a collection", "", json!({})),
        merge(
            "merge no owners",
            "/a?fieldManager=p",
            json!({"metadata": {"managedFields": [{}]}}),
        ),
        merge(
            "merge without owners",
            "/a?fieldManager=p",
            json!({"metadata": {"labels": {"colour": "blue"}}}),
        ),
        operations(
            "operate",
            "/a?fieldManager=p",
            json!([{"op": "add", "path": "/metadata/labels/size", "value": "s"}]),
        ),
        operations(
            "operate with a test that fails",
            "/a",
            json!([{"op": "test", "path": "/spec/shutdownPolicy", "value": "Never"}]),
        ),
        operations(
            "operate on what is not there",
            "/a",
            json!([{"op": "remove", "path": "/spec/nothing"}]),
        ),
        operations("operate with no operation", "/a", json!([])),
        operations("operate with an object", "/a", json!({})),
        operations(
            "operate with an unknown operation",
            "/a",
            json!([{"op": "jump", "path": "/spec"}]),
        ),
        operations(
            "operate on the kind",
            "/a",
            json!([{"op": "replace", "path": "/kind", "value": "Pod"}]),
        ),
        Step::new(
            "patch strategically",
            "PATCH",
            "/a",
            "application/strategic-merge-patch+json",
            "{}",
        ),
        Step::new("patch with an object", "PATCH", "/a", JSON, "{}"),
        Step::new(
            "patch with charset",
            "PATCH",
            "/a?fieldManager=p",
            "application/merge-patch+json; charset=utf-8",
            r#"{"metadata":{"labels":{"size":"m"}}}"#,
        ),
        merge(
            "merge into the status's metadata",
            "/a/status?fieldManager=p",
            json!({"metadata": {"labels": {"size": "l"}}}),
        ),
    ]
}
