//! CREATE: what is refused costs nothing, what is accepted is there at once.

use std::sync::atomic::Ordering;

use futures::future::join_all;
use sandbox_apiserver::sim;
use serde_json::{Value, json};

use crate::{
    harness::{ALICE, ALL_SANDBOXES, Cluster, SANDBOXES, item, mk_node, mk_sandbox},
    widgets::{WIDGETS, Workshop},
};

/// What is done to a sandbox before it is sent.
type Change = Box<dyn Fn(&mut Value)>;

fn named(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut sandbox = mk_sandbox(name);
    change(&mut sandbox);
    sandbox
}

#[tokio::test]
async fn the_answer_is_the_stored_object() {
    let cluster = Cluster::of(0).await;
    let sent = named("a", |sandbox| {
        sandbox["metadata"]["labels"] = json!({"team": "x"});
        sandbox["metadata"]["annotations"] = json!({"note": "<b>&\u{e9}\"\\"});
        // What is the server's to say is dropped.
        sandbox["metadata"]["uid"] = "mine".into();
        sandbox["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
        sandbox["metadata"]["deletionTimestamp"] = "2001-01-01T00:00:00Z".into();
        sandbox["metadata"]["selfLink"] = "/x".into();
        sandbox["metadata"]["generation"] = 9.into();
        sandbox["status"] = json!({"nodeName": "mine"});
    });
    let answer = cluster.client.post(SANDBOXES, &sent).await;
    assert_eq!(answer.code(), 201, "{}", answer.text());
    let created = answer.json();
    let metadata = &created["metadata"];
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["labels"]["team"], "x");
    assert_eq!(metadata["annotations"]["note"], "<b>&\u{e9}\"\\");
    assert_eq!(metadata.get("deletionTimestamp"), None);
    assert_ne!(metadata["uid"], "mine");
    assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
    assert_ne!(metadata["creationTimestamp"], "2001-01-01T00:00:00Z");
    assert_ne!(created["status"]["nodeName"], "mine");
    assert_eq!(created["spec"]["operatingMode"], "Running", "defaults show");
    assert_eq!(created["spec"]["shutdownPolicy"], "Retain");

    // Read-your-writes, but for the credential, which only the create answer shows.
    let mut expected = created.clone();
    let annotations = expected["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove("sandbox.cocoonstack.io/token").unwrap();
    assert_eq!(cluster.client.get(item("a")).await.json(), expected);
    assert_eq!(
        cluster.client.get(SANDBOXES).await.json()["items"],
        json!([expected])
    );
}

#[tokio::test]
async fn nothing_said_about_the_type_means_the_paths() {
    let cluster = Cluster::of(0).await;
    let bare = named("bare", |sandbox| {
        let fields = sandbox.as_object_mut().unwrap();
        fields.remove("apiVersion");
        fields.remove("kind");
    });
    assert_eq!(cluster.client.post(SANDBOXES, &bare).await.code(), 201);
    let yaml = "metadata:\n  name: yaml\nspec:\n  podTemplate:\n    spec:\n      containers:\n      - name: main\n        image: python:3.12\n";
    let content_type = [("content-type", "application/yaml")];
    let created = cluster
        .client
        .request("POST", SANDBOXES, &content_type, yaml)
        .await;
    assert_eq!(created.code(), 201, "{}", created.text());
}

#[tokio::test]
async fn a_taken_name_is_a_conflict_and_racers_have_one_winner() {
    let cluster = Cluster::start(mk_node(20)).await;
    cluster.create("a").await;
    let again = cluster.client.post(SANDBOXES, &mk_sandbox("a")).await;
    let status = again.refusal(409, "AlreadyExists");
    assert_eq!(
        status["message"],
        "sandboxes.agents.x-k8s.io \"a\" already exists"
    );
    assert_eq!(
        status["details"],
        json!({"name": "a", "group": "agents.x-k8s.io", "kind": "sandboxes"})
    );
    let sandbox = mk_sandbox("raced");
    let racers = (0..8).map(|_| cluster.client.post(SANDBOXES, &sandbox));
    let mut codes: Vec<_> = join_all(racers).await.iter().map(|a| a.code()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [201, 409, 409, 409, 409, 409, 409, 409]);
    let held = cluster.nodes.nodes()[0].claims_of("default/raced");
    assert_eq!(held.len(), 1, "no second VM was spent");
}

#[tokio::test]
async fn a_name_is_generated_when_there_is_a_base() {
    let cluster = Cluster::start(mk_node(10)).await;
    let base = "x".repeat(70);
    for (base, kept) in [("job-", "job-"), (base.as_str(), &base[..58])] {
        let sandbox = named("", |sandbox| {
            sandbox["metadata"]["generateName"] = base.into()
        });
        let created = cluster.client.post(SANDBOXES, &sandbox).await;
        assert_eq!(created.code(), 201, "{}", created.text());
        let created = created.json();
        let name = created["metadata"]["name"].as_str().unwrap();
        let suffix = name.strip_prefix(kept).unwrap();
        assert_eq!(suffix.len(), 5);
        let shown = cluster.client.get(format!("{SANDBOXES}/{name}")).await;
        assert_eq!(shown.json()["metadata"]["generateName"], base);
        assert!(
            suffix
                .bytes()
                .all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte))
        );
    }
    let neither = cluster.client.post(SANDBOXES, &mk_sandbox("")).await;
    let status = neither.refusal(422, "Invalid");
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.name");
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "FieldValueRequired"
    );
    assert_eq!(status["details"]["kind"], "Sandbox");
}

