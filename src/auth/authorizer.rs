//! What a user may do.
//!
//! A get of one object asks about its name, and names are many: asked exactly, every first get of an object waits for
//! kube-apiserver. So the question for any name is asked first, and its yes is taken where it covers every name. For a
//! request that kube-apiserver passed on it does, since kube-apiserver has asked with the name already. For a direct one it
//! does when RBAC said it: a rule without resource names allows all names, and nothing behind RBAC takes that back. Only an
//! authorizer before RBAC that denies single names would be passed over; a cluster that has one sets
//! `--authorization-ask-every-name`.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::authorization::v1::{
        FieldSelectorAttributes, LabelSelectorAttributes, NonResourceAttributes,
        ResourceAttributes as ReviewedResource, SubjectAccessReview, SubjectAccessReviewSpec,
        SubjectAccessReviewStatus,
    },
    apimachinery::pkg::apis::meta::v1::{FieldSelectorRequirement, LabelSelectorRequirement},
};
use kube::Client;

use crate::meta::{FieldSelector, LabelOp, LabelSelector};

use super::{
    Attributes, AuthMetrics, Error, Origin, ResourceAttributes, Result, UserInfo,
    answers::{Answer, Answers},
    attributes::{field_operator, label_operator},
    review::review,
    user::MASTERS,
};

/// How long an answer counts.
const KEEP_ALLOW: Duration = Duration::from_secs(10);
const KEEP_DENY: Duration = Duration::from_secs(10);

/// Answers that are remembered.
const MAX_ANSWERS: usize = 8_192;

/// Questions whose caller-chosen part is longer are asked every time.
const MAX_KEPT_LENGTH: usize = 10_000;

/// Paths that need no authorization: the kubelet's probes come without an identity.
const OPEN_PATHS: [&str; 3] = ["/healthz", "/readyz", "/livez"];

const REVIEW: &str = "SubjectAccessReview";

/// How RBAC's reason for a yes begins.
const RBAC_ALLOWED: &str = "RBAC: allowed by ";

/// Whether a user may do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes.
    Allow,
    /// No: answered with 403.
    Deny {
        /// Why, as the authorizer puts it, for the caller to read; often nothing.
        reason: Option<Arc<str>>,
    },
}

/// Decides what a user may do.
#[derive(Debug)]
pub struct Authorizer(Rule);

#[derive(Debug)]
enum Rule {
    /// What kube-apiserver says.
    Delegated(Delegated),
    /// Everything.
    AlwaysAllow,
}

#[derive(Clone)]
struct Delegated {
    client: Client,
    answers: Arc<Answers<Verdict>>,
    metrics: AuthMetrics,
    ask_every_name: bool,
}

/// A decision, and whether RBAC made it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    decision: Decision,
    by_rbac: bool,
}

impl Authorizer {
    /// Asks kube-apiserver through `client`, which repeats nothing by itself. `ask_every_name`: a
    /// direct request for a named object is always asked with the name.
    pub fn delegated(client: Client, ask_every_name: bool, metrics: AuthMetrics) -> Self {
        Self(Rule::Delegated(Delegated {
            client,
            answers: Answers::new(MAX_ANSWERS),
            metrics,
            ask_every_name,
        }))
    }

    /// Allows everything. For a server without a cluster, whose authenticator knows everybody.
    pub fn always_allow() -> Self {
        Self(Rule::AlwaysAllow)
    }

    /// Whether `user` may do what `attributes` describe. Takes a microsecond when the answer is known and at most 10 s else; an
    /// answer counts for 10 s.
    ///
    /// A request for a named object is allowed by a yes for objects of any name that covers this one, which is asked for first;
    /// see the header. Otherwise it is asked exactly.
    ///
    /// # Errors
    /// When kube-apiserver could not be asked: the request fails, and is never allowed.
    pub async fn authorize(
        &self,
        user: &UserInfo,
        attributes: &Attributes<'_>,
        origin: Origin,
    ) -> Result<Decision> {
        let Rule::Delegated(delegated) = &self.0 else {
            return Ok(Decision::Allow);
        };
        if needs_no_review(user, attributes) {
            return Ok(Decision::Allow);
        }
        if let Some(of_any_name) = attributes
            .without_name()
            .filter(|_| delegated.asks_first(origin))
        {
            let verdict = delegated.decide(user, &of_any_name).await?;
            if verdict.decision == Decision::Allow && (origin == Origin::Proxied || verdict.by_rbac)
            {
                return Ok(Decision::Allow);
            }
        }
        delegated
            .decide(user, attributes)
            .await
            .map(|verdict| verdict.decision)
    }
}

