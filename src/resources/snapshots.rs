//! The resource `sandboxsnapshots`: checkpoints that the nodes hold, one object each.

use std::{borrow::Cow, sync::Arc};

use serde_json::{Value, json};
use uuid::Uuid;

use super::{definition::SNAPSHOT_NAME, error::status};
use crate::{
    api::{GROUP, V1BETA1, labels},
    apiserver::{
        Completeness, Context, Create, Created, Definition, Deleted, Deletion, Invoke, Invoked,
        NotUpdated, Resource, Status, StatusCause, Update,
    },
    fleet::{Fleet, Sandbox},
    gateway::{Error, Gateway, Progress},
    meta::{ResourceVersion, UnixTime, human_duration, validate_label_value},
    snapshots::{Snapshot, Whole, daemon_name},
    store::{Store, Stored},
};

/// Nodes that are named of those that have not answered.
const NAMED: usize = 3;

/// The resource.
#[derive(Debug)]
pub struct SandboxSnapshots {
    definition: Definition,
    fleet: Arc<Fleet>,
    gateway: Gateway,
}

impl SandboxSnapshots {
    /// The resource over the sandboxes and the gateway to their nodes.
    pub fn new(definition: Definition, fleet: Arc<Fleet>, gateway: Gateway) -> Self {
        Self {
            definition,
            fleet,
            gateway,
        }
    }

    /// The sandbox that a snapshot is to be taken of.
    fn sandbox(&self, create: &Create) -> Result<Arc<Stored<Sandbox>>, Status> {
        let name = create.object["spec"]["sandboxName"].as_str();
        let name = name.unwrap_or_default();
        let found = self.fleet.store().get(&create.key.namespace, name);
        found.ok_or_else(|| {
            let shown: String = name.chars().take(256).collect();
            let message = format!("Not found: {shown:?}");
            let cause = StatusCause {
                reason: "FieldValueNotFound".to_owned(),
                message,
                field: "spec.sandboxName".to_owned(),
            };
            self.invalid(create, cause)
        })
    }

    fn invalid(&self, create: &Create, cause: StatusCause) -> Status {
        let Definition { group, kind, .. } = self.definition;
        Status::invalid(group, kind, &create.key.name, vec![cause])
    }

    fn refused(&self, name: &str, error: &Error) -> Status {
        match error {
            Error::SnapshotNameTaken { .. } => Status::already_exists(&self.definition, name),
            error => status(&self.definition, name, error),
        }
    }
}

impl Resource for SandboxSnapshots {
    type Object = Snapshot;

    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn store(&self) -> &Store<Snapshot> {
        self.gateway.snapshots().store()
    }

