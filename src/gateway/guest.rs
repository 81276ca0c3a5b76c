//! Into a running sandbox: commands and the guest's agent, under the sandbox's own credential.

use std::time::Duration;

use super::{
    Gateway, Result,
    lifecycle::conflict,
    questions::{check_alive, credential},
};
use crate::{
    api::{NodeAddress, Token},
    fleet::{Phase, Sandbox},
    sandboxd::{self, ExecReply, ExecRequest, Guest},
};

/// A daemon that is asked to do something in a paused sandbox wakes it, and the object would go on to say Suspended.
const PAUSED: &str = "the sandbox is suspended: resume it first";

/// What opens a sandbox. Asked for with each call, and kept no longer.
#[derive(Debug)]
pub struct Entry {
    address: NodeAddress,
    token: Token,
}

impl Gateway {
    /// What opens a sandbox that runs, as its node says now.
    ///
    /// # Errors
    /// See [`super::Error`]; a conflict when the sandbox does not run. It is not woken.
    pub async fn entry(&self, sandbox: &Sandbox) -> Result<Entry> {
        check_alive(sandbox)?;
        match sandbox.phase {
            Phase::Failed => return Err(conflict("the sandbox has failed")),
            phase if phase.is_suspended() => return Err(conflict(PAUSED)),
            _ => {}
        }
        self.check_settled(sandbox)?;
        let address = self.address_of(sandbox)?;
        let answer = self.daemon(&address).sandbox(&sandbox.claim).await;
        let found = self.answered(sandbox, &address, "entry", answer).await?;
        // What was begun meanwhile, the answer may not show yet.
        self.check_settled(sandbox)?;
        if found.row.hibernated || found.row.archived {
            return Err(conflict(PAUSED));
        }
        let token = credential(sandbox, found.token)?;
        Ok(Entry { address, token })
    }

    /// Runs a command to its end, which has to come `within` so long. Never repeated.
    ///
    /// # Errors
    /// See [`super::Error`]; [`super::Error::OutcomeUnknown`] also when it took too long.
    pub async fn exec(
        &self,
        sandbox: &Sandbox,
        entry: &Entry,
        request: &ExecRequest,
        within: Duration,
    ) -> Result<ExecReply> {
        self.check_settled(sandbox)?;
        let daemon = self.inner.daemons.node(&entry.address, within);
        let answer = daemon.exec(&sandbox.claim, &entry.token, request).await;
        self.let_in(sandbox, &entry.address, "exec", answer).await
    }

    /// A connection to the guest's agent, for one request.
    ///
    /// # Errors
    /// See [`super::Error`].
    pub async fn guest(&self, sandbox: &Sandbox, entry: &Entry) -> Result<Guest> {
        self.check_settled(sandbox)?;
        let daemon = self.daemon(&entry.address);
        let answer = daemon.guest(&sandbox.claim, &entry.token).await;
        self.let_in(sandbox, &entry.address, "guest", answer).await
    }

    /// Whether nothing is under way after which the sandbox may not run. Let in then, a call would wake what is about to be put away.
    fn check_settled(&self, sandbox: &Sandbox) -> Result<()> {
        match self.inner.phases.under_way(&sandbox.uid) {
            Some(call) => Err(conflict(&format!("a {call} is under way"))),
            None => Ok(()),
        }
    }

    /// As [`Self::answered`], but for a guest that keeps its caller waiting its node is not suspected.
    pub(super) async fn let_in<T>(
        &self,
        sandbox: &Sandbox,
        address: &NodeAddress,
        call: &'static str,
        answer: sandboxd::Result<T>,
    ) -> Result<T> {
        self.inner.metrics.called(call, answer.is_ok());
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.refused(sandbox, address, error).await),
        }
    }
}
