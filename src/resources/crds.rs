//! The kinds that are kept in etcd, as CustomResourceDefinitions: the fleet's inventories and the users' intent.

use schemars::JsonSchema;

use crate::{
    api::{
        EXTENSIONS_GROUP, NodeInventory, SandboxClaim, SandboxTemplate, SandboxWarmPool, V1BETA1,
    },
    schema::{CustomResource, CustomResourceVersion, PrinterColumn, Result, Scale, TypeSchema},
};

/// Heading, type and JSON path of a printer column.
type Column = (&'static str, &'static str, &'static str);

const AGE: Column = ("Age", "date", ".metadata.creationTimestamp");
const INVENTORY_COLUMNS: [Column; 5] = [
    ("Node", "string", ".node"),
    ("Address", "string", ".address"),
    ("Sandboxes", "integer", ".total"),
    ("Warm", "integer", ".warm"),
    AGE,
];
const CLAIM_COLUMNS: [Column; 4] = [
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
];
const POOL_COLUMNS: [Column; 3] = [
    ("Ready", "integer", ".status.readyReplicas"),
    ("Desired", "integer", ".spec.replicas"),
    AGE,
];

/// The CRDs, in the order of their kinds.
///
/// # Errors
/// When a type has no form as a schema, which only a change of the types can bring about.
pub fn stored_kinds() -> Result<Vec<CustomResource>> {
    let claim = CustomResourceVersion {
        status: true,
        ..version::<SandboxClaim>(&CLAIM_COLUMNS)?
    };
    let scale = Scale {
        spec_replicas: ".spec.replicas".to_owned(),
        status_replicas: ".status.replicas".to_owned(),
        label_selector: ".status.selector".to_owned(),
    };
    let pool = CustomResourceVersion {
        status: true,
        scale: Some(scale),
        ..version::<SandboxWarmPool>(&POOL_COLUMNS)?
    };
    Ok(vec![
        crd(
            "NodeInventory",
            "nodeinventories",
            None,
            version::<NodeInventory>(&INVENTORY_COLUMNS)?,
        ),
        crd("SandboxClaim", "sandboxclaims", Some("sandboxclaim"), claim),
        crd(
            "SandboxTemplate",
            "sandboxtemplates",
            Some("sandboxtemplate"),
            version::<SandboxTemplate>(&[])?,
        ),
        crd("SandboxWarmPool", "sandboxwarmpools", Some("swp"), pool),
    ])
}

fn crd(
    kind: &str,
    plural: &str,
    short_name: Option<&str>,
    version: CustomResourceVersion,
) -> CustomResource {
    CustomResource {
        group: EXTENSIONS_GROUP.to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        short_names: short_name.into_iter().map(str::to_owned).collect(),
        namespaced: kind != "NodeInventory",
        versions: vec![version],
    }
}

fn version<T: JsonSchema>(columns: &[Column]) -> Result<CustomResourceVersion> {
    let columns = columns.iter().map(|(name, kind, json_path)| PrinterColumn {
        name: (*name).to_owned(),
        kind: (*kind).to_owned(),
        json_path: (*json_path).to_owned(),
        priority: 0,
    });
    Ok(CustomResourceVersion {
        name: V1BETA1.to_owned(),
        schema: TypeSchema::object::<T>()?,
        columns: columns.collect(),
        status: false,
        scale: None,
        stored: true,
        deprecation_warning: None,
    })
}
