//! A claim: from what a caller may have to a VM that is handed over.

use std::{collections::BTreeMap, time::Instant};

use tokio::sync::oneshot;

use super::{
    CLAIM_WITHIN, Gateway,
    answer::{Granted, Refusal},
    book::{Owed, Want},
    request::Order,
};
use crate::{
    api::{Delivery, NodeName, SandboxKey, labels},
    feed::{Reservation, Row, State, Unreserved},
    meta::{is_dns1123_label, is_dns1123_subdomain},
    sandboxd::{self, ClaimReply, ClaimRequest, Claimed, NodeTime},
    telemetry::answer_of,
};

type Answer = Result<Granted, Refusal>;

impl Gateway {
    /// Hands over a warm VM under a name.
    ///
    /// Dropping the future, as when the caller leaves, gives back what is granted afterwards.
    ///
    /// # Errors
    /// [`Refusal::NameTaken`], [`Refusal::NameUndecided`] and [`Refusal::Fallback`]: the caller has nothing.
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
        let reserved = self
            .0
            .board
            .reserve(&claim_ref, &order.attempt, &order.pool);
        let reservation = reserved.map_err(|unreserved| match unreserved {
            Unreserved::NameTaken => Refusal::NameTaken {
                key: order.key.clone(),
            },
            Unreserved::NameUndecided => Refusal::NameUndecided {
                key: order.key.clone(),
            },
            Unreserved::NotRead => Refusal::fallback("the node's daemon does not answer"),
            Unreserved::NothingWarm => Refusal::fallback("the node has nothing warm of the pool"),
        })?;
        let (answer_tx, answer_rx) = oneshot::channel();
        let delivery = self.clone().deliver(order, reservation, answer_tx);
        let answer = answer_of(&self.0.tasks, delivery, answer_rx).await;
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
            deadline: reply.deadline.map(NodeTime::told),
            claimed_at: Some(self.0.daemon.node_time(&self.0.daemon_address)),
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
            deadline: reply.deadline.map(NodeTime::told),
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
    pub(in crate::node) fn of_row(row: &Row, node: &NodeName) -> Option<Self> {
        let (key, warm_pool) = handed_over(&row.claim_ref, &row.metadata)?;
        Some(Self {
            key,
            warm_pool,
            delivery: Delivery {
                node: node.clone(),
                claim: row.id.clone(),
            },
            is_orphan: true,
        })
    }
}

/// The SandboxClaim and the warm pool of a claim that the gateway made, by what the daemon keeps of it. A fork has the mark of its
/// parent, and not its reference. Names are checked, since everybody with the daemon's token can write them and they become paths.
pub(super) fn handed_over(
    claim_ref: &str,
    metadata: &BTreeMap<String, String>,
) -> Option<(SandboxKey, String)> {
    if metadata.get(labels::HANDED_OVER)? != claim_ref {
        return None;
    }
    let warm_pool = metadata.get(labels::WARM_POOL)?;
    let (namespace, name) = claim_ref.split_once('/')?;
    let are_names = is_dns1123_label(namespace)
        && is_dns1123_subdomain(name)
        && is_dns1123_subdomain(warm_pool);
    are_names.then(|| (SandboxKey::new(namespace, name), warm_pool.clone()))
}

/// Another node, or a cold start, may do what this daemon does not.
fn refusal(error: &sandboxd::Error) -> Refusal {
    Refusal::fallback(match error {
        sandboxd::Error::AtCapacity { .. } => "the node is full or takes no claims",
        error if error.nothing_happened() => "the node's daemon refused the claim",
        _ => "the node's daemon did not answer; what it may have handed over is given back",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handed_over_is_what_has_the_mark_of_its_own_reference() {
        let check = |claim_ref: &str, handed_over_as: &str, pool: &str, expected: Option<&str>| {
            let metadata = BTreeMap::from([
                (labels::HANDED_OVER.to_owned(), handed_over_as.to_owned()),
                (labels::WARM_POOL.to_owned(), pool.to_owned()),
            ]);
            let found = handed_over(claim_ref, &metadata);
            let found = found.map(|(key, pool)| format!("{key} of {pool}"));
            assert_eq!(found.as_deref(), expected, "{claim_ref}");
        };
        check("a/x", "a/x", "p", Some("a/x of p"));
        check("a/x-7", "a/x", "p", None);
        check("", "", "p", None);
        check("a/x/status", "a/x/status", "p", None);
        check("a/..", "a/..", "p", None);
        check("a/x_1", "a/x_1", "p", None);
        check("A/x", "A/x", "p", None);
        check("a/x", "a/x", "p?", None);
        assert_eq!(handed_over("a/x", &BTreeMap::new()), None);
    }
}
