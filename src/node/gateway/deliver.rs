//! A claim: from what a caller may have to a VM that is handed over.

use std::time::Instant;

use tokio::sync::oneshot;

use super::{
    CLAIM_WITHIN, Gateway,
    answer::{Granted, Refusal},
    book::{Owed, Want},
    request::Order,
};
use crate::{
    api::labels,
    feed::{Reservation, Row, State, Unreserved},
    meta::UnixTime,
    sandboxd::{self, ClaimReply, ClaimRequest, Claimed},
};

type Answer = Result<Granted, Refusal>;

impl Gateway {
    /// Hands over a warm VM under a name.
    ///
    /// Dropping the future, as when the caller leaves, gives back what is granted afterwards.
    ///
    /// # Errors
    /// [`Refusal::NameTaken`] and [`Refusal::Fallback`]: the caller has nothing.
    pub(super) async fn claim(&self, order: Order) -> Answer {
        let begun = Instant::now();
        if self.0.tasks.is_closed() {
            return Err(Refusal::fallback("the agent is ending"));
        }
        if self.0.book.is_full() {
            return Err(Refusal::fallback(
                "too many claims of the node wait for their record",
            ));
        }
        let claim_ref = order.key.to_string();
        let reserved = self.0.board.reserve(&claim_ref, &order.pool);
        let reservation = reserved.map_err(|unreserved| match unreserved {
            Unreserved::NameTaken => Refusal::NameTaken {
                key: order.key.clone(),
            },
            Unreserved::NotRead => Refusal::fallback("the node's daemon does not answer"),
            Unreserved::NothingWarm => Refusal::fallback("the node has nothing warm of the pool"),
        })?;
        let (answer_tx, answer_rx) = oneshot::channel();
        let delivery = self.clone().deliver(order, reservation, answer_tx);
        self.0.tasks.spawn(delivery);
        let answer = answer_rx.await;
        self.0.metrics.claim_seconds(begun.elapsed());
        answer.unwrap_or_else(|_| Err(Refusal::fallback("the agent is ending")))
    }

    /// Asks the daemon. Goes on when the caller leaves, until it is known that nothing is left of the claim.
    async fn deliver(
        self,
        order: Order,
        reservation: Reservation,
        answer_tx: oneshot::Sender<Answer>,
    ) {
        let request = order.request();
        let daemon = (self.0.daemon).node(&self.0.daemon_address, CLAIM_WITHIN);
        match daemon.claim(&request).await {
            Ok(Claimed::Granted(reply)) if answer_tx.is_closed() => {
                self.0.metrics.abandoned();
                self.give_back(reply.id, reservation).await;
            }
            Ok(Claimed::Granted(reply)) => {
                let granted = self.grant(&order, request, &reply, reservation);
                if answer_tx.send(Ok(granted)).is_err() {
                    // The caller left in this very moment.
                    self.0.metrics.abandoned();
                    self.0.book.owe(self.owed(&order, &reply), Want::Gone);
                }
            }
            Ok(Claimed::Redirect { .. }) => {
                let elsewhere = "the node has nothing warm of the pool, others may";
                let _ = answer_tx.send(Err(Refusal::fallback(elsewhere)));
                self.0.board.look_soon();
            }
            Err(error) => {
                let refusal = refusal(&error);
                tracing::debug!(error = &error as &dyn std::error::Error, key = %order.key, "the daemon granted no claim");
                let _ = answer_tx.send(Err(refusal));
                self.0.board.look_soon();
                if error.outcome_unknown() {
                    self.0.metrics.lost_answer();
                    self.settle(&order, reservation).await;
                }
            }
        }
    }

    /// Owes the record, lists the sandbox, and says what the caller is told. In this order: what is listed is always owed.
    fn grant(
        &self,
        order: &Order,
        request: ClaimRequest,
        reply: &ClaimReply,
        reservation: Reservation,
    ) -> Granted {
        self.0.book.owe(self.owed(order, reply), Want::Recorded);
        reservation.granted(Row {
            id: reply.id.clone(),
            claim_ref: request.claim_ref.into(),
            state: State::Running,
            deadline: reply.deadline,
            claimed_at: Some(UnixTime::now()),
            pool: request.key,
            from_checkpoint: None,
            metadata: request.metadata,
        });
        let advertised = || self.0.advertised.authority();
        Granted {
            id: reply.id.clone(),
            namespace: order.key.namespace.to_string(),
            sandbox_name: order.key.name.to_string(),
            node: self.0.node.clone(),
            address: reply.owner_addr.clone().unwrap_or_else(advertised),
            token: reply.token.clone(),
            deadline: reply.deadline,
        }
    }

    fn owed(&self, order: &Order, reply: &ClaimReply) -> Owed {
        Owed {
            key: order.key.clone(),
            warm_pool: order.warm_pool.clone(),
            delivery: self.delivery(reply.id.clone()),
            is_orphan: false,
        }
    }
}

impl Owed {
    /// What a row of the daemon says that the gateway owes for it; `None` for a row that it did not hand over.
    pub(in crate::node) fn of_row(row: &Row, node: &crate::api::NodeName) -> Option<Self> {
        let warm_pool = row.metadata.get(labels::WARM_POOL)?.clone();
        let (namespace, name) = row.claim_ref.split_once('/')?;
        Some(Self {
            key: crate::api::SandboxKey::new(namespace, name),
            warm_pool,
            delivery: crate::api::Delivery {
                node: node.clone(),
                claim: row.id.clone(),
            },
            is_orphan: true,
        })
    }
}

/// Another node, or a cold start, may do what this daemon does not.
fn refusal(error: &sandboxd::Error) -> Refusal {
    Refusal::fallback(match error {
        sandboxd::Error::AtCapacity { .. } => "the node is full or takes no claims",
        error if error.nothing_happened() => "the node's daemon refused the claim",
        _ => "the node's daemon did not answer; what it may have handed over is given back",
    })
}
