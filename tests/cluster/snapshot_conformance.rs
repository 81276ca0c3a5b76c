//! The second resource keeps what the first does: lists, watches, forms, deletes and refusals of `sandboxsnapshots`.
//!
//! The checks of `tests/conformance` ask for sandboxes. What is shared by all resources is shown for this one here, but for
//! what depends on an update, which snapshots do not have.

use std::time::Duration;

use http::Request;
use kube::client::Body;
use serde_json::{Value, json};

use crate::{
    caller::{Answer, Caller, Events},
    kubectl::In,
    stage::{self, SharedStage, collection, eventually, item},
};

const SOON: Duration = Duration::from_secs(30);
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const SANDBOX_LABEL: &str = "sandbox.cocoonstack.io/sandbox";
const OTHER_UID: &str = "6e3b2cc1-2a36-4f0d-8a5e-8f0ad6a0a4a1";

/// A namespace with a sandbox `a`, and both ways to the server.
struct Place {
    stage: SharedStage,
    namespace: String,
    ways: [Caller; 2],
}

impl Place {
    async fn new() -> Self {
        let stage = stage::shared().await;
        let namespace = stage.namespace("snapshots").await;
        stage.create(&namespace, "a").await;
        let ways = [stage.admin(), stage.direct()];
        Self {
            stage,
            namespace,
            ways,
        }
    }

    fn all(&self) -> String {
        format!(
            "{}/namespaces/{}/sandboxsnapshots",
            stage::API,
            self.namespace
        )
    }

    fn one(&self, name: &str) -> String {
        format!("{}/{name}", self.all())
    }

    /// Takes a snapshot of `a`, and gives it as the answer shows it.
    async fn take(&self, name: &str) -> Value {
        self.take_of(name, "a").await
    }

    async fn take_of(&self, name: &str, sandbox: &str) -> Value {
        let (path, wanted) = (self.all(), mk_snapshot(name, sandbox));
        let taken = self.ways[0].post(&path, &wanted).await;
        assert_eq!(taken.status, 201, "{:#}", taken.body);
        taken.body
    }
}

fn mk_snapshot(name: &str, sandbox: &str) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "SandboxSnapshot",
        "metadata": {"name": name},
        "spec": {"sandboxName": sandbox},
    })
}

#[track_caller]
fn version(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.expect("a version").parse().expect("a number")
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().expect("a list")
}

fn names(list: &Value) -> Vec<&str> {
    let names = items(list).iter().map(|item| &item["metadata"]["name"]);
    names.map(|name| name.as_str().expect("a name")).collect()
}

async fn get_as(caller: &Caller, path: &str, accept: &str) -> Value {
    let request = Request::get(path).header("accept", accept);
    caller
        .send(request.body(Body::empty()).expect("a request"))
        .await
        .ok()
}

async fn delete_with(caller: &Caller, path: &str, options: &Value) -> Answer {
    caller.call("DELETE", path, Some(options)).await
}

/// The rest of the initial events, the bookmark that ends them last.
async fn initial(events: &mut Events) -> Vec<Value> {
    let mut told = Vec::new();
    loop {
        let event = events.next_within(SOON).await;
        let is_end = event["type"] == "BOOKMARK";
        told.push(event);
        if is_end {
            return told;
        }
    }
}

