//! What a SandboxClaim says of the one VM that it is bound to.
//!
//! Two may hand over a VM for one claim: the claim controller, and the gateway of any node. Whoever writes the condition first has
//! bound the claim: every write of it carries the resourceVersion that was read, so that kube-apiserver lets one through.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{ClaimId, NodeName, SandboxClaim, labels};

/// The condition: True once a VM was handed over.
pub const BOUND: &str = "Bound";
/// Its reason.
pub const DELIVERED: &str = "Delivered";
/// Its reason when it is False: the VM is known to be released. The message names it still.
pub const RELEASED: &str = "Released";

/// A VM that was handed over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delivery {
    /// The node that it is on.
    pub node: NodeName,
    /// Its id there.
    pub claim: ClaimId,
}

/// Which VM a SandboxClaim is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// None yet.
    Open,
    /// The one in question.
    This,
    /// Another one.
    Another,
}

impl Delivery {
    /// The condition's message. It names the VM and nothing else, so that equal messages are equal VMs.
    pub fn message(&self) -> String {
        format!("node {} handed over {}", self.node, self.claim)
    }

    /// The VM that a message names. Names of nodes have no spaces.
    fn of_message(message: &str) -> Option<Self> {
        let (node, claim) = message.strip_prefix("node ")?.split_once(" handed over ")?;
        Some(Self {
            node: node.into(),
            claim: claim.into(),
        })
    }
}

impl SandboxClaim {
    /// Whether the claim is bound to `delivery`. A claim that a gateway made is bound to its VM from the first moment, by its
    /// annotation, and to no other before the condition says so.
    pub fn binding(&self, delivery: &Delivery) -> Binding {
        match (self.bound_message(), self.made_for()) {
            (Some(message), _) if message == delivery.message() => Binding::This,
            (Some(_), _) => Binding::Another,
            (None, Some(made_for)) if made_for != *delivery => Binding::Another,
            (None, _) => Binding::Open,
        }
    }

    /// Whether a VM was handed over for it.
    pub fn is_delivered(&self) -> bool {
        self.bound_message().is_some() || self.made_for().is_some()
    }

    /// The VM that was handed over for it, as far as it says.
    pub fn delivered(&self) -> Option<Delivery> {
        match self.bound_message() {
            Some(message) => Delivery::of_message(message),
            None => self.made_for(),
        }
    }

    /// The VM that a gateway made this object for. An id alone is of no node: two may give the same, and an agent may only say
    /// what its own node handed over.
    pub fn made_for(&self) -> Option<Delivery> {
        let annotations = self.metadata.annotations.as_ref()?;
        Some(Delivery {
            node: annotations.get(labels::NODE)?.as_str().into(),
            claim: annotations.get(labels::CLAIM_ID)?.as_str().into(),
        })
    }

    /// Whether the VM that was handed over for it is known to be released.
    pub fn is_released(&self) -> bool {
        self.bound().is_some_and(|bound| bound.reason == RELEASED)
    }

    fn bound_message(&self) -> Option<&str> {
        let bound = self.bound()?;
        let counts = bound.status == "True" || bound.reason == RELEASED;
        counts.then_some(bound.message.as_str())
    }

    fn bound(&self) -> Option<&Condition> {
        let conditions = &self.status.as_ref()?.conditions;
        conditions.iter().find(|c| c.type_ == BOUND)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(annotations: Value, conditions: Value, expected: Binding) {
        let claim = json!({"metadata": {"annotations": annotations},
            "spec": {"warmPoolRef": {"name": "p"}}, "status": {"conditions": conditions}});
        let claim: SandboxClaim = serde_json::from_value(claim).unwrap();
        let delivery = Delivery {
            node: "n1".into(),
            claim: "sb_1".into(),
        };
        assert_eq!(claim.binding(&delivery), expected);
    }

    #[test]
    fn a_claim_is_bound_to_what_its_condition_says_and_before_to_what_it_was_made_for() {
        let bound = |status: &str, message: &str| {
            json!([{"type": "Bound", "status": status, "reason": "Delivered", "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}])
        };
        let made_by =
            |node: &str, claim: &str| json!({labels::NODE: node, labels::CLAIM_ID: claim});
        let made_for = |claim: &str| made_by("n1", claim);
        check(json!({}), json!([]), Binding::Open);
        check(made_for("sb_1"), json!([]), Binding::Open);
        check(made_for("sb_2"), json!([]), Binding::Another);
        check(made_by("n2", "sb_1"), json!([]), Binding::Another);
        let ours = bound("True", "node n1 handed over sb_1");
        check(json!({}), ours.clone(), Binding::This);
        check(made_for("sb_2"), ours, Binding::This);
        check(
            json!({}),
            bound("True", "node n2 handed over sb_1"),
            Binding::Another,
        );
        check(json!({}), bound("False", "nothing"), Binding::Open);
    }

    #[test]
    fn a_message_names_the_vm_that_it_was_made_of() {
        let delivery = Delivery {
            node: "n1".into(),
            claim: "sb_1".into(),
        };
        assert_eq!(
            Delivery::of_message(&delivery.message()),
            Some(delivery.clone())
        );
        assert_eq!(Delivery::of_message("sb_1 of n1"), None);
    }
}
