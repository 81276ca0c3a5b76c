//! Reads of one object and of many, and watches that are refused.

use super::step::{JSON, Step, get};

pub(super) fn reads() -> Vec<Step> {
    vec![
        get("get", "/a"),
        get("get what is absent", "/absent"),
        get("get from an old version", "/a?resourceVersion=0"),
        get("get from a wrong version", "/a?resourceVersion=x"),
        get("get what has no such part", "/a/nothing"),
        get("get the status", "/a/status"),
        get("get for plain text", "/a").accept("text/plain"),
        get("get metadata", "/a")
            .accept("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"),
        get("list", "?labelSelector=team%3Dx"),
        get("list by name", "?fieldSelector=metadata.name%3Da"),
        get("list by an unknown field", "?fieldSelector=spec.x%3Da"),
        get("list by a bad selector", "?labelSelector=a%20b%20c"),
        get("list by a bad field selector", "?fieldSelector=a"),
        get("list by a wrong version", "?resourceVersion=x"),
        get("list a negative number", "?limit=-1"),
        get("list no number", "?limit=x"),
        get("list with a bad token", "?limit=1&continue=x"),
        get(
            "list with a match and no version",
            "?resourceVersionMatch=Exact",
        ),
        get(
            "list with a wrong match",
            "?resourceVersion=1&resourceVersionMatch=Best",
        ),
        get(
            "list exactly zero",
            "?resourceVersion=0&resourceVersionMatch=Exact",
        ),
        get(
            "list with a token and a version",
            "?continue=x&resourceVersion=5",
        ),
        get(
            "list from the future",
            "?resourceVersion=999999999999999999&timeoutSeconds=1",
        ),
        get(
            "watch with initial events and no match",
            "?watch=true&sendInitialEvents=true",
        ),
        get(
            "watch with a match",
            "?watch=true&resourceVersionMatch=Exact&resourceVersion=1",
        ),
        get(
            "watch from a wrong version",
            "?watch=true&resourceVersion=x",
        ),
        get(
            "watch with a bad selector",
            "?watch=true&labelSelector=a%20b%20c",
        ),
        get(
            "watch with a token",
            "?watch=true&continue=x&timeoutSeconds=1",
        ),
        Step::new("options", "OPTIONS", "/a", JSON, ""),
    ]
}
