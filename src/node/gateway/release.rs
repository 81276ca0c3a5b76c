//! A claim given back.

use std::time::Duration;

use tokio::time::timeout;

use super::{
    Gateway,
    answer::Refusal,
    book::{Owed, Want},
    request::is_claim_id,
};
use crate::{
    api::{ClaimId, SandboxKey, labels},
    sandboxd::{Error, SandboxRow},
};

/// How long the VM of a claim is kept for kube-apiserver to note that its object goes.
const NOTED_WITHIN: Duration = Duration::from_secs(2);

impl Gateway {
    /// Gives a claim of the namespace back, and takes away the SandboxClaim that was made for it. A repeat does nothing, and so
    /// does the id of another namespace's claim.
    ///
    /// The object goes first: once it is being deleted, the claim controller releases the VM too, whatever becomes of this agent.
    ///
    /// # Errors
    /// [`Refusal::NotOurs`] for a sandbox that was not claimed here; [`Refusal::NotReleased`] when the daemon has not confirmed
    /// it, which is tried again.
    pub(super) async fn release(&self, namespace: &str, claim: &ClaimId) -> Result<(), Refusal> {
        if !is_claim_id(claim) {
            return Ok(());
        }
        let owed = match self.daemon().sandbox(claim).await {
            Ok(sandbox) => self.claimed_here(namespace, sandbox.row)?,
            Err(Error::NotFound { .. }) => None,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%claim, error, "a claim that is given back cannot be read");
                return Err(Refusal::NotReleased(claim.clone()));
            }
        };
        let Some(owed) = owed else {
            return Ok(());
        };
        self.0.book.forgo(claim);
        let withdrawn = timeout(NOTED_WITHIN, self.0.book.records().withdraw(&owed)).await;
        let noted = matches!(withdrawn, Ok(Ok(())));
        let released = self.is_released(claim).await;
        self.0.board.look_soon();
        if !(noted && released) {
            self.0.book.owe(owed, Want::Gone);
        }
        match released {
            true => Ok(()),
            false => Err(Refusal::NotReleased(claim.clone())),
        }
    }

    /// What the gateway made of a row, if that is the namespace's.
    fn claimed_here(&self, namespace: &str, row: SandboxRow) -> Result<Option<Owed>, Refusal> {
        let key = row.claim_ref.split_once('/');
        let Some((_, name)) = key.filter(|(of, _)| *of == namespace) else {
            return Ok(None);
        };
        // A daemon that keeps no metadata has its claims only in the book.
        let kept = row.metadata.get(labels::WARM_POOL).cloned();
        let warm_pool = kept.or_else(|| self.0.book.warm_pool_of(&row.id));
        let Some(warm_pool) = warm_pool else {
            return Err(Refusal::NotOurs(row.id));
        };
        Ok(Some(Owed {
            key: SandboxKey::new(namespace, name),
            warm_pool,
            delivery: self.delivery(row.id),
            is_orphan: false,
        }))
    }
}
