//! What a claim needs next, from claims and worlds around them.

mod steps;
mod whose;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::json;

use super::{
    order::CLAIM_UID,
    state::{FINALIZER, FIRST_TRY, Facts, LAST_TRY, NoTemplate, Step},
    status::{FINISHED, READY, condition},
};
use crate::{
    api::{SandboxClaim, SandboxTemplate, UserPart, labels},
    fleet::{Phase, Sandbox, uid_of},
    meta::UnixTime,
};

const NOW: i64 = 1_000_000;

/// A claim, and the world around it.
struct Case {
    claim: SandboxClaim,
    sandbox: Option<Sandbox>,
    contenders: Vec<Sandbox>,
    unsettled: bool,
    told: bool,
    template: Result<SandboxTemplate, NoTemplate>,
}

impl Case {
    fn new() -> Self {
        let claim = json!({
            "metadata": {"name": "box", "namespace": "team", "uid": "u-1", "generation": 1},
            "spec": {"warmPoolRef": {"name": "p"}}});
        let pod = json!({"spec": {"containers": [{"name": "c", "image": "python:3.12"}]}});
        Self {
            claim: serde_json::from_value(claim).unwrap(),
            sandbox: None,
            contenders: Vec::new(),
            unsettled: false,
            told: true,
            template: Ok(serde_json::from_value(json!({"spec": {"podTemplate": pod}})).unwrap()),
        }
    }

    fn protected(mut self) -> Self {
        self.claim.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        self
    }

    fn deleted(self) -> Self {
        self.deleted_before(0)
    }

    fn deleted_before(mut self, seconds: i64) -> Self {
        let at = Timestamp::from_second(NOW - seconds).unwrap();
        self.claim.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));
        self
    }

    /// As after a restart of the server: the node has not answered yet.
    fn untold(mut self) -> Self {
        (self.told, self.sandbox) = (false, None);
        self
    }

    /// As after a restart of the server: of what the user sent only labels are known, and those of some nodes only.
    fn forgotten(mut self, labels: &[(&str, &str)]) -> Self {
        let labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        let user = UserPart {
            labels: labels.collect(),
            ..UserPart::default()
        };
        self.sandbox.as_mut().unwrap().user = Some(Arc::new(user));
        self
    }

    /// With a sandbox that only its node knows of, or that the object with this uid owns.
    fn with_sandbox(mut self, phase: Phase, owner: Option<&str>) -> Self {
        let user = |owner| UserPart {
            owner_references: json!([{"uid": owner}]).to_string().into(),
            ..UserPart::default()
        };
        self.sandbox = Some(Sandbox {
            namespace: "team".into(),
            name: "box".into(),
            claim: "sb_1".into(),
            node: "n1".into(),
            address: "10.0.0.7:7777".into(),
            daemon: None,
            pool: None,
            from_checkpoint: None,
            uid: uid_of(&"n1".into(), &"sb_1".into()),
            created: UnixTime::from_secs(NOW),
            changed: UnixTime::from_secs(NOW),
            deadline: None,
            deleted_at: None,
            phase,
            gone: false,
            node_lost: false,
            attempt: None,
            name_taken: false,
            user: owner.map(user).map(Arc::new),
            usage: Default::default(),
        });
        self
    }

    /// Beside it, a sandbox that asks for the same name, and is listed under its id.
    fn beside(mut self, node: &str, claim: &str, owner: Option<&str>) -> Self {
        let before = self.sandbox.take();
        self = self.with_sandbox(Phase::Running, owner);
        let mut sandbox = std::mem::replace(&mut self.sandbox, before).unwrap();
        sandbox.name = claim.replace('_', "-").into();
        sandbox.name_taken = true;
        (sandbox.node, sandbox.claim) = (node.into(), claim.into());
        self.contenders.push(sandbox);
        self
    }

    /// The same, with the name given to that one.
    fn named(mut self, claim: &str) -> Self {
        let of = |sandbox: &Sandbox| sandbox.claim.as_str() == claim;
        let at = self.contenders.iter().position(of).unwrap();
        let mut heir = self.contenders.remove(at);
        (heir.name, heir.name_taken) = ("box".into(), false);
        if let Some(mut loser) = self.sandbox.replace(heir) {
            loser.name = loser.claim.as_str().replace('_', "-").into();
            loser.name_taken = true;
            self.contenders.push(loser);
        }
        self
    }

    fn without(mut self, claim: &str) -> Self {
        self.sandbox = self.sandbox.filter(|it| it.claim.as_str() != claim);
        self.contenders.retain(|it| it.claim.as_str() != claim);
        self
    }

    /// Made by the gateway of a node.
    fn made_for(mut self, node: &str, claim: &str) -> Self {
        let said = [(labels::NODE, node), (labels::CLAIM_ID, claim)];
        let said = said.map(|(key, value)| (key.to_owned(), value.to_owned()));
        self.claim.metadata.annotations = Some(said.into());
        self
    }

    /// With the condition that a node's gateway writes.
    fn bound_to(mut self, node: &str, claim: &str) -> Self {
        let mut status = serde_json::to_value(&self.claim.status).unwrap();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let others = conditions.into_iter().filter(|c| c["type"] != "Bound");
        let bound = json!({"type": "Bound", "status": "True", "reason": "Delivered",
            "message": format!("node {node} handed over {claim}"),
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        status["conditions"] = others.chain([bound]).collect();
        self.claim.status = serde_json::from_value(status).unwrap();
        self
    }

    fn ending(mut self, policy: &str, after: i64) -> Self {
        let end = UnixTime::from_secs(NOW + after).to_string();
        let lifecycle = json!({"shutdownTime": end, "shutdownPolicy": policy});
        self.claim.spec.lifecycle = serde_json::from_value(lifecycle).unwrap();
        self
    }

    fn without_template(mut self, missing: NoTemplate) -> Self {
        self.template = Err(missing);
        self
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            claim: &self.claim,
            sandbox: self.sandbox.as_ref(),
            contenders: &self.contenders,
            unsettled: self.unsettled,
            told: self.told,
            template: self.template.as_ref(),
            now: Timestamp::from_second(NOW).unwrap(),
        }
    }

    /// What is said until there is nothing more to say.
    fn said(mut self) -> Self {
        if let Step::Say(status) = self.facts().step() {
            self.claim.status = Some(*status);
        }
        self
    }

    /// The next step in short.
    #[track_caller]
    fn then(self, expected: &str) -> Self {
        let shown = match self.facts().step() {
            Step::Protect => "protect".to_owned(),
            Step::Unprotect => "unprotect".to_owned(),
            Step::Claim(order) => format!("claim {} from {}", order.key, order.pool),
            Step::Adopt(delivery) => format!("adopt {}", delivery.claim),
            Step::Release(own) => format!("release {}", own.claim),
            Step::ReleaseUnreported(own) => format!("release {} unseen", own.claim),
            Step::ReleaseDouble(double) => format!("release double {}", double.claim),
            Step::Delete => "delete".to_owned(),
            Step::Say(status) => {
                let ready = status.conditions.iter().find(|c| c.type_ == READY).unwrap();
                let name = status.sandbox.and_then(|sandbox| sandbox.name);
                format!("say {} {} {name:?}", ready.status, ready.reason)
            }
            Step::Rest(pause) => format!("rest {:?}", pause.map(|pause| pause.as_secs())),
        };
        assert_eq!(shown, expected);
        self
    }
}