#[tokio::test]
async fn a_streamed_list_of_snapshots_ends_with_a_bookmark_of_their_kind() {
    let place = Place::new().await;
    let taken = [place.take("s1").await, place.take("s2").await];
    let path = format!(
        "{}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        place.all()
    );
    for (caller, next) in place.ways.iter().zip(["t1", "t2"]) {
        let mut watch = caller.watch(&path).await;
        let told = initial(&mut watch).await;
        let (bookmark, added) = told.split_last().expect("events");
        assert!(added.len() >= taken.len(), "{added:#?}");
        for taken in &taken {
            let event = json!({"type": "ADDED", "object": taken});
            assert!(added.contains(&event), "{taken:#} in {added:#?}");
        }
        let object = &bookmark["object"];
        assert_eq!(object["kind"], "SandboxSnapshot");
        assert_eq!(object["apiVersion"], "agents.x-k8s.io/v1beta1");
        let end = &object["metadata"]["annotations"]["k8s.io/initial-events-end"];
        assert_eq!(end, "true");
        for event in added {
            assert_eq!(event["type"], "ADDED");
            assert!(version(&event["object"]) <= version(object), "{event:#}");
        }
        // And it goes on as any watch.
        let made = place.take(next).await;
        let event = watch.next_within(SOON).await;
        assert_eq!(event, json!({"type": "ADDED", "object": made}));
        assert!(version(&made) > version(object));
    }
}

#[tokio::test]
async fn a_watch_of_snapshots_from_a_list_gets_each_change_once_and_the_last_state_of_what_went() {
    let place = Place::new().await;
    place.take("old").await;
    for (caller, name) in place.ways.iter().zip(["s1", "s2"]) {
        let listed = version(&caller.get(&place.all()).await.ok());
        let path = format!("{}?watch=true&resourceVersion={listed}", place.all());
        let mut watch = caller.watch(&path).await;
        let taken = place.take(name).await;
        let end = format!("end-of-{name}");
        caller.delete(&place.one(name)).await.ok();
        let ended = place.take(&end).await;
        let added = watch.next_within(SOON).await;
        let deleted = watch.next_within(SOON).await;
        let last = watch.next_within(SOON).await;
        assert_eq!(added, json!({"type": "ADDED", "object": taken}));
        assert_eq!(deleted["type"], "DELETED");
        assert_eq!(last, json!({"type": "ADDED", "object": ended}));
        let versions = [&added, &deleted, &last].map(|event| version(&event["object"]));
        assert!(versions[0] > listed && versions.is_sorted_by(|a, b| a < b));
        // Of the version of its end, and else as it was.
        let mut state = deleted["object"].clone();
        state["metadata"]["resourceVersion"] = taken["metadata"]["resourceVersion"].clone();
        assert_eq!(state, taken);
        // From before the end, the same is told again.
        let path = format!("{}?watch=true&resourceVersion={}", place.all(), versions[0]);
        let again = caller.watch(&path).await.next_within(SOON).await;
        assert_eq!(again, deleted);
    }
}

#[tokio::test]
async fn pages_of_snapshots_are_of_one_version_and_show_one_state() {
    let place = Place::new().await;
    for name in ["s1", "s2", "s3", "s4", "s5"] {
        place.take(name).await;
    }
    let path = format!("{}?limit=2", place.all());
    let mut expected = vec!["s1", "s2", "s3", "s4", "s5"];
    for (caller, gone) in place.ways.iter().zip(["s4", "s5"]) {
        let mut page = caller.get(&path).await.ok();
        let first = version(&page);
        assert_eq!(names(&page), expected[..2]);
        assert_eq!(page["metadata"]["remainingItemCount"], 3);
        // Neither this deletion nor this snapshot is of the version that the list is of.
        caller.delete(&place.one(gone)).await.ok();
        place.take(&format!("s3-not-{gone}")).await;
        let mut found = page.clone();
        while let Some(token) = page["metadata"]["continue"].as_str().map(str::to_owned) {
            page = caller.get(&format!("{path}&continue={token}")).await.ok();
            assert_eq!(version(&page), first, "one version");
            let more = items(&page).to_vec();
            found["items"].as_array_mut().expect("a list").extend(more);
        }
        assert_eq!(names(&found), expected);
        expected = vec!["s1", "s2", "s3", "s3-not-s4", "s5"];
    }
    for malformed in ["forged", "e30"] {
        let refused = place.ways[0]
            .get(&format!("{path}&continue={malformed}"))
            .await;
        refused.expect(400, "BadRequest");
    }
}

