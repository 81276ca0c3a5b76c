//! `metadata.managedFields`: who owns which fields.

use std::cmp::Reverse;

use serde_json::{Map, Value, json};

use super::{field_set::FieldSet, fields_v1::InvalidFields};
use crate::meta::UnixTime;

/// Managers with operation Update that an object keeps apart, as in kube-apiserver: the oldest beyond are merged.
pub const MAX_UPDATE_MANAGERS: usize = 10;

/// The manager that stands for those merged.
const ANCIENT: &str = "ancient-changes";

/// How a manager came to own its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By applying a configuration.
    Apply,
    /// By any other write.
    Update,
}

/// Who owns fields. Equal when further writes add to the same entry.
#[derive(Clone, Debug)]
pub struct Manager {
    /// The name that the client gave.
    pub name: String,
    /// How it writes.
    pub operation: Operation,
    /// Group and version in which its fields are named.
    pub api_version: String,
    /// The subresource that it wrote to; empty: the object itself.
    pub subresource: String,
}

/// What one manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Who.
    pub manager: Manager,
    /// When it last took a field.
    pub time: Option<UnixTime>,
    /// What.
    pub fields: FieldSet,
}

/// Who owns which fields of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedFields {
    entries: Vec<Entry>,
}

/// Why an entry of `metadata.managedFields` cannot be read. The texts are those of Kubernetes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEntry {
    /// A value that is no list of objects.
    #[error("managed fields must be a list of objects")]
    Malformed,
    /// An operation that does not exist.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// No version.
    #[error("apiVersion must not be empty")]
    NoVersion,
    /// No format.
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    /// An unknown format.
    #[error("invalid fieldsType {1:?} in managed fields entry {0}")]
    FieldsType(usize, String),
    /// Fields that are not FieldsV1.
    #[error("error decoding set: {0}")]
    Fields(#[from] InvalidFields),
}

impl Manager {
    /// What tells managers apart. An applier is one whatever its configuration's version.
    fn identity(&self) -> (Operation, &str, &str, &str) {
        let api_version = match self.operation {
            Operation::Apply => "",
            Operation::Update => &self.api_version,
        };
        (self.operation, &self.name, api_version, &self.subresource)
    }
}

impl PartialEq for Manager {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Manager {}

impl ManagedFields {
    /// Reads `metadata.managedFields`.
    ///
    /// # Errors
    /// When an entry cannot be read; then none is.
    pub fn decode(list: &Value) -> Result<Self, InvalidEntry> {
        let items = match list {
            Value::Null => &[][..],
            Value::Array(items) => items,
            _ => return Err(InvalidEntry::Malformed),
        };
        let decoded = items
            .iter()
            .enumerate()
            .map(|(index, item)| Entry::decode(index, item));
        let mut entries = decoded.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by(|left, right| left.manager.identity().cmp(&right.manager.identity()));
        entries.dedup_by(|next, last| {
            let is_same = next.manager == last.manager;
            if is_same {
                // Of two entries of one manager the last counts.
                std::mem::swap(next, last);
            }
            is_same
        });
        Ok(Self { entries })
    }

    /// The entries as `metadata.managedFields` has them: appliers first, then by time and name. None: no field is owned.
    pub fn encode(&self) -> Option<Value> {
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.sort_by(|left, right| left.position().cmp(&right.position()));
        (!entries.is_empty()).then(|| entries.into_iter().map(Entry::encode).collect())
    }

    /// The entries, in no order that means anything.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether nobody owns anything.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes a manager's entry out.
    pub(super) fn take(&mut self, manager: &Manager) -> Option<Entry> {
        let index = self
            .entries
            .iter()
            .position(|entry| entry.manager == *manager)?;
        Some(self.entries.swap_remove(index))
    }

    /// Adds an entry whose manager has none. One without fields is left out.
    pub(super) fn put(&mut self, entry: Entry) {
        if !entry.fields.is_empty() {
            self.entries.push(entry);
        }
    }

