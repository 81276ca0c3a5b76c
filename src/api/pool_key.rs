//! Which warm pool a pod template asks for. The one rule, used by create and by the warm-pool driver.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{PoolKey, SandboxTemplate, labels};
use crate::meta::Quantity;

/// Above this much CPU a sandbox is `medium`, above the next `large`.
const CPU_STEPS: [(Quantity, &str); 2] = [
    (Quantity::from_units(4), "large"),
    (Quantity::from_units(1), "medium"),
];
/// Above this many bytes of memory a sandbox is `medium`, above the next `large`.
const MEMORY_STEPS: [(Quantity, &str); 2] = [
    (Quantity::from_units(8 << 30), "large"),
    (Quantity::from_units(2 << 30), "medium"),
];

/// What the rule reads: the annotations of the object, and its pod template as JSON.
#[derive(Clone, Copy, Debug)]
pub struct PoolKeySource<'a> {
    /// Annotations of the Sandbox, SandboxTemplate or SandboxClaim.
    pub annotations: &'a BTreeMap<String, String>,
    /// `spec.podTemplate`.
    pub pod_template: &'a Value,
}

/// A pod template that names no pool: the field and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidPoolKey {
    /// Path of the field at fault.
    pub field: String,
    /// Why it is at fault.
    pub reason: String,
}

/// The pool that `source` asks for.
///
/// Template: the first container's image. Net: the pod template's annotation, else the object's, else `none`. Size: from
/// the first container's CPU and memory, each its request, else its limit; over 4 CPU or 8Gi `large`, over 1 CPU or 2Gi
/// `medium`, else `small`. The object's annotations `…/template`, `…/net` and `…/size` override.
///
/// # Errors
/// [`InvalidPoolKey`] without an image, with a lane that is neither `none` nor `egress`, or with an unreadable quantity.
pub fn pool_key_for(source: PoolKeySource<'_>) -> Result<PoolKey, InvalidPoolKey> {
    let annotation = |key: &str| {
        source
            .annotations
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    };
    let container = &source.pod_template["spec"]["containers"][0];
    let template = match annotation(labels::TEMPLATE)
        .or_else(|| container["image"].as_str().filter(|i| !i.is_empty()))
    {
        Some(template) if template.len() <= PoolKey::MAX_TEMPLATE => template,
        Some(_) => {
            return Err(invalid(
                "spec.podTemplate.spec.containers[0].image",
                "longer than 512 characters",
            ));
        }
        None => {
            return Err(invalid(
                "spec.podTemplate.spec.containers[0].image",
                "required: it names the warm pool",
            ));
        }
    };
    let net = source.pod_template["metadata"]["annotations"][labels::NET]
        .as_str()
        .or_else(|| annotation(labels::NET))
        .unwrap_or(PoolKey::DEFAULT_NET);
    if !matches!(net, "none" | "egress") {
        return Err(invalid(
            &format!("metadata.annotations[{}]", labels::NET),
            "must be none or egress",
        ));
    }
    let size = match annotation(labels::SIZE) {
        Some(size) if crate::meta::is_dns1123_label(size) => size,
        Some(_) => {
            return Err(invalid(
                &format!("metadata.annotations[{}]", labels::SIZE),
                "must be a size class such as small",
            ));
        }
        None => size_of(container)?,
    };
    Ok(PoolKey {
        template: template.into(),
        net: net.into(),
        size: size.into(),
    })
}

/// The pool that the sandboxes of `template` come from.
///
/// # Errors
/// As [`pool_key_for`].
pub fn pool_key_of_template(template: &SandboxTemplate) -> Result<PoolKey, InvalidPoolKey> {
    let none = BTreeMap::new();
    let pod_template =
        serde_json::to_value(&template.spec.pod_template).expect("a pod template is plain JSON");
    pool_key_for(PoolKeySource {
        annotations: template.metadata.annotations.as_ref().unwrap_or(&none),
        pod_template: &pod_template,
    })
}

/// The pool that a SandboxWarmPool named `pool` is filled from on a node whose daemon was given it by hand: as
/// [`pool_key_of_template`], but a template without an image stands for one of the pool's own name, as `promote` makes them.
///
/// # Errors
/// As [`pool_key_for`].
pub fn pool_key_of_pool(pool: &str, template: &SandboxTemplate) -> Result<PoolKey, InvalidPoolKey> {
    let named = |container: &mut k8s_openapi::api::core::v1::Container| {
        let image = container.image.as_deref().unwrap_or_default();
        if image.is_empty() {
            container.image = Some(pool.to_owned());
        }
    };
    let mut template = template.clone();
    let containers = &mut template.spec.pod_template.spec.containers;
    containers.first_mut().map(named);
    pool_key_of_template(&template)
}

