//! The resource `sandboxes`: reads from the index, writes through the gateway.

use std::{borrow::Cow, sync::Arc};

use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    definition::{ACTIONS, Action},
    encode,
    error::status,
    order::{order, warn_of_end, warn_of_loss},
    subresource, update,
    versions::{self, ApiVersion},
};
use crate::{
    api::labels,
    apiserver::{
        Context, Create, Created, Definition, Deleted, Deletion, Invoke, Invoked, NotUpdated,
        Resource, Status, Update,
    },
    fleet::{Fleet, Now, Sandbox},
    gateway::{Gateway, Released},
    meta::{ResourceVersion, UnixTime},
    store::{Store, Stored},
};

/// The resource.
#[derive(Debug)]
pub struct Sandboxes {
    pub(super) definition: Definition,
    pub(super) fleet: Arc<Fleet>,
    pub(super) gateway: Gateway,
}

impl Sandboxes {
    /// The resource over an index and the gateway to its nodes.
    pub fn new(definition: Definition, fleet: Arc<Fleet>, gateway: Gateway) -> Self {
        Self {
            definition,
            fleet,
            gateway,
        }
    }
}

impl Resource for Sandboxes {
    type Object = Sandbox;

    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn store(&self) -> &Store<Sandbox> {
        self.fleet.store()
    }

    fn encode(&self, object: &Sandbox, at: ResourceVersion, version: usize, out: &mut Vec<u8>) {
        encode::object(object, at, ApiVersion::ALL[version], out);
    }

    fn encode_metadata(&self, object: &Sandbox, at: ResourceVersion, out: &mut Vec<u8>) {
        encode::metadata(object, at, out);
    }

    fn encode_cells(&self, object: &Sandbox, _version: usize, now: UnixTime, out: &mut Vec<u8>) {
        encode::cells(object, now, out);
    }

    fn convert(&self, object: &mut Value, from: usize, to: usize) {
        versions::convert(object, ApiVersion::ALL[from], ApiVersion::ALL[to]);
    }

    fn label<'a>(&self, object: &'a Sandbox, key: &str) -> Option<Cow<'a, str>> {
        encode::label(object, key)
    }

    fn field<'a>(&self, object: &'a Sandbox, path: &str) -> Option<Cow<'a, str>> {
        (path == "status.nodeName").then(|| object.node.as_str().into())
    }

    fn uid(&self, object: &Sandbox) -> String {
        object.uid.to_string()
    }

    fn is_deleted(&self, object: &Sandbox) -> bool {
        object.deleted_at.is_some()
    }

    fn validate_create(&self, create: &Create) -> Result<(), Status> {
        order(self, create, UnixTime::now()).map(|_| ())
    }

    fn preview(&self, create: &Create) -> Value {
        let mut object = create.object.clone();
        let metadata = &mut object["metadata"];
        metadata["creationTimestamp"] = UnixTime::now().to_string().into();
        metadata["generation"] = 1.into();
        metadata["uid"] = Uuid::new_v4().to_string().into();
        object
    }

    async fn create(&self, context: &Context, create: Create) -> Result<Created<Sandbox>, Status> {
        let order = order(self, &create, UnixTime::now())?;
        let (ttl, has_end) = (order.ttl, order.user.shutdown_time.is_some());
        let claimed = self.gateway.claim(order, create.quota).await;
        let claimed =
            claimed.map_err(|error| status(&self.definition, &create.key.name, &error))?;
        let Sandbox { node, claim, .. } = &claimed.record.value;
        let kept = self.gateway.keep_user(node, claim).await;
        warn_of_loss(self, context, &claimed.record, kept);
        if let Some(deadline) = claimed.record.value.deadline.filter(|_| !has_end) {
            warn_of_end(context, ttl, deadline);
        }
        let once = vec![(labels::TOKEN.to_owned(), claimed.token.expose().to_owned())];
        Ok(Created {
            object: claimed.record,
            once,
        })
    }

    fn is_reserved(&self, key: &str) -> bool {
        labels::is_reserved(key)
    }

    fn validate_update(&self, update: &Update<Sandbox>) -> Result<(), Status> {
        update::validate(self, update)
    }

    async fn update(
        &self,
        context: &Context,
        update: Update<Sandbox>,
    ) -> Result<Arc<Stored<Sandbox>>, NotUpdated> {
        update::update(self, context, update).await
    }

    async fn delete(
        &self,
        _context: &Context,
        object: Arc<Stored<Sandbox>>,
        deletion: Deletion,
    ) -> Result<Deleted<Sandbox>, NotUpdated> {
        let refused = |error| self.refused(&object.value, &error);
        let may_begin = self.gateway.check_release(&object.value);
        may_begin.map_err(refused)?;
        let finalizers = |known: &[_]| deletion.dependents.finalizers(known);
        let fleet = &self.fleet;
        let begun = fleet.begin_delete(&object, deletion.exact, finalizers, Now::read());
        let begun = begun.map_err(|_| NotUpdated::Overtaken)?;
        let released = self
            .gateway
            .release(begun.unwrap_or_else(|| object.clone()));
        match released.await.map_err(refused)? {
            Released::Gone(last) => Ok(Deleted::Gone(last)),
            Released::Pending(object) => Ok(Deleted::Pending(object)),
        }
    }

    async fn invoke(
        &self,
        context: &Context,
        invoke: Invoke<Sandbox>,
    ) -> Result<Invoked<Sandbox>, Status> {
        if self.is_deleted(&invoke.object.value) {
            let name = &invoke.object.value.name;
            let reason = "the sandbox is being deleted";
            return Err(Status::conflict(&self.definition, name, reason));
        }
        match ACTIONS[invoke.subresource] {
            Action::Pause => subresource::pause(self, invoke).await,
            Action::Resume => subresource::resume(self, invoke).await,
            Action::Fork => subresource::fork(self, context, invoke).await,
            Action::Snapshot => subresource::snapshot(self, context, invoke).await,
            Action::Promote => subresource::promote(self, invoke).await,
            Action::Token => subresource::token(self, invoke).await,
            Action::Stats => subresource::stats(self, invoke).await,
        }
    }
}

impl Sandboxes {
    /// The object as JSON, to build an answer of.
    pub(super) fn json(&self, object: &Sandbox, at: ResourceVersion) -> Value {
        serde_json::from_slice(&self.text(object, at)).unwrap_or_else(|_| json!({}))
    }

    /// As [`Self::json`], as text.
    pub(super) fn text(&self, object: &Sandbox, at: ResourceVersion) -> Vec<u8> {
        let mut out = Vec::new();
        encode::object(object, at, ApiVersion::V1beta1, &mut out);
        out
    }

    /// What a failed call means to the client.
    pub(super) fn refused(&self, object: &Sandbox, error: &crate::gateway::Error) -> Status {
        status(&self.definition, &object.name, error)
    }
}
