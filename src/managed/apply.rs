//! Server-side apply.

use serde_json::Value;

use super::{
    check::check,
    conflict::{Conflict, Conflicts},
    endpoint::{
        Changes, Endpoint, drop_kept, managed_fields, put_managed_fields, take_managed_fields,
    },
    error::{Error, Result},
    fields::{Counted, conform, fields},
    last_applied,
    managed_fields::{Entry, ManagedFields, Operation},
    merge::merge,
    order::same,
    place::Place,
};
use crate::meta::UnixTime;

/// The owner of what was there before anybody applied a configuration to an object without owners.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// What an apply starts from.
struct Start {
    /// The object without its owners.
    live: Value,
    managed: ManagedFields,
}

impl Endpoint<'_> {
    /// What becomes of `live` when `manager` applies `config`, with its new owners; no `live`: a new object.
    ///
    /// Fields that the manager applied before and does not any more are removed if nobody else owns them. With `force` it
    /// takes over what others own. The result is not pruned and has no defaults yet, and in the metadata that the server
    /// keeps it has what the configuration said: to be treated like an object that a client sent to replace `live`. If
    /// nothing changes, the owners' times stay as they are.
    ///
    /// # Errors
    /// What [`Error`] lists.
    pub fn apply(
        &self,
        live: Option<&Value>,
        config: &Value,
        manager: &str,
        force: bool,
        now: UnixTime,
    ) -> Result<Value> {
        self.check_object_type(config)?;
        let start = self.start(live, now)?;
        self.check_config(config)?;
        let mut result = self.apply_to(&start, config, manager, force, now);
        if manager == last_applied::KUBECTL
            && let Err(Error::Conflicts(conflicts)) = result
        {
            result = match last_applied::remaining(self.version, &start.live, conflicts) {
                None => self.apply_to(&start, config, manager, true, now),
                Some(conflicts) => Err(conflicts.into()),
            };
        }
        let mut object = result?;
        if manager == last_applied::KUBECTL {
            last_applied::update(&mut object, config);
        }
        Ok(object)
    }

    fn check_object_type(&self, config: &Value) -> Result<()> {
        let text = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        if api_version == self.version.api_version && kind == self.kind {
            return Ok(());
        }
        // The core group has no name, and its versions no slash.
        let slash = if api_version.contains('/') { "" } else { "/" };
        Err(Error::ObjectType(format!(
            "{slash}{api_version}, Kind={kind}"
        )))
    }

    fn check_config(&self, config: &Value) -> Result<()> {
        if managed_fields(Some(config)).is_array() {
            return Err(Error::ManagedFields);
        }
        check(self.version.schema.root(), config).map_err(|faults| {
            let of_metadata = |name: &str| config.get("metadata")?.get(name)?.as_str();
            let (namespace, name) = (of_metadata("namespace"), of_metadata("name"));
            Error::Untyped {
                object: format!(
                    "{}/{}; {}, Kind={}",
                    namespace.unwrap_or_default(),
                    name.unwrap_or_default(),
                    self.version.api_version,
                    self.kind
                ),
                faults,
            }
        })
    }

    /// Whatever is there without an owner gets one, so that the configuration does not remove it.
    fn start(&self, live: Option<&Value>, now: UnixTime) -> Result<Start> {
        let mut managed = ManagedFields::decode(managed_fields(live))?;
        let Some(live) = live else {
            let live =
                serde_json::json!({ "apiVersion": self.version.api_version, "kind": self.kind });
            return Ok(Start { live, managed });
        };
        let mut live = live.clone();
        take_managed_fields(&mut live);
        if managed.is_empty() {
            let manager = self.manager(BEFORE_FIRST_APPLY, Operation::Update);
            self.own_changes(&mut managed, None, &live, manager, now);
        }
        managed.edit(|entry| {
            if let Some(version) = self.version_named(&entry.manager.api_version) {
                conform(Place::root(version.schema), &mut entry.fields);
            }
            true
        });
        Ok(Start { live, managed })
    }

    fn apply_to(
        &self,
        start: &Start,
        config: &Value,
        manager: &str,
        force: bool,
        now: UnixTime,
    ) -> Result<Value> {
        let (live, mut managed) = (&start.live, start.managed.clone());
        let root = Place::root(self.version.schema);
        let manager = self.manager(manager, Operation::Apply);
        let last = managed.take(&manager);
        let mut applied = fields(root, config, Counted::Asked);
        self.drop_reset(&mut applied);

        let mut merged = live.clone();
        merge(root, &mut merged, config);
        if let Some(last) = &last {
            merged = self.prune(merged, last, &managed, &applied);
        }
        self.take_from_others(&mut managed, live, &merged, force)?;
        drop_kept(&mut applied);
        let time = if same(live, &merged) {
            last.and_then(|last| last.time)
        } else {
            Some(now)
        };
        managed.put(Entry {
            manager,
            time,
            fields: applied,
        });
        put_managed_fields(&mut merged, &managed);
        Ok(merged)
    }

    /// Takes what changed from those who own it, if `force` or nobody does.
    fn take_from_others(
        &self,
        managed: &mut ManagedFields,
        live: &Value,
        merged: &Value,
        force: bool,
    ) -> Result<()> {
        let mut changes = Changes::new(self, Some(live), merged);
        let mut conflicts = Vec::new();
        managed.edit(|entry| {
            let Some(of_version) = changes.named_in(&entry.manager.api_version) else {
                return false;
            };
            let contested = entry.fields.intersection(&of_version.change.written);
            conflicts.extend(contested.paths().into_iter().map(|path| Conflict {
                manager: entry.manager.clone(),
                path,
            }));
            entry.fields.subtract(&contested);
            entry.fields.subtract(&of_version.change.removed);
            true
        });
        if force || conflicts.is_empty() {
            return Ok(());
        }
        // As they are listed, whatever order the object had its owners in.
        conflicts.sort_by_cached_key(Conflict::message);
        Err(Conflicts(conflicts).into())
    }
}
