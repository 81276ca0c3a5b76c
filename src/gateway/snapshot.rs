//! Snapshots: checkpoints of a running sandbox, on its node.

use std::sync::Arc;

use super::{Error, Gateway, Progress, Result, lifecycle::conflict, route::is_silence};
use crate::{
    api::{NodeAddress, NodeName, SandboxKey},
    fleet::{Phase, Sandbox},
    meta::UnixTime,
    sandboxd,
    snapshots::{Snapshot, daemon_name},
    store::{Key, Stored},
};

impl Gateway {
    /// Takes a snapshot under a name in the sandbox's namespace, and lists it. The sandbox keeps running. A client that asks again
    /// for the same while it is taken joins; one that asks again afterwards gets the snapshot that is there.
    ///
    /// # Errors
    /// See [`super::Error`].
    pub async fn snapshot(
        &self,
        record: Arc<Stored<Sandbox>>,
        name: &str,
    ) -> Result<Progress<Arc<Stored<Snapshot>>>> {
        let sandbox = &record.value;
        let key = Key::new(sandbox.namespace.clone(), name);
        let for_daemon = daemon_name(&key)?;
        if let Some(known) = self.known_snapshot(sandbox, &key)? {
            return Ok(Progress::Done(known));
        }
        match sandbox.phase {
            Phase::Running | Phase::Paused | Phase::Unknown => {}
            Phase::Archived => {
                return Err(conflict(
                    "an archived sandbox must be resumed before a snapshot",
                ));
            }
            Phase::Failed => return Err(conflict("no snapshot can be taken of a failed sandbox")),
            Phase::Expired => return Err(conflict("the sandbox has expired")),
        }
        let address = self.address_of(sandbox)?;
        let (gateway, call) = (self.clone(), (sandbox.claim.clone(), key.clone()));
        let checkpoints = &self.inner.checkpoints;
        let work = checkpoints.join(&self.inner.tasks, call, "snapshot", || {
            gateway.call_snapshot(record, address, key, for_daemon)
        });
        let work = work.map_err(|other| conflict(&format!("a {other} is under way")))?;
        self.wait_for(work).await
    }

    /// The sandbox's snapshot of that name, if it is there already.
    fn known_snapshot(
        &self,
        sandbox: &Sandbox,
        key: &Key,
    ) -> Result<Option<Arc<Stored<Snapshot>>>> {
        let known = self.inner.snapshots.store().get(&key.namespace, &key.name);
        match known {
            Some(other) if other.value.claim != sandbox.claim => Err(taken(key)),
            known => Ok(known),
        }
    }

    async fn call_snapshot(
        self,
        record: Arc<Stored<Sandbox>>,
        address: NodeAddress,
        key: Key,
        name: String,
    ) -> Result<Arc<Stored<Snapshot>>> {
        let sandbox = &record.value;
        let (node, snapshots) = (&sandbox.node, &self.inner.snapshots);
        if let Some(known) = self.known_snapshot(sandbox, &key)? {
            return Ok(known);
        }
        let reserved = snapshots.reserve(key.clone());
        let reserved = reserved.map_err(|_| taken(&key))?;
        let list = |record| snapshots.taken(&reserved, node, &record, UnixTime::now());
        // One whose answer was lost may be there already.
        if let Ok(checkpoints) = self.daemon(&address).checkpoints().await
            && let Some(taken) = checkpoints.into_iter().find(|known| {
                known.sandbox_id == sandbox.claim && known.name.as_ref() == Some(&name)
            })
        {
            return Ok(list(taken));
        }
        let daemon = self
            .inner
            .daemons
            .node(&address, self.inner.options.long_call_timeout);
        let answer = daemon.checkpoint(&sandbox.claim, Some(&name)).await;
        self.inner.metrics.called("snapshot", answer.is_ok());
        match answer {
            Ok(taken) => Ok(list(taken)),
            Err(error) => {
                if error.outcome_unknown() {
                    snapshots.ask_soon(node);
                }
                Err(self.refused(sandbox, &address, error).await)
            }
        }
    }

    /// Deletes a snapshot from every node that is known to have it, and gives its last state. What a node does not confirm stays listed.
    ///
    /// # Errors
    /// See [`super::Error`].
    pub async fn delete_snapshot(
        &self,
        record: Arc<Stored<Snapshot>>,
    ) -> Result<Arc<Stored<Snapshot>>> {
        let (gateway, snapshot) = (self.clone(), record.value.clone());
        let deleted = self.inner.tasks.spawn(async move {
            let mut last = None;
            for node in gateway.inner.snapshots.holders(&snapshot.id) {
                last = gateway.call_delete(&node, &snapshot).await?.or(last);
            }
            Ok(last)
        });
        let last = deleted.await.unwrap_or(Err(Error::Ending))?;
        // Whoever deleted it at the same time took the last state.
        Ok(last.unwrap_or(record))
    }

    async fn call_delete(
        &self,
        node: &NodeName,
        snapshot: &Snapshot,
    ) -> Result<Option<Arc<Stored<Snapshot>>>> {
        let address = self.inner.fleet.address(node);
        let address = address.ok_or_else(|| Error::NoAddress { node: node.clone() })?;
        let answer = self.daemon(&address).delete_checkpoint(&snapshot.id).await;
        let is_gone = matches!(answer, Ok(()) | Err(sandboxd::Error::NotFound { .. }));
        self.inner.metrics.called("delete_snapshot", is_gone);
        match answer {
            Ok(()) | Err(sandboxd::Error::NotFound { .. }) => {
                Ok(self.inner.snapshots.deleted(node, &snapshot.id))
            }
            Err(error) => {
                if !is_silence(&error) {
                    self.inner.snapshots.ask_soon(node);
                }
                self.suspect_if_silent(node, &error);
                let key = SandboxKey::new(snapshot.namespace.clone(), snapshot.sandbox.clone());
                Err(Error::of_call(node, &key, error))
            }
        }
    }
}

fn taken(key: &Key) -> Error {
    Error::SnapshotNameTaken {
        name: key.name.to_string(),
    }
}
