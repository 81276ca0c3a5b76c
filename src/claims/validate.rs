//! What a claim may ask for of its template. The rules are upstream's, and so are the reasons.

use std::collections::BTreeMap;

use crate::api::{EmbeddedMetadata, InjectionPolicy, SandboxClaim, SandboxTemplate};

/// Labels that a claim adds must have this prefix or one of a subdomain.
const LABEL_DOMAIN: &str = "sandbox.users.io";
/// Annotations with a prefix of these domains are not a claim's to add, but for one.
const CLOSED_DOMAINS: [&str; 3] = ["kubernetes.io", "k8s.io", "agents.x-k8s.io"];
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// Why a claim is refused: the Ready condition's reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// Whether `claim` may be carried out with `template`.
pub(super) fn validate(claim: &SandboxClaim, template: &SandboxTemplate) -> Result<(), Refusal> {
    metadata(claim, template).map_err(|message| Refusal::new("InvalidMetadata", message))?;
    let spec = &template.spec;
    if !claim.spec.env.is_empty() {
        let message = injected("environment variables", spec.env_vars_injection_policy);
        return Err(Refusal::new("EnvVarsInjectionRejected", message));
    }
    if !claim.spec.volume_claim_templates.is_empty() {
        let message = injected("volume claim templates", spec.volume_claim_templates_policy);
        return Err(Refusal::new("VolumeClaimTemplatesError", message));
    }
    Ok(())
}

/// A warm VM has been booted, so nothing can be added to it; there is no cold start to fall back to.
fn injected(what: &str, policy: InjectionPolicy) -> String {
    match policy {
        InjectionPolicy::Disallowed => format!("the template does not allow {what} in a claim"),
        InjectionPolicy::Allowed | InjectionPolicy::Overrides => {
            format!("sandboxes here come out of warm pools, which cannot take {what}")
        }
    }
}

fn metadata(claim: &SandboxClaim, template: &SandboxTemplate) -> Result<(), String> {
    let Some(added) = &claim.spec.additional_pod_metadata else {
        return Ok(());
    };
    let fixed = template.spec.pod_template.metadata.as_ref();
    let of = |part: fn(&EmbeddedMetadata) -> &BTreeMap<String, String>| fixed.map(part);
    for (key, value) in &added.labels {
        if !domain(key).is_some_and(|domain| is_within(domain, LABEL_DOMAIN)) {
            return Err(format!(
                "label {key:?}: only labels of {LABEL_DOMAIN} may be added"
            ));
        }
        unchanged("label", key, value, of(|fixed| &fixed.labels))?;
    }
    for (key, value) in &added.annotations {
        let closed = domain(key).is_some_and(|domain| {
            CLOSED_DOMAINS
                .iter()
                .any(|closed| is_within(domain, closed))
        });
        if closed && key != SAFE_TO_EVICT {
            return Err(format!("annotation {key:?}: its domain is reserved"));
        }
        unchanged("annotation", key, value, of(|fixed| &fixed.annotations))?;
    }
    Ok(())
}

fn unchanged(
    what: &str,
    key: &str,
    value: &str,
    fixed: Option<&BTreeMap<String, String>>,
) -> Result<(), String> {
    match fixed.and_then(|fixed| fixed.get(key)) {
        Some(known) if known != value => {
            Err(format!("{what} {key:?}: the template has another value"))
        }
        _ => Ok(()),
    }
}

fn domain(key: &str) -> Option<&str> {
    key.split_once('/').map(|(domain, _)| domain)
}

fn is_within(domain: &str, of: &str) -> bool {
    let rest = domain.strip_suffix(of);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(spec: Value, template: Value, expected: Option<&str>) {
        let mut claim = json!({"spec": {"warmPoolRef": {"name": "p"}}});
        for (key, value) in spec.as_object().unwrap() {
            claim["spec"][key] = value.clone();
        }
        let mut full = json!({"spec": {"podTemplate": {
            "metadata": {"labels": {"sandbox.users.io/tier": "a"}}, "spec": {"containers": []}}}});
        for (key, value) in template.as_object().unwrap() {
            full["spec"][key] = value.clone();
        }
        let (claim, template) = (
            serde_json::from_value(claim).unwrap(),
            serde_json::from_value(full).unwrap(),
        );
        let reason = validate(&claim, &template)
            .err()
            .map(|refusal| refusal.reason);
        assert_eq!(reason, expected);
    }

    #[test]
    fn added_metadata_stays_in_its_domains() {
        let labels =
            |key: &str, value: &str| json!({"additionalPodMetadata": {"labels": {key: value}}});
        let annotations = |key: &str| json!({"additionalPodMetadata": {"annotations": {key: "x"}}});
        let none = || json!({});
        check(labels("sandbox.users.io/team", "x"), none(), None);
        check(labels("eu.sandbox.users.io/team", "x"), none(), None);
        for bad in ["team", "evilsandbox.users.io/team", "example.com/team"] {
            check(labels(bad, "x"), none(), Some("InvalidMetadata"));
        }
        check(labels("sandbox.users.io/tier", "a"), none(), None);
        check(
            labels("sandbox.users.io/tier", "b"),
            none(),
            Some("InvalidMetadata"),
        );
        check(annotations("example.com/note"), none(), None);
        check(annotations("note"), none(), None);
        check(annotations(SAFE_TO_EVICT), none(), None);
        for bad in [
            "kubernetes.io/x",
            "batch.kubernetes.io/x",
            "agents.x-k8s.io/x",
        ] {
            check(annotations(bad), none(), Some("InvalidMetadata"));
        }
    }

    #[test]
    fn nothing_can_be_added_to_a_warm_vm() {
        let env = || json!({"env": [{"name": "A", "value": "b"}]});
        check(env(), json!({}), Some("EnvVarsInjectionRejected"));
        let allowed = json!({"envVarsInjectionPolicy": "Allowed"});
        check(env(), allowed, Some("EnvVarsInjectionRejected"));
        let volumes = json!({"volumeClaimTemplates": [{"spec": {}}]});
        check(volumes, json!({}), Some("VolumeClaimTemplatesError"));
        check(json!({}), json!({}), None);
    }
}
