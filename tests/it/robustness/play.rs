//! A schedule, played: nodes and their news. What users and readers do is in the files next to this one.

use std::{sync::Arc, time::Duration};

use sandbox_apiserver::{
    fleet::{Fleet, Now, ReadGuard},
    meta::UnixTime,
};

use super::{
    house::House,
    nodes::{self, COLORS, Claim, N_NODES, NAMES, NAMESPACES, Node},
    query::{Form, Selector, View},
    readers::Readers,
    record::{Dead, Phase, Record, Truth},
    schedule::{Schedule, Step},
    watcher::{From, WatchRequest},
};

/// A lease that ends within the time that schedules let pass, and one that does not.
const SHORT: Duration = Duration::from_secs(100);
const LONG: Duration = Duration::from_secs(1_000_000);

/// Everybody who takes part.
pub(super) struct Player<'a> {
    pub(super) house: &'a House,
    pub(super) nodes: [Node; N_NODES],
    pub(super) readers: Readers,
    pub(super) record: Record,
    /// How far the nodes' time is ahead of this machine's.
    ahead: Duration,
    /// Distinguishes the claims of this schedule from those of others in this house.
    run: u64,
    n_claims: usize,
}

/// Plays the schedule in a house of its history.
pub(super) async fn play(house: &House, schedule: &Schedule, run: u64) -> Record {
    let fleet = house.fleet.clone();
    for node in 0..N_NODES {
        fleet.forget_node(&nodes::name(node));
    }
    let mut player = Player {
        house,
        nodes: Default::default(),
        readers: Readers::default(),
        record: Record {
            history: house.history,
            began: house.head(),
            ..Record::default()
        },
        ahead: Duration::ZERO,
        run,
        n_claims: 0,
    };
    player
        .watch(WatchRequest {
            view: View {
                form: Form::Beta,
                namespace: None,
                selector: Selector::Everything,
            },
            from: From::After(player.record.began),
            bookmarks: false,
            timeout: Some(1_000_000),
        })
        .await;
    let mut reading = None;
    for step in &schedule.steps {
        player.step(step, &fleet, &mut reading).await;
        player.settle(matches!(step, Step::Idle)).await;
    }
    drop(reading);
    player.end().await;
    player.record
}

/// A node that was asked, how often it had been forgotten by then, and what it will answer.
type Reading<'a> = Option<(usize, u32, ReadGuard<'a>, Vec<Claim>)>;