    /// Changes each entry; those that are none any more, or own nothing, are dropped.
    pub(super) fn edit(&mut self, mut edit: impl FnMut(&mut Entry) -> bool) {
        self.entries
            .retain_mut(|entry| edit(entry) && !entry.fields.is_empty());
    }

    /// Merges the oldest updates beyond [`MAX_UPDATE_MANAGERS`] into one entry for each version of the API.
    pub(super) fn cap(&mut self) {
        let is_update = |entry: &Entry| entry.manager.operation == Operation::Update;
        let n_updates = self.entries.iter().filter(|entry| is_update(entry)).count();
        let mut excess = n_updates.saturating_sub(MAX_UPDATE_MANAGERS);
        if excess == 0 {
            return;
        }
        let (mut updates, mut kept): (Vec<_>, Vec<_>) = self.entries.drain(..).partition(is_update);
        updates.sort_by_cached_key(|entry| Reverse(entry.age()));
        let mut ancient: Vec<Entry> = Vec::new();
        while excess > 0
            && let Some(oldest) = updates.pop()
        {
            let version = &oldest.manager.api_version;
            match ancient
                .iter_mut()
                .find(|entry| entry.manager.api_version == *version)
            {
                Some(entry) => {
                    entry.absorb(oldest);
                    excess -= 1;
                }
                None => ancient.push(oldest),
            }
        }
        kept.append(&mut updates);
        kept.append(&mut ancient);
        self.entries = kept;
    }
}

impl Entry {
    fn decode(index: usize, entry: &Value) -> Result<Self, InvalidEntry> {
        let fields = entry.as_object().ok_or(InvalidEntry::Malformed)?;
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err(InvalidEntry::Operation),
        };
        if text("apiVersion").is_empty() {
            return Err(InvalidEntry::NoVersion);
        }
        match text("fieldsType") {
            "FieldsV1" => {}
            "" => return Err(InvalidEntry::NoFieldsType(index)),
            other => return Err(InvalidEntry::FieldsType(index, other.to_owned())),
        }
        Ok(Self {
            manager: Manager {
                name: text("manager").to_owned(),
                operation,
                api_version: text("apiVersion").to_owned(),
                subresource: text("subresource").to_owned(),
            },
            time: text("time").parse().ok(),
            fields: FieldSet::from_value(fields.get("fieldsV1").unwrap_or(&Value::Null))?,
        })
    }

    fn encode(&self) -> Value {
        let mut entry = Map::new();
        let mut set = |name: &str, value: Value| drop(entry.insert(name.to_owned(), value));
        set("apiVersion", json!(self.manager.api_version));
        set("fieldsType", json!("FieldsV1"));
        set("fieldsV1", self.fields.to_value());
        if !self.manager.name.is_empty() {
            set("manager", json!(self.manager.name));
        }
        let operation = match self.manager.operation {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        };
        set("operation", json!(operation));
        if !self.manager.subresource.is_empty() {
            set("subresource", json!(self.manager.subresource));
        }
        if let Some(time) = self.time {
            set("time", json!(time.to_string()));
        }
        Value::Object(entry)
    }

    /// Where the API server lists the entry.
    fn position(&self) -> impl Ord {
        let Manager {
            name,
            operation,
            api_version,
            subresource,
        } = &self.manager;
        let seconds = self.time.map_or(0, UnixTime::as_secs);
        (*operation, seconds, name, api_version, subresource)
    }

    /// In which order entries are merged: first into those that were merged before, then the oldest.
    fn age(&self) -> impl Ord + use<> {
        let Manager {
            name,
            api_version,
            subresource,
            ..
        } = self.manager.clone();
        let seconds = self.time.map_or(0, UnixTime::as_secs);
        (name != ANCIENT, seconds, name, api_version, subresource)
    }

    /// Makes this the entry of all older ones, with the time of the last.
    fn absorb(&mut self, next: Self) {
        ANCIENT.clone_into(&mut self.manager.name);
        self.manager.subresource.clear();
        self.time = next.time;
        self.fields.unite(next.fields);
    }
}
