//! What the caller may do.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    client::{APPLY, Client},
    credentials::Door,
    grants::Grant,
    relay::{Question, Reply, failure},
    subject::Subject,
    witness::Witness,
};
use crate::{chart, stage::API};

items! {
    c_036 P0 "The server authorizes every request itself, whoever has authorized it before.", ours;
    c_037 P0 "Members of `system:masters` and the three health paths need no review; everything else does.", ours;
    c_038 P0 "A review says who wants to do what: all of the user, and all of the resource or the path.", ours;
    c_039 P0 "The verb follows from the method, the name, and whether `watch` is on.", ours;
    c_040 P0 "Who may see one object by its name may list and watch it by a field selector.";
    c_041 P1 "Selectors of lists, watches and deletes of collections are in the review, as far as it can say them.", ours;
    c_042 P0 "Only a yes allows: no opinion is 403, and no answer is 500.", ours;
    c_043 P0 "A refusal says who cannot do what, in the words of Kubernetes.", ours;
    c_044 P0 "Answers count for 10 s, are bounded, and are not kept for overlong questions.", ours;
    c_045 P0 "An apply that would create needs the right to create.";
    c_046 P0 "A stream to a sandbox over WebSocket needs the right to create it.", later "no exec, attach or port-forward streams yet";
    c_047 P0 "The shipped roles let the server ask for reviews, read whom to trust, and follow namespaces.", ours;
}

/// How long an answer of kube-apiserver counts.
const KEPT: Duration = Duration::from_secs(10);