#[tokio::test]
async fn a_name_that_is_taken_again_and_again_is_left_to_the_client() {
    let workshop = Workshop::open().await;
    let widget = json!({"metadata": {"generateName": "w-"}, "spec": {"color": "taken"}});
    let taken = workshop.client.post(WIDGETS, &widget).await;
    let status = taken.refusal(409, "AlreadyExists");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    assert_eq!(taken.headers("retry-after"), ["1"]);
    let n_creates = || workshop.widgets.n_creates.swap(0, Ordering::Relaxed);
    assert_eq!(n_creates(), 8);
    // Whoever chose the name is told at once.
    let widget = json!({"metadata": {"name": "w"}, "spec": {"color": "taken"}});
    let taken = workshop.client.post(WIDGETS, &widget).await;
    let status = taken.refusal(409, "AlreadyExists");
    assert_eq!(status["details"].get("retryAfterSeconds"), None);
    assert_eq!(n_creates(), 1);
}

#[tokio::test]
async fn whole_numbers_come_back_as_integers() {
    let cluster = Cluster::start(mk_node(4)).await;
    let body = mk_sandbox("a").to_string();
    let body = body.replace(
        r#""spec":{"containers""#,
        r#""spec":{"activeDeadlineSeconds":5.0,"terminationGracePeriodSeconds":1E2,"containers""#,
    );
    assert!(body.contains("1E2"));
    let created = cluster.client.request("POST", SANDBOXES, &[], body).await;
    assert_eq!(created.code(), 201, "{}", created.text());
    let text = cluster.client.get(format!("{SANDBOXES}/a")).await.text();
    for number in [
        r#""activeDeadlineSeconds":5,"#,
        r#""terminationGracePeriodSeconds":100"#,
    ] {
        assert!(text.contains(number), "{text}");
    }
}

#[tokio::test]
async fn the_end_of_time_is_a_time() {
    let cluster = Cluster::start(mk_node(4)).await;
    let mut sandbox = mk_sandbox("a");
    sandbox["spec"]["shutdownTime"] = json!("9999-12-31T23:59:59Z");
    let created = cluster.client.post(SANDBOXES, &sandbox).await;
    assert_eq!(created.code(), 201, "{}", created.text());
    let shown = cluster.client.get(format!("{SANDBOXES}/a")).await.json();
    assert_eq!(shown["spec"]["shutdownTime"], "9999-12-31T23:59:59Z");
}

#[tokio::test]
async fn names_have_the_length_and_the_letters_of_names() {
    let cluster = Cluster::start(mk_node(10)).await;
    for length in [63, 64, 253] {
        let name = "n".repeat(length);
        let created = cluster.client.post(SANDBOXES, &mk_sandbox(&name)).await;
        assert_eq!(created.code(), 201, "{length}: {}", created.text());
        let selected = format!("{SANDBOXES}?fieldSelector=metadata.name%3D{name}");
        assert_eq!(cluster.client.get(selected).await.names(), [name.as_str()]);
        let deleted = cluster.client.delete(item(&name), Value::Null).await;
        assert_eq!(deleted.code(), 200, "{}", deleted.text());
    }
    let calls = cluster.writes_at_nodes();
    for name in [
        &*"n".repeat(254),
        "Upper",
        "a/b",
        "-a",
        "a_b",
        "a..b",
        "\u{e9}",
    ] {
        let refused = cluster.client.post(SANDBOXES, &mk_sandbox(name)).await;
        let status = refused.refusal(422, "Invalid");
        let fields = status["details"]["causes"].as_array().unwrap();
        assert!(
            fields.iter().any(|cause| cause["field"] == "metadata.name"),
            "{name}"
        );
    }
    assert_eq!(cluster.writes_at_nodes(), calls);
}

