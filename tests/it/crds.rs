//! The CRDs of this project, made from the Rust types, and what clients of the upstream ones rely on.
//!
//! `crds/` holds them as YAML; `UPDATE_GOLDEN=1` rewrites it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

use sandbox_apiserver::{
    api::{
        EXTENSIONS_GROUP, NodeInventory, SandboxClaim, SandboxTemplate, SandboxWarmPool, V1BETA1,
    },
    schema::{CustomResource, CustomResourceVersion, PrinterColumn, Scale, TypeSchema},
};
use serde_json::{Value, json};

fn mk_crd(
    kind: &str,
    plural: &str,
    short: &[&str],
    version: CustomResourceVersion,
) -> CustomResource {
    CustomResource {
        group: EXTENSIONS_GROUP.to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        short_names: short.iter().map(|name| (*name).to_owned()).collect(),
        namespaced: kind != "NodeInventory",
        versions: vec![version],
    }
}

fn mk_version(schema: TypeSchema, columns: &[(&str, &str, &str)]) -> CustomResourceVersion {
    let column = |&(name, kind, json_path): &(&str, &str, &str)| PrinterColumn {
        name: name.to_owned(),
        kind: kind.to_owned(),
        json_path: json_path.to_owned(),
        priority: 0,
    };
    CustomResourceVersion {
        name: V1BETA1.to_owned(),
        schema,
        columns: columns.iter().map(column).collect(),
        status: false,
        scale: None,
        stored: true,
        deprecation_warning: None,
    }
}

const AGE: (&str, &str, &str) = ("Age", "date", ".metadata.creationTimestamp");

fn crds() -> Vec<CustomResource> {
    let mut pool = mk_version(
        TypeSchema::object::<SandboxWarmPool>().unwrap(),
        &[
            ("Ready", "integer", ".status.readyReplicas"),
            ("Desired", "integer", ".spec.replicas"),
            AGE,
        ],
    );
    pool.status = true;
    pool.scale = Some(Scale {
        spec_replicas: ".spec.replicas".to_owned(),
        status_replicas: ".status.replicas".to_owned(),
        label_selector: ".status.selector".to_owned(),
    });
    let mut claim = mk_version(
        TypeSchema::object::<SandboxClaim>().unwrap(),
        &[
            (
                "Ready",
                "string",
                ".status.conditions[?(@.type=='Ready')].status",
            ),
            ("Sandbox", "string", ".status.sandbox.name"),
            (
                "Reason",
                "string",
                ".status.conditions[?(@.type=='Ready')].reason",
            ),
            AGE,
        ],
    );
    claim.status = true;
    let template = mk_version(TypeSchema::object::<SandboxTemplate>().unwrap(), &[]);
    let inventory = mk_version(
        TypeSchema::object::<NodeInventory>().unwrap(),
        &[
            ("Node", "string", ".node"),
            ("Address", "string", ".address"),
            ("Sandboxes", "integer", ".total"),
            AGE,
        ],
    );
    vec![
        mk_crd("NodeInventory", "nodeinventories", &[], inventory),
        mk_crd("SandboxClaim", "sandboxclaims", &["sandboxclaim"], claim),
        mk_crd(
            "SandboxTemplate",
            "sandboxtemplates",
            &["sandboxtemplate"],
            template,
        ),
        mk_crd("SandboxWarmPool", "sandboxwarmpools", &["swp"], pool),
    ]
}

fn schema_of(kind: &str) -> Value {
    let crd = crds().into_iter().find(|crd| crd.kind == kind).unwrap();
    crd.to_value().unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
}

/// The schema at a path of fields, `[]` for the items of a list.
#[track_caller]
fn at(kind: &str, path: &str) -> Value {
    path.split('.')
        .fold(schema_of(kind), |schema, step| match step {
            "[]" => schema["items"].clone(),
            name => schema["properties"][name].clone(),
        })
}

#[test]
fn the_files_are_what_the_types_say() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    for crd in crds() {
        let file = directory.join(format!("{}_{}.yaml", crd.group, crd.plural));
        let generated = crd.to_yaml().unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(&directory).unwrap();
            fs::write(&file, generated).unwrap();
        } else {
            assert!(
                fs::read_to_string(&file).unwrap() == generated,
                "{} is out of date",
                file.display()
            );
        }
    }
}

