//! Pause and resume.

use std::sync::Arc;

use super::{Error, Gateway, Result, route::key_of};
use crate::{
    api::NodeAddress,
    fleet::{Now, Phase, Sandbox},
    sandboxd,
    store::Stored,
};

/// How far a call is that takes time in proportion to memory.
#[derive(Clone, Debug)]
pub enum Progress<T> {
    /// It is done.
    Done(T),
    /// It goes on without its client.
    Going,
}

type Record = Arc<Stored<Sandbox>>;

impl Gateway {
    /// Keeps a sandbox's memory and stops its VM. Of a paused one: nothing, and success.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn pause(&self, record: Record) -> Result<Progress<Record>> {
        match record.value.phase {
            Phase::Paused | Phase::Archived if !self.is_changing(&record) => {
                Ok(Progress::Done(record))
            }
            Phase::Paused | Phase::Archived => self.change_phase(record, Phase::Paused).await,
            Phase::Running | Phase::Unknown => self.change_phase(record, Phase::Paused).await,
            Phase::Failed => Err(conflict("a failed sandbox cannot be paused")),
            Phase::Expired => Err(conflict("the sandbox has expired")),
        }
    }

    /// Starts a paused sandbox again. Of a running one: nothing, and success.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn resume(&self, record: Record) -> Result<Progress<Record>> {
        match record.value.phase {
            Phase::Running if !self.is_changing(&record) => Ok(Progress::Done(record)),
            Phase::Running | Phase::Paused | Phase::Archived | Phase::Failed | Phase::Unknown => {
                self.check_open(&record.value)?;
                self.change_phase(record, Phase::Running).await
            }
            Phase::Expired => Err(conflict("the sandbox has expired")),
        }
    }

    /// Whether something may start on the sandbox's node.
    ///
    /// # Errors
    /// [`Error::Conflict`] on a node that is to be emptied.
    pub(super) fn check_open(&self, sandbox: &Sandbox) -> Result<()> {
        match self.inner.fleet.is_closed(&sandbox.node) {
            true => Err(conflict(
                "the sandbox's node is cordoned or draining: nothing starts there",
            )),
            false => Ok(()),
        }
    }

    /// Whether a call is under way after which the sandbox's phase may be another one.
    fn is_changing(&self, record: &Record) -> bool {
        self.inner.phases.under_way(&record.value.uid).is_some()
    }

    async fn change_phase(&self, record: Record, phase: Phase) -> Result<Progress<Record>> {
        let sandbox = &record.value;
        if sandbox.deleted_at.is_some() {
            return Err(conflict("the sandbox is being deleted"));
        }
        let address = self.address_of(sandbox)?;
        let call = if phase == Phase::Paused {
            "pause"
        } else {
            "resume"
        };
        let (gateway, key) = (self.clone(), sandbox.uid);
        let work = self.inner.phases.join(&self.inner.tasks, key, call, || {
            gateway.call_phase(record, address, phase, call)
        });
        let work = work.map_err(|other| conflict(&format!("a {other} is under way")))?;
        self.wait_for(work).await
    }

    async fn call_phase(
        self,
        record: Record,
        address: NodeAddress,
        phase: Phase,
        call: &'static str,
    ) -> Result<Record> {
        let sandbox = &record.value;
        let _place = self.inner.turns.begin(&sandbox.node)?;
        let daemon = self
            .inner
            .daemons
            .node(&address, self.inner.options.long_call_timeout);
        let answer = match phase {
            Phase::Paused => daemon.hibernate(&sandbox.claim).await,
            _ => daemon.wake(&sandbox.claim).await,
        };
        self.inner.metrics.called(call, answer.is_ok());
        match answer {
            Ok(()) => {
                let (node, claim) = (&sandbox.node, &sandbox.claim);
                let turns = sandbox.phase.is_suspended() != phase.is_suspended();
                let fleet = &self.inner.fleet;
                let changed = fleet.set_phase(node, claim, phase, turns, Now::read());
                if turns {
                    self.keep_user(node, claim).await;
                }
                changed.ok_or_else(|| Error::Gone {
                    node: node.clone(),
                    key: key_of(sandbox),
                })
            }
            Err(error) => Err(self.refused(sandbox, &address, error).await),
        }
    }

    /// The meaning of a refusal. Before a sandbox is called gone the node is asked for it, since a node says "not found" to a
    /// wrong token as well; and what it says then is taken over.
    pub(super) async fn refused(
        &self,
        sandbox: &Sandbox,
        address: &NodeAddress,
        error: sandboxd::Error,
    ) -> Error {
        let meaning = Error::of_call(&sandbox.node, &key_of(sandbox), error);
        if !matches!(meaning, Error::Gone { .. }) {
            return meaning;
        }
        match self.daemon(address).sandbox(&sandbox.claim).await {
            Err(sandboxd::Error::NotFound { .. }) => {
                self.inner
                    .fleet
                    .confirmed_absent(&sandbox.node, &sandbox.claim, Now::read());
                meaning
            }
            Ok(_) => conflict("the node does not act on the sandbox"),
            Err(error) => Error::of_call(&sandbox.node, &key_of(sandbox), error),
        }
    }

    /// Waits for a joint call as long as a client may wait.
    pub(super) async fn wait_for<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<Progress<T>> {
        match tokio::time::timeout(self.inner.options.patience, work).await {
            Ok(result) => result.map(Progress::Done),
            Err(_) => Ok(Progress::Going),
        }
    }
}

/// Whether the sandbox has a memory that can be copied. `before` ends the sentence about one whose memory is put away.
pub(super) fn check_copyable(sandbox: &Sandbox, before: &str, failed: &str) -> Result<()> {
    match sandbox.phase {
        Phase::Running | Phase::Paused | Phase::Unknown => Ok(()),
        Phase::Archived => Err(conflict(&format!(
            "an archived sandbox must be resumed before {before}"
        ))),
        Phase::Failed => Err(conflict(failed)),
        Phase::Expired => Err(conflict("the sandbox has expired")),
    }
}

pub(super) fn conflict(reason: &str) -> Error {
    Error::Conflict {
        reason: reason.to_owned(),
    }
}