async fn c_036(subject: &Subject) {
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

async fn c_037(subject: &Subject) {
    let witness = Witness::start(subject).await;
    let nobody = witness.door.nobody();
    for path in ["/healthz", "/readyz", "/livez"] {
        let answer = nobody.get(path).await;
        assert_eq!(
            (answer.status.as_u16(), &*answer.bytes),
            (200, &b"ok"[..]),
            "{path}"
        );
    }
    let proxy = witness.door.with_certificate(&witness.proxy());
    let master = [
        ("x-remote-user", "maria"),
        ("x-remote-group", "system:masters"),
    ];
    for path in [subject.collection(), "/metrics".to_owned()] {
        proxy.send("GET", &path, &master, "").await.ok();
    }
    for user in ["system:anonymous", "maria"] {
        let reviews = witness.relay.reviews_of(user);
        assert!(reviews.is_empty(), "{reviews:?}");
    }
    for path in ["/readyz/ping", "/livez/ping", "/healthz/ping", "/metrics"] {
        nobody.get(path).await.expect(403, "Forbidden");
        let reviews = witness.relay.reviews_of("system:anonymous");
        let asked = |spec: &Value| spec["nonResourceAttributes"]["path"] == path;
        assert!(reviews.iter().any(asked), "{path}");
    }
}

/// The last review that a request of `user`, who may do nothing, leads to. What comes before asks for more than needed.
async fn asked(witness: &Witness, user: &str, method: &str, path: &str) -> Value {
    let client = witness.user(user);
    let n_before = witness.relay.reviews_of(user).len();
    let answer = client.send(method, path, &[], "").await;
    assert_eq!(answer.status, 403, "{method} {path}: {:#}", answer.body);
    let mut reviews = witness.relay.reviews_of(user);
    assert!(reviews.len() > n_before, "{method} {path} is not reviewed");
    reviews.pop().unwrap()
}

async fn c_038(subject: &Subject) {
    let witness = Witness::start(subject).await;
    let proxy = witness.door.with_certificate(&witness.proxy());
    let mut data = witness.trust();
    data["requestheader-uid-headers"] = r#"["X-Remote-Uid"]"#.into();
    let ann = [
        ("x-remote-user", "ann"),
        ("x-remote-uid", "7"),
        ("x-remote-group", "dev"),
        ("x-remote-extra-scopes", "all"),
    ];
    witness.relay.trust(subject, &data).await;
    crate::stage::eventually(KEPT, "the UID is read", async || {
        witness
            .who(&proxy, &ann)
            .await
            .is_some_and(|who| who["uid"] == "7")
    })
    .await;
    let fork = format!("{}/fork", subject.item("a"));
    proxy
        .send("POST", &fork, &ann, "{}")
        .await
        .expect(403, "Forbidden");
    let reviews = witness.relay.reviews_of("ann");
    let expected = json!({
        "user": "ann", "uid": "7", "groups": ["dev", "system:authenticated"], "extra": {"scopes": ["all"]},
        "resourceAttributes": {
            "verb": "create", "group": "agents.x-k8s.io", "version": "v1beta1", "resource": "sandboxes",
            "subresource": "fork", "namespace": subject.namespace, "name": "a",
        },
    });
    assert_eq!(reviews.last(), Some(&expected));

    let other = "/apis/example.org/v2/widgets".to_owned();
    for (method, path, expected) in [
        (
            "GET",
            subject.item("a"),
            json!({"namespace": subject.namespace, "name": "a"}),
        ),
        (
            "POST",
            subject.collection(),
            json!({"namespace": subject.namespace, "verb": "create"}),
        ),
        ("GET", format!("{API}/sandboxes"), json!({"verb": "list"})),
        (
            "GET",
            format!("{}/status", subject.item("a")),
            json!({"namespace": subject.namespace, "name": "a", "subresource": "status"}),
        ),
        (
            "GET",
            other,
            json!({"verb": "list", "group": "example.org", "version": "v2", "resource": "widgets"}),
        ),
    ] {
        let spec = asked(&witness, "walter", method, &path).await;
        let mut attributes = json!({"verb": "get", "group": "agents.x-k8s.io", "version": "v1beta1", "resource": "sandboxes"});
        let expected = expected.as_object().unwrap().clone();
        attributes.as_object_mut().unwrap().extend(expected);
        assert_eq!(spec["resourceAttributes"], attributes, "{method} {path}");
        assert_eq!(spec.get("nonResourceAttributes"), None);
    }
    for (method, verb) in [("GET", "get"), ("POST", "post"), ("DELETE", "delete")] {
        let spec = asked(&witness, "walter", method, "/metrics/deep?verbose").await;
        let expected = json!({"path": "/metrics/deep", "verb": verb});
        assert_eq!(spec["nonResourceAttributes"], expected);
        assert_eq!(spec.get("resourceAttributes"), None);
    }
}

async fn c_039(subject: &Subject) {
    let witness = Witness::start(subject).await;
    let (collection, item) = (subject.collection(), subject.item("a"));
    let everywhere = format!("{API}/sandboxes");
    let mut cases = vec![
        ("POST", collection.clone(), "create"),
        ("PUT", item.clone(), "update"),
        ("PATCH", item.clone(), "patch"),
        ("DELETE", item.clone(), "delete"),
        ("DELETE", collection.clone(), "deletecollection"),
        ("GET", item.clone(), "get"),
        ("HEAD", item.clone(), "get"),
        ("GET", collection.clone(), "list"),
        ("HEAD", collection.clone(), "list"),
        ("GET", everywhere.clone(), "list"),
    ];
    for (watch, verb) in [
        ("watch", "watch"),
        ("watch=", "watch"),
        ("watch=1", "watch"),
        ("watch=true", "watch"),
        ("watch=yes", "watch"),
        ("watch=0", "list"),
        ("watch=false", "list"),
        ("watch=False", "list"),
    ] {
        cases.push(("GET", format!("{collection}?{watch}"), verb));
        cases.push(("HEAD", format!("{everywhere}?{watch}"), verb));
    }
    for (n, (method, path, verb)) in cases.into_iter().enumerate() {
        // Somebody new each time, since answers are kept.
        let spec = asked(&witness, &format!("walter-{n}"), method, &path).await;
        assert_eq!(spec["resourceAttributes"]["verb"], verb, "{method} {path}");
    }
}

async fn c_040(subject: &Subject) {
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

async fn c_041(subject: &Subject) {
    let witness = Witness::start(subject).await;
    let collection = subject.collection();
    let labels = "labelSelector=a+in+(x,y),!b,c,d!%3Dz,n%3E1";
    let fields = "fieldSelector=metadata.name!%3Ds,metadata.namespace%3Dt";
    let expected = json!([
        {"key": "a", "operator": "In", "values": ["x", "y"]},
        {"key": "b", "operator": "DoesNotExist"},
        {"key": "c", "operator": "Exists"},
        {"key": "d", "operator": "NotIn", "values": ["z"]},
    ]);
    let of_fields = json!([
        {"key": "metadata.name", "operator": "NotIn", "values": ["s"]},
        {"key": "metadata.namespace", "operator": "In", "values": ["t"]},
    ]);
    for (method, watch) in [("GET", ""), ("GET", "&watch=1"), ("DELETE", "")] {
        let path = format!("{collection}?{labels}&{fields}{watch}");
        let spec = asked(&witness, "walter", method, &path).await;
        let attributes = &spec["resourceAttributes"];
        let requirements = &attributes["labelSelector"]["requirements"];
        assert_eq!(requirements, &expected, "{method} {watch}");
        let requirements = &attributes["fieldSelector"]["requirements"];
        assert_eq!(requirements, &of_fields, "{method} {watch}");
    }
    // Each is left out for itself; one that this resource does not have can be said all the same.
    let unreadable = "labelSelector=%21%21&fieldSelector=metadata.name%3Ds";
    let spec = asked(
        &witness,
        "walter",
        "GET",
        &format!("{collection}?{unreadable}"),
    )
    .await;
    assert_eq!(spec["resourceAttributes"].get("labelSelector"), None);
    let of_name = json!([{"key": "metadata.name", "operator": "In", "values": ["s"]}]);
    assert_eq!(
        spec["resourceAttributes"]["fieldSelector"]["requirements"],
        of_name
    );
    let unreadable = "labelSelector=a&fieldSelector=nonsense";
    let spec = asked(
        &witness,
        "walter",
        "GET",
        &format!("{collection}?{unreadable}"),
    )
    .await;
    assert_eq!(spec["resourceAttributes"].get("fieldSelector"), None);
    let of_label = json!([{"key": "a", "operator": "Exists"}]);
    assert_eq!(
        spec["resourceAttributes"]["labelSelector"]["requirements"],
        of_label
    );
    let unknown = format!("{collection}?fieldSelector=spec.absent%3Dx");
    let spec = asked(&witness, "walter", "GET", &unknown).await;
    let of_field = json!([{"key": "spec.absent", "operator": "In", "values": ["x"]}]);
    assert_eq!(
        spec["resourceAttributes"]["fieldSelector"]["requirements"],
        of_field
    );

    // Who may, is told that it cannot be read.
    Grant::to("rita", &["list"]).in_force(subject).await;
    let rita = witness.user("rita");
    for unreadable in [
        "labelSelector=%21%21",
        "fieldSelector=nonsense",
        "fieldSelector=spec.absent%3Dx",
    ] {
        let answer = rita.get(&format!("{collection}?{unreadable}")).await;
        answer.expect(400, "BadRequest");
    }
}

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

async fn c_042(subject: &Subject) {
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
}

/// That kube-apiserver says the same of other resources is seen in `tests/cluster/access.rs`; the reason that a review may
/// give is in C-042, since RBAC gives none.
async fn c_043(subject: &Subject) {
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
    let answer = walter.get("/x").await;
    answer.expect(403, "Forbidden");
    let message = r#"forbidden: User "walter" cannot get path "/x""#;
    assert_eq!(answer.body["message"], message);
    // Through kube-apiserver the refusal is its own, and reads the same.
    let [proxied, direct] = [subject.proxied_as("walter"), walter];
    let path = subject.item("a");
    assert_eq!(proxied.get(&path).await.body, direct.get(&path).await.body);
}

/// That no more than 8192 answers are kept is left to `auth::answers`: to see it here takes as many reviews.
async fn c_044(subject: &Subject) {
    Grant::to("rita", &["list", "get"]).in_force(subject).await;
    let witness = Witness::start(subject).await;
    let n = |user: &str| witness.relay.reviews_of(user).len();
    let (rita, walter) = (witness.user("rita"), witness.user("walter"));
    let path = subject.collection();
    let ask = async || {
        rita.get(&path).await.ok();
        walter.get(&path).await.expect(403, "Forbidden");
    };
    let started = Instant::now();
    ask().await;
    ask().await;
    assert_eq!((n("rita"), n("walter")), (1, 1));
    // Another question, about the same resource.
    rita.get(&format!("{path}?labelSelector=a")).await.ok();
    assert_eq!(n("rita"), 2);
    // The longest part of a question that its caller chooses freely.
    let values: Vec<String> = (0..200).map(|n| format!("{n:060}")).collect();
    let long = format!("{path}?labelSelector=a+in+({})", values.join(","));
    let other = witness.user("other");
    for n_expected in 1..=2 {
        other.get(&long).await.expect(403, "Forbidden");
        assert_eq!(n("other"), n_expected, "an overlong question is not kept");
    }
    ask().await;
    assert!(started.elapsed() < KEPT, "too slow to tell");
    assert_eq!((n("rita"), n("walter")), (2, 1));
    sleep(KEPT.saturating_sub(started.elapsed()) + Duration::from_secs(1)).await;
    ask().await;
    assert_eq!((n("rita"), n("walter")), (3, 2));
}

async fn c_045(subject: &Subject) {
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

async fn c_047(subject: &Subject) {
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
            "name": super::relay::CONFIG_MAP,
        });
        assert!(may(config_map.clone()).await, "{verb}");
        config_map["name"] = "".into();
        assert!(!may(config_map).await, "{verb} of every ConfigMap");
    }
}
