//! Snapshots: checkpoints of a running sandbox, on its node.

use std::sync::Arc;

use super::{
    Error, Gateway, Progress, Result,
    lifecycle::{check_copyable, conflict},
    route::breaks_off,
    settle::SETTLED_AFTER,
};
use crate::{
    admission::QuotaReservation,
    api::{ClaimId, NodeAddress, NodeName, SandboxKey},
    fleet::Sandbox,
    meta::UnixTime,
    sandboxd::{self, CheckpointRecord},
    snapshots::{Snapshot, daemon_name},
    store::{Key, Stored},
};

impl Gateway {
    /// Takes a snapshot under a name in the sandbox's namespace, and lists it. The sandbox keeps running. A client that asks again
    /// for the same while it is taken joins; one that asks again afterwards gets the snapshot that is there. `quota` is kept until
    /// it is listed, or can come no more.
    ///
    /// # Errors
    /// See [`super::Error`].
    pub async fn snapshot(
        &self,
        record: Arc<Stored<Sandbox>>,
        name: &str,
        quota: QuotaReservation,
    ) -> Result<Progress<Arc<Stored<Snapshot>>>> {
        let key = Key::new(record.value.namespace.clone(), name);
        if let Some(known) = self.known_snapshot(&record.value, &key)? {
            return Ok(Progress::Done(known));
        }
        let (work, _) = self.begin_snapshot(record, key, quota)?;
        self.wait_for(work).await
    }

    /// As [`Gateway::snapshot`], for a snapshot that is not there yet and that nobody else is taking.
    ///
    /// # Errors
    /// See [`super::Error`].
    pub async fn create_snapshot(
        &self,
        record: Arc<Stored<Sandbox>>,
        name: &str,
        quota: QuotaReservation,
    ) -> Result<Progress<Arc<Stored<Snapshot>>>> {
        let key = Key::new(record.value.namespace.clone(), name);
        if self.known_snapshot(&record.value, &key)?.is_some() {
            return Err(taken(&key));
        }
        let (work, is_ours) = self.begin_snapshot(record, key.clone(), quota)?;
        match is_ours {
            true => self.wait_for(work).await,
            false => Err(taken(&key)),
        }
    }

    /// The call that takes a snapshot, and whether this began it.
    fn begin_snapshot(
        &self,
        record: Arc<Stored<Sandbox>>,
        key: Key,
        quota: QuotaReservation,
    ) -> Result<(
        impl Future<Output = Result<Arc<Stored<Snapshot>>>> + use<>,
        bool,
    )> {
        let sandbox = &record.value;
        let for_daemon = daemon_name(&key)?;
        if sandbox.deleted_at.is_some() {
            return Err(conflict("the sandbox is being deleted"));
        }
        check_copyable(
            sandbox,
            "a snapshot",
            "no snapshot can be taken of a failed sandbox",
        )?;
        let address = self.address_of(sandbox)?;
        let (gateway, call) = (self.clone(), (sandbox.uid, key.clone()));
        let (checkpoints, mut is_ours) = (&self.inner.checkpoints, false);
        let work = checkpoints.join(&self.inner.tasks, call, "snapshot", || {
            is_ours = true;
            gateway.call_snapshot(record, address, key, for_daemon, quota)
        });
        let work = work.map_err(|other| conflict(&format!("a {other} is under way")))?;
        Ok((work, is_ours))
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
        quota: QuotaReservation,
    ) -> Result<Arc<Stored<Snapshot>>> {
        let sandbox = &record.value;
        let (node, snapshots) = (&sandbox.node, &self.inner.snapshots);
        if let Some(known) = self.known_snapshot(sandbox, &key)? {
            return Ok(known);
        }
        let reserved = snapshots.reserve(key.clone());
        let reserved = reserved.map_err(|_| taken(&key))?;
        let _place = self.inner.copies.begin(node)?;
        let list = |record| snapshots.taken(&reserved, node, &record, UnixTime::now());
        // One whose answer was lost may be there already.
        if let Some(taken) = self.find_checkpoint(&address, &sandbox.claim, &name).await {
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
                if breaks_off(&error)
                    && let Some(taken) = self.find_checkpoint(&address, &sandbox.claim, &name).await
                {
                    return Ok(list(taken));
                }
                if error.outcome_unknown() {
                    snapshots.ask_soon(node);
                    // It may still come: until then its name is nobody else's, and it counts.
                    self.spawn_until_shutdown(async move {
                        let _held = (reserved, quota);
                        tokio::time::sleep(SETTLED_AFTER).await;
                    });
                }
                Err(self.refused(sandbox, &address, error).await)
            }
        }
    }

    /// The checkpoint of a claim under a name, if the node says at once that there is one.
    async fn find_checkpoint(
        &self,
        address: &NodeAddress,
        claim: &ClaimId,
        name: &str,
    ) -> Option<CheckpointRecord> {
        let checkpoints = self.daemon(address).checkpoints().await.ok()?;
        let is_it = |known: &CheckpointRecord| {
            known.sandbox_id == *claim && known.name.as_deref() == Some(name)
        };
        checkpoints.into_iter().find(is_it)
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
        let answer = match answer {
            // Asked whether it is there, a node that did it says so.
            Err(error) if breaks_off(&error) => {
                let left = self.daemon(&address).checkpoints().await;
                let is_left =
                    |left: Vec<CheckpointRecord>| left.iter().any(|known| known.id == snapshot.id);
                match left.map(is_left) {
                    Ok(false) => Ok(()),
                    _ => Err(error),
                }
            }
            answer => answer,
        };
        let is_gone = matches!(answer, Ok(()) | Err(sandboxd::Error::NotFound { .. }));
        self.inner.metrics.called("delete_snapshot", is_gone);
        match answer {
            Ok(()) | Err(sandboxd::Error::NotFound { .. }) => {
                Ok(self.inner.snapshots.deleted(node, &snapshot.id))
            }
            Err(error) => {
                if error.outcome_unknown() {
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
