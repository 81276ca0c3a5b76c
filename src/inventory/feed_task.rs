//! One node's live feed: what its agent tells, merged into the index as it comes.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};

use super::{
    answers,
    daemons::Daemons,
    feeds::{FIRST_SNAPSHOT_WITHIN, News},
    rejection::Rejections,
};
use crate::{
    api::{ClaimId, NodeName, UserPart},
    feed::{self, Agent, Backoff, Event, Listening, NodeState, State},
    fleet::{Fleet, Now, Phase, Pool, ReadGuard, Row, Used},
    meta::UnixTime,
    sandboxd::{ClockOffset, NodeTime},
};

/// How long direct reads give way to a snapshot that is asked for again: a slow daemon has time for two looks.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(10);
/// Pause before that, longer than the time between two tries of a direct read that gave way.
const SNAPSHOTS_APART: Duration = Duration::from_secs(2);
/// Pause while a direct read of the node is under way, which may have begun before the feed.
const READ_PAUSE: Duration = Duration::from_millis(20);
/// Time between two questions to a daemon whose clock shows something else by its answers than by its agent's word.
const DOUBTS_APART: Duration = Duration::from_secs(10);

/// Follows one agent.
pub(super) struct FeedTask {
    pub(super) daemons: Arc<Daemons>,
    pub(super) node: NodeName,
    pub(super) agent: Agent,
    pub(super) news_tx: mpsc::Sender<(NodeName, News)>,
}

impl FeedTask {
    /// Never ends.
    pub(super) async fn run(self) {
        let mut backoff = Backoff::default();
        let mut told = None;
        loop {
            let Err(error) = self.listen(&mut backoff, &mut told).await;
            self.daemons.metrics.feed_lost();
            if told != Some(News::Lost) {
                self.complain(&error);
                self.daemons.fleet.forget_used(&self.node);
                self.tell(&mut told, News::Lost).await;
            }
            sleep(backoff.pause()).await;
        }
    }

    fn complain(&self, error: &feed::Error) {
        let error = error as &dyn std::error::Error;
        tracing::warn!(node = %self.node, error, "no feed: the node is read and its inventory watched");
    }

    /// Listens until something goes wrong.
    async fn listen(
        &self,
        backoff: &mut Backoff,
        told: &mut Option<News>,
    ) -> feed::Result<Infallible> {
        let connection = self.agent.connect().await?;
        let mut patience = FIRST_SNAPSHOT_WITHIN;
        let mut doubted = None;
        loop {
            let mut reading = Some(self.begin_read().await);
            let until = Instant::now() + patience;
            let mut feed = giving_way(&mut reading, until, connection.listen()).await?;
            let (sandboxes, node) = self.first_snapshot(&mut feed, &mut reading, until).await?;
            // What was done here since the reading was given up may be newer than the snapshot: ask for another one.
            let Some(reading) = reading else {
                drop(feed);
                patience = SNAPSHOT_WITHIN;
                sleep(SNAPSHOTS_APART).await;
                continue;
            };
            self.hear_clock().await;
            // From here on no publication is merged.
            let live = self.daemons.feeds.enter(&self.node, connection.objects());
            let clock = self.clock();
            let Some(missed) = self.take_all(reading, sandboxes, &node, clock) else {
                drop((live, feed));
                // A publication that came just now was not merged: if this fails, the node is to be read.
                *told = None;
                sleep(SNAPSHOTS_APART).await;
                continue;
            };
            backoff.reset();
            self.tell(told, News::Live).await;
            let daemons = &self.daemons;
            let keep = daemons
                .feeds
                .keep_missed(&daemons.fleet, &self.node, &missed, || {
                    daemons.client.may_write()
                });
            let mut keep = std::pin::pin!(keep.fuse());
            loop {
                let event = tokio::select! {
                    event = feed.next() => event?,
                    () = &mut keep => continue,
                };
                self.verify_clock(&event, &mut doubted).await;
                if self.clock() != clock {
                    // What was taken in is by another clock than what would come: all of it is asked for again.
                    patience = SNAPSHOT_WITHIN;
                    break;
                }
                self.take(event, clock);
            }
        }
    }

