//! What really happened, as one watcher of everything saw it and everybody else must have.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use bytes::Bytes;
use serde_json::Value;

use super::{
    property::{Property, Verdict},
    query::{Form, View},
    record::Record,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Added,
    Modified,
    Deleted,
}

/// Namespace and name.
pub(super) type Place = (String, String);

/// One change of one object.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) kind: Kind,
    pub(super) place: Place,
    pub(super) uid: String,
    pub(super) before: Option<Rc<Value>>,
    /// After the change; for a deletion the last state with the version of the deletion.
    pub(super) object: Rc<Value>,
}

/// What a watcher is to get.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) version: u64,
    pub(super) kind: Kind,
    pub(super) object: Rc<Value>,
}

/// All changes since the beginning, when nothing was there.
pub(super) struct History {
    pub(super) began: u64,
    /// Changes that the server remembers.
    remembered: u64,
    pub(super) changes: Vec<Change>,
    by_uid: HashMap<String, Vec<usize>>,
    // Lines are shared by watchers of one form, and long.
    parsed: RefCell<HashMap<Bytes, Rc<Value>>>,
    /// Lines that were found to be what this change is in this form.
    known: RefCell<HashMap<(Bytes, Form), (Kind, u64)>>,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

impl History {
    /// The history that the reference tells, if it is one that can be.
    pub(super) fn of(record: &Record) -> Verdict<Self> {
        let mut history = Self {
            began: record.began,
            remembered: record.history,
            changes: Vec::new(),
            by_uid: HashMap::new(),
            parsed: RefCell::default(),
            known: RefCell::default(),
        };
        let reference = record.reference.as_ref().expect("it is the first watch");
        let mut objects = BTreeMap::new();
        for line in &reference.lines {
            let event = history.parse(line)?;
            let change = change(&event, &objects)?;
            history.follows(&change)?;
            match change.kind {
                Kind::Deleted => objects.remove(&change.place),
                _ => objects.insert(change.place.clone(), change.object.clone()),
            };
            let uids: Vec<_> = objects
                .values()
                .map(|it| it["metadata"]["uid"].as_str())
                .collect();
            let here = uids.iter().filter(|uid| **uid == Some(&change.uid)).count();
            Property::Atomic.demand(here <= 1, || format!("{} is listed twice", change.uid))?;
            let places = history.by_uid.entry(change.uid.clone()).or_default();
            places.push(history.changes.len());
            history.changes.push(change);
        }
        let newest = history.newest();
        Property::Reliable.demand(newest == record.ended, || {
            format!(
                "the newest event is {newest}, the newest version {}",
                record.ended
            )
        })?;
        Ok(history)
    }

    pub(super) fn parse(&self, line: &Bytes) -> Verdict<Rc<Value>> {
        if let Some(known) = self.parsed.borrow().get(line) {
            return Ok(known.clone());
        }
        let text = String::from_utf8_lossy(line);
        let Ok(value) = text.parse::<Value>() else {
            return Property::Kinds.broken(format!("no JSON: {text}"));
        };
        let value = Rc::new(value);
        self.parsed.borrow_mut().insert(line.clone(), value.clone());
        Ok(value)
    }

    /// What a line is, if another watcher got the same.
    pub(super) fn known(&self, line: &Bytes, form: Form) -> Option<(Kind, u64)> {
        self.known.borrow().get(&(line.clone(), form)).copied()
    }

    pub(super) fn is_known(&self, line: &Bytes, form: Form, is: (Kind, u64)) {
        self.known.borrow_mut().insert((line.clone(), form), is);
    }

    fn newest(&self) -> u64 {
        self.changes
            .last()
            .map_or(self.began, |change| change.version)
    }

    /// Versions count one a change.
    fn follows(&self, change: &Change) -> Verdict {
        let (newest, version) = (self.newest(), change.version);
        let property = match version {
            version if version == newest + 1 => return Ok(()),
            version if version > newest => Property::Reliable,
            version if version == newest => Property::Unique,
            _ => Property::Ordered,
        };
        property.broken(format!("the reference gets {version} after {newest}"))
    }

    pub(super) fn at(&self, version: u64) -> Option<&Change> {
        let index = version.checked_sub(self.began + 1)?;
        self.changes.get(usize::try_from(index).ok()?)
    }

