//! What kube-apiserver is asked.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    conformance::{grants::Grant, subject::Subject, witness::Witness},
    stage::API,
};

/// How long an answer of kube-apiserver counts, and a time after which it certainly still does.
const KEPT: Duration = Duration::from_secs(10);
const STILL_KEPT: Duration = Duration::from_secs(5);

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

pub(super) async fn c_037(subject: &Subject) {
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

pub(super) async fn c_038(subject: &Subject) {
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

pub(super) async fn c_039(subject: &Subject) {
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

pub(super) async fn c_041(subject: &Subject) {
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

/// That no more than 8192 answers are kept is left to `auth::answers`: to see it here takes as many reviews.
pub(super) async fn c_044(subject: &Subject) {
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
    sleep(STILL_KEPT.saturating_sub(started.elapsed())).await;
    ask().await;
    assert!(started.elapsed() < KEPT, "too slow to tell");
    assert_eq!((n("rita"), n("walter")), (2, 1));
    sleep(KEPT.saturating_sub(started.elapsed()) + Duration::from_secs(1)).await;
    ask().await;
    assert_eq!((n("rita"), n("walter")), (3, 2));
}