impl<'a> Player<'a> {
    async fn step<'f>(&mut self, step: &Step, fleet: &'f Arc<Fleet>, reading: &mut Reading<'f>) {
        match *step {
            Step::Plant {
                node,
                name,
                namespace,
                color,
                dated,
                short,
            } => {
                let mut claim = self.claim(name, namespace, color, short);
                claim.claimed_at = claim.claimed_at.filter(|_| dated);
                self.nodes[node].add(node, claim);
            }
            Step::Lose { node, pick } => {
                if let Some(claim) = self.nodes[node].pick(pick).cloned() {
                    self.nodes[node].claims.remove(claim.id.as_str());
                }
            }
            Step::Turn { node, pick } => self.turn(node, pick),
            Step::Publish { node, cut } => self.publish(node, cut),
            Step::PublishLate { node, pick } => {
                let published = &self.nodes[node].published;
                if let Some(old) = published.get(pick as usize % published.len().max(1)) {
                    let report = nodes::report(old, true);
                    self.told(node, &report, false);
                }
            }
            Step::Repeat { node } => self.repeat(node),
            Step::Read { node } => {
                if let Some(guard) = fleet.begin_read(&nodes::name(node)) {
                    let rows = self.nodes[node].claims.values().cloned().collect();
                    self.end_read(node, guard, rows, true);
                }
            }
            Step::BeginRead { node } => {
                if reading.is_none()
                    && let Some(guard) = fleet.begin_read(&nodes::name(node))
                {
                    let rows = self.nodes[node].claims.values().cloned().collect();
                    *reading = Some((node, self.nodes[node].n_forgotten, guard, rows));
                }
            }
            Step::EndRead => {
                if let Some((node, n_forgotten, guard, rows)) = reading.take() {
                    match self.nodes[node].n_forgotten == n_forgotten {
                        true => self.end_read(node, guard, rows, false),
                        // The answer of a node that is none any more says nothing of one that came in its place.
                        false => {
                            let rows: Vec<_> = rows.iter().map(Claim::row).collect();
                            assert!(self.house.fleet.read(guard, &rows, self.now()));
                        }
                    }
                }
            }
            Step::Restart { node } => {
                if let Some(guard) = fleet.begin_read(&nodes::name(node)) {
                    self.restart(node, guard);
                }
            }
            Step::Deny { node, pick } => self.deny(node, pick),
            Step::Observe { node, pick } => self.observe(node, pick),
            Step::Silence { seconds, heard } => self.silence(seconds, heard),
            Step::Forget { node } => {
                fleet.forget_node(&nodes::name(node));
                self.forget(node);
            }
            // The clock is paused, and moves on when nothing else is to be done: this takes no time.
            Step::Idle => tokio::time::sleep(Duration::from_secs(61)).await,
            _ => self.act(step).await,
        }
    }

    /// Lets everything run until nothing does; `idle`: for more than a minute by now.
    pub(super) async fn settle(&mut self, idle: bool) {
        // Time stands still as long as anything is under way.
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.readers.mark(self.house.head(), idle);
    }

    pub(super) fn now(&self) -> Now {
        let now = Now::read();
        Now {
            instant: now.instant + self.ahead,
            wall: now.wall.after(self.ahead),
        }
    }

    /// A new claim, which may not be anywhere yet.
    pub(super) fn claim(
        &mut self,
        name: usize,
        namespace: usize,
        color: Option<usize>,
        short: bool,
    ) -> Claim {
        let (run, number) = (self.run, self.n_claims);
        self.n_claims += 1;
        let now = self.now().wall;
        Claim {
            id: format!("sb_{run}x{number:03}").as_str().into(),
            claim_ref: format!("{}/{}", NAMESPACES[namespace], NAMES[name]),
            phase: sandbox_apiserver::fleet::Phase::Running,
            claimed_at: Some(UnixTime::from_secs(
                1_000_000 + i64::try_from(number).unwrap(),
            )),
            deadline: now.after(if short { SHORT } else { LONG }),
            short,
            disputed: None,
            recolored: false,
            color: color.map(|color| COLORS[color]),
        }
    }

    pub(super) fn turn(&mut self, node: usize, pick: u32) {
        use sandbox_apiserver::fleet::Phase::{Paused, Running};
        let id = self.nodes[node]
            .pick(pick)
            .map(|claim| claim.id.to_string());
        if let Some(claim) = id.and_then(|id| self.nodes[node].claims.get_mut(&id)) {
            claim.phase = if claim.phase == Running {
                Paused
            } else {
                Running
            };
        }
    }

    pub(super) fn publish(&mut self, node: usize, cut: bool) {
        let claims: Vec<_> = self.nodes[node].claims.values().cloned().collect();
        self.told(node, &nodes::report(&claims, !cut), true);
        self.nodes[node].settle(&claims, false);
        self.holds_true(node, &claims, "the node published it");
        self.nodes[node].published.push(claims);
    }

    /// Two times the same are one.
    fn repeat(&mut self, node: usize) {
        self.publish(node, false);
        let before = self.house.head();
        let claims: Vec<_> = self.nodes[node].claims.values().cloned().collect();
        self.told(node, &nodes::report(&claims, true), true);
        let quiet = (
            before,
            self.house.head(),
            "a publication that says nothing new",
        );
        self.record.quiet.push(quiet);
    }

    fn told(&self, node: usize, report: &sandbox_apiserver::fleet::Report, fresh: bool) {
        let fleet = &self.house.fleet;
        fleet.publish(&nodes::name(node), report, fresh, true, self.now());
    }

    /// The node's answer; `now`: it says what is so now, and not when it was asked.
    fn end_read(&mut self, node: usize, guard: ReadGuard<'_>, claims: Vec<Claim>, now: bool) {
        let rows: Vec<_> = claims.iter().map(Claim::row).collect();
        let listed: Vec<_> = claims.iter().map(|claim| claim.id.to_string()).collect();
        self.revive(node, &listed);
        let settled = self.house.fleet.read(guard, &rows, self.now());
        assert!(settled || !now, "nothing can have come meanwhile");
        let claims: Vec<_> = claims
            .into_iter()
            .filter(|claim| self.nodes[node].claims.contains_key(claim.id.as_str()))
            .collect();
        if now {
            self.nodes[node].settle(&claims, true);
            self.holds_true(node, &claims, "the node was asked");
            self.not_held(node, &listed);
        } else {
            let listed = listed.iter().map(|id| nodes::uid(node, id));
            self.nodes[node].told_late.extend(listed);
        }
    }

    fn restart(&mut self, node: usize, guard: ReadGuard<'_>) {
        assert!(self.house.fleet.read(guard, &[], self.now()));
        self.not_held(node, &[]);
    }

    fn deny(&mut self, node: usize, pick: u32) {
        let known = &self.nodes[node];
        let lost = known
            .ids
            .iter()
            .filter(|(id, uid)| known.shown.contains(*uid) && !known.claims.contains_key(*id));
        let lost: Vec<_> = lost.map(|(id, uid)| (id.clone(), uid.clone())).collect();
        let Some((id, uid)) = lost.get(pick as usize % lost.len().max(1)).cloned() else {
            return;
        };
        let fleet = &self.house.fleet;
        fleet.confirmed_absent(&nodes::name(node), &id.as_str().into(), self.now());
        self.is_gone(node, &id, uid, "the node does not have it");
    }

    fn observe(&mut self, node: usize, pick: u32) {
        let Some(claim) = self.nodes[node].pick(pick).cloned() else {
            return;
        };
        // A node that the server does not know it does not get to know by this.
        let known = self.house.fleet.nodes();
        if known.iter().any(|known| known.name == nodes::name(node)) {
            self.revive(node, &[claim.id.to_string()]);
            let fleet = &self.house.fleet;
            fleet.observe(&nodes::name(node), &claim.row(), self.now());
            self.nodes[node].settle(std::slice::from_ref(&claim), false);
            self.holds_true(node, &[claim], "the node's agent told it");
        }
    }

    fn silence(&mut self, seconds: u64, heard: [bool; N_NODES]) {
        self.ahead += Duration::from_secs(seconds);
        let now = self.now();
        for (node, _) in heard.iter().enumerate().filter(|(_, heard)| **heard) {
            self.house.fleet.heard(&nodes::name(node), now);
        }
        self.house.fleet.tick(now);
        let before = self.house.head();
        self.house.fleet.tick(now);
        let quiet = (before, self.house.head(), "a tick at the same time");
        self.record.quiet.push(quiet);
    }

    fn forget(&mut self, node: usize) {
        let head = self.house.head();
        self.nodes[node].n_forgotten += 1;
        self.nodes[node].published.clear();
        self.nodes[node].told_late.clear();
        self.nodes[node].unsure.clear();
        for (_, dead) in std::mem::take(&mut self.nodes[node].dead) {
            self.record.dead.push(Dead {
                until: head,
                ..dead
            });
        }
        self.nodes[node].released.clear();
        for uid in std::mem::take(&mut self.nodes[node].shown) {
            self.record.truths.push(Truth {
                at: head,
                uid,
                phase: None,
                looks: None,
                reason: "its node left the cluster",
            });
        }
    }

    /// What the node says of claims that it has is so, unless the server knows of its own that it ended.
    pub(super) fn holds_true(&mut self, node: usize, claims: &[Claim], reason: &'static str) {
        let at = self.house.head();
        let lasting = claims.iter().filter(|claim| !claim.short);
        for claim in lasting {
            let uid = claim.uid(node);
            let known = &self.nodes[node];
            if known.dead.contains_key(claim.id.as_str()) || known.unsure.contains(&uid) {
                continue;
            }
            self.nodes[node].shown.insert(uid.clone());
            let now = self.nodes[node].claims.get(claim.id.as_str());
            let disputed = now.unwrap_or(claim).disputed;
            let phase = match disputed {
                Some(_) => Phase::Any,
                None => Phase::Is(claim.phase.as_str()),
            };
            let (phase, looks) = (Some(phase), Some(claim.looks(node)));
            self.record.truths.push(Truth {
                at,
                uid,
                phase,
                looks,
                reason,
            });
        }
    }

    /// What the node does not list when it is asked is gone.
    fn not_held(&mut self, node: usize, listed: &[String]) {
        let listed: Vec<_> = listed.iter().map(|id| nodes::uid(node, id)).collect();
        let ids = self.nodes[node].ids.clone();
        for (id, uid) in ids {
            if listed.contains(&uid) {
                continue;
            }
            let known = &mut self.nodes[node];
            if !known.shown.contains(&uid) {
                known.unsure.extend(known.told_late.take(&uid));
                continue;
            }
            self.is_gone(node, &id, uid, "the node does not have it");
        }
    }

    /// The sandbox is not listed, and no publication brings it back.
    pub(super) fn is_gone(&mut self, node: usize, id: &str, uid: String, reason: &'static str) {
        let at = self.house.head();
        let known = &mut self.nodes[node];
        known.shown.remove(&uid);
        known.dead.entry(id.to_owned()).or_insert(Dead {
            uid: uid.clone(),
            since: at,
            until: u64::MAX,
        });
        self.record.truths.push(Truth {
            at,
            uid,
            phase: None,
            looks: None,
            reason,
        });
    }

    /// The node itself has these, whatever was thought of them. What was released on its word is another matter.
    fn revive(&mut self, node: usize, ids: &[String]) {
        let head = self.house.head();
        for id in ids {
            self.nodes[node].unsure.remove(&nodes::uid(node, id));
            if !self.nodes[node].released.contains(id)
                && let Some(dead) = self.nodes[node].dead.remove(id)
            {
                self.record.dead.push(Dead {
                    until: head,
                    ..dead
                });
            }
        }
    }

    async fn end(&mut self) {
        self.readers.unstall();
        self.settle(false).await;
        self.record.ended = self.house.head();
        for node in &mut self.nodes {
            let dead = std::mem::take(&mut node.dead);
            self.record.dead.extend(dead.into_values());
        }
        self.readers.close(&mut self.record);
    }
}
