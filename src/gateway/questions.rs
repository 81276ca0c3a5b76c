//! What only the node knows of a sandbox, asked when it is wanted and kept nowhere.

use super::{Error, Gateway, Result, lifecycle::conflict};
use crate::{
    api::{NodeAddress, Token},
    fleet::{Phase, Sandbox},
    sandboxd::{self, Stats},
};

/// The node knows nothing of a sandbox whose lease is over.
pub(super) fn check_alive(sandbox: &Sandbox) -> Result<()> {
    match sandbox.phase {
        Phase::Expired => Err(conflict("the sandbox has expired")),
        _ => Ok(()),
    }
}

/// The credential that a node gave of a sandbox, as one with an API token does.
pub(super) fn credential(sandbox: &Sandbox, given: Option<Token>) -> Result<Token> {
    given.ok_or_else(|| Error::NoCredential {
        node: sandbox.node.clone(),
    })
}

impl Gateway {
    /// What the sandbox uses now.
    ///
    /// # Errors
    /// See [`super::Error`].
    pub async fn stats(&self, sandbox: &Sandbox) -> Result<Stats> {
        check_alive(sandbox)?;
        let address = self.address_of(sandbox)?;
        let answer = self.daemon(&address).stats(&sandbox.claim).await;
        self.answered(sandbox, &address, "stats", answer).await
    }

    /// The sandbox's credential.
    ///
    /// # Errors
    /// See [`super::Error`].
    pub async fn token(&self, sandbox: &Sandbox) -> Result<Token> {
        check_alive(sandbox)?;
        let address = self.address_of(sandbox)?;
        let answer = self.daemon(&address).sandbox(&sandbox.claim).await;
        let found = self.answered(sandbox, &address, "token", answer).await?;
        credential(sandbox, found.token)
    }

    pub(super) async fn answered<T>(
        &self,
        sandbox: &Sandbox,
        address: &NodeAddress,
        call: &'static str,
        answer: sandboxd::Result<T>,
    ) -> Result<T> {
        if let Err(error) = &answer {
            self.suspect_if_silent(&sandbox.node, error);
        }
        self.let_in(sandbox, address, call, answer).await
    }
}
