//! The roles of `apiservice/` give what they should, and no more.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::control_plane::{self, ControlPlane};

/// How long a new role may take to count: a controller merges it, and the authorizer hears of that by a watch.
const PROPAGATION: Duration = Duration::from_secs(30);

/// The server's own ServiceAccount.
const SERVER: &str = "system:serviceaccount:sandbox-system:sandbox-apiserver";

#[tokio::test]
async fn user_roles_grow_from_view_to_admin() {
    let control_plane = control_plane::shared();
    let namespace = control_plane.create_namespace("roles").await;
    apply(&control_plane, "20-user-roles.yaml").await;
    let users = [("vera", "view"), ("edith", "edit"), ("adam", "admin")];
    for (user, role) in users {
        bind(&control_plane, &namespace, user, role).await;
    }

    let mut questions = Vec::new();
    for (verb, path, [view, edit, admin]) in [
        ("list", "sandboxes", [true, true, true]),
        ("get", "sandboxes/stats", [true, true, true]),
        ("create", "sandboxes", [false, true, true]),
        ("patch", "sandboxes", [false, true, true]),
        ("deletecollection", "sandboxes", [false, true, true]),
        ("update", "sandboxes/scale", [false, true, true]),
        ("create", "sandboxes/pause", [false, true, true]),
        ("create", "sandboxes/resume", [false, true, true]),
        ("create", "sandboxes/fork", [false, true, true]),
        ("create", "sandboxes/snapshot", [false, true, true]),
        ("create", "sandboxes/exec", [false, true, true]),
        ("create", "sandboxes/token", [false, false, true]),
        ("create", "sandboxes/promote", [false, false, false]),
        ("watch", "sandboxsnapshots", [true, true, true]),
        ("create", "sandboxsnapshots", [false, true, true]),
        ("watch", "sandboxclaims", [true, true, true]),
        ("create", "sandboxclaims", [false, true, true]),
        ("patch", "sandboxclaims/status", [false, false, false]),
        ("get", "sandboxwarmpools/scale", [true, true, true]),
        ("update", "sandboxwarmpools/scale", [false, true, true]),
        ("delete", "sandboxwarmpools", [false, true, true]),
        ("create", "sandboxtemplates", [false, true, true]),
        ("list", "nodeinventories", [false, false, false]),
    ] {
        let (resource, subresource) = path.split_once('/').unwrap_or((path, ""));
        let attributes = json!({
            "namespace": namespace,
            "verb": verb,
            "group": if resource == "sandboxes" || resource == "sandboxsnapshots" {
                "agents.x-k8s.io"
            } else {
                "extensions.agents.x-k8s.io"
            },
            "resource": resource,
            "subresource": subresource,
        });
        for ((user, _), expected) in users.into_iter().zip([view, edit, admin]) {
            questions.push(Question::new(user, &attributes, expected));
        }
    }
    check(&control_plane, &questions).await;
}

#[tokio::test]
async fn agents_may_do_their_work_and_nothing_else() {
    let control_plane = control_plane::shared();
    for file in ["00-namespace.yaml", "60-agent.yaml"] {
        apply(&control_plane, file).await;
    }
    let agent = "system:serviceaccount:sandbox-agents:sandbox-agent";
    let extensions = "extensions.agents.x-k8s.io";
    let questions = [
        (true, "patch", extensions, "nodeinventories"),
        // How many publish is what the pace goes by.
        (true, "list", extensions, "nodeinventories"),
        (false, "delete", extensions, "nodeinventories"),
        (true, "get", extensions, "sandboxwarmpools"),
        (true, "create", extensions, "sandboxclaims"),
        (false, "list", extensions, "sandboxclaims"),
        (false, "list", "", "nodes"),
        (false, "get", "", "secrets"),
    ];
    let questions = questions.map(|(expected, verb, group, resource)| {
        let attributes = json!({"verb": verb, "group": group, "resource": resource});
        Question::new(agent, &attributes, expected)
    });
    check(&control_plane, &questions).await;
}

