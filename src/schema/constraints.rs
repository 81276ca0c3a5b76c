//! Defaults and limits that a CRD gives to Kubernetes' own types.
//!
//! Read from CRDs that embed these types. Kept apart from how fields merge, because the shared definitions of an OpenAPI
//! v2 document must equal the API server's own, which have none of this.

use serde_json::{Value, json};

/// Name of the type of amounts: an integer, or a string with a suffix.
pub(super) const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";

/// What a quantity's text looks like.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Adds to the definition of the type `name` the defaults and limits that its CRD form has.
pub(super) fn constrain(name: &str, definition: &mut Value) {
    merge(definition, constraints(name));
}

/// Lays `addition` over `base`, object by object.
fn merge(base: &mut Value, addition: Value) {
    match (base, addition) {
        (Value::Object(base), Value::Object(addition)) => {
            for (key, value) in addition {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, addition) => *base = addition,
    }
}

fn constraints(name: &str) -> Value {
    let fields = |properties: Value| json!({ "properties": properties });
    let named = || fields(json!({ "name": { "default": "" } }));
    let Some(short) = name.strip_prefix("io.k8s.api.core.v1.") else {
        return meta_constraints(name);
    };
    match short {
        "ConfigMapKeySelector" | "LocalObjectReference" | "SecretKeySelector" => named(),
        // In Go these embed a LocalObjectReference, and a CRD takes over its being atomic.
        "ConfigMapEnvSource"
        | "ConfigMapProjection"
        | "ConfigMapVolumeSource"
        | "SecretEnvSource"
        | "SecretProjection" => {
            json!({ "properties": { "name": { "default": "" } }, "x-kubernetes-map-type": "atomic" })
        }
        "AzureDiskVolumeSource" => {
            fields(json!({ "fsType": { "default": "ext4" }, "readOnly": { "default": false } }))
        }
        "ContainerPort" => fields(json!({ "protocol": { "default": "TCP" } })),
        "FileKeySelector" => fields(json!({ "optional": { "default": false } })),
        "GRPCAction" => fields(json!({ "service": { "default": "" } })),
        "ISCSIVolumeSource" => fields(json!({ "iscsiInterface": { "default": "default" } })),
        "RBDVolumeSource" => fields(json!({
            "keyring": { "default": "/etc/ceph/keyring" },
            "pool": { "default": "rbd" },
            "user": { "default": "admin" },
        })),
        "ScaleIOVolumeSource" => fields(json!({
            "fsType": { "default": "xfs" },
            "storageMode": { "default": "ThinProvisioned" },
        })),
        _ => json!({}),
    }
}

fn meta_constraints(name: &str) -> Value {
    match name {
        QUANTITY => json!({ "pattern": QUANTITY_PATTERN }),
        "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1" => {
            json!({ "x-kubernetes-preserve-unknown-fields": true })
        }
        "io.k8s.apimachinery.pkg.apis.meta.v1.Condition" => json!({ "properties": {
            "message": { "maxLength": 32_768 },
            "observedGeneration": { "minimum": 0 },
            "reason": {
                "maxLength": 1_024,
                "minLength": 1,
                "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            },
            "status": { "enum": ["True", "False", "Unknown"] },
            "type": {
                "maxLength": 316,
                "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
            },
        } }),
        _ => json!({}),
    }
}
