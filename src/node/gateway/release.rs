//! A claim given back.

use std::time::Duration;

use tokio::time::timeout;

use super::{
    Gateway,
    answer::Refusal,
    book::{Outcome, Owed, Want},
    deliver::handed_over,
    request::is_claim_id,
};
use crate::{
    api::ClaimId,
    sandboxd::{Error, SandboxRow},
};

/// How long a caller waits for an attempt. It is under way already, or begins at once, after the record's if that is under way.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

impl Gateway {
    /// Gives a claim of the namespace back, and takes away the SandboxClaim that was made for it. A repeat does nothing, and so
    /// does the id of another namespace's claim.
    ///
    /// It is owed before it is begun, and done by who works off what is owed: so it is done although the caller leaves, and never
    /// beside an attempt to record the claim, which could bring the SandboxClaim back. The object goes first: once it is being
    /// deleted, the claim controller releases the VM too, whatever becomes of this agent.
    ///
    /// # Errors
    /// [`Refusal::NotOurs`] for a sandbox that was not claimed here; [`Refusal::NotReleased`] until the daemon has confirmed that
    /// the VM is gone, and kube-apiserver that the object goes. It is tried again.
    pub(super) async fn release(&self, namespace: &str, claim: &ClaimId) -> Result<(), Refusal> {
        if !is_claim_id(claim) {
            return Ok(());
        }
        let owed = match self.daemon().sandbox(claim).await {
            Ok(sandbox) => self.claimed_here(namespace, sandbox.row)?,
            // The VM is gone, and its SandboxClaim may not be.
            Err(Error::NotFound { .. }) => {
                let owed = self.0.book.owed(claim);
                owed.filter(|owed| owed.key.namespace == namespace)
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%claim, error, "a claim that is given back cannot be read");
                return Err(Refusal::NotReleased(claim.clone()));
            }
        };
        let Some(owed) = owed else {
            return Ok(());
        };
        let ended = self.0.book.owe(owed, Want::Gone);
        match timeout(ANSWER_WITHIN, ended).await {
            Ok(Ok(Outcome::Settled)) => Ok(()),
            _ => Err(Refusal::NotReleased(claim.clone())),
        }
    }

    /// What the gateway made of a row, if that is the namespace's.
    fn claimed_here(&self, namespace: &str, row: SandboxRow) -> Result<Option<Owed>, Refusal> {
        let key = row.claim_ref.split_once('/');
        if key.is_none_or(|(of, _)| of != namespace) {
            return Ok(None);
        }
        // A daemon that keeps no metadata has its claims only in the book.
        if let Some(owed) = self.0.book.owed(&row.id) {
            return Ok(Some(owed));
        }
        let Some((key, warm_pool)) = handed_over(&row.claim_ref, &row.metadata) else {
            return Err(Refusal::NotOurs(row.id));
        };
        Ok(Some(Owed {
            key,
            warm_pool,
            delivery: self.delivery(row.id),
            is_orphan: false,
        }))
    }
}
