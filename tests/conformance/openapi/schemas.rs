//! Paths, operations and schemas of every version, and what kubectl makes of them.

use serde_json::{Value, json};

use super::{v3, versions};
use crate::{
    api_service::GROUP,
    conformance::{documents, subject::Subject},
};

/// Every served version with its path, its discovery and its v3 document.
async fn all_versions(subject: &Subject) -> Vec<(String, Value, Value)> {
    let client = subject.proxied();
    let mut all = Vec::new();
    for version in versions(&client).await {
        let api = format!("/apis/{GROUP}/{version}");
        let resources = client.get(&api).await.ok();
        all.push((api, resources, v3(subject, &version).await));
    }
    all
}

/// The path of one object, and of a subresource of it.
fn object_path(api: &str, resource: &str) -> String {
    let (plural, part) = resource.split_once('/').unwrap_or((resource, ""));
    let path = format!("{api}/namespaces/{{namespace}}/{plural}/{{name}}/{part}");
    path.trim_end_matches('/').to_owned()
}

/// What discovery says can be patched, in every version: the path and the operation of its document.
async fn patches(subject: &Subject) -> Vec<(String, Value)> {
    let mut patches = Vec::new();
    for (api, resources, v3) in all_versions(subject).await {
        for resource in resources["resources"].as_array().unwrap() {
            if documents::texts(&resource["verbs"]).contains("patch") {
                let path = object_path(&api, resource["name"].as_str().unwrap());
                let operation = v3["paths"][&path]["patch"].clone();
                assert!(operation.is_object(), "{path} has no patch");
                patches.push((path, operation));
            }
        }
        // And it has no others.
        for (path, item) in v3["paths"].as_object().unwrap() {
            let is_known = patches.iter().any(|(known, _)| known == path);
            assert!(item.get("patch").is_none() || is_known, "{path}");
        }
    }
    patches
}

pub(super) async fn c_068(subject: &Subject) {
    for (api, resources, v3) in all_versions(subject).await {
        is_complete(&api, &resources, &v3);
        names_its_kinds(&api, &resources, &v3);
    }
    let field = subject.said("sandboxes.spec.operatingMode");
    let explained = subject.kubectl().stdout(&["explain", &field]).await;
    let lines: Vec<_> = explained.lines().map(words).collect();
    for expected in [
        "GROUP: agents.x-k8s.io",
        "KIND: Sandbox",
        "VERSION: v1beta1",
    ] {
        assert!(lines.contains(&subject.said(expected)), "{explained}");
    }
    assert!(explained.contains("FIELD: operatingMode"), "{explained}");
}

/// Every resource of discovery has its paths.
#[track_caller]
fn is_complete(api: &str, resources: &Value, v3: &Value) {
    let paths = v3["paths"].as_object().unwrap();
    for resource in resources["resources"].as_array().unwrap() {
        let name = resource["name"].as_str().unwrap();
        let mut expected = vec![object_path(api, name)];
        if !name.contains('/') {
            expected.push(format!("{api}/{name}"));
            expected.push(format!("{api}/namespaces/{{namespace}}/{name}"));
        }
        for path in expected {
            assert!(paths.contains_key(&path), "{path}");
        }
    }
}

/// Every operation names one kind, and exactly one schema says that it is of that kind.
#[track_caller]
fn names_its_kinds(api: &str, resources: &Value, v3: &Value) {
    let schemas = v3["components"]["schemas"].as_object().unwrap();
    let described = |kind: &Value| {
        let of_kind = |schema: &&Value| {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            kinds.is_some_and(|kinds| kinds.contains(kind))
        };
        schemas.values().filter(of_kind).count()
    };
    for kind in kinds(api, resources) {
        let mut list = kind.clone();
        list["kind"] = format!("{}List", kind["kind"].as_str().unwrap()).into();
        assert_eq!((described(&kind), described(&list)), (1, 1), "{kind}");
    }
    let paths = v3["paths"].as_object().unwrap().iter();
    for (path, item) in paths.filter(|(path, _)| path.starts_with(api)) {
        for (method, operation) in item.as_object().unwrap() {
            if operation.get("operationId").is_none() {
                continue;
            }
            let kind = &operation["x-kubernetes-group-version-kind"];
            assert!(kind["kind"].is_string(), "{method} {path}");
            assert_eq!(described(kind), 1, "{method} {path}");
        }
    }
}

/// The kinds of the resources of a version that have a collection.
fn kinds(api: &str, resources: &Value) -> Vec<Value> {
    let version = api.rsplit('/').next().unwrap();
    let resources = resources["resources"].as_array().unwrap().iter();
    let whole = resources.filter(|it| !it["name"].as_str().unwrap().contains('/'));
    whole
        .map(|it| json!({"group": GROUP, "version": version, "kind": it["kind"]}))
        .collect()
}

