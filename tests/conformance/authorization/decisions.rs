//! What becomes of kube-apiserver's answers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    chart,
    conformance::{
        client::{APPLY, Client},
        credentials::Door,
        grants::Grant,
        relay::{Question, Reply, failure},
        subject::Subject,
        witness::Witness,
    },
    stage::API,
};

/// How long a review may take, with its tries, and what a busy machine adds.
const REVIEWED_WITHIN: Duration = Duration::from_secs(10);
const SLACK: Duration = Duration::from_secs(8);

/// A rule about the reviews of one user; everything else is passed on.
fn said_of(
    user: &'static str,
    say: impl Fn(&Question) -> Reply + Send + Sync + 'static,
) -> impl Fn(&Question) -> Reply + Send + Sync + 'static {
    move |question| match question.is_about_user(user) {
        true => say(question),
        false => Reply::Passed,
    }
}

pub(super) async fn c_036(subject: &Subject) {
    subject.create("a").await;
    let (collection, item) = (subject.collection(), subject.item("a"));
    let front_proxy = subject.control_plane.front_proxy();
    let front_proxy = Door::of(subject).with_certificate(&front_proxy);
    // What kube-apiserver would pass on, had it authorized the user.
    let vouched: &[_] = &[
        ("x-remote-user", "walter"),
        ("x-remote-group", "system:authenticated"),
    ];
    for (client, headers) in [
        (subject.direct_as("walter"), &[][..]),
        (front_proxy, vouched),
    ] {
        for (method, path) in [
            ("GET", &item),
            ("GET", &collection),
            ("GET", &format!("{collection}?watch=1")),
            ("GET", &format!("{API}/sandboxes")),
            ("POST", &collection),
            ("PUT", &item),
            ("PATCH", &item),
            ("DELETE", &item),
            ("DELETE", &collection),
            ("GET", &format!("{item}/status")),
            ("GET", &format!("{item}/absent")),
            ("POST", &format!("{item}/fork")),
            ("POST", &format!("{item}/pause")),
            ("GET", &format!("{API}/namespaces/absent/sandboxes")),
            ("GET", &"/metrics".to_owned()),
            ("GET", &"/absent".to_owned()),
        ] {
            let body = subject.mk("a").to_string();
            let body = if method == "GET" { "" } else { &body };
            let answer = client.send(method, path, headers, body).await;
            assert_eq!(answer.status, 403, "{method} {path}: {:#}", answer.body);
            answer.expect(403, "Forbidden");
        }
    }
    subject.direct().get(&item).await.ok();
}

pub(super) async fn c_040(subject: &Subject) {
    subject.create("mine").await;
    subject.create("other").await;
    let grant = Grant {
        names: &["mine"],
        ..Grant::to("olga", &["get", "list", "watch", "deletecollection"])
    };
    grant.in_force(subject).await;
    let selected = |name: &str, more: &str| {
        format!(
            "{}?fieldSelector=metadata.name%3D{name}{more}",
            subject.collection()
        )
    };
    for client in [subject.proxied_as("olga"), subject.direct_as("olga")] {
        let list = client.get(&selected("mine", "")).await.ok();
        assert_eq!(list["items"][0]["metadata"]["name"], "mine");
        assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
        let mut watch = client.watch(&selected("mine", "&watch=1")).await;
        assert_eq!(watch.event().await["object"]["metadata"]["name"], "mine");
        client
            .get(&selected("other", ""))
            .await
            .expect(403, "Forbidden");
        client
            .get(&selected("other", "&watch=1"))
            .await
            .expect(403, "Forbidden");
        client
            .get(&subject.collection())
            .await
            .expect(403, "Forbidden");
        // Who may not ask for everything is not told that the rest of the query makes no sense.
        let unreadable = client.get(&selected("mine", "&labelSelector=%21%21")).await;
        unreadable.expect(403, "Forbidden");
        // A field that the resource does not have is another matter: the name is there.
        let unknown = client.get(&selected("mine", ",spec.absent%3Dx")).await;
        unknown.expect(400, "BadRequest");
        // No name is read from a delete.
        client
            .delete(&selected("mine", ""))
            .await
            .expect(403, "Forbidden");
    }
}