#[tokio::test]
async fn a_list_of_snapshots_is_exactly_as_new_as_asked_for() {
    let place = Place::new().await;
    let old = version(&place.take("s1").await);
    let new = version(&place.take("s2").await);
    for caller in &place.ways {
        let list = async |query: &str| caller.get(&format!("{}?{query}", place.all())).await;
        let exact = format!("resourceVersion={old}&resourceVersionMatch=Exact");
        let then = list(&exact).await.ok();
        assert_eq!((names(&then), version(&then)), (vec!["s1"], old));
        for query in [
            String::new(),
            format!("resourceVersion={old}&resourceVersionMatch=NotOlderThan"),
            format!("resourceVersion={new}&resourceVersionMatch=NotOlderThan"),
        ] {
            let now = list(&query).await.ok();
            assert_eq!(names(&now), ["s1", "s2"], "{query}");
            assert!(version(&now) >= new, "{query}");
        }
        let far = new + 1_000_000;
        let ahead = list(&format!("resourceVersion={far}")).await;
        ahead.expect(504, "Timeout");
        assert_eq!(ahead.causes(), ["ResourceVersionTooLarge"]);
        list("resourceVersion=x").await.expect(400, "BadRequest");
        let alone = list("resourceVersionMatch=Exact").await;
        alone.expect(422, "Invalid");
    }
}

#[tokio::test]
async fn snapshots_are_selected_by_labels_and_fields() {
    let place = Place::new().await;
    place.stage.create(&place.namespace, "b").await;
    place.take("s1").await;
    place.take_of("s2", "b").await;
    for (n, caller) in place.ways.iter().enumerate() {
        for (selector, selected) in [
            (
                format!("labelSelector={SANDBOX_LABEL}%3Da"),
                ["s1"].as_slice(),
            ),
            (format!("labelSelector={SANDBOX_LABEL}!%3Da"), &["s2"]),
            (
                format!("labelSelector={SANDBOX_LABEL}%20in%20(a,b)"),
                &["s1", "s2"],
            ),
            (format!("labelSelector=!{SANDBOX_LABEL}"), &[]),
            ("fieldSelector=spec.sandboxName%3Db".to_owned(), &["s2"]),
            ("fieldSelector=metadata.name%3Ds1".to_owned(), &["s1"]),
            ("fieldSelector=metadata.name!%3Ds1".to_owned(), &["s2"]),
        ] {
            let list = caller.get(&format!("{}?{selector}", place.all())).await;
            assert_eq!(names(&list.ok()), selected, "{selector}");
        }
        for wrong in ["fieldSelector=spec.nothing%3Da", "labelSelector=a%3D%3D%3D"] {
            let refused = caller.get(&format!("{}?{wrong}", place.all())).await;
            refused.expect(400, "BadRequest");
        }
        // A watch shows what is selected, and nothing else.
        let since = version(&caller.get(&place.all()).await.ok());
        let path = format!(
            "{}?watch=true&resourceVersion={since}&fieldSelector=spec.sandboxName%3Db",
            place.all()
        );
        let mut watch = caller.watch(&path).await;
        let (outside, inside) = (format!("of-a-{n}"), format!("of-b-{n}"));
        place.take_of(&outside, "a").await;
        place.take_of(&inside, "b").await;
        let event = watch.next_within(SOON).await;
        assert_eq!(event["object"]["metadata"]["name"], inside);
        for name in [&outside, &inside] {
            caller.delete(&place.one(name)).await.ok();
        }
        let event = watch.next_within(SOON).await;
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["name"]),
            (&json!("DELETED"), &json!(inside))
        );
    }
}