#[tokio::test]
async fn server_may_do_its_work_and_nothing_else() {
    let control_plane = control_plane::shared();
    apply(&control_plane, "00-namespace.yaml").await;
    apply(&control_plane, "10-rbac.yaml").await;

    let extensions = "extensions.agents.x-k8s.io";
    let own = "sandbox-system";
    let settings = json!({
        "namespace": "kube-system",
        "verb": "watch",
        "resource": "configmaps",
        "name": "extension-apiserver-authentication",
    });
    let mut questions = vec![Question::new(SERVER, &settings, true)];
    for (expected, verb, group, resource, namespace) in [
        (true, "watch", "", "namespaces", ""),
        (true, "list", "", "resourcequotas", ""),
        (true, "watch", "", "resourcequotas", ""),
        (false, "patch", "", "resourcequotas", ""),
        (true, "watch", "", "nodes", ""),
        (true, "patch", extensions, "nodeinventories", ""),
        (true, "watch", extensions, "sandboxclaims", ""),
        (true, "create", "authentication.k8s.io", "tokenreviews", ""),
        (
            true,
            "create",
            "authorization.k8s.io",
            "subjectaccessreviews",
            "",
        ),
        (true, "create", "coordination.k8s.io", "leases", own),
        (true, "update", "coordination.k8s.io", "leases", own),
        (
            false,
            "update",
            "coordination.k8s.io",
            "leases",
            "kube-node-lease",
        ),
        (false, "create", extensions, "nodeinventories", ""),
        (true, "patch", extensions, "sandboxclaims", ""),
        (true, "delete", extensions, "sandboxclaims", ""),
        (true, "create", "events.k8s.io", "events", ""),
        (true, "create", "", "configmaps", own),
        (false, "create", extensions, "sandboxclaims", ""),
        (false, "patch", extensions, "sandboxwarmpools", ""),
        (false, "get", "", "configmaps", own),
        (false, "get", "", "secrets", own),
        (false, "list", "", "configmaps", "kube-system"),
        (false, "patch", "", "nodes", ""),
        (false, "get", "agents.x-k8s.io", "sandboxes", ""),
    ] {
        let attributes = json!({
            "namespace": namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
        });
        questions.push(Question::new(SERVER, &attributes, expected));
    }
    let (aggregation, ca) = ("apiregistration.k8s.io", "sandbox-apiserver-ca");
    for (expected, verb, group, resource, namespace, name) in [
        (true, "get", "", "secrets", own, ca),
        (true, "update", "", "secrets", own, ca),
        (true, "create", "", "secrets", own, ""),
        (true, "patch", "", "configmaps", own, ca),
        (
            true,
            "patch",
            aggregation,
            "apiservices",
            "",
            "v1beta1.agents.x-k8s.io",
        ),
        (
            true,
            "watch",
            aggregation,
            "apiservices",
            "",
            "v1alpha1.agents.x-k8s.io",
        ),
        (
            false,
            "get",
            "",
            "secrets",
            own,
            "sandbox-apiserver-sandboxd",
        ),
        (false, "get", "", "secrets", "kube-system", ca),
        (false, "list", "", "secrets", own, ""),
        (false, "delete", "", "secrets", own, ca),
        (false, "update", "", "configmaps", own, "kube-root-ca.crt"),
        (false, "patch", aggregation, "apiservices", "", "v1.apps"),
        (false, "list", aggregation, "apiservices", "", ""),
        (
            false,
            "delete",
            aggregation,
            "apiservices",
            "",
            "v1beta1.agents.x-k8s.io",
        ),
    ] {
        let attributes = json!({
            "namespace": namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "name": name,
        });
        questions.push(Question::new(SERVER, &attributes, expected));
    }
    check(&control_plane, &questions).await;
}

/// A SubjectAccessReview and the answer it should get.
struct Question {
    review: Value,
    expected: bool,
}

impl Question {
    fn new(user: &str, attributes: &Value, expected: bool) -> Self {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        });
        Self { review, expected }
    }

    async fn is_allowed(&self, control_plane: &ControlPlane) -> bool {
        let args = [
            "create",
            "--filename=-",
            "--output=jsonpath={.status.allowed}",
        ];
        let kubectl = control_plane.kubectl();
        kubectl
            .stdout_with_input(&args, &self.review.to_string())
            .await
            == "true"
    }
}

/// Waits until all is allowed that should be, so that the roles are known to be in force, and only then looks at what
/// should not be.
async fn check(control_plane: &ControlPlane, questions: &[Question]) {
    let deadline = Instant::now() + PROPAGATION;
    for question in questions.iter().filter(|question| question.expected) {
        while !question.is_allowed(control_plane).await {
            assert!(Instant::now() < deadline, "denied: {:#}", question.review);
        }
    }
    for question in questions.iter().filter(|question| !question.expected) {
        let allowed = question.is_allowed(control_plane).await;
        assert!(!allowed, "allowed: {:#}", question.review);
    }
}

async fn apply(control_plane: &ControlPlane, manifest: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("apiservice")
        .join(manifest);
    let filename = path.display().to_string();
    control_plane
        .kubectl()
        .stdout(&["apply", "--filename", &filename])
        .await;
}

async fn bind(control_plane: &ControlPlane, namespace: &str, user: &str, role: &str) {
    let role_flag = format!("--clusterrole={role}");
    let user_flag = format!("--user={user}");
    let args = [
        "create",
        "rolebinding",
        role,
        &role_flag,
        &user_flag,
        "--namespace",
        namespace,
    ];
    control_plane.kubectl().stdout(&args).await;
}
