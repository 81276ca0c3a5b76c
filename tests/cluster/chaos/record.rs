//! What everybody was told, and what the nodes did.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde_json::Value;

/// All that was seen of one schedule.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) namespace: String,
    pub(super) calls: Vec<Call>,
    /// When the server was killed.
    pub(super) kills: Vec<Timestamp>,
    pub(super) vms: Vec<Vm>,
}

/// One request of a user, and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) verb: Verb,
    /// The object's name; of a create without one, what it begins with.
    pub(super) name: String,
    pub(super) began: Timestamp,
    /// When it was answered, or the user left.
    pub(super) ended: Timestamp,
    pub(super) answer: Option<Answered>,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Create,
    Generate,
    /// Only if the object has this uid.
    Delete(Option<String>),
    Pause,
    Resume,
    Fork,
    Label(&'static str),
    List,
}

/// An answer.
#[derive(Clone)]
pub(super) struct Answered {
    pub(super) status: u16,
    /// Whether it came with a Warning, as does what is kept in the server's memory only.
    pub(super) is_warned: bool,
    pub(super) body: Value,
}

/// An object, as an answer shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) claim: String,
    pub(super) version: u64,
    pub(super) is_suspended: bool,
    pub(super) is_deleted: bool,
    pub(super) colour: Option<String>,
}

/// A VM of one node, from its journal.
#[derive(Clone, Debug)]
pub(super) struct Vm {
    pub(super) node: usize,
    pub(super) id: String,
    /// The name in its reference.
    pub(super) name: String,
    /// Which claim made it; forks have that of their parent.
    pub(super) attempt: String,
    pub(super) is_foreign: bool,
    pub(super) began: Timestamp,
    pub(super) end: Option<(Timestamp, End)>,
}

/// How a VM ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    Lost,
    Reaped,
}

/// How it stands when all is mended.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) listed: Vec<Object>,
    pub(super) version: u64,
    /// What the nodes hold, by id: whether it is paused.
    pub(super) held: BTreeMap<String, bool>,
}

impl Call {
    pub(super) fn status(&self) -> Option<u16> {
        self.answer.as_ref().map(|answer| answer.status)
    }

    /// The object of an answer that is one.
    pub(super) fn object(&self) -> Option<Object> {
        let answer = self.answer.as_ref()?;
        let is_object = answer.status < 300 && answer.body["kind"] == "Sandbox";
        is_object.then(|| Object::of(&answer.body))
    }

    /// The objects of an answer that is a list.
    pub(super) fn items(&self) -> Option<Vec<Object>> {
        let answer = self.answer.as_ref().filter(|answer| answer.status < 300)?;
        let items = answer.body["items"].as_array()?;
        Some(items.iter().map(Object::of).collect())
    }

    /// The version of the answer's list or object.
    pub(super) fn version(&self) -> Option<u64> {
        version(&self.answer.as_ref()?.body)
    }

    /// Whether it may have been at work at some moment of this time. One without an answer may still be.
    pub(super) fn touches(&self, from: Timestamp, to: Timestamp) -> bool {
        self.began <= to && (self.answer.is_none() || self.ended >= from)
    }
}

impl fmt::Debug for Answered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, body, .. } = self;
        match body["items"].as_array() {
            Some(items) => {
                let names = items.iter().map(|item| &item["metadata"]["name"]);
                write!(f, "{status} {:?}", names.collect::<Vec<_>>())
            }
            None if body["kind"] == "Sandbox" => write!(f, "{status} {:?}", Object::of(body)),
            None => write!(f, "{status} {} {}", body["reason"], body["message"]),
        }
    }
}

impl Object {
    pub(super) fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            claim: text(&metadata["annotations"]["sandbox.cocoonstack.io/claim-id"]),
            version: version(object).unwrap_or_default(),
            is_suspended: object["spec"]["operatingMode"] == "Suspended",
            is_deleted: metadata["deletionTimestamp"].is_string(),
            colour: metadata["labels"]["colour"].as_str().map(str::to_owned),
        }
    }
}

pub(super) fn version(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

impl Vm {
    /// Whether a fork made it: its reference ends with its id.
    pub(super) fn is_copy(&self) -> bool {
        self.name.ends_with(&self.id)
    }

    /// When it ended, if it did.
    pub(super) fn ended(&self) -> Option<Timestamp> {
        self.end.map(|(at, _)| at)
    }
}

impl Record {
    /// Takes in a node's journal, from where this schedule began.
    pub(super) fn read_journal(&mut self, node: usize, entries: &[Value]) {
        self.vms.retain(|vm| vm.node != node);
        let prefix = format!("{}/", self.namespace);
        for entry in entries {
            let text = |key: &str| entry[key].as_str().unwrap_or_default();
            let Some(name) = text("claimRef").strip_prefix(&prefix) else {
                continue;
            };
            let at: Timestamp = text("at").parse().unwrap();
            let end = match text("event") {
                "released" => End::Released,
                "lost" => End::Lost,
                "reaped" => End::Reaped,
                event => {
                    let attempt = &entry["metadata"]["sandbox.cocoonstack.io/attempt"];
                    self.vms.push(Vm {
                        node,
                        id: text("id").to_owned(),
                        name: name.to_owned(),
                        attempt: attempt.as_str().unwrap_or_default().to_owned(),
                        is_foreign: event == "planted",
                        began: at,
                        end: None,
                    });
                    continue;
                }
            };
            let mut vms = self.vms.iter_mut();
            if let Some(vm) = vms.find(|vm| vm.id == text("id")) {
                vm.end = Some((at, end));
            }
        }
    }

    pub(super) fn vm(&self, claim: &str) -> Option<&Vm> {
        self.vms.iter().find(|vm| vm.id == claim)
    }

    /// Creates that were answered with an object, each with it.
    pub(super) fn acknowledged(&self) -> impl Iterator<Item = (&Call, Object)> {
        let creates = self.calls.iter();
        let creates = creates.filter(|call| matches!(call.verb, Verb::Create | Verb::Generate));
        creates.filter_map(|call| Some((call, call.object()?)))
    }

    /// Whether the server was killed in this time.
    pub(super) fn was_killed(&self, from: Timestamp, to: Timestamp) -> bool {
        self.kills.iter().any(|kill| (from..=to).contains(kill))
    }

    /// Whether somebody else claimed a VM under this name.
    pub(super) fn is_contested(&self, name: &str) -> bool {
        let mut vms = self.vms.iter();
        vms.any(|vm| vm.is_foreign && vm.name == name)
    }
}
