//! What becomes of claims whose node did not say what it did.

use std::time::Duration;

use super::claim::{Claim, Winner};
use crate::api::{ClaimId, NodeAddress, NodeName};

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

impl Claim {
    /// Asks the nodes that left their answer open, and releases what they granted beside the winner. The name stays reserved
    /// for as long.
    ///
    /// A node that never answers is left: what it granted shows up under the name once the node is heard of again.
    pub(super) async fn settle(&self, winner: Option<Winner>) {
        let questions = self
            .unsettled
            .iter()
            .map(|(node, address)| self.settle_with(node, address, winner.as_ref()));
        futures::future::join_all(questions).await;
    }

    async fn settle_with(&self, node: &NodeName, address: &NodeAddress, winner: Option<&Winner>) {
        for pause in PAUSES {
            let ending = &self.gateway().inner.shutdown;
            if ending
                .run_until_cancelled(tokio::time::sleep(pause))
                .await
                .is_none()
            {
                return;
            }
            let rows = match self
                .gateway()
                .daemon(address)
                .sandboxes_of(&self.request.claim_ref)
                .await
            {
                Ok(rows) => rows,
                Err(error) => {
                    tracing::debug!(%node, error = &error as &dyn std::error::Error, "a node cannot say what it granted");
                    continue;
                }
            };
            let is_winner =
                |id: &ClaimId| winner.is_some_and(|(of, claim)| of == node && claim == id);
            let doubles: Vec<_> = rows
                .into_iter()
                .filter(|row| self.is_ours(&row.metadata) && !is_winner(&row.id))
                .collect();
            if doubles.is_empty() {
                continue;
            }
            for double in doubles {
                tracing::info!(%node, claim = %double.id, name = %self.name.key(), "releasing a grant whose answer was lost");
                self.gateway().inner.metrics.doubles_released.inc();
                self.gateway().release_unlisted(node.clone(), double.id);
            }
            return;
        }
    }
}
