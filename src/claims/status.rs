//! What a claim's status says.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::validate::Refusal;
use crate::{
    api::{
        BOUND, Binding, ClaimSandboxRef, DELIVERED, Delivery, RELEASED, SandboxClaim,
        SandboxClaimStatus,
    },
    controller::Said,
    fleet::{self, Sandbox},
};

pub(super) const READY: &str = "Ready";
pub(super) const FINISHED: &str = "Finished";

/// The status of a claim that has `sandbox`. With Ready, or before by the node's gateway, it is said which VM that is.
pub(super) fn bound(claim: &SandboxClaim, sandbox: &Sandbox, now: Timestamp) -> SandboxClaimStatus {
    let delivery = delivery(sandbox);
    // What was released by its node's word may have been found again.
    let is_news = claim.binding(&delivery) == Binding::Open || claim.is_released();
    let handed_over = is_news.then(|| Said {
        kind: BOUND,
        status: "True",
        reason: DELIVERED,
        message: delivery.message(),
    });
    let [ready, finished] = [Some(sandbox.ready()), sandbox.finished()].map(|c| c.map(said));
    SandboxClaimStatus {
        conditions: conditions(claim, [ready, finished, handed_over], now),
        sandbox: Some(ClaimSandboxRef {
            name: Some(sandbox.name.to_string()),
            pod_ips: sandbox.pod_ip().iter().map(IpAddr::to_string).collect(),
        }),
    }
}

/// The status of a claim that has no sandbox, for the reason that `refusal` says. The name of one that it had stays, if
/// `keep_name`.
pub(super) fn unbound(
    claim: &SandboxClaim,
    refusal: &Refusal,
    keep_name: bool,
    now: Timestamp,
) -> SandboxClaimStatus {
    let said = Said {
        kind: READY,
        status: "False",
        reason: refusal.reason,
        message: refusal.message.clone(),
    };
    let name = claim
        .status
        .as_ref()
        .and_then(|status| status.sandbox.as_ref()?.name.clone())
        .filter(|_| keep_name);
    SandboxClaimStatus {
        conditions: conditions(claim, [Some(said)], now),
        sandbox: name.map(|name| ClaimSandboxRef {
            name: Some(name),
            pod_ips: Vec::new(),
        }),
    }
}

/// The same for a claim whose sandbox is known to be gone. Which one that was stays: a later one of the name is not its own.
pub(super) fn released(
    claim: &SandboxClaim,
    refusal: &Refusal,
    keep_name: bool,
    now: Timestamp,
) -> SandboxClaimStatus {
    let mut status = unbound(claim, refusal, keep_name, now);
    let known = condition(claim, BOUND).map(|known| known.message.clone());
    let released = known.map(|message| Said {
        kind: BOUND,
        status: "False",
        reason: RELEASED,
        message,
    });
    if let Some(released) = released {
        let before = std::mem::take(&mut status.conditions);
        let released = released.condition(&before, claim.metadata.generation, now);
        let others = before.into_iter().filter(|known| known.type_ != BOUND);
        status.conditions = others.chain([released]).collect();
    }
    status
}

/// The VM of a sandbox.
pub(super) fn delivery(sandbox: &Sandbox) -> Delivery {
    Delivery {
        node: sandbox.node.clone(),
        claim: sandbox.claim.clone(),
    }
}

/// The condition of that type, as the claim has it now.
pub(super) fn condition<'a>(claim: &'a SandboxClaim, kind: &str) -> Option<&'a Condition> {
    let conditions = &claim.status.as_ref()?.conditions;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// What is said now, beside the conditions that stay. A claim that has finished stays so, and so does one that is bound.
fn conditions<const N: usize>(
    claim: &SandboxClaim,
    said: [Option<Said>; N],
    now: Timestamp,
) -> Vec<Condition> {
    let own: Vec<_> = said.into_iter().flatten().collect();
    let known = claim.status.as_ref().map_or(&[][..], |s| &s.conditions);
    let others = known
        .iter()
        .filter(|known| own.iter().all(|said| said.kind != known.type_));
    let (others, generation) = (
        others.cloned().collect::<Vec<_>>(),
        claim.metadata.generation,
    );
    let own = own.into_iter();
    own.map(|said| said.condition(known, generation, now))
        .chain(others)
        .collect()
}

fn said(condition: fleet::Condition) -> Said {
    Said {
        kind: condition.kind,
        status: condition.status,
        reason: condition.reason,
        message: condition.message.to_owned(),
    }
}
