//! The CRDs of this project, made from the Rust types, and what clients of the upstream ones rely on.
//!
//! `crds/` holds them as YAML; `UPDATE_GOLDEN=1` rewrites it.

use std::{fs, path::Path};

use sandbox_apiserver::resources::stored_kinds;
use serde_json::{Value, json};

fn crds() -> Vec<sandbox_apiserver::schema::CustomResource> {
    stored_kinds().unwrap()
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
