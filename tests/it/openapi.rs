//! OpenAPI: what `kubectl explain`, validation and apply are told.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{golden, harness::Cluster};

const V3: &str = "/openapi/v3/apis/agents.x-k8s.io/v1beta1";
const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

/// A document without what would fill a repository: the paths with their operations, the names of the schemas, and those
/// that are this API's own.
fn reduced(document: &Value, schemas: &str) -> Value {
    let paths = document["paths"].as_object().unwrap();
    let paths: serde_json::Map<_, _> = paths
        .iter()
        .map(|(path, item)| {
            let operations = METHODS
                .iter()
                .filter_map(|method| Some(((*method).to_owned(), operation(item.get(method)?))));
            (path.clone(), Value::Object(operations.collect()))
        })
        .collect();
    let all = document.pointer(schemas).unwrap().as_object().unwrap();
    let own: serde_json::Map<_, _> = all
        .iter()
        .filter(|(name, _)| name.contains("agents"))
        .map(|(name, schema)| (name.clone(), schema.clone()))
        .collect();
    json!({"paths": paths, "schemas": own, "shared": all.keys().filter(|name| !own.contains_key(*name)).collect::<Vec<_>>()})
}

fn operation(operation: &Value) -> Value {
    let parameters = operation["parameters"].as_array();
    let names = parameters
        .into_iter()
        .flatten()
        .map(|parameter| &parameter["name"]);
    json!({
        "id": operation["operationId"],
        "kind": operation["x-kubernetes-group-version-kind"]["kind"],
        "action": operation["x-kubernetes-action"],
        "parameters": names.collect::<Vec<_>>(),
    })
}

#[tokio::test]
async fn the_documents_are_as_reviewed() {
    let cluster = Cluster::of(0).await;
    let v3 = cluster.client.get(V3).await.json();
    golden::check("openapi/v3.json", &reduced(&v3, "/components/schemas"));
    let v2 = cluster.client.get("/openapi/v2").await.json();
    golden::check("openapi/v2.json", &reduced(&v2, "/definitions"));
}

#[tokio::test]
async fn the_index_leads_to_a_document_that_may_be_kept_for_ever() {
    let cluster = Cluster::of(0).await;
    let index = cluster.client.get("/openapi/v3").await.json();
    let paths = index["paths"].as_object().unwrap();
    assert_eq!(
        paths.keys().collect::<Vec<_>>(),
        [
            "apis/agents.x-k8s.io/v1alpha1",
            "apis/agents.x-k8s.io/v1beta1"
        ]
    );
    let url = paths["apis/agents.x-k8s.io/v1beta1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    assert!(url.starts_with(&format!("{V3}?hash=")), "{url}");
    let hashed = cluster.client.get(url).await;
    assert_eq!(hashed.header("content-type"), "application/json");
    assert!(hashed.header("cache-control").contains("immutable"));
    assert!(!hashed.header("expires").is_empty());
    let stale = cluster.client.get(format!("{V3}?hash=stale")).await;
    assert_eq!(stale.code(), 200, "never a redirect");
    assert!(!stale.header("cache-control").contains("immutable"));
    assert_eq!(stale.body, hashed.body);
}

#[tokio::test]
async fn tags_save_the_documents() {
    let cluster = Cluster::of(0).await;
    for path in [V3, "/openapi/v2"] {
        let first = cluster.client.get(path).await;
        let tag = first.header("etag").to_owned();
        assert!(tag.starts_with('"') && tag.len() > 10);
        assert!(first.header("vary").contains("Accept"));
        let headers = [("if-none-match", tag.as_str())];
        let again = cluster.client.request("GET", path, &headers, "").await;
        assert_eq!((again.code(), again.body.len()), (304, 0));
    }
}

#[tokio::test]
async fn protobuf_alone_is_not_acceptable() {
    let cluster = Cluster::of(0).await;
    let v3 = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
    cluster
        .client
        .get_as(V3, v3)
        .await
        .refusal(406, "NotAcceptable");
    let v2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    cluster
        .client
        .get_as("/openapi/v2", v2)
        .await
        .refusal(406, "NotAcceptable");
    let both = format!("{v2},application/json");
    assert_eq!(
        cluster.client.get_as("/openapi/v2", &both).await.code(),
        200
    );
}

#[tokio::test]
async fn explain_finds_its_way_from_a_path_to_a_schema() {
    let cluster = Cluster::of(0).await;
    let v3 = cluster.client.get(V3).await.json();
    let collection = "/apis/agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxes";
    let kind = json!({"group": "agents.x-k8s.io", "version": "v1beta1", "kind": "Sandbox"});
    for path in [collection.to_owned(), format!("{collection}/{{name}}")] {
        let get = &v3["paths"][&path]["get"];
        assert_eq!(get["x-kubernetes-group-version-kind"], kind, "{path}");
    }
    let schemas = v3["components"]["schemas"].as_object().unwrap();
    let sandbox: Vec<_> = schemas
        .values()
        .filter(|schema| schema["x-kubernetes-group-version-kind"] == json!([kind]))
        .collect();
    assert_eq!(sandbox.len(), 1, "one schema, and its kind in a list");
    for (path, item) in v3["paths"].as_object().unwrap() {
        for method in METHODS {
            if let Some(operation) = item.get(method) {
                let kind = &operation["x-kubernetes-group-version-kind"];
                assert!(kind["kind"].is_string(), "{method} {path}");
            }
        }
    }
}

#[tokio::test]
async fn apply_learns_what_patches_and_validation_there_are() {
    let cluster = Cluster::of(0).await;
    let v3 = cluster.client.get(V3).await.json();
    let item = "/apis/agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxes/{name}";
    let patch = &v3["paths"][item]["patch"];
    let parameters = patch["parameters"].as_array().unwrap();
    for name in ["fieldValidation", "dryRun", "fieldManager", "force"] {
        let inline = |parameter: &&Value| parameter["name"] == name && parameter["in"] == "query";
        assert!(
            parameters.iter().any(|parameter| inline(&parameter)),
            "{name}"
        );
    }
    let types = patch["requestBody"]["content"].as_object().unwrap();
    let types: BTreeSet<_> = types.keys().map(String::as_str).collect();
    // Never a strategic one.
    let expected = [
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
    ];
    assert_eq!(types, expected.into());
}

#[tokio::test]
async fn every_reference_leads_somewhere() {
    let cluster = Cluster::of(0).await;
    for path in [V3, "/openapi/v2"] {
        let document = cluster.client.get(path).await.json();
        let mut found = 0;
        walk(&document, &mut |reference| {
            found += 1;
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{path}: {reference}");
        });
        assert!(found > 10);
    }
}

fn walk(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                visit(reference);
            }
            fields.values().for_each(|value| walk(value, visit));
        }
        Value::Array(items) => items.iter().for_each(|value| walk(value, visit)),
        _ => {}
    }
}