#[tokio::test]
async fn what_is_invalid_is_named_by_its_field_and_costs_nothing() {
    let cluster = Cluster::start(mk_node(4)).await;
    let long = "v".repeat(64);
    let cases: Vec<(&str, Change)> = vec![
        (
            "metadata.labels",
            Box::new(move |s| s["metadata"]["labels"] = json!({"a": long})),
        ),
        (
            "metadata.labels",
            Box::new(|s| s["metadata"]["labels"] = json!({"a b": "x"})),
        ),
        (
            "metadata.annotations",
            Box::new(|s| s["metadata"]["annotations"] = json!({"a": "x".repeat(300 << 10)})),
        ),
        (
            "metadata.finalizers",
            Box::new(|s| s["metadata"]["finalizers"] = json!(["a b"])),
        ),
        (
            "metadata.ownerReferences",
            Box::new(|s| s["metadata"]["ownerReferences"] = json!([{"kind": "Pod"}])),
        ),
        (
            "spec.operatingMode",
            Box::new(|s| s["spec"]["operatingMode"] = "Asleep".into()),
        ),
        (
            "spec.shutdownTime",
            Box::new(|s| s["spec"]["shutdownTime"] = "tomorrow".into()),
        ),
        (
            "spec.shutdownTime",
            Box::new(|s| s["spec"]["shutdownTime"] = "2001-01-01T00:00:00Z".into()),
        ),
        ("spec.podTemplate", Box::new(|s| s["spec"] = json!({}))),
        (
            "spec",
            Box::new(|s| drop(s.as_object_mut().unwrap().remove("spec"))),
        ),
    ];
    for (field, change) in cases {
        let refused = cluster.client.post(SANDBOXES, &named("a", change)).await;
        let status = refused.refusal(422, "Invalid");
        let causes = status["details"]["causes"].as_array().unwrap();
        let named = |cause: &Value| cause["field"].as_str().unwrap().starts_with(field);
        assert!(causes.iter().any(named), "{field}: {status}");
        assert_eq!(status["details"]["name"], "a");
        assert_eq!(status["details"]["group"], "agents.x-k8s.io");
        assert_eq!(status["details"]["kind"], "Sandbox");
    }
    assert_eq!(cluster.writes_at_nodes(), 0);
}

#[tokio::test]
async fn a_body_that_is_not_what_the_path_says_is_refused() {
    let cluster = Cluster::of(0).await;
    let cases = [
        named("a", |s| s["kind"] = "Pod".into()),
        named("a", |s| s["apiVersion"] = "agents.x-k8s.io/v1alpha1".into()),
        named("a", |s| s["apiVersion"] = "v1".into()),
        named("a", |s| s["metadata"]["namespace"] = "other".into()),
        named("a", |s| s["metadata"]["resourceVersion"] = "5".into()),
        named("a", |s| s["metadata"] = "none".into()),
        named("a", |s| s["kind"] = 7.into()),
        json!([]),
        json!("text"),
        Value::Null,
    ];
    for body in cases {
        let refused = cluster.client.post(SANDBOXES, &body).await;
        refused.refusal(400, "BadRequest");
    }
    for body in ["", "{", "not json", "{}{}", "\u{0}"] {
        let refused = cluster.client.request("POST", SANDBOXES, &[], body).await;
        refused.refusal(400, "BadRequest");
    }
    for content_type in [
        "application/cbor",
        "text/plain",
        "application/vnd.kubernetes.protobuf",
    ] {
        let headers = [("content-type", content_type)];
        let body = mk_sandbox("a").to_string();
        let refused = cluster
            .client
            .request("POST", SANDBOXES, &headers, body)
            .await;
        refused.refusal(415, "UnsupportedMediaType");
    }
}

#[tokio::test]
async fn create_is_for_collections_of_a_namespace() {
    let cluster = Cluster::of(0).await;
    let everywhere = cluster.client.post(ALL_SANDBOXES, &mk_sandbox("a")).await;
    everywhere.refusal(405, "MethodNotAllowed");
    let at_a_name = cluster.client.post(item("a"), &mk_sandbox("a")).await;
    at_a_name.refusal(405, "MethodNotAllowed");
    assert_eq!(cluster.writes_at_nodes(), 0);
}