#[tokio::test]
async fn snapshots_are_shown_as_rows_and_as_metadata_alone() {
    let place = Place::new().await;
    let taken = place.take("s1").await;
    let bare = json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": taken["metadata"],
    });
    for caller in &place.ways {
        for path in [place.all(), place.one("s1")] {
            let table = get_as(caller, &path, TABLE).await;
            assert_eq!(table["kind"], "Table", "{path}");
            let columns = table["columnDefinitions"].as_array().expect("columns");
            let row = &table["rows"][0];
            assert_eq!(row["cells"].as_array().map(Vec::len), Some(columns.len()));
            let node = &taken["status"]["node"];
            assert_eq!(row["cells"][0], "s1");
            assert_eq!((&row["cells"][1], &row["cells"][2]), (&json!("a"), node));
            assert_eq!(row["object"], bare);
        }
        assert_eq!(get_as(caller, &place.one("s1"), METADATA).await, bare);
        let list = get_as(caller, &place.all(), METADATA_LIST).await;
        assert_eq!(list["kind"], "PartialObjectMetadataList");
        assert_eq!(list["items"][0]["metadata"], taken["metadata"]);
        assert_eq!(list["items"][0].get("spec"), None);
    }
}

#[tokio::test]
async fn what_is_said_of_a_snapshot_that_is_not_there_names_it() {
    let place = Place::new().await;
    let details = json!({"name": "absent", "group": "agents.x-k8s.io", "kind": "sandboxsnapshots"});
    for caller in &place.ways {
        for method in ["GET", "DELETE"] {
            let absent = caller.call(method, &place.one("absent"), None).await;
            absent.expect(404, "NotFound");
            assert_eq!(absent.body["details"], details, "{method}");
            let message = r#"sandboxsnapshots.agents.x-k8s.io "absent" not found"#;
            assert_eq!(absent.body["message"], message);
        }
    }
}

#[tokio::test]
async fn a_deleted_snapshot_is_answered_with_its_uid_and_only_the_meant_one_goes() {
    let place = Place::new().await;
    for (caller, name) in place.ways.iter().zip(["s1", "s2"]) {
        let taken = place.take(name).await;
        let (uid, path) = (&taken["metadata"]["uid"], place.one(name));
        for meant in [
            json!({"uid": OTHER_UID}),
            json!({"uid": uid, "resourceVersion": "1"}),
        ] {
            let options = json!({"preconditions": meant});
            let refused = delete_with(caller, &path, &options).await;
            refused.expect(409, "Conflict");
        }
        let dry = caller.delete(&format!("{path}?dryRun=All")).await;
        assert_eq!(dry.status, 200, "{:#}", dry.body);
        assert_eq!(caller.get(&path).await.ok(), taken);
        let options = json!({"preconditions": {
            "uid": uid, "resourceVersion": taken["metadata"]["resourceVersion"],
        }});
        let deleted = delete_with(caller, &path, &options).await.ok();
        assert_eq!(
            (&deleted["kind"], &deleted["status"]),
            (&json!("Status"), &json!("Success"))
        );
        let details = json!({
            "name": name, "group": "agents.x-k8s.io", "kind": "sandboxsnapshots", "uid": uid,
        });
        assert_eq!(deleted["details"], details);
        caller.get(&path).await.expect(404, "NotFound");
        let again = place.take(name).await;
        assert_ne!(&again["metadata"]["uid"], uid);
    }
}

