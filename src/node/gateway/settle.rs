//! VMs that nobody was told of, given back.

use std::time::Duration;

use tokio::time::sleep;

use super::{Gateway, request::Order};
use crate::{
    api::{ClaimId, Delivery, labels},
    feed::{Backoff, Reservation},
    sandboxd::SandboxRow,
};

/// Pauses before the questions what the daemon granted, after an answer that was lost. A daemon may work on a claim for a while
/// after its client hung up; a cold boot, the slowest there is, is given up by it after 90 s.
const QUESTIONS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_secs(2),
    Duration::from_secs(15),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

impl Gateway {
    pub(super) fn delivery(&self, claim: ClaimId) -> Delivery {
        Delivery {
            node: self.0.node.clone(),
            claim,
        }
    }

    /// Finds out whether the daemon granted a claim whose answer was lost, and gives the VM back. Until then the name stays
    /// reserved, and nothing of it is told to anybody.
    pub(super) async fn settle(&self, order: &Order, reservation: Reservation) {
        let claim_ref = order.key.to_string();
        for pause in QUESTIONS {
            sleep(pause).await;
            let mut backoff = Backoff::default();
            let rows = loop {
                match self.daemon().sandboxes_of(&claim_ref).await {
                    Ok(rows) => break rows,
                    Err(_) => sleep(backoff.pause()).await,
                }
            };
            // An attempt is granted once.
            if let Some(row) = rows.iter().find(|row| is_of(order, row)) {
                self.release_surely(&row.id).await;
                break;
            }
        }
        drop(reservation);
    }

    /// Gives back a VM whose caller left.
    pub(super) async fn give_back(&self, claim: ClaimId, reservation: Reservation) {
        self.release_surely(&claim).await;
        drop(reservation);
        self.0.board.look_soon();
    }

    async fn release_surely(&self, claim: &ClaimId) {
        let mut backoff = Backoff::default();
        while !self.is_released(claim).await {
            sleep(backoff.pause()).await;
        }
        self.0.board.released(claim);
    }

    /// Releases a VM; whether it is known to be gone.
    pub(super) async fn is_released(&self, claim: &ClaimId) -> bool {
        match self.daemon().release(claim).await {
            Ok(_) => true,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%claim, error, "a claim is not released, which is tried again");
                false
            }
        }
    }
}

/// Whether this attempt made the claim. One of a daemon that keeps no metadata is nobody's to tell, and is left to its lease.
fn is_of(order: &Order, row: &SandboxRow) -> bool {
    row.metadata.get(labels::ATTEMPT) == Some(&order.attempt)
}
