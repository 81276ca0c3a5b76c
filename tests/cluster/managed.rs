//! Field ownership against a real kube-apiserver: the same writes to a custom resource and to this crate, compared object by
//! object, owner by owner, conflict by conflict.
//!
//! Differences that are kept: times of owners; the order of conflicts and of type errors, which is any order there; that a
//! null in a configuration, or left of an object whose last field it removed, is an absent field, where the API server
//! refuses the write; and (not sent here) that an owner in a version that is not served is dropped, as for Kubernetes' own
//! types, where a write to a custom resource then changes no owner at all.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

mod model;
mod specimen;

use std::collections::BTreeSet;

use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use sandbox_apiserver::{
    managed::{Entry, Error, ManagedFields},
    meta::UnixTime,
    schema::Schema,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use self::{
    model::{KEPT, Outcome, Write},
    specimen::{API_VERSION, KIND, Source},
};
use crate::control_plane;

const N_SEQUENCES: usize = 200;
const N_WRITES: usize = 8;
const MANAGERS: [&str; 3] = ["one", "two", "kubectl"];

/// The kube-apiserver, and an object in it.
struct Server {
    client: kube::Client,
    schema: Schema,
    namespace: String,
}

struct Answer {
    code: u16,
    body: Value,
}

impl Answer {
    /// Whether an apply was refused for a null: there the one write whose nulls are not taken for absent fields.
    fn is_about_null(&self) -> bool {
        let message = self.body["message"].as_str().unwrap_or_default();
        self.code == 422 && message.contains(r#"Invalid value: "null""#)
    }
}

impl Server {
    async fn start() -> Self {
        static CRD: OnceCell<()> = OnceCell::const_new();
        let control_plane = control_plane::shared();
        CRD.get_or_init(|| control_plane.install_crd(specimen::crd()))
            .await;
        Self {
            client: control_plane.client(),
            schema: specimen::schema().compile().unwrap(),
            namespace: control_plane.create_namespace("managed").await,
        }
    }

    async fn send(&self, name: &str, subresource: &str, manager: &str, write: &Write) -> Answer {
        let (method, content_type, body) = match write {
            Write::Create(body) => (Method::POST, "application/json", body),
            Write::Put(body) => (Method::PUT, "application/json", body),
            Write::Merge(patch) => (Method::PATCH, "application/merge-patch+json", patch),
            Write::Json(patch) => (Method::PATCH, "application/json-patch+json", patch),
            Write::Apply { config, .. } => (Method::PATCH, "application/apply-patch+yaml", config),
        };
        let force = matches!(write, Write::Apply { force: true, .. });
        let item = match (write, subresource) {
            (Write::Create(_), _) => String::new(),
            (_, "") => format!("/{name}"),
            _ => format!("/{name}/{subresource}"),
        };
        let force = if force { "&force=true" } else { "" };
        let uri = format!(
            "/apis/{API_VERSION}/namespaces/{}/specimens{item}?fieldValidation=Ignore&fieldManager={manager}{force}",
            self.namespace
        );
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("content-type", content_type)
            .body(Body::from(body.to_string().into_bytes()))
            .unwrap();
        let response = self.client.send(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        Answer {
            code,
            body: serde_json::from_slice(&bytes).unwrap(),
        }
    }

    /// Sends a write and compares the answer; returns the object that is live then.
    async fn write(
        &self,
        live: Option<Value>,
        name: &str,
        subresource: &str,
        manager: &str,
        write: &Write,
    ) -> Result<Option<Value>, String> {
        let expected = |now| {
            model::write(
                &self.schema,
                live.as_ref(),
                write,
                subresource,
                manager,
                now,
            )
        };
        let sent_at = UnixTime::now();
        let answer = self.send(name, subresource, manager, write).await;
        // Owners are listed by time, in seconds, so which second it was there may show.
        match compare(expected(sent_at), &answer, live.clone()) {
            Err(_) if UnixTime::now().as_secs() != sent_at.as_secs() => {
                compare(expected(UnixTime::now()), &answer, live.clone())
            }
            compared => compared,
        }
    }
}

/// Compares an answer with what was expected; returns the object that is live then.
fn compare(
    expected: Outcome,
    answer: &Answer,
    live: Option<Value>,
) -> Result<Option<Value>, String> {
    match expected {
        Outcome::Object(expected) if answer.code < 300 => {
            compare_objects(&expected, &answer.body)?;
            compare_versions(live.as_ref(), &expected, &answer.body)?;
            Ok(Some(answer.body.clone()))
        }
        Outcome::Object(_) if answer.is_about_null() => Ok(live),
        Outcome::Invalid if answer.code == 422 || answer.code == 400 => Ok(live),
        Outcome::Refused(error) => {
            compare_refusals(&error, answer)?;
            Ok(live)
        }
        expected => Err(format!(
            "got {} {}, expected {expected:?}",
            answer.code, answer.body
        )),
    }
}

/// The object without what the model cannot know, its owners in a fixed order and without times.
fn comparable(object: &Value) -> Value {
    let mut object = object.clone();
    let metadata = object["metadata"].as_object_mut().unwrap();
    for name in KEPT {
        metadata.remove(name);
    }
    if let Some(Value::Array(owners)) = metadata.get_mut("managedFields") {
        for owner in owners.iter_mut() {
            // When is not compared, but whether there is a time.
            if let Some(time) = owner.get_mut("time") {
                *time = json!("");
            }
        }
        let key = |owner: &Value| {
            ["operation", "manager", "apiVersion", "subresource"]
                .map(|name| owner[name].to_string())
        };
        owners.sort_by_key(key);
    }
    object
}

fn compare_objects(expected: &Value, actual: &Value) -> Result<(), String> {
    // What the server wrote is read and written as it was, in its order and with its times.
    let owners = &actual["metadata"]["managedFields"];
    let read = ManagedFields::decode(owners).map_err(|error| error.to_string())?;
    if read.encode().unwrap_or_default() != *owners {
        return Err(format!("owners change when read and written: {owners:#}"));
    }
    differ("object", &comparable(expected), &comparable(actual))
}

/// A write that changes something makes a new version.
///
/// Not the other way round: the API server keeps nulls that an apply left in metadata, shows none, and the next write, even
/// of the same object, is stored without.
fn compare_versions(live: Option<&Value>, expected: &Value, actual: &Value) -> Result<(), String> {
    let is_changed = live.is_some_and(|live| comparable(live) != comparable(expected));
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    if is_changed && live.map(version) == Some(version(actual)) {
        return Err("there is no new version".to_owned());
    }
    Ok(())
}

fn compare_refusals(error: &Error, answer: &Answer) -> Result<(), String> {
    let message = answer.body["message"].as_str().unwrap_or_default();
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    match error {
        Error::Conflicts(conflicts) => {
            let mut expected: Vec<Value> = conflicts
                .0
                .iter()
                .map(|conflict| json!({"reason": "FieldManagerConflict", "message": conflict.message(), "field": conflict.field()}))
                .collect();
            let mut actual = answer.body["details"]["causes"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            expected.sort_by_key(Value::to_string);
            actual.sort_by_key(Value::to_string);
            differ("conflicts", &expected.into(), &actual.into())?;
            differ(
                "message",
                &json!(lines(&error.to_string())),
                &json!(lines(message)),
            )?;
            differ("code", &json!(409), &json!(answer.code))
        }
        Error::ObjectType(_) | Error::ManagedFields => {
            differ("message", &json!(error.to_string()), &json!(message))?;
            differ("code", &json!(400), &json!(answer.code))
        }
        Error::Untyped { .. } | Error::Owners(_) => {
            differ(
                "message",
                &json!(lines(&error.to_string())),
                &json!(lines(message)),
            )?;
            differ("code", &json!(500), &json!(answer.code))
        }
    }
}

fn differ(what: &str, expected: &Value, actual: &Value) -> Result<(), String> {
    let mut differences = Vec::new();
    differences_at(what, expected, actual, &mut differences);
    if differences.is_empty() {
        return Ok(());
    }
    Err(differences.join("\n"))
}

/// Where two values differ.
fn differences_at(path: &str, expected: &Value, actual: &Value, differences: &mut Vec<String>) {
    match (expected, actual) {
        (Value::Object(left), Value::Object(right)) => {
            let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for name in names {
                let (left, right) = (left.get(name), right.get(name));
                match (left, right) {
                    (Some(left), Some(right)) => {
                        differences_at(&format!("{path}/{name}"), left, right, differences)
                    }
                    _ => {
                        differences.push(format!("{path}/{name}: expected {left:?}, got {right:?}"))
                    }
                }
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                differences_at(&format!("{path}/{index}"), left, right, differences);
            }
        }
        (left, right) if left == right => {}
        (left, right) => differences.push(format!("{path}: expected {left}, got {right}")),
    }
}

/// A random write to an object that is `live`, and where it goes.
fn random_write(
    source: &mut Source<'_>,
    name: &str,
    live: Option<&Value>,
) -> (&'static str, Write) {
    let Some(live) = live else {
        let object = source.object(name);
        let write = if source.chance(50) {
            Write::Create(object)
        } else {
            Write::Apply {
                config: object,
                force: false,
            }
        };
        return ("", write);
    };
    let subresource = if source.chance(25) { "status" } else { "" };
    let object = match subresource {
        "" => source.object(name),
        _ => source.status_object(name),
    };
    let write = match source.0.random_range(0..10) {
        0 | 1 => Write::Put(replacement(source, live, object)),
        2 | 3 => Write::Merge(patch(source, object)),
        4 => Write::Json(operations(source, live, &object)),
        _ => Write::Apply {
            config: object,
            force: source.chance(40),
        },
    };
    (subresource, write)
}

/// The live object with other content.
fn replacement(source: &mut Source<'_>, live: &Value, object: Value) -> Value {
    let mut replacement = if source.chance(20) {
        object.clone()
    } else {
        live.clone()
    };
    if source.chance(50) {
        model::merge(&mut replacement, &object);
    }
    let metadata = &mut replacement["metadata"];
    metadata["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    match source.0.random_range(0..12) {
        0 => metadata["managedFields"] = json!([]),
        1 => metadata["managedFields"] = json!([{}]),
        2 => drop(metadata.as_object_mut().unwrap().remove("managedFields")),
        3 => {
            // Owners that no write made.
            let owner = |version: &str, fields: Value| {
                json!({
                    "manager": "hand", "operation": "Update", "apiVersion": version,
                    "fieldsType": "FieldsV1", "fieldsV1": fields,
                })
            };
            let fields = [
                json!({}),
                json!({"f:spec": {"f:map": {"f:a": {}}, "f:list": {"i:0": {}}, "f:whole": {"f:a": {}}}, "x:y": {}}),
                json!({"f:spec": {"f:rows": {".": {}, "k:{\"zone\":\"here\",\"id\":1}": {".": {}, "f:none": {}}}}}),
                json!({"f:metadata": {"f:name": {}, "f:labels": {}}, "f:spec": {"f:number": {"f:a": {}}}}),
                json!({"spec": {}}),
            ];
            let owner = owner(API_VERSION, source.pick(&fields));
            match metadata.get_mut("managedFields") {
                Some(Value::Array(owners)) => owners.push(owner),
                _ => metadata["managedFields"] = json!([owner]),
            }
        }
        4 => {
            if let Some(Value::Array(owners)) = metadata.get_mut("managedFields") {
                owners.pop();
            }
        }
        _ => {}
    }
    replacement
}

/// The object as a patch that removes something.
fn patch(source: &mut Source<'_>, mut object: Value) -> Value {
    for field in ["/spec", "/metadata", "/status"] {
        let name = source.pick(&[
            "map",
            "rows",
            "labels",
            "finalizers",
            "set",
            "sandbox",
            "nodeName",
        ]);
        if let Some(Value::Object(fields)) = object.pointer_mut(field)
            && source.chance(50)
        {
            fields.insert(name.to_owned(), Value::Null);
        }
    }
    object
}

/// Operations that bring top-level fields of the object.
fn operations(source: &mut Source<'_>, live: &Value, object: &Value) -> Value {
    let mut operations = Vec::new();
    for (section, names) in [
        ("metadata", &["labels", "finalizers"][..]),
        ("spec", &["map", "rows", "free", "set"]),
    ] {
        for name in names {
            if live.get(section).is_none() {
                continue;
            }
            let path = format!("/{section}/{name}");
            match (object[section].get(name), live[section].get(name)) {
                (_, Some(_)) if source.chance(20) => {
                    operations.push(json!({"op": "remove", "path": path}))
                }
                (Some(value), _) => {
                    operations.push(json!({"op": "add", "path": path, "value": value}))
                }
                _ => {}
            }
        }
    }
    operations.into()
}

#[tokio::test]
async fn random_writes_leave_the_same_owners_as_in_kube_apiserver() {
    let server = Server::start().await;
    let seed =
        std::env::var("MANAGED_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("seed {seed}, to be repeated with MANAGED_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut n_refused = 0;
    for index in 0..N_SEQUENCES {
        let (name, mut live) = (format!("specimen-{index}"), None);
        let mut history = String::new();
        for _ in 0..N_WRITES {
            let (subresource, write) = random_write(&mut Source(&mut rng), &name, live.as_ref());
            let manager = MANAGERS[rng.random_range(0..MANAGERS.len())];
            history = format!("{history}\n{manager} {subresource} {write:?}");
            let before = live.clone();
            live = match server
                .write(live, &name, subresource, manager, &write)
                .await
            {
                Ok(live) => live,
                Err(difference) => {
                    let before = before.unwrap_or_default();
                    panic!(
                        "seed {seed}, sequence {index}: {difference}\nbefore: {before}\nafter these writes: {history}"
                    )
                }
            };
            n_refused += usize::from(before == live);
        }
    }
    // Random writes must be neither all refused nor all accepted to show anything.
    let n_writes = N_SEQUENCES * N_WRITES;
    assert!(
        (n_writes / 20..n_writes / 2).contains(&n_refused),
        "{n_refused} of {n_writes}"
    );
}

#[tokio::test]
async fn a_write_that_changes_nothing_makes_no_new_version() {
    let server = Server::start().await;
    let name = "unchanged";
    let mut object = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, "labels": {"a": "1"}}, "spec": {"map": {"a": "1"}, "set": [1]}});
    let apply = |object: &Value| Write::Apply {
        config: object.clone(),
        force: false,
    };
    let write = async |live: Option<Value>, write: Write| {
        let live = server.write(live, name, "", "one", &write).await;
        live.unwrap_or_else(|difference| panic!("{difference}"))
    };
    let live = write(None, apply(&object)).await;
    for same in [
        apply(&object),
        Write::Put(live.clone().unwrap()),
        Write::Merge(json!({"spec": {"set": [1]}})),
        Write::Json(json!([{"op": "replace", "path": "/spec/map", "value": {"a": "1"}}])),
    ] {
        assert_eq!(write(live.clone(), same).await, live);
    }
    object["spec"]["set"] = json!([2]);
    assert_ne!(write(live.clone(), apply(&object)).await, live);
}

/// What an apply to a subresource says of the rest is dropped, so it changes nothing there, but its owner gets a time.
#[tokio::test]
async fn an_owner_that_its_time_moves_is_a_change() {
    let server = Server::start().await;
    let name = "moved";
    let object = |patch: Value| {
        let mut object =
            json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}});
        model::merge(&mut object, &patch);
        object
    };
    let apply = |patch| Write::Apply {
        config: object(patch),
        force: false,
    };
    let status = json!({"nodeName": "n1"});
    let mut live = None;
    for (subresource, manager, write) in [
        ("", "first", apply(json!({"spec": {"whole": {"a": "1"}}}))),
        (
            "status",
            "second",
            Write::Merge(json!({ "status": status })),
        ),
        ("status", "third", apply(json!({ "status": status }))),
    ] {
        live = server
            .write(live, name, subresource, manager, &write)
            .await
            .unwrap_or_else(|difference| panic!("{difference}"));
    }
    let time_of_third = |live: &Option<Value>| {
        let owners = ManagedFields::decode(&live.as_ref().unwrap()["metadata"]["managedFields"]);
        let third = |entry: &&Entry| entry.manager.name == "third";
        let owners = owners.unwrap();
        owners.entries().iter().find(third).unwrap().time
    };
    assert_eq!(time_of_third(&live), None);
    let write = apply(json!({"status": status, "spec": {"whole": {}}}));
    live = server
        .write(live, name, "status", "third", &write)
        .await
        .unwrap_or_else(|difference| panic!("{difference}"));
    assert!(time_of_third(&live).is_some());
}

