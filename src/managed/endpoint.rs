//! Where a write arrives, and what every write but an apply does to the owners of fields.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    change::Change,
    element::Element,
    field_set::FieldSet,
    fields::conform,
    managed_fields::{Entry, ManagedFields, Manager, Operation},
    place::Place,
};
use crate::{meta::UnixTime, schema::Schema};

/// The owner of what a client without a name wrote.
const UNKNOWN: &str = "unknown";

/// Fields of metadata that the server keeps and nobody owns.
const KEPT: [&str; 9] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// A version that a resource is served in.
#[derive(Clone, Copy, Debug)]
pub struct Version<'a> {
    /// Group and version: `agents.x-k8s.io/v1beta1`.
    pub api_version: &'a str,
    /// What objects look like in it.
    pub schema: &'a Schema,
}

/// Where a write arrives.
#[derive(Clone, Copy)]
pub struct Endpoint<'a> {
    /// The version that objects come and go in here.
    pub version: Version<'a>,
    /// The other versions of the resource. Fields owned in a version that is in neither lose their owner.
    pub other_versions: &'a [Version<'a>],
    /// An object in one of the other versions, or back in this one. Any field of the object may be absent.
    pub convert: &'a (dyn Fn(&Value, &str) -> Value + Sync),
    /// Kind of the objects.
    pub kind: &'a str,
    /// The subresource; empty: the object itself.
    pub subresource: &'a str,
    /// Top-level fields that this endpoint leaves as they are whatever a client sends: `status` at the object itself when
    /// it has that subresource, `metadata` and `spec` at the subresource.
    pub reset: &'a [&'a str],
}

impl Endpoint<'_> {
    /// Writes down in `after` who owns its fields, now that `manager` made it of `before` by a create, an update or a patch
    /// that is no apply. Both are pruned and have their defaults; no `before`: a create.
    ///
    /// The manager owns what it added or changed beside what it owned; nobody owns what is gone. What the client says in
    /// `metadata.managedFields` counts, except at a subresource or when it cannot be read; nothing there, and the owners
    /// stay; one empty entry, and there are none from then on. An object that has no owners gets none before the first
    /// apply.
    pub fn track_update(
        &self,
        before: Option<&Value>,
        after: &mut Value,
        manager: &str,
        now: UnixTime,
    ) {
        let sent = take_managed_fields(after);
        let mut managed = self.owners(before, &sent);
        if before.is_none() || !managed.is_empty() {
            let manager = self.manager(manager, Operation::Update);
            self.own_changes(&mut managed, before, after, manager, now);
            managed.cap();
        }
        put_managed_fields(after, &managed);
    }

    /// The owners that an update starts from.
    fn owners(&self, before: Option<&Value>, sent: &Value) -> ManagedFields {
        let live = || ManagedFields::decode(managed_fields(before)).unwrap_or_default();
        if !self.subresource.is_empty() {
            return live();
        }
        if is_reset(sent) {
            return ManagedFields::default();
        }
        match ManagedFields::decode(sent) {
            Ok(managed) if !managed.is_empty() => managed,
            _ => live(),
        }
    }

    /// Gives what differs to `manager` and takes it from all others.
    pub(super) fn own_changes(
        &self,
        managed: &mut ManagedFields,
        before: Option<&Value>,
        after: &Value,
        manager: Manager,
        now: UnixTime,
    ) {
        let mut changes = Changes::new(self, before, after);
        managed.edit(|entry| {
            let Some(change) = changes.named_in(&entry.manager.api_version) else {
                return false;
            };
            conform(Place::root(change.schema), &mut entry.fields);
            entry.fields.subtract(&change.change.written);
            entry.fields.subtract(&change.change.removed);
            true
        });
        let mut written = changes.into_own().written;
        drop_kept(&mut written);
        if written.is_empty() {
            return;
        }
        if let Some(previous) = managed.take(&manager) {
            written.unite(previous.fields);
        }
        managed.put(Entry {
            manager,
            time: Some(now),
            fields: written,
        });
    }

    pub(super) fn manager(&self, name: &str, operation: Operation) -> Manager {
        Manager {
            name: if name.is_empty() { UNKNOWN } else { name }.to_owned(),
            operation,
            api_version: self.version.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
        }
    }

    /// The version of that name; none: it is not served.
    pub(super) fn version_named(&self, api_version: &str) -> Option<Version<'_>> {
        let mut versions = std::iter::once(&self.version).chain(self.other_versions);
        versions
            .find(|version| version.api_version == api_version)
            .copied()
    }

    /// `object` in a version, when it is in `from`.
    pub(super) fn convert<'v>(&self, object: &'v Value, from: &str, to: &str) -> Cow<'v, Value> {
        if from == to {
            Cow::Borrowed(object)
        } else {
            Cow::Owned((self.convert)(object, to))
        }
    }

    /// Drops from a set what this endpoint does not write.
    pub(super) fn drop_reset(&self, set: &mut FieldSet) {
        set.edit(|node| {
            if let Element::Field(name) = &node.element
                && self.reset.contains(&name.as_str())
            {
                node.owned = false;
                node.below = FieldSet::default();
            }
        });
    }
}

