//! What users may do.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

use super::subject::Subject;
use crate::{caller::Caller, stage::eventually, users::ADMIN};

const SOON: Duration = Duration::from_secs(20);

/// Some verbs on some resources, for somebody.
#[derive(Clone, Copy)]
pub(super) struct Grant<'a> {
    /// `User` or `Group`.
    pub(super) kind: &'a str,
    pub(super) to: &'a str,
    pub(super) verbs: &'a [&'a str],
    /// `sandboxes`, or a subresource of them.
    pub(super) resource: &'a str,
    /// Of these names only, if any are given.
    pub(super) names: &'a [&'a str],
}

impl<'a> Grant<'a> {
    /// Verbs on all sandboxes of the check's namespace, for a user.
    pub(super) fn to(user: &'a str, verbs: &'a [&'a str]) -> Self {
        Self {
            kind: "User",
            to: user,
            verbs,
            resource: "sandboxes",
            names: &[],
        }
    }

    /// Grants it in the check's namespace, and returns when kube-apiserver's authorizer knows.
    pub(super) async fn in_force(self, subject: &Subject) {
        // For a custom resource in the place of sandboxes as well.
        let twin = crate::twin::for_twin(self.resource);
        let rule = json!({
            "apiGroups": ["agents.x-k8s.io", "twin.example.org"],
            "resources": [self.resource, twin],
            "verbs": self.verbs,
            "resourceNames": self.names,
        });
        bind(subject, &rule, self.kind, self.to).await;
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        let attributes = json!({
            "namespace": subject.namespace,
            "verb": self.verbs[0],
            "group": "agents.x-k8s.io",
            "resource": resource,
            "subresource": subresource,
            "name": self.names.first().unwrap_or(&""),
        });
        known(subject, self.kind, self.to, &attributes).await;
    }
}

/// Makes a role of the rule in the check's namespace, and binds it.
async fn bind(subject: &Subject, rule: &Value, kind: &str, to: &str) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let api = "rbac.authorization.k8s.io";
    let metadata = json!({"name": format!("grant-{n}"), "namespace": subject.namespace});
    let items = json!([
        {"apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": metadata["name"]},
            "subjects": [{"apiGroup": api, "kind": kind, "name": to}],
        },
    ]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let create = ["create", "--filename=-"];
    let kubectl = subject.control_plane.kubectl();
    kubectl.stdout_with_input(&create, &list).await;
}

/// Waits until kube-apiserver would allow it. Asked before the server is, which remembers a no.
async fn known(subject: &Subject, kind: &str, to: &str, attributes: &Value) {
    let who = match kind {
        "Group" => json!({"user": "somebody", "groups": [to]}),
        _ => json!({"user": to}),
    };
    let mut review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": who,
    });
    review["spec"]["resourceAttributes"] = attributes.clone();
    let admin = Caller::new(subject.control_plane.config_as(ADMIN));
    eventually(SOON, "the role is in force", async || {
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = admin.post(path, &review).await.ok();
        answer["status"]["allowed"] == true
    })
    .await;
}