    fn completeness(&self) -> Completeness {
        match self.gateway.snapshots().whole() {
            Whole::Yes => Completeness::Whole,
            Whole::NotYet => Completeness::NotYet("the nodes are being asked for their snapshots"),
            Whole::Without(nodes) => {
                let named: Vec<&str> = nodes.iter().take(NAMED).map(|node| node.as_str()).collect();
                let (named, more) = (named.join(", "), nodes.len().saturating_sub(NAMED));
                let more = match more {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                Completeness::Without(format!(
                    "snapshots of nodes that have not answered since the server's start are not shown: {named}{more}"
                ))
            }
        }
    }

    fn encode(&self, object: &Snapshot, at: ResourceVersion, _version: usize, out: &mut Vec<u8>) {
        write(out, &json(object, at));
    }

    fn encode_metadata(&self, object: &Snapshot, at: ResourceVersion, out: &mut Vec<u8>) {
        write(out, &metadata(object, at));
    }

    fn encode_cells(&self, object: &Snapshot, _version: usize, now: UnixTime, out: &mut Vec<u8>) {
        let age = human_duration(now.since(object.created));
        let pool = &object.pool;
        for cell in [
            object.sandbox.as_str(),
            object.node.as_str(),
            &age,
            &pool.template,
            &pool.size,
            &pool.net,
            object.id.as_str(),
        ] {
            out.push(b',');
            write(out, &cell.into());
        }
    }

    fn convert(&self, _object: &mut Value, _from: usize, _to: usize) {
        // There is one version.
    }

    fn label<'a>(&self, object: &'a Snapshot, key: &str) -> Option<Cow<'a, str>> {
        let value = match key {
            labels::NODE => object.node.as_str(),
            labels::SANDBOX => object.sandbox.as_str(),
            _ => return None,
        };
        validate_label_value(value).is_ok().then(|| value.into())
    }

    fn field<'a>(&self, object: &'a Snapshot, path: &str) -> Option<Cow<'a, str>> {
        match path {
            "spec.sandboxName" => Some(object.sandbox.as_str().into()),
            "status.node" => Some(object.node.as_str().into()),
            _ => None,
        }
    }

    fn uid(&self, object: &Snapshot) -> String {
        object.uid().to_string()
    }

    fn is_deleted(&self, _object: &Snapshot) -> bool {
        false
    }

    fn validate_create(&self, create: &Create) -> Result<(), Status> {
        if let Err(too_long) = daemon_name(&create.key) {
            let cause =
                StatusCause::of_field("metadata.name", format!("Invalid value: {too_long}"));
            return Err(self.invalid(create, cause));
        }
        self.sandbox(create).map(drop)
    }

    fn preview(&self, create: &Create) -> Value {
        let mut object = create.object.clone();
        let metadata = &mut object["metadata"];
        metadata["creationTimestamp"] = UnixTime::now().to_string().into();
        metadata["uid"] = Uuid::new_v4().to_string().into();
        object
    }

    async fn create(&self, context: &Context, create: Create) -> Result<Created<Snapshot>, Status> {
        let sandbox = self.sandbox(&create)?;
        let name = &create.key.name;
        let taken = self
            .gateway
            .create_snapshot(sandbox, name, create.quota)
            .await;
        match taken.map_err(|error| self.refused(name, &error))? {
            Progress::Done(object) => {
                warn_of_loss(context, &create.object["metadata"]);
                Ok(Created {
                    object,
                    once: Vec::new(),
                })
            }
            Progress::Going => Err(Status::timeout(
                "the snapshot is still being taken; it is listed when it is there",
            )),
        }
    }

    fn is_reserved(&self, key: &str) -> bool {
        labels::is_reserved(key)
    }

    fn validate_update(&self, _update: &Update<Snapshot>) -> Result<(), Status> {
        Err(Status::method_not_allowed(&self.definition, "update"))
    }

    async fn update(
        &self,
        _context: &Context,
        _update: Update<Snapshot>,
    ) -> Result<Arc<Stored<Snapshot>>, NotUpdated> {
        Err(Status::method_not_allowed(&self.definition, "update").into())
    }

    async fn delete(
        &self,
        _context: &Context,
        object: Arc<Stored<Snapshot>>,
        _deletion: Deletion,
    ) -> Result<Deleted<Snapshot>, NotUpdated> {
        let name = object.value.name.clone();
        let deleted = self.gateway.delete_snapshot(object).await;
        let deleted = deleted.map_err(|error| self.refused(&name, &error))?;
        Ok(Deleted::Gone(deleted))
    }

    async fn invoke(
        &self,
        _context: &Context,
        _invoke: Invoke<Snapshot>,
    ) -> Result<Invoked<Snapshot>, Status> {
        Err(Status::resource_not_found())
    }
}

/// Tells the client that a daemon keeps a name of a snapshot and nothing else.
fn warn_of_loss(context: &Context, metadata: &Value) {
    for field in ["labels", "annotations", "ownerReferences", "finalizers"] {
        let is_given = match &metadata[field] {
            Value::Object(pairs) => !pairs.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => false,
        };
        if is_given {
            context.warn(format!("metadata.{field}: not kept of a snapshot"));
        }
    }
}

/// A SandboxSnapshot.
pub(super) fn json(snapshot: &Snapshot, at: ResourceVersion) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{V1BETA1}"),
        "kind": SNAPSHOT_NAME,
        "metadata": metadata(snapshot, at),
        "spec": {"sandboxName": snapshot.sandbox.as_str()},
        "status": {
            "createdAt": snapshot.created.to_string(),
            "id": snapshot.id,
            "node": snapshot.node,
            "pool": snapshot.pool.to_string(),
            "sandboxID": snapshot.claim,
        },
    })
}

fn metadata(snapshot: &Snapshot, at: ResourceVersion) -> Value {
    let mut own = serde_json::Map::new();
    for (key, value) in [
        (labels::NODE, snapshot.node.as_str()),
        (labels::SANDBOX, snapshot.sandbox.as_str()),
    ] {
        if validate_label_value(value).is_ok() {
            own.insert(key.to_owned(), value.into());
        }
    }
    json!({
        "creationTimestamp": snapshot.created.to_string(),
        "generation": 1,
        "labels": own,
        "name": snapshot.name.as_str(),
        "namespace": snapshot.namespace.as_str(),
        "resourceVersion": at.to_string(),
        "uid": snapshot.uid().to_string(),
    })
}

fn write(out: &mut Vec<u8>, value: &Value) {
    serde_json::to_writer(out, value).expect("JSON in memory can be written");
}
