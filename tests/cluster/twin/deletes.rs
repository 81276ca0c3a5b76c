//! Deletions, with and without finalizers.

use serde_json::{Value, json};

use super::step::{Step, delete, get, merge, plain, post};

pub(super) fn deletes() -> Vec<Step> {
    let options = |change: Value| {
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        json_patch::merge(&mut options, &change);
        options
    };
    vec![
        delete("delete what is absent", "/absent", ""),
        delete(
            "delete another uid",
            "/a",
            options(json!({"preconditions": {"uid": "6e3b2cc1-2a36-4f0d-8a5e-8f0ad6a0a4a1"}})),
        ),
        delete(
            "delete an old version",
            "/a",
            options(json!({"preconditions": {"resourceVersion": "1"}})),
        ),
        delete("delete dry", "/a?dryRun=All", ""),
        delete("delete with a wrong dryRun", "/a?dryRun=Some", ""),
        delete(
            "delete with a wrong policy",
            "/a?propagationPolicy=Slowly",
            "",
        ),
        delete(
            "delete with two policies",
            "/a",
            options(json!({"propagationPolicy": "Background", "orphanDependents": true})),
        ),
        delete("delete with a wrong body", "/a", "{"),
        delete("delete with another kind", "/a", plain("a")),
        merge(
            "add a finalizer",
            "/a?fieldManager=p",
            json!({"metadata": {"finalizers": ["example.org/stay"]}}),
        ),
        delete("delete with a finalizer", "/a", ""),
        delete("delete with a finalizer again", "/a", ""),
        post("create what is being deleted", "", plain("a")),
        merge(
            "add another finalizer then",
            "/a",
            json!({"metadata": {"finalizers": ["example.org/stay", "example.org/more"]}}),
        ),
        merge(
            "take the finalizer away",
            "/a?fieldManager=p",
            json!({"metadata": {"finalizers": null}}),
        ),
        get("get what is deleted", "/a"),
        delete(
            "delete in the background",
            "/full",
            options(json!({"propagationPolicy": "Background"})),
        ),
        delete("delete with a grace period", "/b?gracePeriodSeconds=30", ""),
        delete(
            "delete a collection by a bad selector",
            "?labelSelector=a%20b%20c",
            "",
        ),
        delete(
            "delete a collection by an unknown field",
            "?fieldSelector=spec.x%3Da",
            "",
        ),
        delete(
            "delete a collection that is empty",
            "?labelSelector=nobody%3Dhas",
            "",
        ),
        delete("delete a collection dry", "?dryRun=All", ""),
        delete("delete the rest", "", ""),
        get("list what is left", ""),
    ]
}