/// Numbers of an object are integers, those of its owners' fields floats; before the first apply there are no owners.
#[tokio::test]
async fn conflicts_about_large_numbers_show_them_as_they_were_read() {
    let server = Server::start().await;
    let name = "large";
    let object = |text: &str| json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": {"rows": [{"id": 1_000_000, "text": text}]}});
    let apply = Write::Apply {
        config: object("2"),
        force: false,
    };
    let unowned = Write::Merge(json!({"metadata": {"managedFields": [{}]}}));
    let mut live = None;
    for write in [Write::Create(object("1")), unowned] {
        live = server
            .write(live, name, "", "one", &write)
            .await
            .unwrap_or_else(|difference| panic!("{difference}"));
        let refused = server.write(live.clone(), name, "", "two", &apply).await;
        assert_eq!(refused.as_ref(), Ok(&live), "after {write:?}");
    }
}

#[tokio::test]
async fn more_than_ten_updaters_become_one() {
    let server = Server::start().await;
    let name = "many-updaters";
    let mut live = None;
    for index in 0..14 {
        let patch = json!({"metadata": {"labels": {format!("l{index}"): "x"}}});
        let write = match live {
            None => Write::Create(
                json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": {"number": 1}}),
            ),
            Some(_) => Write::Merge(patch),
        };
        let manager = format!("manager-{index:02}");
        live = server
            .write(live, name, "", &manager, &write)
            .await
            .unwrap_or_else(|difference| panic!("{difference}"));
    }
    let owners = ManagedFields::decode(&live.unwrap()["metadata"]["managedFields"]).unwrap();
    assert!(
        owners
            .entries()
            .iter()
            .any(|entry| entry.manager.name == "ancient-changes")
    );
}