pub(super) async fn c_042(subject: &Subject) {
    let witness = Witness::start(subject).await;
    let path = subject.collection();
    for (user, status, code) in [
        ("yes", json!({"allowed": true}), 200),
        ("no", json!({"allowed": false, "denied": true}), 403),
        ("no-opinion", json!({"allowed": false}), 403),
        ("both", json!({"allowed": true, "denied": true}), 403),
        ("empty", json!({}), 403),
    ] {
        witness
            .relay
            .rule(said_of(user, move |it| it.with_status(&status)));
        let answer = witness.user(user).get(&path).await;
        assert_eq!(answer.status, code, "{user}: {:#}", answer.body);
    }
    let reason = json!({"allowed": false, "reason": "the moon is full"});
    witness
        .relay
        .rule(said_of("told", move |it| it.with_status(&reason)));
    let told = witness.user("told").get(&path).await;
    told.expect(403, "Forbidden");
    let message = told.body["message"].as_str().unwrap_or_default();
    assert!(message.ends_with(": the moon is full"), "{message}");

    witness.relay.rule(said_of("unknown", |_| failure(403)));
    witness
        .user("unknown")
        .get(&path)
        .await
        .expect(500, "InternalError");
    witness.relay.rule(said_of("nonsense", |_| {
        Reply::Said(201, json!({"kind": "Nonsense"}))
    }));
    witness
        .user("nonsense")
        .get(&path)
        .await
        .expect(500, "InternalError");
    // Asked again for a while, and never taken for a yes.
    witness.relay.rule(said_of("busy", |_| failure(503)));
    witness
        .user("busy")
        .get(&path)
        .await
        .expect(500, "InternalError");
    assert!(witness.relay.reviews_of("busy").len() > 1);
    // Waited for in vain, and not for ever.
    witness
        .relay
        .rule(said_of("unanswered", |_| Reply::Silence));
    let began = Instant::now();
    witness
        .user("unanswered")
        .get(&path)
        .await
        .expect(500, "InternalError");
    let took = began.elapsed();
    assert!(took < REVIEWED_WITHIN + SLACK, "{took:?}");
    assert!(!witness.relay.reviews_of("unanswered").is_empty());
}

