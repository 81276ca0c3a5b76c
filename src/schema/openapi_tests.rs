//! The documents as kubectl and the aggregator read them.

use std::{collections::HashSet, sync::Arc};

use k8s_openapi::api::autoscaling::v1::Scale as AutoscalingScale;
use serde_json::{Value, json};

use super::{tests::mk_type, *};

const INFO: Info<'static> = Info {
    title: "things",
    version: "1",
};
const ITEM: &str = "/apis/things.example.org/v1/namespaces/{namespace}/things/{name}";
const COLLECTION: &str = "/apis/things.example.org/v1/namespaces/{namespace}/things";

fn mk_resource(patch_types: &[PatchType]) -> ResourceDoc {
    let object = ObjectDoc {
        group: "things.example.org".to_owned(),
        version: "v1".to_owned(),
        kind: "Thing".to_owned(),
        schema: Arc::new(mk_type()),
    };
    let scale = ObjectDoc {
        group: "autoscaling".to_owned(),
        version: "v1".to_owned(),
        kind: "Scale".to_owned(),
        schema: Arc::new(TypeSchema::of::<AutoscalingScale>().unwrap()),
    };
    let all = [
        Verb::Get,
        Verb::List,
        Verb::Watch,
        Verb::Create,
        Verb::Update,
        Verb::Patch,
        Verb::Delete,
        Verb::DeleteCollection,
    ];
    let pause = SubresourceOperation {
        verb: Verb::Create,
        request: None,
        response: object.clone(),
    };
    ResourceDoc {
        subresources: vec![
            SubresourceDoc::part_of(&object, "status", &[Verb::Get, Verb::Update, Verb::Patch]),
            SubresourceDoc::part_of(&scale, "scale", &[Verb::Get, Verb::Update]),
            SubresourceDoc {
                name: "pause".to_owned(),
                operations: vec![pause],
            },
        ],
        object,
        plural: "things".to_owned(),
        namespaced: true,
        verbs: all.to_vec(),
        patch_types: patch_types.to_vec(),
    }
}

fn v3(patch_types: &[PatchType]) -> Value {
    let document = openapi_v3(INFO, &[mk_resource(patch_types)]).unwrap();
    serde_json::from_slice(&document.body).unwrap()
}

fn v2() -> Value {
    let document = openapi_v2(INFO, &[mk_resource(&[PatchType::Merge])]).unwrap();
    serde_json::from_slice(&document.body).unwrap()
}

/// Every operation of a document with its path.
fn operations(document: &Value) -> Vec<(String, &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .flat_map(|(path, item)| {
            let methods = item
                .as_object()
                .unwrap()
                .iter()
                .filter(|(key, _)| *key != "parameters");
            methods.map(move |(method, operation)| (format!("{method} {path}"), operation))
        })
        .collect()
}

/// Every `$ref` in a document.
fn references(value: &Value, found: &mut HashSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                found.insert(reference.clone());
            }
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

fn names(parameters: &Value) -> Vec<&str> {
    parameters
        .as_array()
        .unwrap()
        .iter()
        .map(|parameter| parameter["name"].as_str().unwrap())
        .collect()
}

#[test]
fn every_path_is_complete_and_every_id_unique() {
    let document = v3(&[PatchType::Merge]);
    let operations = operations(&document);
    let found: Vec<&str> = operations.iter().map(|(at, _)| at.as_str()).collect();
    let below = |method: &str, sub: &str| format!("{method} {ITEM}{sub}");
    let mut expected = vec![
        format!("delete {COLLECTION}"),
        format!("get {COLLECTION}"),
        format!("post {COLLECTION}"),
        below("delete", ""),
        below("get", ""),
        below("patch", ""),
        below("put", ""),
        below("post", "/pause"),
        below("get", "/scale"),
        below("put", "/scale"),
        below("get", "/status"),
        below("patch", "/status"),
        below("put", "/status"),
        "get /apis/things.example.org/v1/things".to_owned(),
    ];
    expected.sort_by_key(|at| {
        at.split_once(' ')
            .map(|(method, path)| (path.to_owned(), method.to_owned()))
    });
    assert_eq!(found, expected);
    let ids: HashSet<&Value> = operations
        .iter()
        .map(|(_, operation)| &operation["operationId"])
        .collect();
    assert_eq!(ids.len(), operations.len());
    assert!(ids.contains(&json!("createThingsExampleOrgV1NamespacedThing")));
    assert!(ids.contains(&json!("listThingsExampleOrgV1ThingForAllNamespaces")));
}