    /// Asks the daemon if it has not answered yet. If it does not now, its clock counts as right until it does.
    async fn hear_clock(&self) {
        if self.daemons.clock_offset(&self.node).is_none() {
            self.daemons.hear_clock(&self.node).await;
        }
    }

    fn clock(&self) -> ClockOffset {
        self.daemons.clock_offset(&self.node).unwrap_or_default()
    }

    /// Asks the daemon if its agent says that the clock shows something else than is known.
    async fn verify_clock(&self, event: &Event, doubted: &mut Option<Instant>) {
        let Event::Heartbeat {
            clock: Some(shown), ..
        } = event
        else {
            return;
        };
        let is_early = doubted.is_some_and(|doubted| doubted.elapsed() < DOUBTS_APART);
        if !is_early && !self.clock().explains(*shown, UnixTime::now()) {
            *doubted = Some(Instant::now());
            self.daemons.hear_clock(&self.node).await;
        }
    }

    /// Waits for the snapshot. `reading` is given up when it does not come by `until`, or the agent itself waits for its
    /// daemon: then others may try to read the node.
    async fn first_snapshot(
        &self,
        feed: &mut Listening,
        reading: &mut Option<ReadGuard<'_>>,
        until: Instant,
    ) -> feed::Result<(Vec<feed::Sandbox>, NodeState)> {
        loop {
            let event = giving_way(reading, until, feed.next()).await?;
            match event {
                Event::Snapshot {
                    sandboxes, node, ..
                } => return Ok((sandboxes, node)),
                Event::Heartbeat {
                    daemon_answers: false,
                    ..
                } => *reading = None,
                _ => {}
            }
            self.take(event, self.clock());
        }
    }

    async fn tell(&self, told: &mut Option<News>, news: News) {
        *told = Some(news);
        // A follower that is gone takes this task with it.
        let _ = self.news_tx.send((self.node.clone(), news)).await;
    }

