//! Taking away what a manager does not apply any more.

use serde_json::Value;

use super::{
    endpoint::{Endpoint, Version},
    field_set::FieldSet,
    fields::{Counted, add_declared, fields},
    managed_fields::{Entry, ManagedFields},
    place::Place,
    remove::remove,
};

impl Endpoint<'_> {
    /// `merged` without what the manager applied before, except what somebody owns: another, or the manager by what it
    /// applies now.
    pub(super) fn prune(
        &self,
        merged: Value,
        last: &Entry,
        others: &ManagedFields,
        applied: &FieldSet,
    ) -> Value {
        let Some(version) = self.version_named(&last.manager.api_version) else {
            return merged;
        };
        if version.api_version == self.version.api_version && last.fields.is_within(applied) {
            return merged;
        }
        let mut last = last.fields.clone();
        add_declared(Place::root(version.schema), &mut last);
        let merged = self.in_own(merged);
        let as_last = merged.to(version);
        let mut pruned = as_last.without(&last);
        for (version, mut owned) in self.owned_by_version(version, others, applied) {
            add_declared(Place::root(version.schema), &mut owned);
            let merged = merged.to(version);
            let mut unowned = merged.fields();
            unowned.subtract(&pruned.to(version).fields());
            unowned.subtract(&owned);
            pruned = merged.without(&unowned);
        }
        // What went only because what held it went comes back, unless the manager had applied it.
        let mut gone = as_last.fields();
        gone.subtract(&pruned.to(version).fields());
        as_last
            .without(&gone.intersection(&last))
            .to(self.version)
            .object
    }

    fn in_own(&self, object: Value) -> InVersion<'_> {
        InVersion {
            object,
            version: self.version,
            convert: self.convert,
        }
    }

    /// What anybody owns, by version; `first` comes first, since fields that a conversion needs must be there.
    fn owned_by_version(
        &self,
        first: Version<'_>,
        others: &ManagedFields,
        applied: &FieldSet,
    ) -> Vec<(Version<'_>, FieldSet)> {
        let versions = std::iter::once(&self.version).chain(self.other_versions);
        let mut owned: Vec<_> = versions
            .filter_map(|version| {
                let is_named = |entry: &&Entry| entry.manager.api_version == version.api_version;
                let mut set = FieldSet::default();
                let mut owners = others.entries().iter().filter(is_named).peekable();
                let applies = version.api_version == self.version.api_version;
                if owners.peek().is_none() && !applies {
                    return None;
                }
                owners.for_each(|entry| set.unite(entry.fields.clone()));
                if applies {
                    set.unite(applied.clone());
                }
                Some((*version, set))
            })
            .collect();
        owned.sort_by_key(|(version, _)| version.api_version != first.api_version);
        owned
    }
}

/// An object in a version of the API.
struct InVersion<'a> {
    object: Value,
    version: Version<'a>,
    convert: &'a (dyn Fn(&Value, &str) -> Value + Sync),
}

impl<'a> InVersion<'a> {
    fn to(&self, version: Version<'a>) -> Self {
        let object = if version.api_version == self.version.api_version {
            self.object.clone()
        } else {
            (self.convert)(&self.object, version.api_version)
        };
        Self {
            object,
            version,
            ..*self
        }
    }

    fn without(&self, set: &FieldSet) -> Self {
        let root = Place::root(self.version.schema);
        Self {
            object: remove(root, self.object.clone(), set),
            ..*self
        }
    }

    /// All paths at which there is something, also those of the declared fields on the way.
    fn fields(&self) -> FieldSet {
        let root = Place::root(self.version.schema);
        let mut set = fields(root, &self.object, Counted::Asked);
        add_declared(root, &mut set);
        set
    }
}
