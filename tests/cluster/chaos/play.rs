//! A schedule, played; and what came of it.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use http::Request;
use jiff::Timestamp;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    check, check_end,
    line::Line,
    property::{Property, Verdict},
    record::{Outcome, Record, Verb, version},
    schedule::{COLOURS, Meant, Misbehaviour, N_NODES, NAMES, Rushed, Schedule, Step, USURPED},
    site::{Agent, Site, inventory},
    users::User,
    watcher::{self, Shared},
};
use crate::{
    caller::Caller,
    process::signal,
    stage::{TEMPLATE, collection},
};

/// How long after the last fault everything may take to be in order. The slowest that there is: a node is asked for a grant
/// 5 s and 15 s after its answer was lost, and for a release every 8 s at most; and the machine may be busy.
const CONVERGES_WITHIN: Duration = Duration::from_secs(40);
/// How long it has to stay so.
const STAYS: Duration = Duration::from_millis(300);
/// How long a call that others follow in order may take.
const IN_ORDER: Duration = Duration::from_secs(2);
/// Users, each with connections of its own.
const N_USERS: usize = 4;

/// A schedule under way.
struct Play<'a> {
    site: &'a mut Site,
    users: Vec<User>,
    publisher: Caller,
    record: Arc<Mutex<Record>>,
    /// Where the nodes' journals were when it began.
    begins: Vec<u64>,
    calls: JoinSet<()>,
    faults: JoinSet<()>,
    watches: Vec<Shared>,
    watchers: JoinSet<()>,
    n_calls: usize,
}

/// Plays a schedule and judges it; also gives what happened, to be shown.
pub(super) async fn play(site: &mut Site, schedule: &Schedule) -> (Verdict, Record) {
    let mut play = Play::begin(site).await;
    let verdict = play.whole(schedule).await;
    play.watchers.abort_all();
    play.faults.abort_all();
    play.calls.abort_all();
    play.site.mend().await;
    (verdict, std::mem::take(&mut play.record.lock().unwrap()))
}

impl<'a> Play<'a> {
    async fn begin(site: &'a mut Site) -> Self {
        let namespace = site.namespace().await;
        let journals = site.journals(&[0; N_NODES]).await;
        let record = Arc::new(Mutex::new(Record {
            namespace: namespace.clone(),
            ..Record::default()
        }));
        let user = |_| User {
            caller: site.caller(),
            namespace: namespace.clone(),
            record: record.clone(),
        };
        Self {
            users: (0..N_USERS).map(user).collect(),
            publisher: site.publisher(),
            begins: journals.iter().map(|it| it.len() as u64).collect(),
            site,
            record,
            calls: JoinSet::new(),
            faults: JoinSet::new(),
            watches: Vec::new(),
            watchers: JoinSet::new(),
            n_calls: 0,
        }
    }