impl Delegated {
    /// Whether an answer for any name could be enough.
    fn asks_first(&self, origin: Origin) -> bool {
        origin == Origin::Proxied || !self.ask_every_name
    }

    async fn decide(&self, user: &UserInfo, attributes: &Attributes<'_>) -> Result<Verdict> {
        let (key, length) = attributes.key(user);
        if let Some(known) = self.answers.get(&key) {
            self.metrics.answers_from_cache.inc();
            return Ok(known);
        }
        let may_keep = length <= MAX_KEPT_LENGTH;
        let ask = || self.clone().ask(spec(user, attributes), may_keep);
        self.answers.ask(key, ask).await
    }

    async fn ask(self, spec: SubjectAccessReviewSpec, may_keep: bool) -> Result<Answer<Verdict>> {
        let question = SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        };
        let answer = review(self.client, question, REVIEW, self.metrics).await?;
        let status = answer
            .status
            .ok_or(Error::ReviewWithoutStatus { review: REVIEW })?;
        let value = Verdict::from(status);
        let keep = match value.decision {
            _ if !may_keep => Duration::ZERO,
            Decision::Allow => KEEP_ALLOW,
            Decision::Deny { .. } => KEEP_DENY,
        };
        Ok(Answer { value, keep })
    }
}

impl std::fmt::Debug for Delegated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delegated").finish_non_exhaustive()
    }
}

impl From<SubjectAccessReviewStatus> for Verdict {
    fn from(status: SubjectAccessReviewStatus) -> Self {
        let reason = status.reason.as_deref().unwrap_or_default();
        let by_rbac = status.allowed && reason.starts_with(RBAC_ALLOWED);
        Self {
            by_rbac,
            decision: status.into(),
        }
    }
}

impl From<SubjectAccessReviewStatus> for Decision {
    /// Nobody's opinion is a no, and so is a yes beside a no.
    fn from(status: SubjectAccessReviewStatus) -> Self {
        if status.allowed && status.denied != Some(true) {
            return Self::Allow;
        }
        let reason = status.reason.filter(|reason| !reason.is_empty());
        Self::Deny {
            reason: reason.map(Arc::from),
        }
    }
}

fn needs_no_review(user: &UserInfo, attributes: &Attributes<'_>) -> bool {
    let open =
        matches!(attributes, Attributes::NonResource { path, .. } if OPEN_PATHS.contains(path));
    open || user.is_in(MASTERS)
}

fn spec(user: &UserInfo, attributes: &Attributes<'_>) -> SubjectAccessReviewSpec {
    let (resource_attributes, non_resource_attributes) = match attributes {
        Attributes::Resource(resource) => (Some(reviewed(resource)), None),
        Attributes::NonResource { verb, path } => (
            None,
            Some(NonResourceAttributes {
                path: filled(path),
                verb: filled(verb),
            }),
        ),
    };
    SubjectAccessReviewSpec {
        user: filled(&user.name),
        uid: user.uid.clone(),
        groups: (!user.groups.is_empty()).then(|| user.groups.clone()),
        extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
        resource_attributes,
        non_resource_attributes,
    }
}

fn reviewed(resource: &ResourceAttributes<'_>) -> ReviewedResource {
    ReviewedResource {
        verb: filled(resource.verb),
        group: filled(resource.group),
        version: filled(resource.version),
        resource: filled(resource.resource),
        subresource: filled(resource.subresource),
        namespace: filled(resource.namespace),
        name: filled(resource.name),
        label_selector: resource.label_selector.and_then(reviewed_labels),
        field_selector: resource.field_selector.and_then(reviewed_fields),
    }
}