/// The own node has the only warm VM of its template, so that every call about its sandbox would be its.
#[tokio::test]
async fn a_dry_run_of_a_snapshot_asks_no_node_and_shows_what_would_be() {
    let place = Place::new().await;
    let (node, direct) = (place.stage.own_node(), place.stage.direct());
    let wanted = stage::sandbox("own", &node.template);
    direct
        .post(&collection(&place.namespace), &wanted)
        .await
        .ok();
    let kept = place.take_of("kept", "own").await;
    let writes = async || {
        let nodes = place.stage.nodes;
        [
            nodes.requests(node.index, "POST").await,
            nodes.requests(node.index, "DELETE").await,
        ]
    };
    let before = writes().await;
    assert!(
        before[0]
            .iter()
            .any(|(path, _)| path.ends_with("/checkpoint")),
        "a snapshot is a call: {before:?}"
    );
    for caller in &place.ways {
        let dry = format!("{}?dryRun=All", place.all());
        let would = caller.post(&dry, &mk_snapshot("would", "own")).await;
        assert_eq!(would.status, 201, "{:#}", would.body);
        assert_eq!(would.body["kind"], "SandboxSnapshot");
        assert_eq!(would.body["metadata"]["name"], "would");
        let taken = caller.post(&dry, &mk_snapshot("kept", "a")).await;
        taken.expect(409, "AlreadyExists");
        let of_nothing = caller.post(&dry, &mk_snapshot("would", "absent")).await;
        of_nothing.expect(422, "Invalid");
        let some = format!("{}?dryRun=Some", place.all());
        let some = caller.post(&some, &mk_snapshot("would", "own")).await;
        some.expect(422, "Invalid");
        for path in [place.one("kept"), place.all()] {
            caller.delete(&format!("{path}?dryRun=All")).await.ok();
        }
        let list = caller.get(&place.all()).await.ok();
        assert_eq!(items(&list), std::slice::from_ref(&kept));
    }
    assert_eq!(writes().await, before);
}

#[tokio::test]
async fn a_deleted_collection_of_snapshots_is_answered_with_what_went() {
    let place = Place::new().await;
    place.stage.create(&place.namespace, "b").await;
    for caller in &place.ways {
        let mut taken = vec![place.take("s1").await, place.take("s2").await];
        let kept = place.take_of("of-b", "b").await;
        let path = format!("{}?labelSelector={SANDBOX_LABEL}%3Da", place.all());
        let gone = caller.delete(&path).await.ok();
        assert_eq!(gone["kind"], "SandboxSnapshotList");
        let mut found = items(&gone).to_vec();
        for object in found.iter_mut().chain(&mut taken) {
            let metadata = object["metadata"].as_object_mut().expect("metadata");
            // That of the deletion, or of the last state.
            metadata.remove("resourceVersion");
        }
        assert_eq!(found, taken);
        let left = caller.get(&place.all()).await.ok();
        assert_eq!(items(&left), [kept]);
        caller.delete(&place.all()).await.ok();
        let left = caller.get(&place.all()).await.ok();
        assert_eq!(items(&left), [] as [Value; 0]);
    }
    // A sandbox is no part of its snapshot.
    let sandboxes = place.ways[0].get(&collection(&place.namespace)).await.ok();
    assert_eq!(names(&sandboxes), ["a", "b"]);
}

#[tokio::test]
async fn a_snapshot_cannot_be_updated_and_says_so() {
    let place = Place::new().await;
    let taken = place.take("s1").await;
    for caller in &place.ways {
        for (method, media_type) in [
            ("PUT", "application/json"),
            ("PATCH", "application/merge-patch+json"),
            ("PATCH", "application/json-patch+json"),
            ("PATCH", "application/apply-patch+yaml"),
        ] {
            let request = Request::builder()
                .method(method)
                .uri(format!("{}?fieldManager=m", place.one("s1")))
                .header("content-type", media_type);
            let body = Body::from(taken.to_string().into_bytes());
            let answer = caller.send(request.body(body).expect("a request")).await;
            answer.expect(405, "MethodNotAllowed");
        }
        assert_eq!(caller.get(&place.one("s1")).await.ok(), taken);
    }
}

