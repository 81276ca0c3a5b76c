//! Whatever is sent, the answer is a refusal or an answer, and never a fault of the server.

use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::harness::{Cluster, SANDBOXES, item, mk_node};

/// Runs a property whose cases ask a server.
fn check<S: Strategy>(cases: u32, strategy: S, property: impl AsyncFn(&Cluster, S::Value) -> u16) {
    let runtime = Runtime::new().unwrap();
    let cluster = runtime.block_on(async {
        let cluster = Cluster::start(mk_node(2)).await;
        cluster.create("a").await;
        cluster
    });
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&strategy, |value| {
            let code = runtime.block_on(property(&cluster, value));
            prop_assert!(
                (200..500).contains(&code) || code == 503 || code == 504,
                "{code}"
            );
            Ok(())
        })
        .unwrap();
}

/// Text that a URL may hold as it is.
fn encoded(text: &str) -> String {
    let bytes = text.bytes().map(|byte| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    bytes.collect()
}

fn any_parameter() -> impl Strategy<Value = (String, String)> {
    let keys = prop::sample::select(vec![
        "limit",
        "continue",
        "resourceVersionMatch",
        "labelSelector",
        "fieldSelector",
        "sendInitialEvents",
        "timeoutSeconds",
        "allowWatchBookmarks",
        "dryRun",
        "fieldValidation",
        "fieldManager",
        "pretty",
        "includeObject",
        "propagationPolicy",
        "orphanDependents",
        "force",
    ]);
    let values = prop_oneof![
        Just("true".to_owned()),
        Just("0".to_owned()),
        Just("1".to_owned()),
        Just("All".to_owned()),
        Just("Exact".to_owned()),
        Just("NotOlderThan".to_owned()),
        Just("metadata.name=a".to_owned()),
        Just("18446744073709551616".to_owned()),
        Just("-9223372036854775808".to_owned()),
        "[a-z!=,() ]{0,12}",
        "\\PC{0,12}",
    ];
    (keys.prop_map(str::to_owned), values)
}

fn any_query() -> impl Strategy<Value = String> {
    prop::collection::vec(any_parameter(), 0..5).prop_map(|pairs| {
        let pairs = pairs
            .iter()
            .map(|(key, value)| format!("{key}={}", encoded(value)));
        pairs.collect::<Vec<_>>().join("&")
    })
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        Just(json!("Suspended")),
        Just(json!("2040-01-01T00:00:00Z")),
    ];
    let keys = prop::sample::select(vec![
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        "status",
        "name",
        "generateName",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "podTemplate",
        "containers",
        "operatingMode",
        "shutdownTime",
        "resourceVersion",
        "uid",
        "deletionTimestamp",
        "managedFields",
        "",
    ]);
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..6).prop_map(|pairs| {
                Value::Object(
                    pairs
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

#[test]
fn any_query_of_a_read_is_answered() {
    check(
        150,
        (any_query(), any::<bool>()),
        async |cluster, (query, one)| {
            let path = if one { item("a") } else { SANDBOXES.to_owned() };
            cluster.client.get(format!("{path}?{query}")).await.code()
        },
    );
}

#[test]
fn any_query_of_a_watch_is_answered() {
    check(60, any_query(), async |cluster, query| {
        let path = format!("{SANDBOXES}?watch=true&{query}");
        cluster
            .client
            .open("GET", &path, &[], "")
            .await
            .status()
            .as_u16()
    });
}

#[test]
fn any_accept_is_answered() {
    let clause = "(application/(json|yaml|\\*|vnd\\.kubernetes\\.protobuf)|\\*/\\*|[a-z/;=,*. ]{0,12})(;(as=(Table|PartialObjectMetadata)|v=v1|g=meta\\.k8s\\.io|q=[0-9.]{0,4})){0,4}";
    let accept = prop::collection::vec(clause, 0..4);
    check(150, accept, async |cluster, clauses| {
        cluster
            .client
            .get_as(SANDBOXES, &clauses.join(","))
            .await
            .code()
    });
}

#[test]
fn any_object_is_created_or_refused() {
    check(
        150,
        (any_json(), any_query()),
        async |cluster, (object, query)| {
            let path = format!("{SANDBOXES}?{query}&dryRun=All");
            cluster.client.post(&path, &object).await.code()
        },
    );
}

#[test]
fn any_bytes_are_refused() {
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    let types = prop::sample::select(vec!["application/json", "application/yaml"]);
    check(
        150,
        (bytes, types),
        async |cluster, (bytes, content_type)| {
            let headers = [("content-type", content_type)];
            cluster
                .client
                .request("POST", SANDBOXES, &headers, bytes)
                .await
                .code()
        },
    );
}

#[test]
fn any_change_is_made_or_refused() {
    let operation = (
        "(add|remove|replace|move|copy|test)",
        "(/(metadata|spec|labels|-|0|~1|status)){0,3}",
        any_json(),
    );
    let operations = prop::collection::vec(operation, 0..4).prop_map(|operations| {
        let operations = operations.into_iter().map(
            |(op, path, value)| json!({"op": op, "path": path, "from": "/spec", "value": value}),
        );
        Value::Array(operations.collect())
    });
    let patch = prop_oneof![
        any_json().prop_map(|patch| ("application/merge-patch+json", patch)),
        operations.prop_map(|patch| ("application/json-patch+json", patch)),
    ];
    check(200, patch, async |cluster, (content_type, patch)| {
        let headers = [("content-type", content_type)];
        let path = format!("{}?dryRun=All", item("a"));
        cluster
            .client
            .request("PATCH", &path, &headers, patch.to_string())
            .await
            .code()
    });
}

#[test]
fn any_path_is_answered() {
    let path = "(/(apis|agents\\.x-k8s\\.io|v1beta1|namespaces|default|sandboxes|a|pause|status|%2F|%00|\\.\\.|;|healthz|readyz|openapi|v3)){0,8}/?";
    let method = prop::sample::select(vec!["GET", "HEAD", "POST", "PUT", "PATCH", "OPTIONS"]);
    check(200, (path, method), async |cluster, (path, method)| {
        let path = format!("/{}?dryRun=All", path.trim_start_matches('/'));
        cluster.client.request(method, &path, &[], "").await.code()
    });
}

#[test]
fn any_options_of_a_delete_are_read_or_refused() {
    let keys = prop::sample::select(vec![
        "dryRun",
        "preconditions",
        "propagationPolicy",
        "orphanDependents",
        "gracePeriodSeconds",
        "kind",
        "apiVersion",
    ]);
    let options = prop::collection::vec((keys, any_json()), 0..4);
    check(150, options, async |cluster, pairs| {
        let mut options = serde_json::Map::new();
        options.extend(
            pairs
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value)),
        );
        let path = format!("{}?dryRun=All", item("a"));
        cluster
            .client
            .delete(&path, Value::Object(options))
            .await
            .code()
    });
}
