//! The API beside a custom resource of the same schema: the same requests to both, through the same kube-apiserver, answers
//! compared field by field. What differs on purpose is listed with its reason, and a listed difference that is no longer there
//! fails too.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

mod applies;
mod creates;
mod deletes;
mod kubectl;
mod patches;
mod reads;
mod step;
mod updates;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kube::client::Body;
use sandbox_apiserver::{
    api::{SandboxSpec, SandboxStatus},
    schema::{CustomResource, CustomResourceVersion, TypeSchema},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use self::step::Step;
use crate::{
    caller::{Answer, Caller},
    control_plane::ControlPlane,
    stage,
    users::ADMIN,
};

const SOON: Duration = Duration::from_secs(20);

/// Words of the twin and those of the product, longest first.
const WORDS: [(&str, &str); 4] = [
    ("twin.example.org", "agents.x-k8s.io"),
    ("twins", "sandboxes"),
    ("Twin", "Sandbox"),
    ("twin", "sandbox"),
];
/// What the server alone says of an object.
const SERVER_KEYS: &str = "sandbox.cocoonstack.io/";

/// What differs on purpose, as users are told of it.
const DOCUMENT: &str = include_str!("../../docs/differences.md");

/// The rows of the table below a heading, without the heads of its columns: the first cell of each.
fn listed(heading: &str) -> BTreeSet<&'static str> {
    let (_, section) = DOCUMENT.split_once(heading).expect("the document has it");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    rows.skip(1)
        .filter_map(|row| row.split(" |").next())
        .collect()
}

fn twin() -> Value {
    let crd = CustomResource {
        group: "twin.example.org".to_owned(),
        kind: "Twin".to_owned(),
        plural: "twins".to_owned(),
        singular: "twin".to_owned(),
        short_names: Vec::new(),
        namespaced: true,
        versions: vec![CustomResourceVersion {
            name: "v1beta1".to_owned(),
            schema: TypeSchema::spec_and_status::<SandboxSpec, SandboxStatus>("A twin.").unwrap(),
            columns: Vec::new(),
            status: true,
            scale: None,
            stored: true,
            deprecation_warning: None,
        }],
    };
    crd.to_value().unwrap()
}

/// Makes kube-apiserver serve twins.
pub(crate) async fn install(control_plane: &ControlPlane) {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    INSTALLED
        .get_or_init(async || {
            control_plane.install_crd(twin()).await;
            // Served and able to answer are two things: for a moment lists are refused with 429.
            let admin = Caller::new(control_plane.config_as(ADMIN));
            let path = for_twin(&format!("{}/sandboxes", stage::API));
            stage::eventually(SOON, "twins can be listed", async || {
                admin.get(&path).await.status == 200
            })
            .await;
        })
        .await;
}

/// A text that is written for the product, for the twin.
pub(crate) fn for_twin(text: &str) -> String {
    let mut text = text.to_owned();
    for (twin, ours) in WORDS {
        text = text.replace(ours, twin);
    }
    text
}

/// A text that is about the twin, as if it were about the product.
pub(crate) fn of_twin(text: &str) -> String {
    let mut text = text.to_owned();
    for (twin, ours) in WORDS {
        text = text.replace(twin, ours);
    }
    text
}

/// One of the two, and what was answered last, for steps that need it.
struct Side {
    caller: Caller,
    namespace: String,
    /// Warm for nobody else, so that a create is not refused for what other tests take.
    template: String,
    is_twin: bool,
    /// Objects as they were shown last, by name.
    shown: BTreeMap<String, Value>,
}

impl Side {
    /// A text that is written for the product, for this side.
    fn translated(&self, text: &str) -> String {
        match self.is_twin {
            true => for_twin(text),
            false => text.to_owned(),
        }
    }

    async fn send(&mut self, step: &Step) -> Answer {
        let collection = format!(
            "/apis/agents.x-k8s.io/v1beta1/namespaces/{}/sandboxes",
            self.namespace
        );
        let filled = |text: &str| {
            let mut text = text.replace("{namespace}", &self.namespace);
            text = text.replace("{template}", &self.template);
            for (name, object) in &self.shown {
                for field in ["resourceVersion", "uid"] {
                    let value = object["metadata"][field].as_str().unwrap_or_default();
                    text = text.replace(&format!("{{{name}.{field}}}"), value);
                }
            }
            text
        };
        let path = match step.path.strip_prefix("/apis/") {
            Some(_) => step.path.to_owned(),
            None => format!("{collection}{}", step.path),
        };
        let path = self.translated(&filled(&path));
        let mut request = http::Request::builder().method(step.method).uri(path);
        for (name, value) in &step.headers {
            request = request.header(*name, *value);
        }
        let body = self.translated(&filled(&step.body)).into_bytes();
        let answer = self
            .caller
            .send(request.body(Body::from(body)).unwrap())
            .await;
        if let (true, Some(name)) = (
            answer.body["kind"] != "Status",
            answer.body["metadata"]["name"].as_str(),
        ) {
            self.shown.insert(name.to_owned(), answer.body.clone());
        }
        answer
    }

