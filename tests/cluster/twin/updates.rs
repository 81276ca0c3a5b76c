//! Whole objects in place of what is there.

use serde_json::{Value, json};

use super::step::{Step, get, plain, put, with};

pub(super) fn updates() -> Vec<Step> {
    let versioned = |change: Value| {
        let mut object = with(
            "a",
            json!({"metadata": {"resourceVersion": "{a.resourceVersion}"}}),
        );
        json_patch::merge(&mut object, &change);
        object
    };
    vec![
        put(
            "update",
            "/a?fieldManager=n",
            versioned(json!({"metadata": {"labels": {"team": "y"}}})),
        ),
        put(
            "update nothing",
            "/a?fieldManager=o",
            versioned(json!({"metadata": {"labels": {"team": "y"}}})),
        ),
        put(
            "update the spec",
            "/a?fieldManager=n",
            versioned(json!({"spec": {"shutdownPolicy": "Delete"}})),
        ),
        put(
            "update the status here",
            "/a?fieldManager=n",
            versioned(json!({"status": {"nodeName": "mine"}})),
        ),
        put("update without a version", "/a", plain("a")),
        put(
            "update an old version",
            "/a",
            versioned(json!({"metadata": {"resourceVersion": "1"}})),
        ),
        put(
            "update a wrong version",
            "/a",
            versioned(json!({"metadata": {"resourceVersion": "x"}})),
        ),
        put(
            "update what is absent",
            "/absent",
            with("absent", json!({"metadata": {"resourceVersion": "1"}})),
        ),
        put(
            "update another name",
            "/a",
            versioned(json!({"metadata": {"name": "b"}})),
        ),
        put(
            "update without a name",
            "/a",
            versioned(json!({"metadata": {"name": null}})),
        ),
        put(
            "update another uid",
            "/a",
            versioned(json!({"metadata": {"uid": "6e3b2cc1-2a36-4f0d-8a5e-8f0ad6a0a4a1"}})),
        ),
        put(
            "update another kind",
            "/a",
            versioned(json!({"kind": "Pod"})),
        ),
        put(
            "update to a wrong type",
            "/a",
            versioned(json!({"spec": {"podTemplate": 5}})),
        ),
        put(
            "update to bad labels",
            "/a",
            versioned(json!({"metadata": {"labels": {"a b": "c d"}}})),
        ),
        put(
            "update dry",
            "/a?dryRun=All&fieldManager=n",
            versioned(json!({"metadata": {"labels": {"team": "z"}}})),
        ),
        put(
            "update strictly",
            "/a?fieldValidation=Strict",
            versioned(json!({"spec": {"x": 1}})),
        ),
        put("update a collection", "", plain("a")),
        put(
            "update the server's metadata",
            "/a?fieldManager=n",
            versioned(
                json!({"metadata": {"generation": 50, "creationTimestamp": "2020-01-01T00:00:00Z", "deletionTimestamp": "2020-01-01T00:00:00Z"}}),
            ),
        ),
        get("get what was updated", "/a"),
    ]
}