#[tokio::test]
async fn a_configuration_of_another_kind_or_with_owners_is_refused() {
    let server = Server::start().await;
    let name = "refused";
    let object = |patch: Value| {
        let mut object = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": {"number": 1}});
        model::merge(&mut object, &patch);
        Write::Apply {
            config: object,
            force: false,
        }
    };
    for patch in [
        json!({"apiVersion": "differential.example.org/v2"}),
        json!({"apiVersion": "v1"}),
        json!({"kind": "Other"}),
        json!({"apiVersion": null}),
        json!({"metadata": {"managedFields": []}}),
        json!({"metadata": {"managedFields": [{"manager": "one"}]}}),
    ] {
        let write = object(patch);
        let refused = server.write(None, name, "", "one", &write).await;
        assert_eq!(refused, Ok(None), "{write:?}");
    }
}

#[tokio::test]
async fn kubectl_takes_over_what_it_applied_on_its_side() {
    let server = Server::start().await;
    let name = "client-side";
    let spec = json!({"map": {"a": "1", "b": "1"}, "number": 1});
    let object = |annotations: Value, spec: &Value| json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, "annotations": annotations}, "spec": spec});
    let last = object(json!({}), &spec).to_string();
    let annotated = object(
        json!({"kubectl.kubernetes.io/last-applied-configuration": last}),
        &spec,
    );
    let write = async |live: Option<Value>, manager: &str, write: Write| {
        let live = server.write(live, name, "", manager, &write).await;
        live.unwrap_or_else(|difference| panic!("{difference}"))
    };
    let apply = |spec: Value| Write::Apply {
        config: object(json!({}), &spec),
        force: false,
    };
    let live = write(None, "kubectl-client-side-apply", Write::Create(annotated)).await;
    // Another may not.
    let other = write(live.clone(), "one", apply(json!({"number": 2}))).await;
    assert_eq!(other, live);
    // Nor kubectl, what somebody else has changed since.
    let live = write(
        live,
        "one",
        Write::Merge(json!({"spec": {"map": {"b": "2"}}})),
    )
    .await;
    let other = write(
        live.clone(),
        "kubectl",
        apply(json!({"map": {"b": "3"}, "number": 2})),
    )
    .await;
    assert_eq!(other, live);
    let live = write(
        live,
        "kubectl",
        apply(json!({"map": {"a": "<2>"}, "number": 2})),
    )
    .await;
    assert_eq!(
        live.unwrap()["spec"],
        json!({"map": {"a": "<2>", "b": "2"}, "number": 2})
    );
}