#[test]
fn required_fields_are_those_of_upstream() {
    for (kind, path, required) in [
        ("SandboxTemplate", "spec", json!(["podTemplate"])),
        ("SandboxTemplate", "spec.podTemplate", json!(["spec"])),
        (
            "SandboxTemplate",
            "spec.podTemplate.spec",
            json!(["containers"]),
        ),
        (
            "SandboxTemplate",
            "spec.volumeClaimTemplates.[]",
            json!(["spec"]),
        ),
        ("SandboxWarmPool", "spec", json!(["sandboxTemplateRef"])),
        (
            "SandboxWarmPool",
            "spec.sandboxTemplateRef",
            json!(["name"]),
        ),
        ("SandboxClaim", "spec", json!(["warmPoolRef"])),
        ("SandboxClaim", "spec.warmPoolRef", json!(["name"])),
        ("SandboxClaim", "spec.env.[]", json!(["name", "value"])),
        (
            "SandboxClaim",
            "status.conditions.[]",
            json!(["lastTransitionTime", "message", "reason", "status", "type"]),
        ),
    ] {
        let mut found = at(kind, path)["required"].take();
        found.as_array_mut().unwrap().sort_by_key(Value::to_string);
        assert_eq!(found, required, "{kind} {path}");
    }
    for kind in ["SandboxTemplate", "SandboxWarmPool", "SandboxClaim"] {
        assert_eq!(schema_of(kind)["required"], json!(["spec"]), "{kind}");
    }
}

#[test]
fn enums_and_defaults_are_those_of_upstream() {
    let injection = json!(["Allowed", "Overrides", "Disallowed"]);
    for (kind, path, default, values) in [
        (
            "SandboxTemplate",
            "spec.envVarsInjectionPolicy",
            json!("Disallowed"),
            injection.clone(),
        ),
        (
            "SandboxTemplate",
            "spec.volumeClaimTemplatesPolicy",
            json!("Disallowed"),
            injection,
        ),
        (
            "SandboxTemplate",
            "spec.networkPolicyManagement",
            json!("Managed"),
            json!(["Managed", "Unmanaged"]),
        ),
        ("SandboxWarmPool", "spec.replicas", json!(1), Value::Null),
        (
            "SandboxWarmPool",
            "spec.updateStrategy.type",
            json!("OnReplenish"),
            json!(["Recreate", "OnReplenish"]),
        ),
        (
            "SandboxClaim",
            "spec.lifecycle.shutdownPolicy",
            json!("Retain"),
            json!(["Delete", "DeleteForeground", "Retain"]),
        ),
        (
            "SandboxTemplate",
            "spec.podTemplate.spec.containers.[].ports.[].protocol",
            json!("TCP"),
            Value::Null,
        ),
    ] {
        let schema = at(kind, path);
        assert_eq!(schema["default"], default, "{kind} {path}");
        assert_eq!(schema["enum"], values, "{kind} {path}");
    }
}

#[test]
fn columns_show_fields_that_exist() {
    for crd in crds() {
        let columns = crd.versions.iter().flat_map(|version| &version.columns);
        for column in columns.filter(|column| !column.json_path.starts_with(".metadata")) {
            let path = column.json_path[1..]
                .replace("[?(@", ".[]")
                .replace("=='Ready')]", "");
            let path = path.replace(".[].type", ".[]");
            assert!(
                at(&crd.kind, &path).is_object(),
                "{} {}",
                crd.kind,
                column.json_path
            );
        }
    }
}

#[test]
fn an_inventory_has_its_fields_at_the_root() {
    let schema = schema_of("NodeInventory");
    let fields: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    for field in [
        "node",
        "address",
        "entries",
        "pools",
        "releases",
        "truncated",
        "total",
    ] {
        assert!(fields.iter().any(|name| *name == field), "{field}");
    }
    assert!(
        schema["properties"].get("spec").is_none() && schema["properties"].get("status").is_none()
    );
    for list in ["entries", "pools"] {
        assert_eq!(
            at("NodeInventory", list)["x-kubernetes-list-type"],
            "atomic",
            "{list}"
        );
    }
    assert_eq!(
        at("NodeInventory", "releases")["x-kubernetes-list-type"],
        "set"
    );
}