#[tokio::test]
async fn unknown_and_duplicate_fields_are_treated_as_asked() {
    let cluster = Cluster::start(mk_node(10)).await;
    let body = r#"{"metadata":{"name":"NAME"},"spec":{"x":1,"shutdownPolicy":"Retain","shutdownPolicy":"Delete",
        "podTemplate":{"spec":{"containers":[{"name":"main","image":"python:3.12","imag":"y"}]}}}}"#;
    let send = async |name: &str, query: &str| {
        let (path, body) = (format!("{SANDBOXES}{query}"), body.replace("NAME", name));
        cluster.client.request("POST", &path, &[], body).await
    };
    let strict = send("strict", "?fieldValidation=Strict").await;
    let status = strict.refusal(400, "BadRequest");
    let message = status["message"].as_str().unwrap();
    for part in [
        "strict decoding error: ",
        "unknown field \"spec.x\"",
        "unknown field \"spec.podTemplate.spec.containers[0].imag\"",
        "duplicate field \"spec.shutdownPolicy\"",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(cluster.writes_at_nodes(), 0);
    for query in ["", "?fieldValidation=Warn"] {
        let warned = send(&format!("warn{}", query.len()), query).await;
        assert_eq!(warned.code(), 201, "{}", warned.text());
        let warnings = warned.headers("warning");
        assert!(
            warnings.contains(&r#"299 - "unknown field \"spec.x\"""#),
            "{warnings:?}"
        );
        assert!(warnings.contains(&r#"299 - "duplicate field \"spec.shutdownPolicy\"""#));
        assert_eq!(
            warned.json()["spec"].get("x"),
            None,
            "unknown fields are pruned"
        );
        assert_eq!(
            warned.json()["spec"]["shutdownPolicy"],
            "Delete",
            "the last one counts"
        );
    }
    let ignored = send("ignored", "?fieldValidation=Ignore").await;
    assert_eq!(ignored.code(), 201);
    let warnings = ignored.headers("warning");
    assert!(
        !warnings.iter().any(|text| text.contains("field")),
        "{warnings:?}"
    );
    send("loud", "?fieldValidation=Loud")
        .await
        .refusal(422, "Invalid");
}

#[tokio::test]
async fn a_dry_run_checks_everything_and_does_nothing() {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create("taken").await;
    let (calls, version) = (cluster.writes_at_nodes(), cluster.fleet.store().head());
    let dry = format!("{SANDBOXES}?dryRun=All");
    let would = cluster.client.post(&dry, &mk_sandbox("a")).await;
    assert_eq!(would.code(), 201);
    let object = would.json();
    assert_eq!(object["metadata"]["name"], "a");
    assert_eq!(object["metadata"].get("resourceVersion"), None);
    assert_eq!(object["spec"]["shutdownPolicy"], "Retain", "defaults show");
    let taken = cluster.client.post(&dry, &mk_sandbox("taken")).await;
    taken.refusal(409, "AlreadyExists");
    let invalid = named("a", |s| s["spec"]["operatingMode"] = "Asleep".into());
    cluster
        .client
        .post(&dry, &invalid)
        .await
        .refusal(422, "Invalid");
    for query in ["dryRun=Some", "dryRun=All&dryRun=Some"] {
        let path = format!("{SANDBOXES}?{query}");
        let refused = cluster.client.post(&path, &mk_sandbox("a")).await;
        refused.refusal(422, "Invalid");
    }
    assert_eq!(cluster.client.get(item("a")).await.code(), 404);
    assert_eq!(
        cluster.writes_at_nodes(),
        calls,
        "no node was asked for anything"
    );
    assert_eq!(
        cluster.fleet.store().head(),
        version,
        "and nobody saw a change"
    );
}

#[tokio::test]
async fn a_field_manager_is_short_and_printable() {
    let cluster = Cluster::of(0).await;
    for manager in ["m".repeat(129), "a%0Ab".to_owned()] {
        let path = format!("{SANDBOXES}?fieldManager={manager}");
        let refused = cluster.client.post(&path, &mk_sandbox("a")).await;
        refused.refusal(422, "Invalid");
    }
    let path = format!("{SANDBOXES}?fieldManager={}", "m".repeat(128));
    assert_eq!(
        cluster.client.post(&path, &mk_sandbox("a")).await.code(),
        201
    );
}

#[tokio::test]
async fn equal_owners_are_merged_with_a_warning() {
    let cluster = Cluster::of(0).await;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
    let sandbox = named("a", |s| {
        s["metadata"]["ownerReferences"] = json!([owner, owner])
    });
    let created = cluster.client.post(SANDBOXES, &sandbox).await;
    assert_eq!(created.code(), 201, "{}", created.text());
    assert_eq!(
        created.json()["metadata"]["ownerReferences"],
        json!([owner])
    );
    assert!(
        created
            .headers("warning")
            .iter()
            .any(|text| text.contains("ownerReferences"))
    );
}

#[tokio::test]
async fn the_servers_keys_are_not_the_clients() {
    let cluster = Cluster::of(0).await;
    let sandbox = named("a", |s| {
        s["metadata"]["labels"] = json!({"sandbox.cocoonstack.io/node": "mine"});
        s["metadata"]["annotations"] = json!({"sandbox.cocoonstack.io/token": "mine"});
    });
    let created = cluster.client.post(SANDBOXES, &sandbox).await;
    assert_eq!(created.code(), 201);
    let shown = created.json();
    assert_ne!(
        shown["metadata"]["labels"]["sandbox.cocoonstack.io/node"],
        "mine"
    );
    assert_ne!(
        shown["metadata"]["annotations"]["sandbox.cocoonstack.io/token"],
        "mine"
    );
    assert!(
        created
            .headers("warning")
            .iter()
            .any(|text| text.contains("dropped"))
    );
    assert!(!cluster.client.get(item("a")).await.text().contains("mine"));
}

#[tokio::test]
async fn what_a_restart_would_forget_is_told() {
    let cluster = Cluster::start(mk_node(4)).await;
    // It has a spec and an owner of its fields, and says nothing else.
    let created = cluster.client.post(SANDBOXES, &mk_sandbox("a")).await;
    assert_eq!(created.code(), 201, "{}", created.text());
    let spec = json!({"spec": {"shutdownPolicy": "Delete"}});
    let patched = cluster.client.merge(item("a"), &spec).await;
    assert_eq!(patched.code(), 200, "{}", patched.text());
    for answer in [created, patched] {
        let warnings = answer.headers("warning");
        let is_told = |text: &&str| text.contains("may not survive a restart");
        assert_eq!(
            warnings.iter().filter(|text| is_told(text)).count(),
            1,
            "{warnings:?}"
        );
    }
}

#[tokio::test]
async fn refusals_of_nodes_have_codes_that_clients_understand() {
    let cluster = Cluster::start(mk_node(0)).await;
    let empty = cluster.client.post(SANDBOXES, &mk_sandbox("a")).await;
    let status = empty.refusal(503, "ServiceUnavailable");
    assert_eq!(status["details"]["causes"][0]["reason"], "NoWarmCapacity");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    let unknown = named("a", |s| {
        s["spec"]["podTemplate"]["spec"]["containers"][0]["image"] = "nobody:1".into();
    });
    let status = cluster.client.post(SANDBOXES, &unknown).await;
    let status = status.refusal(422, "Invalid");
    assert_eq!(
        status["details"]["causes"][0]["field"],
        "spec.podTemplate.spec.containers[0].image"
    );
    assert_eq!(
        cluster.client.get(SANDBOXES).await.json()["items"],
        json!([])
    );
}

#[tokio::test]
async fn without_a_token_for_the_nodes_reads_work_and_writes_say_why_not() {
    let cluster = Cluster::start(sim::Options {
        api_token: None,
        sandboxes: 2,
        ..sim::Options::default()
    })
    .await;
    assert_eq!(cluster.client.get(SANDBOXES).await.names().len(), 2);
    let refused = cluster.client.post(SANDBOXES, &mk_sandbox("a")).await;
    refused.refusal(503, "ServiceUnavailable");
    let refused = cluster.client.delete(item("sb-000000"), Value::Null).await;
    let status = refused.refusal(503, "ServiceUnavailable");
    assert_eq!(status["details"].get("retryAfterSeconds"), None);
    assert_eq!(status["details"]["causes"][0]["reason"], "NoSandboxdToken");
    assert_eq!(cluster.writes_at_nodes(), 0);
}

#[tokio::test]
async fn an_ordinary_user_creates_too() {
    let cluster = Cluster::of(0).await;
    let alice = cluster.door.client(ALICE).await;
    assert_eq!(alice.post(SANDBOXES, &mk_sandbox("a")).await.code(), 201);
    cluster
        .door
        .client("wrong")
        .await
        .get(SANDBOXES)
        .await
        .refusal(401, "Unauthorized");
}