/// What a write changed, in every version that some owner's fields are named in.
pub(super) struct Changes<'a> {
    endpoint: &'a Endpoint<'a>,
    before: Cow<'a, Value>,
    after: &'a Value,
    /// The endpoint's own version comes first.
    known: Vec<Versioned<'a>>,
}

pub(super) struct Versioned<'a> {
    api_version: &'a str,
    pub(super) schema: &'a Schema,
    pub(super) change: Change,
}

impl<'a> Changes<'a> {
    pub(super) fn new(
        endpoint: &'a Endpoint<'_>,
        before: Option<&'a Value>,
        after: &'a Value,
    ) -> Self {
        let mut changes = Self {
            endpoint,
            before: before.map_or_else(|| Cow::Owned(Value::Object(Map::new())), Cow::Borrowed),
            after,
            known: Vec::with_capacity(1),
        };
        changes.known.push(changes.compare(endpoint.version));
        changes
    }

    /// What changed, by the names of a version; none: it is not served.
    pub(super) fn named_in(&mut self, api_version: &str) -> Option<&Versioned<'a>> {
        let known = self
            .known
            .iter()
            .position(|known| known.api_version == api_version);
        let index = match known {
            Some(index) => index,
            None => {
                let version = self.endpoint.version_named(api_version)?;
                self.known.push(self.compare(version));
                self.known.len() - 1
            }
        };
        self.known.get(index)
    }

    pub(super) fn into_own(self) -> Change {
        let own = self.known.into_iter().next();
        own.map(|own| own.change).unwrap_or_default()
    }

    fn compare(&self, version: Version<'a>) -> Versioned<'a> {
        let own = self.endpoint.version.api_version;
        let convert = |object| self.endpoint.convert(object, own, version.api_version);
        let (before, after) = (convert(&self.before), convert(self.after));
        let mut change = Change::between(Place::root(version.schema), &before, &after);
        self.endpoint.drop_reset(&mut change.written);
        self.endpoint.drop_reset(&mut change.removed);
        Versioned {
            api_version: version.api_version,
            schema: version.schema,
            change,
        }
    }
}

/// Drops from a set what the server keeps.
pub(super) fn drop_kept(set: &mut FieldSet) {
    let is_field = |element: &Element, names: &[&str]| matches!(element, Element::Field(name) if names.contains(&name.as_str()));
    set.edit(|node| {
        node.owned &= !is_field(&node.element, &["apiVersion", "kind", "metadata"]);
        if is_field(&node.element, &["metadata"]) {
            node.below
                .edit(|node| node.owned &= !is_field(&node.element, &KEPT));
        }
    });
}

/// The object's `metadata.managedFields`; null: it has none.
pub(super) fn managed_fields(object: Option<&Value>) -> &Value {
    object
        .and_then(|object| object.get("metadata")?.get("managedFields"))
        .unwrap_or(&Value::Null)
}

pub(super) fn take_managed_fields(object: &mut Value) -> Value {
    object
        .get_mut("metadata")
        .and_then(Value::as_object_mut)
        .and_then(|metadata| metadata.remove("managedFields"))
        .unwrap_or_default()
}

pub(super) fn put_managed_fields(object: &mut Value, managed: &ManagedFields) {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let (Some(metadata), Some(entries)) = (metadata, managed.encode()) {
        metadata.insert("managedFields".to_owned(), entries);
    }
}

/// Whether a client wants nobody to own anything. An empty list is what a client sends that knows nothing of owners.
fn is_reset(sent: &Value) -> bool {
    let is_empty = |value: &Value| value.is_null() || value == "";
    match sent.as_array().map(Vec::as_slice) {
        Some([only]) => only
            .as_object()
            .is_some_and(|entry| entry.values().all(is_empty)),
        _ => false,
    }
}
