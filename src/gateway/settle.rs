//! What becomes of claims whose node did not say what it did.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Gateway,
    attempt::{Reference, made_by},
    claim::{Claim, Winner},
    lease,
};
use crate::{
    api::{NodeAddress, NodeName},
    fleet::REAP_GRACE,
    sandboxd::{self, SandboxRow},
};

/// Pauses between the questions to one node. A daemon may work on a claim for a while after its client hung up, so a "no"
/// counts only once the last pause is over; a cold boot, the slowest there is, is given up by the daemon after 90 s.
const PAUSES: [Duration; 7] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
];
/// How long a daemon may still work on another call whose client hung up; about all of [`PAUSES`].
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(100);
/// Time between two questions to a node that answered none of these.
const LATER: Duration = Duration::from_secs(30);

/// What is asked about one claim.
struct Question {
    gateway: Gateway,
    claim_ref: String,
    /// Whether the reference is in the claim's metadata.
    of_checkpoint: bool,
    attempt: String,
    /// The grant that the client got.
    winner: Option<Winner>,
}

impl Claim {
    /// Asks the nodes that left their answer open, and releases what they granted beside the winner. The name stays reserved
    /// while an answer may be expected soon.
    ///
    /// A node that says nothing for so long is asked until the lease that it may have granted is over. For as long no claim
    /// that turns up takes the name away from whoever has it.
    pub(super) async fn settle(self, winner: Option<Winner>) {
        let lease_ends = Instant::now() + lease::granted(self.ttl()) + REAP_GRACE;
        let question = Question {
            gateway: self.gateway().clone(),
            claim_ref: self.request.claim_ref.clone(),
            of_checkpoint: self.is_of_checkpoint(),
            attempt: self.attempt_id().to_owned(),
            winner,
        };
        let nodes = self.unsettled.iter();
        let settled = nodes.map(|(node, address)| question.settle_with(node, address));
        let settled = futures::future::join_all(settled).await;
        let nodes = self.unsettled.iter().zip(settled);
        let open: Vec<_> = nodes.filter(|(_, settled)| !settled).collect();
        if open.is_empty() {
            return;
        }
        let Ok(_place) = question.gateway.inner.lost_attempts.try_acquire() else {
            tracing::warn!(name = %self.name.key(), "too many nodes are silent: one is not asked any more what it granted");
            return;
        };
        let _kept = self.name.keep();
        drop(self.name);
        let answers = open
            .iter()
            .map(|((node, _), _)| question.await_answer(node));
        let answers = futures::future::join_all(answers);
        let _ = tokio::time::timeout_at(lease_ends, answers).await;
    }
}

impl Question {
    /// Whether the node has said the last word.
    async fn settle_with(&self, node: &NodeName, address: &NodeAddress) -> bool {
        let mut denied = false;
        for pause in PAUSES {
            let is_last = self.ends_within(pause).await;
            match self.ask(node, address, true).await {
                Ok(true) => return true,
                Ok(false) => denied = true,
                Err(error) => {
                    tracing::debug!(%node, error = &error as &dyn std::error::Error, "a node cannot say what it granted");
                    denied = false;
                }
            }
            if is_last {
                return true;
            }
        }
        denied
    }

    /// Asks a node that is silent until it answers, or is none of ours any more.
    async fn await_answer(&self, node: &NodeName) {
        loop {
            let is_last = self.ends_within(LATER).await;
            let Some(address) = self.gateway.inner.fleet.address(node) else {
                return;
            };
            if self.ask(node, &address, false).await.is_ok() || is_last {
                return;
            }
        }
    }

    /// Waits; whether this server is ending, so that the next question is the last one.
    async fn ends_within(&self, pause: Duration) -> bool {
        let ending = &self.gateway.inner.shutdown;
        let waited = ending.run_until_cancelled(tokio::time::sleep(pause)).await;
        waited.is_none()
    }

    /// Asks once, and releases what the node granted beside the winner; whether it granted anything.
    async fn ask(
        &self,
        node: &NodeName,
        address: &NodeAddress,
        holds_name: bool,
    ) -> sandboxd::Result<bool> {
        let daemon = self.gateway.daemon(address);
        let reference = match self.of_checkpoint {
            true => Reference::InMetadata(&self.claim_ref),
            false => Reference::OfItsOwn(&self.claim_ref),
        };
        let rows = reference.claims(daemon).await?;
        let granted = made_by(&self.attempt, rows, holds_name);
        let is_winner = |row: &SandboxRow| {
            let winner = self.winner.as_ref();
            winner.is_some_and(|(of, claim)| of == node && *claim == row.id)
        };
        let doubles: Vec<_> = granted.into_iter().filter(|row| !is_winner(row)).collect();
        for double in &doubles {
            tracing::info!(%node, claim = %double.id, name = %self.claim_ref, "releasing a grant whose answer was lost");
            self.gateway.inner.metrics.doubles_released.inc();
            self.gateway
                .release_unlisted(node.clone(), double.id.clone(), None);
        }
        Ok(!doubles.is_empty())
    }
}
