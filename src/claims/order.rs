//! What is claimed for a SandboxClaim.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::validate::Refusal;
use crate::{
    api::{
        EXTENSIONS_GROUP, PodTemplate, SandboxClaim, SandboxKey, SandboxTemplate, ShutdownPolicy,
        UserPart, V1BETA1, labels, pool_key_of_template,
    },
    gateway::ClaimOrder,
    meta::UnixTime,
};

/// Upstream's labels of a claimed sandbox.
pub(super) const CLAIM_UID: &str = "agents.x-k8s.io/claim-uid";
const LAUNCH_TYPE: &str = "agents.x-k8s.io/launch-type";
/// The end of a claim that has none: 9999-12-31, as late as a time can be written.
const NEVER: UnixTime = UnixTime::from_secs(253_402_300_799);
/// How long the lease outlasts the claim's end, so that the controller ends it and not the daemon.
const GRACE: Duration = Duration::from_secs(60);

/// The name of a claim's sandbox.
pub(super) fn key_of(claim: &SandboxClaim) -> SandboxKey {
    let metadata = &claim.metadata;
    SandboxKey::new(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// What `claim` asks for, with what `template` says.
pub(super) fn order(
    claim: &SandboxClaim,
    template: &SandboxTemplate,
    now: UnixTime,
) -> Result<ClaimOrder, Refusal> {
    let pool = pool_key_of_template(template)
        .map_err(|error| Refusal::new("InvalidConfiguration", error.to_string()))?;
    let user = user_part(claim, Some(template));
    let ttl = user.shutdown_time.map(|end| end.since(now));
    Ok(ClaimOrder {
        key: key_of(claim),
        pool,
        snapshot: None,
        ttl,
        user: Arc::new(user),
    })
}

/// The user's part of the sandbox; what its template says only as far as the template is known.
pub(super) fn user_part(claim: &SandboxClaim, template: Option<&SandboxTemplate>) -> UserPart {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let users = claim.metadata.labels.iter().flatten();
    let users = users.filter(|(key, _)| !labels::is_reserved(key));
    let users = users.map(|(key, value)| (key.as_str(), value.as_str()));
    // Last, for it is by these that the claim knows its sandbox.
    let own = [(CLAIM_UID, uid), (LAUNCH_TYPE, "warm")];
    let all = users
        .chain(own)
        .map(|(key, value)| (key.into(), value.into()));
    let user_labels: BTreeMap<_, _> = all.collect();
    let lifecycle = claim.spec.lifecycle.as_ref();
    let end = lifecycle.and_then(|lifecycle| lifecycle.shutdown_time);
    UserPart {
        labels: user_labels,
        owner_references: json!([owner(claim)]).to_string().into(),
        spec: template.map_or("".into(), |template| {
            spec(claim, template).to_string().into()
        }),
        generation: 1,
        shutdown_time: Some(end.map_or(NEVER, |end| end.after(GRACE))),
        // The claim tells that it ended; the sandbox itself leaves nothing behind.
        shutdown_policy: ShutdownPolicy::Delete,
        ..UserPart::default()
    }
}

fn spec(claim: &SandboxClaim, template: &SandboxTemplate) -> Value {
    let template = &template.spec;
    let mut pod: PodTemplate = template.pod_template.clone();
    if let Some(added) = &claim.spec.additional_pod_metadata {
        let metadata = pod.metadata.get_or_insert_default();
        metadata.labels.extend(added.labels.clone());
        metadata.annotations.extend(added.annotations.clone());
    }
    let mut spec = json!({"podTemplate": pod, "shutdownPolicy": "Delete"});
    if let Some(service) = template.service {
        spec["service"] = service.into();
    }
    spec
}

fn owner(claim: &SandboxClaim) -> Value {
    json!({
        "apiVersion": format!("{EXTENSIONS_GROUP}/{V1BETA1}"),
        "kind": "SandboxClaim",
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_claim(lifecycle: Value) -> SandboxClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "box", "namespace": "team", "uid": "u-1",
                "labels": {"created-by": "python-client", labels::NODE: "forged"}},
            "spec": {"warmPoolRef": {"name": "p"}, "lifecycle": lifecycle,
                "additionalPodMetadata": {"labels": {"sandbox.users.io/a": "b"}}}}))
        .unwrap()
    }

    fn mk_template() -> SandboxTemplate {
        serde_json::from_value(json!({"spec": {"podTemplate": {
            "spec": {"containers": [{"name": "c", "image": "python:3.12"}]}}}}))
        .unwrap()
    }

    #[test]
    fn a_claim_is_ordered_under_its_own_name_from_the_pool_of_its_template() {
        let now = UnixTime::from_secs(1_000);
        let order = order(&mk_claim(json!({})), &mk_template(), now).unwrap();
        assert_eq!(order.key.to_string(), "team/box");
        assert_eq!(order.pool.to_string(), "python:3.12|none|small");
        assert_eq!(order.user.labels["agents.x-k8s.io/claim-uid"], "u-1");
        assert_eq!(order.user.labels["created-by"], "python-client");
        assert!(!order.user.labels.contains_key(labels::NODE));
        let spec: Value = serde_json::from_str(&order.user.spec).unwrap();
        let pod = &spec["podTemplate"];
        assert_eq!(pod["metadata"]["labels"]["sandbox.users.io/a"], "b");
        assert_eq!(pod["spec"]["containers"][0]["image"], "python:3.12");
        assert!(order.ttl.unwrap() > Duration::from_secs(86_400 * 365));
    }

    #[test]
    fn the_lease_outlasts_the_claim() {
        let lifecycle = json!({"shutdownTime": "1970-01-01T00:30:00Z"});
        let order = order(&mk_claim(lifecycle), &mk_template(), UnixTime::from_secs(0));
        assert_eq!(order.unwrap().ttl, Some(Duration::from_secs(1_860)));
    }
}