    /// The oldest version that the server still knows when `head` is the newest.
    pub(super) fn oldest(&self, head: u64) -> u64 {
        head.saturating_sub(self.remembered)
    }

    /// Everything as it was right after a version.
    pub(super) fn snapshot(&self, version: u64) -> BTreeMap<&Place, &Rc<Value>> {
        let mut objects = BTreeMap::new();
        for change in &self.changes {
            if change.version > version {
                break;
            }
            match change.kind {
                Kind::Deleted => objects.remove(&change.place),
                _ => objects.insert(&change.place, &change.object),
            };
        }
        objects
    }

    /// The object of a uid as it was right after a version. It may have had another name before.
    pub(super) fn object(&self, uid: &str, version: u64) -> Option<&Rc<Value>> {
        let changes = self
            .by_uid
            .get(uid)?
            .iter()
            .map(|index| &self.changes[*index]);
        let last = changes
            .take_while(|change| change.version <= version)
            .last()?;
        (last.kind != Kind::Deleted).then_some(&last.object)
    }

    /// What a watcher of `view` is to get first if it asks for what is there at a version.
    pub(super) fn initial(&self, view: &View, version: u64) -> Vec<Expected> {
        let there = self.snapshot(version).into_values();
        let there = there.filter(|object| view.contains(object));
        there
            .map(|object| Expected {
                version: version_of(object).unwrap_or_default(),
                kind: Kind::Added,
                object: object.clone(),
            })
            .collect()
    }

    /// What a watcher of `view` is to get of the changes after a version.
    pub(super) fn after(&self, view: &View, version: u64) -> Vec<Expected> {
        let later = self.changes.iter().filter(|it| it.version > version);
        later.filter_map(|change| expected(change, view)).collect()
    }
}

/// What a change is to the watchers of `view`.
fn expected(change: &Change, view: &View) -> Option<Expected> {
    let before = change.before.as_ref().filter(|it| view.contains(it));
    let is_there = change.kind != Kind::Deleted;
    let after = Some(&change.object).filter(|it| is_there && view.contains(it));
    let (kind, object) = match (before, after) {
        (None, None) => return None,
        (None, Some(after)) => (Kind::Added, after.clone()),
        (Some(_), Some(after)) => (Kind::Modified, after.clone()),
        (Some(before), None) => (Kind::Deleted, with_version(before, change.version)),
    };
    Some(Expected {
        version: change.version,
        kind,
        object,
    })
}

/// The reference's next change, if it can follow what is there.
fn change(event: &Value, objects: &BTreeMap<Place, Rc<Value>>) -> Verdict<Change> {
    let (kind, object) = (&event["type"], &event["object"]);
    let kind = match kind.as_str() {
        Some("ADDED") => Kind::Added,
        Some("MODIFIED") => Kind::Modified,
        Some("DELETED") => Kind::Deleted,
        _ => return Property::Reliable.broken(format!("the reference gets {event}")),
    };
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
    let Some(version) = version_of(object) else {
        return Property::Kinds.broken(format!("no version: {event}"));
    };
    let change = Change {
        version,
        kind,
        place: (text("namespace"), text("name")),
        uid: text("uid"),
        before: objects.get(&(text("namespace"), text("name"))).cloned(),
        object: Rc::new(object.clone()),
    };
    let possible = change.before.is_some() == (kind != Kind::Added);
    Property::Atomic.demand(possible, || format!("not after what was there: {event}"))?;
    let same = change
        .before
        .as_ref()
        .map(|before| with_version(before, version) == change.object);
    match (kind, same) {
        (Kind::Modified, Some(true)) => {
            Property::Quiet.broken(format!("nothing was modified: {event}"))
        }
        (Kind::Deleted, Some(false)) => {
            Property::LastState.broken(format!("not as it was: {event}\nbut {:?}", change.before))
        }
        _ => Ok(change),
    }
}

pub(super) fn version_of(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

fn with_version(object: &Rc<Value>, version: u64) -> Rc<Value> {
    let mut object = Value::clone(object);
    object["metadata"]["resourceVersion"] = version.to_string().into();
    Rc::new(object)
}

impl Expected {
    /// What is to be seen of it in a form.
    pub(super) fn in_form(&self, form: Form) -> Rc<Value> {
        form.of(&self.object)
    }
}
