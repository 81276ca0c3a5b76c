//! The values that fields of Kubernetes' own types have, as its OpenAPI documents list them.
//!
//! Read from the documents of Kubernetes 1.37; their Rust bindings leave the values out. kube-apiserver merges definitions of
//! one name only when they are equal, and else renames them in the document of the whole cluster.
//!
//! For documents alone: as in a CRD that embeds these types, a value that is not listed is not refused.

use std::sync::LazyLock;

use serde_json::{Map, Value};

/// `Type.field`, with a text for each value, or the values alone where none has a text.
static VALUES: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("enums.json")).expect("the file beside this one is an object")
});

/// Makes the definition of the type `name` list the values of its fields.
pub(super) fn list_values(name: &str, definition: &mut Value) {
    let Some(name) = name.strip_prefix("io.k8s.api.core.v1.") else {
        return;
    };
    let Some(fields) = definition["properties"].as_object_mut() else {
        return;
    };
    for (field, schema) in fields {
        if let Some(values) = VALUES.get(&format!("{name}.{field}")) {
            list(values, schema);
        }
    }
}

fn list(values: &Value, schema: &mut Value) {
    let (values, texts) = match values {
        Value::Object(texts) => (texts.keys().cloned().collect(), Some(texts)),
        values => (values.clone(), None),
    };
    // A list's values are those of its items, and its description does not name them.
    if schema["type"] == "array" {
        schema["items"]["enum"] = values;
        return;
    }
    let text = |value: &str| {
        texts
            .and_then(|texts| texts[value].as_str())
            .unwrap_or_default()
    };
    let mut description = schema["description"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    description += "\n\nPossible enum values:";
    for value in values
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        description += format!("\n - `{value:?}` {}", text(value)).trim_end();
    }
    schema["description"] = description.into();
    schema["enum"] = values;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(name: &str, field: &str, before: Value, expected: Value) {
        let mut definition = json!({"properties": {field: before}});
        list_values(name, &mut definition);
        assert_eq!(definition["properties"][field], expected);
    }

    #[test]
    fn values_are_listed_with_their_texts() {
        check(
            "io.k8s.api.core.v1.HTTPGetAction",
            "scheme",
            json!({"description": "Scheme.", "type": "string"}),
            json!({
                "description": concat!(
                    "Scheme.\n\nPossible enum values:",
                    "\n - `\"HTTP\"` means that the scheme used will be http://",
                    "\n - `\"HTTPS\"` means that the scheme used will be https://",
                ),
                "enum": ["HTTP", "HTTPS"],
                "type": "string",
            }),
        );
    }

    #[test]
    fn values_without_texts_are_listed_alone() {
        check(
            "io.k8s.api.core.v1.PodSpec",
            "restartPolicy",
            json!({"description": "Policy.", "type": "string"}),
            json!({
                "description": "Policy.\n\nPossible enum values:\n - `\"Always\"`\n - `\"Never\"`\n - `\"OnFailure\"`",
                "enum": ["Always", "Never", "OnFailure"],
                "type": "string",
            }),
        );
    }

    #[test]
    fn a_list_has_the_values_at_its_items() {
        let modes = [
            "ReadOnlyMany",
            "ReadWriteMany",
            "ReadWriteOnce",
            "ReadWriteOncePod",
        ];
        check(
            "io.k8s.api.core.v1.PersistentVolumeClaimSpec",
            "accessModes",
            json!({"items": {"type": "string"}, "type": "array"}),
            json!({"items": {"enum": modes, "type": "string"}, "type": "array"}),
        );
    }

    #[test]
    fn other_types_stay_as_they_are() {
        let text = json!({"type": "string"});
        check(
            "example.org.PodSpec",
            "restartPolicy",
            text.clone(),
            text.clone(),
        );
        check("io.k8s.api.core.v1.PodSpec", "hostname", text.clone(), text);
    }
}