/// The larger class of what CPU and memory ask for.
fn size_of(container: &Value) -> Result<&'static str, InvalidPoolKey> {
    let cpu = class(container, "cpu", &CPU_STEPS)?;
    let memory = class(container, "memory", &MEMORY_STEPS)?;
    Ok(["large", "medium"]
        .into_iter()
        .find(|size| [cpu, memory].contains(size))
        .unwrap_or(PoolKey::DEFAULT_SIZE))
}

fn class(
    container: &Value,
    resource: &str,
    steps: &[(Quantity, &'static str)],
) -> Result<&'static str, InvalidPoolKey> {
    let resources = &container["resources"];
    let amount = ["requests", "limits"]
        .into_iter()
        .map(|kind| (kind, &resources[kind][resource]))
        .find(|(_, v)| !v.is_null());
    let Some((kind, amount)) = amount else {
        return Ok(PoolKey::DEFAULT_SIZE);
    };
    let text = match amount {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let amount: Quantity = text
        .parse()
        .map_err(|error: crate::meta::InvalidQuantity| {
            invalid(
                &format!("spec.podTemplate.spec.containers[0].resources.{kind}.{resource}"),
                &error.to_string(),
            )
        })?;
    Ok(steps
        .iter()
        .find(|(step, _)| amount > *step)
        .map_or(PoolKey::DEFAULT_SIZE, |(_, size)| size))
}

fn invalid(field: &str, reason: &str) -> InvalidPoolKey {
    InvalidPoolKey {
        field: field.to_owned(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(annotations: &[(&str, &str)], pod_template: Value, expected: &str) {
        let annotations = annotations
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let key = pool_key_for(PoolKeySource {
            annotations: &annotations,
            pod_template: &pod_template,
        });
        assert_eq!(
            key.map_or_else(|error| error.to_string(), |key| key.to_string()),
            expected
        );
    }

    fn container(resources: Value) -> Value {
        json!({"spec": {"containers": [{"image": "python:3.12", "resources": resources}]}})
    }

    #[test]
    fn size_follows_the_first_container() {
        check(&[], container(json!({})), "python:3.12|none|small");
        check(
            &[],
            container(json!({"requests": {"cpu": "1", "memory": "2Gi"}})),
            "python:3.12|none|small",
        );
        check(
            &[],
            container(json!({"requests": {"cpu": "1001m"}})),
            "python:3.12|none|medium",
        );
        check(
            &[],
            container(json!({"limits": {"memory": "3Gi"}})),
            "python:3.12|none|medium",
        );
        check(
            &[],
            container(json!({"requests": {"cpu": 5}})),
            "python:3.12|none|large",
        );
        check(
            &[],
            container(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "8", "memory": "9Gi"}})),
            "python:3.12|none|large",
        );
        check(
            &[],
            container(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "8"}})),
            "python:3.12|none|medium",
        );
    }

    #[test]
    fn annotations_override() {
        let plain = container(json!({}));
        check(
            &[
                (labels::SIZE, "2xlarge"),
                (labels::NET, "egress"),
                (labels::TEMPLATE, "mine"),
            ],
            plain,
            "mine|egress|2xlarge",
        );
        let mut on_pod = container(json!({}));
        on_pod["metadata"] = json!({"annotations": {labels::NET: "egress"}});
        check(&[(labels::NET, "none")], on_pod, "python:3.12|egress|small");
    }

    #[test]
    fn a_template_without_an_image_stands_for_one_of_the_pools_name() {
        let key = |container: Value, annotations: Value| {
            let template = json!({"metadata": {"annotations": annotations},
                "spec": {"podTemplate": {"spec": {"containers": [container]}}}});
            let template: SandboxTemplate = serde_json::from_value(template).unwrap();
            pool_key_of_pool("base", &template).unwrap().to_string()
        };
        let image = json!({"name": "c", "image": "python:3.12"});
        assert_eq!(key(image, json!({})), "python:3.12|none|small");
        assert_eq!(key(json!({"name": "c"}), json!({})), "base|none|small");
        let annotations = json!({labels::TEMPLATE: "mine"});
        assert_eq!(key(json!({"name": "c"}), annotations), "mine|none|small");
    }

    #[test]
    fn a_template_that_names_no_pool_is_refused_with_its_field() {
        check(
            &[],
            json!({"spec": {}}),
            "spec.podTemplate.spec.containers[0].image: required: it names the warm pool",
        );
        check(
            &[(labels::NET, "lan")],
            container(json!({})),
            "metadata.annotations[sandbox.cocoonstack.io/net]: must be none or egress",
        );
        check(
            &[],
            container(json!({"requests": {"cpu": "many"}})),
            "spec.podTemplate.spec.containers[0].resources.requests.cpu: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        );
    }
}
