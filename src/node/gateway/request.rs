//! What callers of the gateway send.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::answer::Refusal;
use crate::{
    api::{ClaimId, PoolKey, SandboxKey, labels},
    auth::UserInfo,
    meta::{is_dns1123_label, is_dns1123_subdomain},
    sandboxd::ClaimRequest,
};

/// The lease that is asked for, the longest that a daemon grants and what the claim controller gets: a SandboxClaim without an
/// end lives until it is deleted, and the server renews its lease.
const LEASE_SECONDS: u64 = 86_400;
/// How the name of a ServiceAccount begins.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Body of `POST /v1/claims`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClaimBody {
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) claim_name: String,
    #[serde(default)]
    pub(super) warm_pool: String,
    #[serde(default)]
    selector: Option<Selector>,
}

/// What the caller takes the warm pool for. It selects nothing else: a pool that is another is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selector {
    #[serde(default)]
    template: String,
    #[serde(default)]
    net: String,
    #[serde(default)]
    size: String,
}

/// What is claimed.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) key: SandboxKey,
    pub(super) warm_pool: String,
    pub(super) pool: PoolKey,
    /// The word that tells this attempt from others of its name.
    pub(super) attempt: String,
}

impl ClaimBody {
    /// # Errors
    /// [`Refusal::BadRequest`] and [`Refusal::Invalid`].
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let body: Self = serde_json::from_slice(bytes).map_err(|error| Refusal::BadRequest {
            text: format!("the body is no claim: {error}"),
        })?;
        let checks = [
            (
                "namespace",
                &body.namespace,
                is_dns1123_label as fn(&str) -> bool,
            ),
            ("claimName", &body.claim_name, is_dns1123_subdomain),
            ("warmPool", &body.warm_pool, is_dns1123_subdomain),
        ];
        for (field, value, is_sound) in checks {
            let reason = match value.as_str() {
                "" => "required".to_owned(),
                value if !is_sound(value) => format!("{value:?} is no Kubernetes name"),
                _ => continue,
            };
            return Err(Refusal::Invalid { field, reason });
        }
        Ok(body)
    }

    /// What is claimed, of the pool that the warm pool stands for.
    ///
    /// # Errors
    /// [`Refusal::OtherPool`] when that is not what the selector says.
    pub(super) fn order(self, pool: PoolKey) -> Result<Order, Refusal> {
        let selector = self.selector.unwrap_or_default();
        if !selector.takes(&pool) {
            return Err(Refusal::OtherPool {
                pool: self.warm_pool,
                found: pool.to_string(),
            });
        }
        Ok(Order {
            key: SandboxKey::new(self.namespace, self.claim_name),
            warm_pool: self.warm_pool,
            pool,
            attempt: uuid::Uuid::new_v4().simple().to_string(),
        })
    }
}

impl Selector {
    /// Whether the pool is as it says. What it leaves out may be anything.
    fn takes(&self, pool: &PoolKey) -> bool {
        let is = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
        is(&self.template, &pool.template) && is(&self.net, &pool.net) && is(&self.size, &pool.size)
    }
}

impl Order {
    /// The claim as the daemon is asked for it. Its metadata tells later lives of this agent what it was made for.
    pub(super) fn request(&self) -> ClaimRequest {
        let claim_ref = self.key.to_string();
        let metadata = BTreeMap::from([
            (labels::HANDED_OVER.to_owned(), claim_ref.clone()),
            (labels::WARM_POOL.to_owned(), self.warm_pool.clone()),
            (labels::ATTEMPT.to_owned(), self.attempt.clone()),
        ]);
        ClaimRequest {
            ttl_seconds: LEASE_SECONDS,
            claim_ref,
            metadata,
            ..ClaimRequest::new(self.pool.clone())
        }
    }
}

/// The namespace that a claim is given back in: the query's, else that of the caller's ServiceAccount.
///
/// # Errors
/// [`Refusal::BadRequest`] when there is neither.
pub(super) fn namespace(query: Option<&str>, caller: &UserInfo) -> Result<String, Refusal> {
    let pairs = query.unwrap_or_default().split('&');
    let mut asked = pairs.filter_map(|pair| pair.strip_prefix("namespace="));
    let account = caller.name.strip_prefix(SERVICE_ACCOUNT);
    let own = account.and_then(|account| account.split_once(':'));
    let namespace = asked.next_back().or(own.map(|(namespace, _)| namespace));
    match namespace {
        Some(namespace) if is_dns1123_label(namespace) => Ok(namespace.to_owned()),
        Some(_) => Err(Refusal::BadRequest {
            text: "namespace: no Kubernetes name".to_owned(),
        }),
        None => Err(Refusal::BadRequest {
            text: "the query must name the claim's namespace: ?namespace=NAME".to_owned(),
        }),
    }
}

/// Whether a text can be the id of a claim.
pub(super) fn is_claim_id(claim: &ClaimId) -> bool {
    let id = claim.as_str();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=128).contains(&id.len()) && id.bytes().all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expected: &str) {
        let pool = PoolKey {
            template: "python:3.12".into(),
            net: "none".into(),
            size: "small".into(),
        };
        let decoded = ClaimBody::decode(body.as_bytes()).and_then(|body| body.order(pool));
        let shown = decoded.map_or_else(
            |refusal| refusal.outcome().to_owned() + " " + &refusal.to_string(),
            |order| order.request().claim_ref,
        );
        assert!(shown.starts_with(expected), "{body}: {shown}");
    }

    #[test]
    fn a_claim_names_its_namespace_its_name_and_a_pool() {
        let claim = |selector: &str| {
            format!(
                r#"{{"namespace": "a", "claimName": "x", "warmPool": "p", "later": 1, "selector": {selector}}}"#
            )
        };
        check(&claim("null"), "a/x");
        check(
            &claim(r#"{"template": "python:3.12", "size": "small"}"#),
            "a/x",
        );
        check(&claim(r#"{"template": "", "net": "none"}"#), "a/x");
        check(&claim(r#"{"size": "large"}"#), "invalid the warm pool");
        check(&claim(r#"{"cpu": 1}"#), "invalid the body is no claim");
        check("7", "invalid the body is no claim");
        check("{}", "invalid namespace: required");
        check(
            r#"{"namespace": "a/b", "claimName": "x", "warmPool": "p"}"#,
            "invalid namespace: \"a/b\"",
        );
        check(
            r#"{"namespace": "a", "claimName": "a/b", "warmPool": "p"}"#,
            "invalid claimName:",
        );
    }

    #[test]
    fn a_claim_is_given_back_in_the_callers_namespace_unless_it_names_one() {
        let robot = UserInfo::new("system:serviceaccount:team:robot", &[]);
        let ann = UserInfo::new("ann", &[]);
        let check = |query, caller: &UserInfo, expected: Option<&str>| {
            assert_eq!(namespace(query, caller).ok().as_deref(), expected);
        };
        check(None, &robot, Some("team"));
        check(Some("namespace=other"), &robot, Some("other"));
        check(Some("x=1&namespace=other"), &ann, Some("other"));
        check(Some("namespace=a%2Fb"), &ann, None);
        check(None, &ann, None);
    }
}