/// A line with one blank between any two words.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(super) async fn c_069(subject: &Subject) {
    for (path, patch) in patches(subject).await {
        let parameters = patch["parameters"].as_array();
        let parameters = parameters.unwrap_or_else(|| panic!("{path}"));
        for name in ["fieldValidation", "dryRun", "fieldManager", "force"] {
            let is_inline = |known: &Value| known["name"] == name && known["in"] == "query";
            assert!(parameters.iter().any(is_inline), "{path}: {name}");
        }
    }
    let mut misspelt = subject.mk("a");
    misspelt["spec"]["operatingMod"] = "Running".into();
    let args = ["create", "--namespace", &subject.namespace, "--filename=-"];
    let input = subject.said(&misspelt.to_string());
    let output = subject.kubectl().run_with_input(&args, &input).await;
    let complaint = String::from_utf8_lossy(&output.stderr);
    // What kubectl finds by itself is said in other words.
    let expected = r#"strict decoding error: unknown field "spec.operatingMod""#;
    assert!(complaint.contains(expected), "{complaint}");
}

pub(super) async fn c_070(subject: &Subject) {
    let expected = [
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
    ];
    for (path, patch) in patches(subject).await {
        let types = patch["requestBody"]["content"].as_object().unwrap();
        assert!(types.keys().eq(&expected), "{path}: {types:?}");
    }
    let args = ["apply", "--namespace", &subject.namespace, "--filename=-"];
    let kubectl = subject.kubectl();
    subject.create("a").await;
    for (color, said) in [
        ("red", "configured"),
        ("red", "unchanged"),
        ("blue", "configured"),
    ] {
        let mut object = subject.mk("a");
        object["metadata"]["labels"] = json!({"color": color});
        let input = subject.said(&object.to_string());
        let applied = kubectl.stdout_with_input(&args, &input).await;
        assert!(applied.contains(said), "{applied}");
    }
    let shown = subject.proxied().get(&subject.item("a")).await.ok();
    assert_eq!(shown["metadata"]["labels"]["color"], "blue");
}

pub(super) async fn c_073(subject: &Subject) {
    for (api, resources, v3) in all_versions(subject).await {
        for kind in kinds(&api, &resources) {
            let schema = schema_of(&v3, &kind);
            is_described(&v3, schema);
            let required = match kind["kind"].as_str().unwrap() {
                "SandboxSnapshot" => "sandboxName",
                _ => "podTemplate",
            };
            let spec = property(&v3, schema, "spec");
            assert_eq!(spec["required"], json!([required]), "{kind}");
            if required == "podTemplate" {
                has_markers(&v3, schema, &api);
            }
        }
    }
}

/// The schema that says that it is of the kind.
#[track_caller]
fn schema_of<'a>(v3: &'a Value, kind: &Value) -> &'a Value {
    let mut schemas = v3["components"]["schemas"].as_object().unwrap().values();
    let schema = schemas.find(|schema| {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        kinds.is_some_and(|kinds| kinds.contains(kind))
    });
    schema.expect("the kind has a schema")
}

/// The kind and each field of its spec and its status.
#[track_caller]
fn is_described(v3: &Value, schema: &Value) {
    assert!(!schema["description"].as_str().unwrap().is_empty());
    for part in ["spec", "status"] {
        let fields = property(v3, schema, part)["properties"].as_object();
        for (name, field) in fields.unwrap() {
            let description = field["description"].as_str();
            assert!(description.is_some_and(|text| !text.is_empty()), "{name}");
        }
    }
}

/// A Sandbox's enums, defaults, and what server-side apply merges by.
#[track_caller]
fn has_markers(v3: &Value, sandbox: &Value, api: &str) {
    let (spec, status) = (
        property(v3, sandbox, "spec"),
        property(v3, sandbox, "status"),
    );
    match api.ends_with("/v1alpha1") {
        // The older version has a number in its place.
        true => assert_eq!(spec["properties"]["replicas"]["default"], 1),
        false => {
            let mode = property(v3, spec, "operatingMode");
            assert_eq!(mode["enum"], json!(["Running", "Suspended"]));
            assert_eq!(spec["properties"]["operatingMode"]["default"], "Running");
        }
    }
    let conditions = &status["properties"]["conditions"];
    assert_eq!(conditions["x-kubernetes-list-type"], "map");
    assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]));
    let pod = property(v3, property(v3, spec, "podTemplate"), "spec");
    let containers = &pod["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-list-type"], "map");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(
        pod["properties"]["nodeSelector"]["x-kubernetes-map-type"],
        "atomic"
    );
}

/// The schema of a property, wherever it stands in the document.
#[track_caller]
fn property<'a>(document: &'a Value, schema: &'a Value, name: &str) -> &'a Value {
    let property = &schema["properties"][name];
    let reference = [property, &property["allOf"][0]];
    let reference = reference.iter().find_map(|place| place["$ref"].as_str());
    match reference {
        None => property,
        Some(reference) => document
            .pointer(reference.trim_start_matches('#'))
            .unwrap_or_else(|| panic!("{reference} is missing")),
    }
}