/// The reason that a review may give is in C-042, since RBAC gives none.
pub(super) async fn c_043(subject: &Subject) {
    subject.create("a").await;
    let namespace = &subject.namespace;
    let within = format!(r#"in API group "agents.x-k8s.io" in the namespace "{namespace}""#);
    let of_cluster = r#"in API group "agents.x-k8s.io" at the cluster scope"#;
    let walter = subject.direct_as("walter");
    for (method, path, subresource, name, verb, within) in [
        (
            "GET",
            subject.item("a"),
            "",
            Some("a"),
            "get",
            within.as_str(),
        ),
        (
            "DELETE",
            subject.item("a"),
            "",
            Some("a"),
            "delete",
            &within,
        ),
        ("GET", subject.collection(), "", None, "list", &within),
        ("POST", subject.collection(), "", None, "create", &within),
        (
            "POST",
            format!("{}/fork", subject.item("a")),
            "/fork",
            Some("a"),
            "create",
            &within,
        ),
        (
            "GET",
            format!("{API}/sandboxes"),
            "",
            None,
            "list",
            of_cluster,
        ),
        (
            "GET",
            format!("{API}/sandboxes?watch=1"),
            "",
            None,
            "watch",
            of_cluster,
        ),
    ] {
        let answer = walter.send(method, &path, &[], "").await;
        answer.expect(403, "Forbidden");
        let object = name.map(|name| format!(r#" "{name}""#)).unwrap_or_default();
        let message = format!(
            r#"sandboxes.agents.x-k8s.io{object} is forbidden: User "walter" cannot {verb} resource "sandboxes{subresource}" {within}"#
        );
        let mut details = json!({"group": "agents.x-k8s.io", "kind": "sandboxes"});
        if let Some(name) = name {
            details["name"] = name.into();
        }
        let expected = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "Forbidden", "details": details, "code": 403,
        });
        assert_eq!(answer.body, expected, "{method} {path}");
    }
    for (path, named) in [
        ("/x", "/x"),
        ("/x%20y", "/x y"),
        ("/x/", "/x/"),
        ("/healthz/", "/healthz/"),
    ] {
        let answer = walter.get(path).await;
        answer.expect(403, "Forbidden");
        let message = format!(r#"forbidden: User "walter" cannot get path "{named}""#);
        assert_eq!(answer.body["message"], message);
    }
    // Through kube-apiserver the refusal is its own, and reads the same.
    let [proxied, direct] = [subject.proxied_as("walter"), walter];
    for path in [
        &subject.item("a"),
        &subject.collection(),
        "/x",
        "/x%20y",
        "/x/",
        "/healthz/",
    ] {
        let refused = proxied.get(path).await.body;
        let own = direct.get(path).await.body;
        assert_eq!(refused["message"], own["message"], "{path}");
    }
}

pub(super) async fn c_045(subject: &Subject) {
    subject.create("theirs").await;
    Grant::to("petra", &["get", "patch"])
        .in_force(subject)
        .await;
    let apply = async |client: &Client, name: &str| {
        let path = format!("{}?fieldManager=petra", subject.item(name));
        let mut object = subject.mk(name);
        object["metadata"]["labels"] = json!({"applied": "yes"});
        client.patch(APPLY, &path, &object).await
    };
    for client in [subject.proxied_as("petra"), subject.direct_as("petra")] {
        let refused = apply(&client, "absent").await;
        refused.expect(403, "Forbidden");
        let message = refused.body["message"].as_str().unwrap_or_default();
        assert!(
            message.contains(r#"cannot create resource "sandboxes""#),
            "{message}"
        );
        let applied = apply(&client, "theirs").await.ok();
        assert_eq!(applied["metadata"]["labels"]["applied"], "yes");
        client
            .get(&subject.item("absent"))
            .await
            .expect(404, "NotFound");
    }
}

pub(super) async fn c_047(subject: &Subject) {
    let shipped = [chart::manifests(), chart::helm_template(&[])];
    for objects in shipped.map(|yaml| chart::documents(&yaml)) {
        let account = json!([{"kind": "ServiceAccount", "name": "sandbox-apiserver", "namespace": "sandbox-system"}]);
        let bound = |kind: &str, namespace: Value, role: &str| {
            let mut bindings = objects.iter().filter(|it| it["kind"] == kind);
            bindings.any(|it| {
                it["metadata"]["namespace"] == namespace
                    && it["roleRef"]["name"] == role
                    && it["subjects"] == account
            })
        };
        assert!(bound(
            "ClusterRoleBinding",
            json!(null),
            "system:auth-delegator"
        ));
        let reader = "extension-apiserver-authentication-reader";
        assert!(bound("RoleBinding", json!("kube-system"), reader));
        assert!(bound(
            "ClusterRoleBinding",
            json!(null),
            "sandbox-apiserver"
        ));
    }
    // The stage has applied them: what they are worth is for kube-apiserver to say.
    let may = async |attributes: Value| {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": "system:serviceaccount:sandbox-system:sandbox-apiserver",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "resourceAttributes": attributes,
            },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = subject.proxied().post(path, &review).await.ok();
        answer["status"]["allowed"] == true
    };
    for (group, resource) in [
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
    ] {
        let create = json!({"verb": "create", "group": group, "resource": resource});
        assert!(may(create).await, "{resource}");
    }
    for verb in ["get", "list", "watch"] {
        assert!(
            may(json!({"verb": verb, "resource": "namespaces"})).await,
            "{verb}"
        );
        let mut config_map = json!({
            "verb": verb, "resource": "configmaps", "namespace": "kube-system",
            "name": crate::conformance::relay::CONFIG_MAP,
        });
        assert!(may(config_map.clone()).await, "{verb}");
        config_map["name"] = "".into();
        assert!(!may(config_map).await, "{verb} of every ConfigMap");
    }
}
