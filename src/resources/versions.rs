//! The versions that a Sandbox is served in, and what one is in the other.

use serde_json::{Map, Value};

use crate::api::{GROUP, V1ALPHA1, V1BETA1};

/// A served version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiVersion {
    /// The preferred one.
    V1beta1,
    /// The deprecated one: `replicas`, one or none, in place of `operatingMode`, and no node in the status.
    V1alpha1,
}

impl ApiVersion {
    /// All of them, the preferred one first: the order in the definition.
    pub(super) const ALL: [Self; 2] = [Self::V1beta1, Self::V1alpha1];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V1beta1 => V1BETA1,
            Self::V1alpha1 => V1ALPHA1,
        }
    }
}

/// Turns an object of one version into one of the other. What a status says of the node is not in `v1alpha1`, and so not in
/// what is made of it; writes do not take a status.
pub(super) fn convert(object: &mut Value, from: ApiVersion, to: ApiVersion) {
    if from == to {
        return;
    }
    let Value::Object(fields) = object else {
        return;
    };
    fields.insert(
        "apiVersion".to_owned(),
        format!("{GROUP}/{}", to.name()).into(),
    );
    if let Some(Value::Object(spec)) = fields.get_mut("spec") {
        match to {
            ApiVersion::V1beta1 => replicas_to_mode(spec),
            ApiVersion::V1alpha1 => mode_to_replicas(spec),
        }
    }
    if let Some(Value::Object(status)) = fields.get_mut("status") {
        status.remove(match to {
            ApiVersion::V1beta1 => "replicas",
            ApiVersion::V1alpha1 => "nodeName",
        });
    }
}

fn replicas_to_mode(spec: &mut Map<String, Value>) {
    let mode = match spec.remove("replicas").map(|replicas| replicas.as_i64()) {
        None => return,
        Some(Some(0)) => "Suspended",
        Some(_) => "Running",
    };
    spec.insert("operatingMode".to_owned(), mode.into());
}

fn mode_to_replicas(spec: &mut Map<String, Value>) {
    let replicas = match spec.remove("operatingMode") {
        None => return,
        Some(mode) => u8::from(mode != "Suspended"),
    };
    spec.insert("replicas".to_owned(), replicas.into());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn both_ways(v1beta1: Value, v1alpha1: Value) {
        let mut object = v1beta1.clone();
        convert(&mut object, ApiVersion::V1beta1, ApiVersion::V1alpha1);
        assert_eq!(object, v1alpha1);
        convert(&mut object, ApiVersion::V1alpha1, ApiVersion::V1beta1);
        assert_eq!(object, v1beta1);
    }

    #[test]
    fn a_spec_is_the_same_in_both() {
        for (mode, replicas) in [("Running", 1), ("Suspended", 0)] {
            both_ways(
                json!({"apiVersion": "agents.x-k8s.io/v1beta1", "spec": {"operatingMode": mode, "service": true}}),
                json!({"apiVersion": "agents.x-k8s.io/v1alpha1", "spec": {"replicas": replicas, "service": true}}),
            );
        }
    }

    #[test]
    fn what_is_absent_stays_absent() {
        both_ways(
            json!({"apiVersion": "agents.x-k8s.io/v1beta1", "metadata": {"name": "a"}, "spec": {}}),
            json!({"apiVersion": "agents.x-k8s.io/v1alpha1", "metadata": {"name": "a"}, "spec": {}}),
        );
        both_ways(
            json!({"apiVersion": "agents.x-k8s.io/v1beta1"}),
            json!({"apiVersion": "agents.x-k8s.io/v1alpha1"}),
        );
    }
}