    /// Begins what the snapshot will end. What is done here until then is newer than the snapshot.
    async fn begin_read(&self) -> ReadGuard<'_> {
        loop {
            match self.daemons.fleet.begin_read(&self.node) {
                Some(reading) => return reading,
                None => sleep(READ_PAUSE).await,
            }
        }
    }

    /// Takes the snapshot over, and gives of what sandboxes the agent does not have what the index says of their users. `None`: it did
    /// not settle everything.
    fn take_all(
        &self,
        reading: ReadGuard<'_>,
        sandboxes: Vec<feed::Sandbox>,
        node: &NodeState,
        clock: ClockOffset,
    ) -> Option<Vec<ClaimId>> {
        let (mut rows, mut users) = (Vec::with_capacity(sandboxes.len()), Vec::new());
        for sandbox in sandboxes {
            users.push((sandbox.row.id.clone(), sandbox.user.map(taken)));
            rows.push(self.row(sandbox.row, clock));
        }
        let merged = self.merge(|fleet, now| {
            let settled = fleet.read(reading, &rows, now);
            fleet.informed(&self.node, &pools(node), node.draining, now);
            for (claim, user) in &users {
                if let Some(user) = user {
                    fleet.restore_user(&self.node, claim, user);
                }
            }
            users.retain(|(claim, kept)| {
                let record = fleet.by_claim(&self.node, claim);
                let known = record.and_then(|record| record.value.user.clone());
                known.is_some() && known != *kept
            });
            settled
        });
        let missed = users.into_iter().map(|(claim, _)| claim).collect();
        // Of a node whose inventory is gone nothing is to be settled.
        (merged != Some(false)).then_some(missed)
    }

    fn take(&self, event: Event, clock: ClockOffset) {
        self.merge(|fleet, now| match event {
            Event::Sandbox(sandbox) => {
                let claim = sandbox.row.id.clone();
                fleet.observe(&self.node, &self.row(sandbox.row, clock), now);
                if let Some(user) = sandbox.user {
                    fleet.restore_user(&self.node, &claim, &taken(user));
                }
                fleet.heard(&self.node, now);
            }
            Event::User(claim, user) => {
                fleet.restore_user(&self.node, &claim, &taken(*user));
            }
            // Also of what is not known: an answer that is on its way may have it. What we released stays dead for good.
            Event::Removed(claim) => {
                fleet.confirmed_absent(&self.node, &claim, now);
                fleet.heard(&self.node, now);
            }
            Event::Node(node) => fleet.informed(&self.node, &pools(&node), node.draining, now),
            Event::Heartbeat {
                daemon_answers: true,
                uses,
                ..
            } => {
                fleet.heard(&self.node, now);
                for news in uses {
                    let memory = (news.mem_total_bytes, news.mem_used_bytes);
                    let used = Used::of_bytes(news.cpu_count, memory.0, memory.1);
                    fleet.used(&self.node, &news.id, used);
                }
            }
            Event::Heartbeat {
                daemon_answers: false,
                ..
            } => {
                fleet.suspect(&self.node, now);
                // It tells nothing of the sandboxes. If the daemon answers us, it is read from time to time.
                fleet.not_heard(&self.node, now);
            }
            Event::Snapshot { .. } => {}
        });
    }

    /// Does `merge` unless the node's inventory is gone.
    fn merge<T>(&self, merge: impl FnOnce(&Fleet, Now) -> T) -> Option<T> {
        let fleet = &self.daemons.fleet;
        let roster = &self.daemons.roster;
        roster.if_present(&self.node, || merge(fleet, Now::read()))
    }

    /// The row for the index, by our clock and within the bounds of what the daemon itself may answer.
    fn row(&self, row: feed::Row, clock: ClockOffset) -> Row {
        let mut rejections = Rejections::default();
        let ours = |time: NodeTime| clock.ours(time);
        let row = Row {
            claim: row.id,
            claim_ref: row.claim_ref,
            phase: match row.state {
                State::Running => Phase::Running,
                State::Hibernated => Phase::Paused,
                State::Archived => Phase::Archived,
                State::Failed => Phase::Failed,
                State::Unknown => Phase::Unknown,
            },
            deadline: row.deadline.map(ours),
            claimed_at: row.claimed_at.map(ours),
            pool: Some(row.pool),
            address: Default::default(),
            from_checkpoint: row.from_checkpoint.map(|id| id.as_str().into()),
            metadata: row.metadata,
        };
        let row = answers::sound_row(row, &mut rejections);
        self.daemons.metrics.rejected_entries(&rejections);
        row
    }
}

/// Waits for `call`, with `reading` in hand until `until` at most.
async fn giving_way<T>(
    reading: &mut Option<ReadGuard<'_>>,
    until: Instant,
    call: impl Future<Output = T>,
) -> T {
    let mut call = std::pin::pin!(call);
    if reading.is_some() {
        match timeout_at(until, &mut call).await {
            Ok(done) => return done,
            Err(_) => *reading = None,
        }
    }
    call.await
}

/// A user part as the index takes it: whatever an agent says, the server's own keys are the server's to set.
fn taken(mut user: UserPart) -> Arc<UserPart> {
    user.drop_reserved();
    Arc::new(user)
}

fn pools(node: &NodeState) -> Vec<Pool> {
    let pools = node.pools.iter().map(|pool| Pool {
        key: pool.key.clone(),
        warm: pool.warm,
        target: pool.target,
    });
    answers::sound(pools)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_cannot_set_the_servers_own_keys() {
        let mut user = UserPart::default();
        let keys = [crate::api::labels::TOKEN, "team"];
        user.annotations = keys.map(|key| (key.into(), "x".into())).into();
        assert!(taken(user).annotations.keys().eq(["team"]));
    }
}