    /// What can be compared of an answer.
    fn comparable(&self, answer: &Answer) -> Value {
        let mut text = answer.body.to_string();
        let mut warnings: Vec<String> = answer
            .headers
            .get_all("warning")
            .iter()
            .map(|value| value.to_str().unwrap().to_owned())
            .filter(|text| {
                !text.contains("the sandbox ends with its lease")
                    && !text.contains("the node runs no agent")
            })
            .collect();
        text = text.replace(&self.namespace, "NAMESPACE");
        for object in self.shown.values() {
            if let Some(uid) = object["metadata"]["uid"].as_str() {
                text = text.replace(uid, "UID");
            }
        }
        if self.is_twin {
            text = of_twin(&text);
            warnings = warnings.iter().map(|warning| of_twin(warning)).collect();
        }
        let mut body: Value = serde_json::from_str(&text).unwrap();
        strip(&mut body);
        if self.is_twin {
            once(&mut body);
        }
        json!({
            "code": answer.status.as_u16(),
            "type": answer.headers.get("content-type").map(|value| value.to_str().unwrap()),
            "warnings": warnings,
            "body": body,
        })
    }
}

/// Custom resources report a fault of metadata several times.
fn once(body: &mut Value) {
    let causes = body.pointer_mut("/details/causes");
    if let Some(causes) = causes.and_then(Value::as_array_mut) {
        let mut seen = Vec::new();
        causes.retain(|cause| {
            let is_new = !seen.contains(cause);
            seen.push(cause.clone());
            is_new
        });
    }
}

/// Takes out what no two objects share, and what the server adds to a Sandbox.
fn strip(body: &mut Value) {
    if let Some(items) = body.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(strip_object);
    }
    if body.get("details") == Some(&json!({})) {
        body.as_object_mut().unwrap().remove("details");
    }
    if body["kind"] == "SandboxList" {
        body["metadata"]["resourceVersion"] = "".into();
        // Custom resources show that nothing is left, built-in ones do not.
        if let Some(metadata) = body["metadata"].as_object_mut() {
            metadata.retain(|field, value| field != "continue" || value != "");
        }
    }
    if body["kind"] == "Sandbox" || body["kind"] == "PartialObjectMetadata" {
        strip_object(body);
    }
}

fn strip_object(object: &mut Value) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    fields.remove("status");
    let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
    ] {
        if let Some(value) = metadata.get_mut(field) {
            *value = "".into();
        }
    }
    if metadata.contains_key("generateName") {
        metadata.insert("name".to_owned(), "GENERATED".into());
    }
    for map in ["labels", "annotations"] {
        if let Some(pairs) = metadata.get_mut(map).and_then(Value::as_object_mut) {
            pairs.retain(|key, _| {
                !key.starts_with(SERVER_KEYS) && key != "agents.x-k8s.io/sandbox-name-hash"
            });
            if pairs.is_empty() {
                metadata.remove(map);
            }
        }
    }
    for owner in metadata
        .get_mut("managedFields")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        owner["time"] = "".into();
    }
}

/// Takes the texts out of a Status.
fn without_words(answer: &mut Value) {
    answer["body"]["message"] = Value::Null;
    let causes = answer.pointer_mut("/body/details/causes");
    let causes = causes.and_then(Value::as_array_mut);
    for cause in causes.into_iter().flatten() {
        cause["message"] = Value::Null;
    }
}

/// What differs, a line a place: `/place ours | theirs`.
fn differing(place: &str, ours: &Value, theirs: &Value) -> String {
    match (ours, theirs) {
        _ if ours == theirs => String::new(),
        (Value::Object(left), Value::Object(right)) => {
            let names: BTreeSet<_> = left.keys().chain(right.keys()).collect();
            let differing =
                |name: &String| differing(&format!("{place}/{name}"), &ours[name], &theirs[name]);
            names.into_iter().map(differing).collect()
        }
        _ => format!("\n  {place} {ours} | {theirs}"),
    }
}

#[tokio::test]
async fn answers_are_those_of_a_custom_resource() {
    let stage = stage::shared().await;
    install(stage.control_plane).await;
    let namespace = stage.namespace("pair").await;
    let template = stage.own_node().template;
    let side = |is_twin| Side {
        caller: stage.admin(),
        namespace: namespace.clone(),
        template: template.clone(),
        is_twin,
        shown: BTreeMap::new(),
    };
    let (mut ours, mut twin) = (side(false), side(true));
    let differences = listed("## Other answers");
    let words = listed("## Other words");
    assert!(!differences.is_empty() && !words.is_empty());
    let mut wrong = Vec::new();
    let steps: Vec<Step> = [
        creates::creates(),
        reads::reads(),
        updates::updates(),
        patches::patches(),
        applies::applies(),
        deletes::deletes(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let known = |name: &str| steps.iter().any(|step| step.name == name);
    for name in differences.union(&words) {
        assert!(known(name), "no step is called {name}");
    }
    for step in &steps {
        let (our_answer, twin_answer) = (ours.send(step).await, twin.send(step).await);
        let (mut actual, mut expected) =
            (ours.comparable(&our_answer), twin.comparable(&twin_answer));
        if words.contains(step.name) {
            if actual == expected {
                wrong.push(format!("{}: the same words now", step.name));
            }
            without_words(&mut actual);
            without_words(&mut expected);
        }
        match (actual == expected, differences.contains(step.name)) {
            (true, false) | (false, true) => {}
            (true, true) => wrong.push(format!("{}: no difference any more", step.name)),
            (false, false) => wrong.push(format!(
                "{}: {} {}{}",
                step.name,
                step.method,
                step.path,
                differing("", &actual, &expected)
            )),
        }
    }
    let n_wrong = wrong.len();
    assert!(
        wrong.is_empty(),
        "{n_wrong} of {} steps:\n{}",
        steps.len(),
        wrong.join("\n")
    );
}