/// The requirements that a review can say. Leaving one out widens the question, so that no answer is too kind.
fn reviewed_labels(selector: &LabelSelector) -> Option<LabelSelectorAttributes> {
    let requirements: Vec<_> = selector
        .requirements()
        .iter()
        .filter(|requirement| !matches!(requirement.op, LabelOp::GreaterThan | LabelOp::LessThan))
        .map(|requirement| LabelSelectorRequirement {
            key: requirement.key.clone(),
            operator: label_operator(requirement.op).to_owned(),
            values: (!requirement.values.is_empty()).then(|| requirement.values.clone()),
        })
        .collect();
    (!requirements.is_empty()).then_some(LabelSelectorAttributes {
        raw_selector: None,
        requirements: Some(requirements),
    })
}

fn reviewed_fields(selector: &FieldSelector) -> Option<FieldSelectorAttributes> {
    let requirements: Vec<_> = selector
        .requirements()
        .iter()
        .map(|requirement| FieldSelectorRequirement {
            key: requirement.path.clone(),
            operator: field_operator(requirement.op).to_owned(),
            values: Some(vec![requirement.value.clone()]),
        })
        .collect();
    (!requirements.is_empty()).then_some(FieldSelectorAttributes {
        raw_selector: None,
        requirements: Some(requirements),
    })
}

fn filled(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_says_what_was_asked() {
        let labels: LabelSelector = "a in (x,y),!b,c,d!=z,n>1".parse().unwrap();
        let fields: FieldSelector = "metadata.name=s".parse().unwrap();
        let user = UserInfo {
            uid: Some("1".to_owned()),
            extra: [("k".to_owned(), vec!["v".to_owned()])].into(),
            ..UserInfo::new("ann", &["dev"])
        };
        let attributes = Attributes::Resource(ResourceAttributes {
            verb: "watch",
            group: "agents.x-k8s.io",
            version: "v1beta1",
            resource: "sandboxes",
            namespace: "ns",
            name: "s",
            label_selector: Some(&labels),
            field_selector: Some(&fields),
            ..ResourceAttributes::default()
        });
        assert_eq!(
            serde_json::to_value(spec(&user, &attributes)).unwrap(),
            serde_json::json!({
                "user": "ann", "uid": "1", "groups": ["dev"], "extra": {"k": ["v"]},
                "resourceAttributes": {
                    "verb": "watch", "group": "agents.x-k8s.io", "version": "v1beta1", "resource": "sandboxes",
                    "namespace": "ns", "name": "s",
                    "labelSelector": {"requirements": [
                        {"key": "a", "operator": "In", "values": ["x", "y"]},
                        {"key": "b", "operator": "DoesNotExist"},
                        {"key": "c", "operator": "Exists"},
                        {"key": "d", "operator": "NotIn", "values": ["z"]},
                    ]},
                    "fieldSelector": {"requirements": [{"key": "metadata.name", "operator": "In", "values": ["s"]}]},
                },
            })
        );
        let attributes = Attributes::NonResource {
            verb: "get",
            path: "/metrics",
        };
        assert_eq!(
            serde_json::to_value(spec(&UserInfo::new("bob", &[]), &attributes)).unwrap(),
            serde_json::json!({"user": "bob", "nonResourceAttributes": {"path": "/metrics", "verb": "get"}})
        );
    }

    #[track_caller]
    fn open(path: &str, groups: &[&str], expected: bool) {
        let attributes = Attributes::NonResource { verb: "get", path };
        assert_eq!(
            needs_no_review(&UserInfo::new("u", groups), &attributes),
            expected,
            "{path}"
        );
    }

    #[test]
    fn only_masters_and_exact_probe_paths_skip_the_review() {
        open("/healthz", &[], true);
        open("/readyz", &["system:unauthenticated"], true);
        open("/livez", &[], true);
        open("/livez/ping", &[], false);
        open("/readyz/", &[], false);
        open("/metrics", &[], false);
        open("/metrics", &["a", "system:masters"], true);
        open("/metrics", &["system:masters2"], false);
    }

    #[test]
    fn only_a_plain_yes_allows() {
        let status = |allowed, denied| SubjectAccessReviewStatus {
            allowed,
            denied,
            ..SubjectAccessReviewStatus::default()
        };
        assert_eq!(Decision::from(status(true, None)), Decision::Allow);
        assert_eq!(Decision::from(status(true, Some(false))), Decision::Allow);
        for no in [
            status(false, None),
            status(false, Some(true)),
            status(true, Some(true)),
        ] {
            assert_eq!(Decision::from(no), Decision::Deny { reason: None });
        }
    }
}