#[test]
fn operations_have_one_kind_and_top_level_schemas_a_list() {
    let document = v3(&[PatchType::Merge]);
    for (at, operation) in operations(&document) {
        assert!(
            operation["x-kubernetes-group-version-kind"]["kind"].is_string(),
            "{at}"
        );
        assert!(operation["x-kubernetes-action"].is_string(), "{at}");
    }
    let schemas = &document["components"]["schemas"];
    let thing = &schemas["org.example.things.v1.Thing"];
    let kind = json!({ "group": "things.example.org", "version": "v1", "kind": "Thing" });
    assert_eq!(thing["x-kubernetes-group-version-kind"], json!([kind]));
    for name in [
        "org.example.things.v1.ThingList",
        "io.k8s.api.autoscaling.v1.Scale",
    ] {
        assert_eq!(
            schemas[name]["x-kubernetes-group-version-kind"]
                .as_array()
                .unwrap()
                .len(),
            1,
            "{name}"
        );
    }
    let scale = format!("{ITEM}/scale");
    assert_eq!(
        document["paths"][&scale]["get"]["x-kubernetes-group-version-kind"]["group"],
        "autoscaling"
    );
}

#[test]
fn a_patch_declares_what_kubectl_looks_for() {
    let document = v3(&[PatchType::Json, PatchType::Merge, PatchType::Apply]);
    let patch = &document["paths"][ITEM]["patch"];
    assert_eq!(
        names(&patch["parameters"]),
        ["dryRun", "fieldManager", "fieldValidation", "force"]
    );
    let types: Vec<&String> = patch["requestBody"]["content"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(
        types,
        [
            "application/apply-patch+yaml",
            "application/json-patch+json",
            "application/merge-patch+json"
        ]
    );
    let none = v3(&[]);
    assert!(
        operations(&none)
            .iter()
            .all(|(at, _)| !at.starts_with("patch "))
    );
    assert!(
        none["components"]["schemas"]
            .get("io.k8s.apimachinery.pkg.apis.meta.v1.Patch")
            .is_none()
    );
}

#[test]
fn every_reference_of_both_documents_resolves() {
    for (document, prefix, at) in [
        (
            v3(&[PatchType::Merge]),
            "#/components/schemas/",
            "/components/schemas",
        ),
        (v2(), "#/definitions/", "/definitions"),
    ] {
        let mut found = HashSet::new();
        references(&document, &mut found);
        assert!(found.len() > 100);
        for reference in found {
            let name = reference.strip_prefix(prefix).unwrap();
            assert!(
                document.pointer(at).unwrap().get(name).is_some(),
                "{reference}"
            );
        }
    }
}

#[test]
fn schemas_have_descriptions_enums_defaults_and_markers() {
    let document = v3(&[]);
    let schemas = &document["components"]["schemas"];
    let spec = &schemas["org.example.things.v1.Thing"]["properties"]["spec"];
    assert_eq!(spec["required"], json!(["mode", "pod"]));
    assert_eq!(
        spec["properties"]["mode"],
        json!({
            "type": "string",
            "default": "Running",
            "enum": ["Running", "Suspended"],
            "description": "How it runs.\n\nPossible enum values:\n - `\"Running\"` It runs.\n - `\"Suspended\"` It waits.",
        })
    );
    assert_eq!(
        spec["properties"]["pod"]["allOf"],
        json!([{ "$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec" }])
    );
    let port = &schemas["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"];
    assert_eq!(port["default"], "TCP");
    let ports = &schemas["io.k8s.api.core.v1.Container"]["properties"]["ports"];
    assert_eq!(
        ports["x-kubernetes-list-map-keys"],
        json!(["containerPort", "protocol"])
    );
    let quantity = &schemas["io.k8s.apimachinery.pkg.api.resource.Quantity"]["oneOf"];
    assert_eq!(
        *quantity,
        json!([{ "type": "string" }, { "type": "number" }])
    );
}

#[test]
fn version_2_is_swagger_that_merges_with_the_api_servers_own() {
    let document = v2();
    assert_eq!(document["swagger"], "2.0");
    let definitions = &document["definitions"];
    assert_eq!(
        definitions["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"].get("default"),
        None
    );
    let quantity = &definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"];
    assert_eq!(quantity["type"], "string");
    let containers = &definitions["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    let post = &document["paths"][COLLECTION]["post"];
    assert_eq!(
        names(&post["parameters"]),
        ["body", "dryRun", "fieldManager", "fieldValidation"]
    );
    for (at, operation) in operations(&document) {
        assert!(
            operation.get("requestBody").is_none() && operation["produces"].is_array(),
            "{at}"
        );
    }
    assert!(
        document["paths"]
            .as_object()
            .unwrap()
            .keys()
            .all(|path| path.starts_with("/apis/things.example.org/v1/"))
    );
}

#[test]
fn a_document_is_the_same_bytes_each_time() {
    let first = openapi_v3(INFO, &[mk_resource(&[])]).unwrap();
    let second = openapi_v3(INFO, &[mk_resource(&[])]).unwrap();
    let other = openapi_v3(INFO, &[mk_resource(&[PatchType::Apply])]).unwrap();
    assert_eq!((first.body, &first.hash), (second.body, &second.hash));
    assert_ne!(first.hash, other.hash);
    assert_eq!(first.hash.len(), 128);
}

#[test]
fn a_crd_is_structural() {
    let crd = CustomResource {
        group: "things.example.org".to_owned(),
        kind: "Thing".to_owned(),
        plural: "things".to_owned(),
        singular: "thing".to_owned(),
        short_names: vec!["th".to_owned()],
        namespaced: true,
        versions: vec![CustomResourceVersion {
            name: "v1".to_owned(),
            schema: mk_type(),
            columns: vec![PrinterColumn {
                name: "Mode".to_owned(),
                kind: "string".to_owned(),
                json_path: ".spec.mode".to_owned(),
                priority: 0,
            }],
            status: true,
            scale: None,
            stored: true,
            deprecation_warning: None,
        }],
    };
    let value = crd.to_value().unwrap();
    let mut found = HashSet::new();
    references(&value, &mut found);
    assert!(found.is_empty());
    let schema = &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert_eq!(
        schema["properties"]["metadata"],
        json!({ "type": "object" })
    );
    let container = &schema["properties"]["spec"]["properties"]["pod"]["properties"]["containers"]
        ["items"]["properties"];
    let cpu = &container["resources"]["properties"]["limits"]["additionalProperties"];
    assert_eq!(
        cpu["anyOf"],
        json!([{ "type": "integer" }, { "type": "string" }])
    );
    assert_eq!(cpu["x-kubernetes-int-or-string"], true);
    assert!(cpu.get("type").is_none());
    structural(schema, "");
    assert_eq!(
        decode_yaml(crd.to_yaml().unwrap().as_bytes())
            .unwrap()
            .value,
        value
    );
}

/// What the API server demands of a structural schema beyond its types: a key that tells the items of a list apart is
/// always there, items of a set are scalars, and no keyword is one of strategic patches.
fn structural(schema: &Value, at: &str) {
    let fields = schema.as_object().unwrap();
    assert!(
        fields.contains_key("type") || fields.contains_key("x-kubernetes-int-or-string"),
        "{at}"
    );
    assert!(
        !fields
            .keys()
            .any(|keyword| keyword.contains("patch") || keyword.contains("unions")),
        "{at}"
    );
    if schema["x-kubernetes-list-type"] == "map" {
        let items = &schema["items"];
        for key in schema["x-kubernetes-list-map-keys"].as_array().unwrap() {
            let required = items["required"]
                .as_array()
                .is_some_and(|required| required.contains(key));
            let property = &items["properties"][key.as_str().unwrap()];
            assert!(required || property.get("default").is_some(), "{at}: {key}");
        }
    }
    if schema["x-kubernetes-list-type"] == "set" {
        assert!(
            schema["items"]["type"] != "object" && schema["items"]["type"] != "array",
            "{at}"
        );
    }
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        structural(below, &format!("{at}.{name}"));
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(below) = schema.get(keyword) {
            structural(below, &format!("{at}.{keyword}"));
        }
    }
}

/// Prints what the documents cost: `cargo test --release --lib schema::openapi_tests::speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn speed() {
    let resource = [mk_resource(&[PatchType::Merge])];
    for (name, build) in [
        (
            "v3",
            openapi_v3 as fn(Info<'_>, &[ResourceDoc]) -> Result<Document>,
        ),
        ("v2", openapi_v2),
    ] {
        let started = std::time::Instant::now();
        let bytes = build(INFO, &resource).unwrap().body.len();
        eprintln!("{name} {bytes} bytes {:?}", started.elapsed());
    }
}