#[tokio::test]
async fn kubectl_waits_until_a_snapshot_is_gone() {
    let place = Place::new().await;
    place.take("s1").await;
    let here = In {
        stage: &place.stage,
        kubectl: place.stage.control_plane.kubectl(),
        namespace: place.namespace.clone(),
    };
    let (one, never) = ("sandboxsnapshot/s1", ["--for=delete", "--timeout=2s"]);
    let complaint = here
        .refused(&["wait", one, never[0], never[1]], &Value::Null)
        .await;
    assert!(complaint.contains("timed out"), "{complaint}");
    let wait = ["wait", one, "--for=delete", "--timeout=30s"];
    let path = place.one("s1");
    let watches = || {
        let log = place.stage.serve.log();
        let here = format!("namespace={:?}", place.namespace);
        let lines = log.lines().filter(|line| line.contains(&here));
        let watches = lines.filter(|line| line.contains(r#"verb="watch""#));
        watches.count()
    };
    let before = watches();
    let (waited, ()) = tokio::join!(here.run(&wait), async {
        eventually(SOON, "kubectl watches", async || watches() > before).await;
        place.ways[0].delete(&path).await.ok();
    });
    assert!(waited.contains("condition met"), "{waited}");
    place.ways[0].get(&path).await.expect(404, "NotFound");
}

#[tokio::test]
async fn no_snapshot_is_taken_in_a_namespace_that_ends() {
    let place = Place::new().await;
    let mut held = stage::sandbox("held", stage::TEMPLATE);
    held["metadata"]["finalizers"] = json!(["example.org/hold"]);
    let admin = &place.ways[0];
    let sandboxes = collection(&place.namespace);
    eventually(SOON, "a sandbox is held", async || {
        admin.post(&sandboxes, &held).await.status == 201
    })
    .await;
    let namespace = format!("/api/v1/namespaces/{}", place.namespace);
    admin.delete(&namespace).await.ok();
    for caller in &place.ways {
        let dry = format!("{}?dryRun=All", place.all());
        eventually(SOON, "the end is known", async || {
            caller.post(&dry, &mk_snapshot("s1", "held")).await.status == 403
        })
        .await;
        let refused = caller.post(&place.all(), &mk_snapshot("s1", "held")).await;
        refused.expect(403, "Forbidden");
        assert_eq!(refused.causes(), ["NamespaceTerminating"]);
    }
    let free = json!({"metadata": {"finalizers": null}}).to_string();
    let free = Request::patch(item(&place.namespace, "held"))
        .header("content-type", "application/merge-patch+json")
        .body(Body::from(free.into_bytes()));
    admin.send(free.expect("a request")).await.ok();
    eventually(SOON * 2, "the namespace goes", async || {
        admin.get(&namespace).await.status == 404
    })
    .await;
}

#[tokio::test]
async fn a_field_that_no_snapshot_has_is_judged_as_asked_for() {
    let place = Place::new().await;
    for (n, caller) in place.ways.iter().enumerate() {
        let send = async |validation: &str, name: &str| {
            let mut wanted = mk_snapshot(name, "a");
            wanted["spec"]["nothing"] = 1.into();
            let path = format!("{}?fieldValidation={validation}", place.all());
            caller.post(&path, &wanted).await
        };
        let strict = send("Strict", "strict").await;
        strict.expect(400, "BadRequest");
        let message = strict.body["message"].as_str().unwrap_or_default();
        let fault = r#"strict decoding error: unknown field "spec.nothing""#;
        assert!(message.contains(fault), "{message}");
        caller
            .get(&place.one("strict"))
            .await
            .expect(404, "NotFound");
        for (validation, is_told) in [("Warn", true), ("Ignore", false)] {
            let name = format!("{}-{n}", validation.to_lowercase());
            let made = send(validation, &name).await;
            assert_eq!(made.status, 201, "{:#}", made.body);
            let warning = made
                .headers
                .get("warning")
                .map(|it| it.to_str().expect("text"));
            let expected = r#"299 - "unknown field \"spec.nothing\"""#;
            assert_eq!(warning, is_told.then_some(expected));
            assert_eq!(made.body["spec"].get("nothing"), None);
        }
    }
}