    async fn whole(&mut self, schedule: &Schedule) -> Verdict {
        for (pause, step) in &schedule.steps {
            tokio::time::sleep(Duration::from_millis(*pause)).await;
            self.step(step).await;
        }
        while let Some(ended) = self.faults.join_next().await {
            ended.expect("a fault is made without a panic");
        }
        self.site.mend().await;
        self.site.begin_serve();
        self.site.is_ready().await?;
        while let Some(ended) = self.calls.join_next().await {
            ended.expect("a call is made without a panic");
        }
        self.converge().await?;
        self.clear().await
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Create {
                name,
                at_once,
                patience,
            } => {
                for _ in 0..*at_once {
                    self.call(Verb::Create, NAMES[*name], *patience);
                }
            }
            Step::Rush { calls } => {
                for (call, name) in calls {
                    match call {
                        Rushed::Create => self.call(Verb::Create, NAMES[*name], None),
                        Rushed::Generate => self.call(Verb::Generate, "made-", None),
                        Rushed::Delete(meant) => self.delete(NAMES[*name], *meant),
                        Rushed::Pause => self.call(Verb::Pause, NAMES[*name], None),
                        Rushed::List => self.call(Verb::List, "", None),
                    }
                }
            }
            Step::Generate => self.call(Verb::Generate, "made-", None),
            Step::Delete { name, meant } => self.delete(NAMES[*name], *meant),
            Step::DeleteAndKill { name } => {
                self.in_order(Verb::Create, NAMES[*name]).await;
                for node in &self.site.nodes {
                    node.line.set(Line::Cut);
                }
                self.in_order(Verb::Delete(None), NAMES[*name]).await;
                self.kill();
            }
            Step::DeleteInVain { name, how } => {
                self.in_order(Verb::Create, NAMES[*name]).await;
                for node in &self.site.nodes {
                    let path = "/v1/sandboxes/*/release";
                    let refused = node.daemon.fail_once(0, how.fault(), path);
                    // A node that stands still just now is left out.
                    let _ = tokio::time::timeout(IN_ORDER, refused).await;
                }
                self.in_order(Verb::Delete(None), NAMES[*name]).await;
            }
            Step::Pause { name } => self.call(Verb::Pause, NAMES[*name], None),
            Step::Resume { name } => self.call(Verb::Resume, NAMES[*name], None),
            Step::Fork { name } => self.call(Verb::Fork, NAMES[*name], None),
            Step::Label { name, colour } => {
                self.call(Verb::Label(COLOURS[*colour]), NAMES[*name], None);
            }
            Step::List => self.call(Verb::List, "", None),
            Step::Watch => self.watch(),
            Step::Usurp => self.usurp(),
            Step::FreezeServer { millis } => {
                let pid = self.site.serve_pid();
                self.freeze(pid, *millis);
            }
            Step::FreezeNode { node, millis } => {
                let pid = self.site.nodes[*node].process.pid();
                self.freeze(pid, *millis);
            }
            Step::KillServer => self.kill(),
            Step::KillAgent { node, back } => {
                let agent = self.site.nodes[*node].agent.as_mut();
                if let Some(agent) = agent {
                    agent.kill();
                    if *back {
                        agent.begin();
                    }
                }
            }
            Step::AgentUp { node } => {
                if let Some(agent) = self.site.nodes[*node].agent.as_mut() {
                    agent.begin();
                }
            }
            Step::FreezeAgent { node, millis } => {
                let agent = self.site.nodes[*node].agent.as_ref();
                let pid = agent.and_then(Agent::pid);
                self.freeze(pid, *millis);
            }
            Step::AgentLine { node, line } => {
                if let Some(agent) = &self.site.nodes[*node].agent {
                    agent.line.set(*line);
                }
            }
            Step::Line { node, line } => self.site.nodes[*node].line.set(*line),
            other => self.trouble(other),
        }
    }

    /// What is done to a node, which may be standing still just now.
    fn trouble(&mut self, step: &Step) {
        let node = match step {
            Step::Elsewhere { node, .. }
            | Step::Lose { node, .. }
            | Step::PublishLate { node, .. }
            | Step::Misbehave { node, .. }
            | Step::NodeDown { node }
            | Step::NodeUp { node } => *node,
            _ => return,
        };
        let daemon = self.site.nodes[node].daemon;
        // An agent publishes by itself, and there is no other publisher beside it.
        let has_agent = self.site.nodes[node].agent.is_some();
        if let Step::Lose { slow, .. } = *step {
            let path = "/v1/sandboxes HTTP";
            let line = match slow {
                Some(millis) => Line::Slow { path, millis },
                None => Line::Lossy { path, once: true },
            };
            self.site.nodes[node].line.set(line);
        }
        let (step, namespace) = (step.clone(), self.users[0].namespace.clone());
        let publisher = self.publisher.clone();
        let [own, next] = [node, node + 1].map(|node| self.inventory_name(node));
        self.faults.spawn(async move {
            match step {
                Step::Elsewhere { name, .. } => {
                    let name = name.map_or("elsewhere", |name| NAMES[name]);
                    let claim_ref = format!("{namespace}/{name}");
                    let planted = daemon.plant(0, TEMPLATE, &claim_ref, "elsewhere");
                    planted.await;
                }
                Step::Lose { pick, .. } => {
                    let held = daemon.held_by(0, &namespace).await;
                    if let Some(lost) = held.get(pick as usize % held.len().max(1)) {
                        // So that it was published, and is missed.
                        if !has_agent {
                            publish(&publisher, &inventory(daemon).await).await;
                        }
                        daemon.lose(0, &lost.id).await;
                        if !has_agent {
                            publish(&publisher, &inventory(daemon).await).await;
                        }
                    }
                }
                Step::PublishLate { millis, .. } if !has_agent => {
                    let before = publisher.get(&own).await.body;
                    let mut published = inventory(daemon).await;
                    // A node has one publisher: what is late is not later than what came after it.
                    let version = &before["metadata"]["resourceVersion"];
                    published["metadata"]["resourceVersion"] = version.clone();
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                    publish(&publisher, &published).await;
                }
                Step::Misbehave { path, how, .. } => {
                    let kind = match how {
                        Misbehaviour::Redirect => {
                            let inventory = publisher.get(&next).await.body;
                            json!({"redirect": {"addresses": [inventory["address"]]}})
                        }
                        how => how.fault(),
                    };
                    daemon.fail_once(0, kind, path).await;
                }
                Step::NodeDown { .. } => daemon.stop(0).await,
                Step::NodeUp { .. } => daemon.start(0).await,
                _ => {}
            }
        });
    }

    /// Makes a call that the next step waits for, though not for ever.
    async fn in_order(&self, verb: Verb, name: &str) {
        self.users[0].call(verb, name, Some(IN_ORDER)).await;
    }

    fn usurp(&mut self) {
        let daemons: Vec<_> = self.site.nodes.iter().map(|node| node.daemon).collect();
        for node in &self.site.nodes {
            let path = "/v1/claim";
            node.line.set(Line::Lossy { path, once: true });
        }
        let user = self.user();
        self.faults.spawn(async move {
            let claim_ref = format!("{}/{USURPED}", user.namespace);
            let claims = daemons
                .iter()
                .map(|daemon| daemon.plant(0, TEMPLATE, &claim_ref, "elsewhere"));
            futures::future::join_all(claims).await;
            user.call(Verb::Create, USURPED, None).await;
        });
    }

    fn inventory_name(&self, node: usize) -> String {
        let node = node % N_NODES;
        format!("/apis/extensions.agents.x-k8s.io/v1beta1/nodeinventories/sim-{node:04}")
    }

    fn user(&mut self) -> User {
        self.n_calls += 1;
        self.users[self.n_calls % N_USERS].clone()
    }

    fn call(&mut self, verb: Verb, name: &str, patience: Option<u64>) {
        let (user, name) = (self.user(), name.to_owned());
        self.calls.spawn(async move {
            user.call(verb, &name, patience.map(Duration::from_millis))
                .await;
        });
    }

    fn delete(&mut self, name: &str, meant: Meant) {
        let uid = match meant {
            Meant::Any => None,
            Meant::Last => self.users[0].known_uid(name, false),
            Meant::First => self.users[0].known_uid(name, true),
        };
        self.call(Verb::Delete(uid), name, None);
    }

    fn watch(&mut self) {
        let (user, view) = (self.user(), Shared::default());
        self.watches.push(view.clone());
        let watched = watcher::watch(user.caller, user.namespace, view);
        self.watchers.spawn(watched);
    }

    fn freeze(&mut self, pid: Option<String>, millis: u64) {
        let Some(pid) = pid else { return };
        self.faults.spawn(async move {
            signal("STOP", &pid);
            tokio::time::sleep(Duration::from_millis(millis)).await;
            signal("CONT", &pid);
        });
    }

    fn kill(&mut self) {
        // Once before and once after: what happened in between may have been done by either.
        let kills = |play: &Self| play.record.lock().unwrap().kills.push(Timestamp::now());
        kills(self);
        // At once: the process' own shell takes a while.
        if let Some(pid) = self.site.serve_pid() {
            signal("KILL", &pid);
        }
        self.site.kill_serve();
        kills(self);
        self.site.begin_serve();
    }

    /// Waits until all promises of the end are kept, and judges what was told until then.
    async fn converge(&mut self) -> Verdict {
        let deadline = Instant::now() + CONVERGES_WITHIN;
        let mut since = None;
        loop {
            let verdict = self.look().await;
            self.site.is_alive()?;
            check::check(&self.record.lock().unwrap())?;
            for view in &self.watches {
                view.lock().unwrap().check()?;
            }
            match (verdict, since) {
                (Ok(()), None) => since = Some(Instant::now()),
                (Ok(()), Some(since)) if since.elapsed() >= STAYS => return Ok(()),
                (Ok(()), Some(_)) => {}
                (Err(_), _) if Instant::now() < deadline => since = None,
                (Err(violation), _) => return Err(violation),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether all is as it has to be in the end.
    async fn look(&mut self) -> Verdict {
        let user = self.users[0].clone();
        let call = user.call(Verb::List, "", None).await;
        let Some(listed) = call.items() else {
            return Property::Alive.broken(format!("no list: {call:?}"));
        };
        let mut outcome = Outcome {
            listed,
            version: call.version().unwrap_or_default(),
            ..Outcome::default()
        };
        for node in &self.site.nodes {
            let inventory = node.daemon.inventory(0).await;
            for entry in inventory["entries"].as_array().into_iter().flatten() {
                let text = |key: &str| entry[key].as_str().unwrap_or_default();
                if text("claimRef").starts_with(&format!("{}/", user.namespace)) {
                    let is_paused = text("phase") == "Hibernated";
                    outcome.held.insert(text("id").to_owned(), is_paused);
                }
            }
        }
        let journals = self.site.journals(&self.begins).await;
        let mut record = self.record.lock().unwrap();
        for (node, entries) in journals.iter().enumerate() {
            record.read_journal(node, entries);
        }
        check_end::check(&record, &outcome)?;
        for view in &self.watches {
            view.lock().unwrap().check_end(&outcome)?;
        }
        Ok(())
    }

    /// Deletes everything, and waits until the nodes hold nothing of it.
    async fn clear(&mut self) -> Verdict {
        let namespace = self.users[0].namespace.clone();
        let path = collection(&namespace);
        let cleared = self.users[0].caller.delete(&path).await;
        let deadline = Instant::now() + CONVERGES_WITHIN;
        loop {
            let mut held = Vec::new();
            for node in &self.site.nodes {
                held.extend(node.daemon.held_by(0, &namespace).await);
            }
            let left = self.users[0].caller.get(&path).await.body;
            let n_left = left["items"].as_array().map(Vec::len);
            if held.is_empty() && n_left == Some(0) {
                return Ok(());
            }
            let what = || {
                let version = version(&left);
                format!("after {cleared:?} {held:?} is held and {n_left:?} listed at {version:?}")
            };
            Property::Owed.demand(Instant::now() < deadline, what)?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Misbehaviour {
    fn fault(self) -> Value {
        match self {
            Self::Unauthorized => json!("unauthorized"),
            Self::NotFound => json!({"status": {"status": 404, "text": "no such sandbox"}}),
            Self::Failed | Self::Redirect => json!({"status": {"status": 500, "text": "oops"}}),
            Self::WrongJson => json!("wrongJson"),
        }
    }
}

async fn publish(publisher: &Caller, inventory: &Value) {
    let name = inventory["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!(
        "/apis/extensions.agents.x-k8s.io/v1beta1/nodeinventories/{name}?fieldManager=sandbox-sim&force=true"
    );
    let body = Body::from(inventory.to_string().into_bytes());
    let request = Request::patch(path).header("content-type", "application/apply-patch+yaml");
    let answer = publisher.send(request.body(body).unwrap()).await;
    // Another one was quicker.
    if answer.status != 409 {
        answer.ok();
    }
}
