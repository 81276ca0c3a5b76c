//! What users do: patches and deletes through the API, creates and pauses as the gateway notes them.

use std::sync::Arc;

use sandbox_apiserver::{
    api::{SandboxKey, UserPart},
    fleet::{Granted, Phase, Sandbox, key_of_claim_ref},
    store::{Scope, Stored},
};
use serde_json::{Value, json};

use super::{
    nodes::{self, COLORS, Claim, pool},
    play::Player,
    query::Form,
    record::{Wish, WriteRecord},
    schedule::Step,
};

/// Keeps objects until somebody takes it off.
pub(super) const FINALIZER: &str = "example.com/robust";
/// What a user says of a sandbox.
const SPEC: &str = r#"{"podTemplate":{"spec":{"containers":[{"image":"python:3.12","name":"main"}]}},"shutdownPolicy":"Delete"}"#;

/// A write and what it says.
struct Write {
    verb: &'static str,
    form: Form,
    body: Value,
    wish: Wish,
    dry: bool,
}

impl Player<'_> {
    pub(super) async fn act(&mut self, step: &Step) {
        match *step {
            Step::Create {
                node,
                name,
                namespace,
                color,
                short,
            } => {
                let claim = self.claim(name, namespace, color, short);
                self.create(node, claim);
            }
            Step::Patch {
                pick,
                color,
                form,
                dry,
            } => {
                let color = color.map(|color| COLORS[color]);
                let body = json!({"metadata": {"labels": {"color": color}}});
                let write = Write {
                    verb: "PATCH",
                    form,
                    body,
                    wish: Wish::Color(color),
                    dry,
                };
                if let Some(object) = self.write(pick, write).await
                    && !dry
                {
                    self.recolored(&object.value);
                }
            }
            Step::Finalize { pick, on } => {
                let object = self.object(pick);
                if on && object.is_some_and(|it| it.value.deleted_at.is_some()) {
                    // That is refused.
                    return;
                }
                let finalizers: &[&str] = if on { &[FINALIZER] } else { &[] };
                let write = Write {
                    verb: "PATCH",
                    form: Form::Beta,
                    body: json!({"metadata": {"finalizers": finalizers}}),
                    wish: Wish::Finalizer(on),
                    dry: false,
                };
                if let Some(object) = self.write(pick, write).await {
                    self.is_unsure(&object.value);
                }
            }
            Step::Delete { pick } => {
                let write = Write {
                    verb: "DELETE",
                    form: Form::Beta,
                    body: json!({}),
                    wish: Wish::End,
                    dry: false,
                };
                self.write(pick, write).await;
            }
            Step::Release { node, pick } => self.release(node, pick),
            Step::Pause { node, pick } => self.pause(node, pick),
            _ => self.look(step).await,
        }
    }

    fn create(&mut self, node: usize, claim: Claim) {
        let key: SandboxKey = key_of_claim_ref(&claim.claim_ref).unwrap();
        let Ok(reserved) = self.house.fleet.reserve(key) else {
            return;
        };
        let label = |color: &str| ("color".into(), color.into());
        let user = UserPart {
            generation: 1,
            labels: claim.color.map(label).into_iter().collect(),
            spec: SPEC.into(),
            ..UserPart::default()
        };
        let granted = Granted {
            node: nodes::name(node),
            claim: claim.id.clone(),
            pool: Some(pool()),
            address: "10.0.0.1:80".into(),
            from_checkpoint: None,
            claimed_at: claim.claimed_at.unwrap(),
            deadline: Some(claim.deadline),
            phase: Phase::Running,
            user: Some(Arc::new(user)),
        };
        let now = self.now();
        let listed = self.house.fleet.granted(&reserved, granted, &[], now);
        listed.expect("nobody else has the name");
        self.nodes[node].add(node, claim.clone());
        self.holds_true(node, &[claim], "it was created");
    }

    /// Writes to the `pick`th object there is, and notes what was answered.
    async fn write(&mut self, pick: u32, write: Write) -> Option<Arc<Stored<Sandbox>>> {
        let object = self.object(pick)?;
        let (namespace, name) = (&object.value.namespace, &object.value.name);
        let item = format!(
            "/apis/agents.x-k8s.io/{}/namespaces/{namespace}/sandboxes/{name}",
            write.form.version()
        );
        let path = format!("{item}{}", if write.dry { "?dryRun=All" } else { "" });
        let before = self.house.head();
        let json = "application/json";
        let answer = self
            .house
            .ask(write.verb, &path, json, write.body.to_string())
            .await;
        let after = self.house.head();
        let read = self.house.ask("GET", &item, json, String::new()).await;
        self.record.writes.push(WriteRecord {
            verb: write.verb,
            form: write.form,
            heads: (before, after),
            place: (namespace.to_string(), name.to_string()),
            uid: object.value.uid.to_string(),
            wish: write.wish,
            dry: write.dry,
            code: answer.code,
            answer: answer.json(),
            read_code: read.code,
            read: read.json(),
        });
        if write.dry {
            self.record.quiet.push((before, after, "a dry run"));
        }
        Some(object)
    }

    /// The `pick`th object there is.
    fn object(&self, pick: u32) -> Option<Arc<Stored<Sandbox>>> {
        let store = self.house.fleet.store();
        let all = store.page(&Scope::All, None, store.head(), 1_000);
        let all = all.expect("the newest version is there").items;
        all.get(pick as usize % all.len().max(1)).cloned()
    }

    fn recolored(&mut self, sandbox: &Sandbox) {
        for node in &mut self.nodes {
            if let Some(claim) = node.claims.get_mut(sandbox.claim.as_str()) {
                claim.recolored = true;
            }
        }
    }

    /// From now on nobody can say without more ado when the sandbox goes.
    fn is_unsure(&mut self, sandbox: &Sandbox) {
        let uid = sandbox.uid.to_string();
        for node in &mut self.nodes {
            node.shown.remove(&uid);
            if let Some(claim) = node.claims.get_mut(sandbox.claim.as_str()) {
                claim.short = true;
            }
        }
    }

    /// Makes a change for sure.
    pub(super) fn touch(&mut self) {
        let claim = self.claim(0, 0, None, true);
        self.nodes[0].add(0, claim);
        self.publish(0, true);
    }

    /// The node has released a sandbox, and the gateway notes it.
    fn release(&mut self, node: usize, pick: u32) {
        let Some(claim) = self.nodes[node].pick(pick).cloned() else {
            return;
        };
        let now = self.now();
        let fleet = &self.house.fleet;
        if fleet.by_claim(&nodes::name(node), &claim.id).is_none() {
            // Nobody would release what nobody knows.
            return;
        }
        fleet.released(&nodes::name(node), &claim.id, now);
        let id = claim.id.to_string();
        self.nodes[node].claims.remove(&id);
        self.nodes[node].released.insert(id.clone());
        if claim.short {
            return;
        }
        self.is_gone(node, &id, claim.uid(node), "the node released it");
    }

    /// The node has paused or resumed a sandbox, and the gateway notes it.
    fn pause(&mut self, node: usize, pick: u32) {
        self.turn(node, pick);
        let now = self.now();
        let Some(claim) = self.nodes[node].pick(pick) else {
            return;
        };
        let (id, phase) = (claim.id.clone(), claim.phase);
        let fleet = &self.house.fleet;
        if fleet
            .set_phase(&nodes::name(node), &id, phase, true, now)
            .is_some()
            && let Some(claim) = self.nodes[node].claims.get_mut(id.as_str())
        {
            claim.disputed = Some(phase);
        }
    }
}
