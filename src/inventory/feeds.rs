//! The live feeds of the nodes that have an agent: one task a node, which merges what its agent tells.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    time::{sleep, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;

use super::{answers, daemons::Daemons, rejection::Rejections};
use crate::{
    api::{ClaimId, NodeName, UserPart},
    feed::{self, Agent, Backoff, Event, Listening, NodeState, Objects, State},
    fleet::{Fleet, Now, Phase, Pool, ReadGuard, Row},
    sandboxd::SandboxRow,
};

/// A node whose first snapshot takes longer is read directly.
const FIRST_SNAPSHOT_WITHIN: Duration = Duration::from_secs(2);
/// How long direct reads give way to a snapshot that is asked for again: a slow daemon has time for two looks.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(10);
/// Pause before that, longer than the time between two tries of a direct read that gave way.
const SNAPSHOTS_APART: Duration = Duration::from_secs(2);
/// Pause while a direct read of the node is under way, which may have begun before the feed.
const READ_PAUSE: Duration = Duration::from_millis(20);
/// How long an agent may take to store a user part.
const STORE_WITHIN: Duration = Duration::from_secs(1);
/// News on their way to the follower.
const NEWS: usize = 256;

/// Why a user part is not kept on the node.
#[derive(Debug, thiserror::Error)]
pub enum NotKept {
    /// The node has no agent, or its feed is not live.
    #[error("the node has no agent that could keep it")]
    NoAgent,
    /// The agent was asked; it may have stored it or not.
    #[error("the node's agent did not keep it")]
    Failed(#[source] feed::Error),
}

/// The nodes whose feed is live: what else is said of them is older.
#[derive(Default)]
pub(super) struct LiveFeeds {
    // Held for a look-up or for one merge into the index, whose lock is taken inside; never over an await.
    by_node: Mutex<HashMap<NodeName, Arc<Objects>>>,
}

/// The feeds of the follower.
pub(super) struct Feeds {
    by_node: HashMap<NodeName, Followed>,
    news_tx: mpsc::Sender<(NodeName, News)>,
    pub(super) news_rx: mpsc::Receiver<(NodeName, News)>,
}

struct Followed {
    agent: Agent,
    /// Until when a direct read waits for the first snapshot.
    awaited_until: Option<Instant>,
    task: AbortOnDropHandle<()>,
}

/// What becomes of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Live,
    Lost,
}

impl LiveFeeds {
    pub(super) fn is_live(&self, node: &NodeName) -> bool {
        self.by_node.lock().contains_key(node)
    }

    pub(super) fn len(&self) -> usize {
        self.by_node.lock().len()
    }

    /// Does `merge` unless the node's feed is live, which it does not become meanwhile.
    pub(super) fn unless_live<T>(&self, node: &NodeName, merge: impl FnOnce() -> T) -> Option<T> {
        let by_node = self.by_node.lock();
        (!by_node.contains_key(node)).then(merge)
    }

    /// Stores a user part on the node.
    pub(super) async fn keep_user(
        &self,
        node: &NodeName,
        claim: &ClaimId,
        user: &UserPart,
    ) -> Result<(), NotKept> {
        let objects = self.objects(node).ok_or(NotKept::NoAgent)?;
        let record = user.clone();
        let stored = objects.put(claim, &record, STORE_WITHIN).await;
        stored.map_err(NotKept::Failed)
    }

    /// Deletes a user part on the node.
    pub(super) async fn forget_user(
        &self,
        node: &NodeName,
        claim: &ClaimId,
    ) -> Result<(), NotKept> {
        let objects = self.objects(node).ok_or(NotKept::NoAgent)?;
        let deleted = objects.delete(claim, STORE_WITHIN).await;
        deleted.map_err(NotKept::Failed)
    }

    fn objects(&self, node: &NodeName) -> Option<Arc<Objects>> {
        self.by_node.lock().get(node).cloned()
    }

    /// Notes that the node's feed is live until the guard is dropped.
    fn enter(&self, node: &NodeName, objects: Objects) -> LiveGuard<'_> {
        let objects = Arc::new(objects);
        let mut by_node = self.by_node.lock();
        by_node.insert(node.clone(), objects.clone());
        LiveGuard {
            feeds: self,
            node: node.clone(),
            objects,
        }
    }
}

struct LiveGuard<'a> {
    feeds: &'a LiveFeeds,
    node: NodeName,
    objects: Arc<Objects>,
}

impl Drop for LiveGuard<'_> {
    fn drop(&mut self) {
        let mut by_node = self.feeds.by_node.lock();
        // A feed that was replaced may end after its successor began.
        let is_own = |objects: &Arc<Objects>| Arc::ptr_eq(objects, &self.objects);
        if by_node.get(&self.node).is_some_and(is_own) {
            by_node.remove(&self.node);
        }
    }
}

impl Feeds {
    pub(super) fn new() -> Self {
        let (news_tx, news_rx) = mpsc::channel(NEWS);
        Self {
            by_node: HashMap::new(),
            news_tx,
            news_rx,
        }
    }

    /// Follows a node's agent, in place of the one that was followed; none: follows no more.
    pub(super) fn follow(&mut self, daemons: &Arc<Daemons>, node: &NodeName, agent: Option<Agent>) {
        let Some(agent) = agent else {
            self.by_node.remove(node);
            return;
        };
        if self
            .by_node
            .get(node)
            .is_some_and(|known| known.is_of(&agent))
        {
            return;
        }
        let task = FeedTask {
            daemons: daemons.clone(),
            node: node.clone(),
            agent: agent.clone(),
            news_tx: self.news_tx.clone(),
        };
        let followed = Followed {
            agent,
            awaited_until: Some(Instant::now() + FIRST_SNAPSHOT_WITHIN),
            task: AbortOnDropHandle::new(tokio::spawn(task.run())),
        };
        self.by_node.insert(node.clone(), followed);
    }

    /// Follows again what a panic made an end of. To be called about once a second.
    pub(super) fn restart(&mut self, daemons: &Arc<Daemons>) {
        let ended = self.by_node.iter().filter(|(_, f)| f.task.is_finished());
        let ended: Vec<_> = ended
            .map(|(node, followed)| (node.clone(), followed.agent.clone()))
            .collect();
        for (node, agent) in ended {
            tracing::error!(%node, "following its agent panicked: beginning again");
            self.follow(daemons, &node, Some(agent));
        }
    }

    /// Whether the node's first snapshot may still come in time to make a direct read needless.
    pub(super) fn is_awaited(&self, node: &NodeName) -> bool {
        let followed = self.by_node.get(node);
        followed.is_some_and(|followed| followed.awaited_until.is_some())
    }

    /// Stops awaiting the node's first snapshot.
    pub(super) fn settled(&mut self, node: &NodeName) {
        if let Some(followed) = self.by_node.get_mut(node) {
            followed.awaited_until = None;
        }
    }

    /// The nodes whose first snapshot did not come in time.
    pub(super) fn overdue(&self, now: Instant) -> Vec<NodeName> {
        let late = |followed: &Followed| followed.awaited_until.is_some_and(|until| until <= now);
        let overdue = self.by_node.iter().filter(|(_, followed)| late(followed));
        overdue.map(|(node, _)| node.clone()).collect()
    }
}

impl Followed {
    /// Whether `agent` is followed already.
    fn is_of(&self, agent: &Agent) -> bool {
        let known = &self.agent;
        known.address == agent.address && known.pin == agent.pin && !self.task.is_finished()
    }
}

/// Follows one agent.
struct FeedTask {
    daemons: Arc<Daemons>,
    node: NodeName,
    agent: Agent,
    news_tx: mpsc::Sender<(NodeName, News)>,
}

impl FeedTask {
    /// Never ends.
    async fn run(self) {
        let mut backoff = Backoff::default();
        let mut told = None;
        loop {
            let Err(error) = self.listen(&mut backoff, &mut told).await;
            self.daemons.metrics.feed_lost();
            if told != Some(News::Lost) {
                self.complain(&error);
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
        loop {
            let mut reading = Some(self.begin_read().await);
            let mut feed = connection.listen().await?;
            let until = tokio::time::Instant::now() + patience;
            let (sandboxes, node) = self.first_snapshot(&mut feed, &mut reading, until).await?;
            // What was done here since the reading was given up may be newer than the snapshot: ask for another one.
            let Some(reading) = reading else {
                drop(feed);
                patience = SNAPSHOT_WITHIN;
                sleep(SNAPSHOTS_APART).await;
                continue;
            };
            let _live = self.daemons.feeds.enter(&self.node, connection.objects());
            self.take_all(reading, sandboxes, &node);
            backoff.reset();
            self.tell(told, News::Live).await;
            loop {
                self.take(feed.next().await?);
            }
        }
    }

    /// Waits for the snapshot. `reading` is given up when it does not come by `until`, or the agent itself waits for its
    /// daemon: then others may try to read the node.
    async fn first_snapshot(
        &self,
        feed: &mut Listening,
        reading: &mut Option<ReadGuard<'_>>,
        until: tokio::time::Instant,
    ) -> feed::Result<(Vec<feed::Sandbox>, NodeState)> {
        loop {
            let event = tokio::select! {
                event = feed.next() => event?,
                () = sleep_until(until), if reading.is_some() => {
                    *reading = None;
                    continue;
                }
            };
            match event {
                Event::Snapshot {
                    sandboxes, node, ..
                } => return Ok((sandboxes, node)),
                Event::Heartbeat {
                    daemon_answers: false,
                } => *reading = None,
                _ => {}
            }
            self.take(event);
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

    fn take_all(&self, reading: ReadGuard<'_>, sandboxes: Vec<feed::Sandbox>, node: &NodeState) {
        let (mut rows, mut users) = (Vec::with_capacity(sandboxes.len()), Vec::new());
        for sandbox in sandboxes {
            if let Some(user) = sandbox.user {
                users.push((sandbox.row.id.clone(), taken(user)));
            }
            rows.push(self.row(sandbox.row));
        }
        self.merge(|fleet, now| {
            fleet.read(reading, &rows, now);
            fleet.informed(&self.node, &pools(node), node.draining, now);
            for (claim, user) in &users {
                fleet.restore_user(&self.node, claim, user);
            }
        });
    }

    fn take(&self, event: Event) {
        self.merge(|fleet, now| match event {
            Event::Sandbox(sandbox) => {
                let claim = sandbox.row.id.clone();
                fleet.observe(&self.node, &self.row(sandbox.row), now);
                if let Some(user) = sandbox.user {
                    fleet.restore_user(&self.node, &claim, &taken(user));
                }
                fleet.heard(&self.node, now);
            }
            Event::User(claim, user) => {
                fleet.restore_user(&self.node, &claim, &taken(*user));
            }
            // What we released is gone already, and is to stay dead for good.
            Event::Removed(claim) if fleet.by_claim(&self.node, &claim).is_none() => {
                fleet.heard(&self.node, now);
            }
            Event::Removed(claim) => {
                fleet.confirmed_absent(&self.node, &claim, now);
                fleet.heard(&self.node, now);
            }
            Event::Node(node) => fleet.informed(&self.node, &pools(&node), node.draining, now),
            Event::Heartbeat {
                daemon_answers: true,
            } => fleet.heard(&self.node, now),
            Event::Heartbeat {
                daemon_answers: false,
            } => fleet.suspect(&self.node, now),
            Event::Snapshot { .. } => {}
        });
    }

    /// Does `merge` unless the node's inventory is gone.
    fn merge(&self, merge: impl FnOnce(&Fleet, Now)) {
        let fleet = &self.daemons.fleet;
        let roster = &self.daemons.roster;
        roster.if_present(&self.node, || merge(fleet, Now::read()));
    }

    /// The row for the index, within the bounds of what the daemon itself may answer.
    fn row(&self, row: feed::Row) -> Row {
        let (state, mut rejections) = (row.state, Rejections::default());
        let row = SandboxRow {
            id: row.id,
            key: row.pool,
            deadline: row.deadline,
            claimed_at: row.claimed_at,
            hibernated: state == State::Hibernated,
            archived: state == State::Archived,
            from_checkpoint: row.from_checkpoint.map(|id| id.as_str().into()),
            claim_ref: row.claim_ref,
            metadata: row.metadata,
            on_expire: None,
            failed: (state == State::Failed).then(String::new),
        };
        let row = answers::row(row, &mut rejections);
        self.daemons.metrics.rejected_entries(&rejections);
        match state {
            State::Unknown => Row {
                phase: Phase::Unknown,
                ..row
            },
            _ => row,
        }
    }
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
    use crate::{
        api::Token,
        feed::Credential,
        fleet::HealthLimits,
        inventory::{InventoryMetrics, Options},
        meta::ResourceVersion,
        sandboxd::{Client, ClientOptions, TokenSource},
        store::Limits,
    };

    fn mk_daemons() -> Arc<Daemons> {
        let start = ResourceVersion::first_of_epoch(1).unwrap();
        let fleet = Fleet::new(start, Limits::default(), HealthLimits::default());
        let client = Client::new(ClientOptions {
            token: TokenSource::Fixed(Token::from("t".to_owned())),
            ca_file: None,
        });
        Arc::new(Daemons::new(
            Arc::new(fleet),
            client.unwrap(),
            Options::default(),
            InventoryMetrics::default(),
        ))
    }

    fn mk_agent() -> Agent {
        Agent {
            address: "https://127.0.0.1:1".parse().unwrap(),
            pin: "0".repeat(64).parse().unwrap(),
            credential: Credential::Fixed(Token::from("t".to_owned())),
        }
    }

    #[tokio::test]
    async fn an_agent_is_followed_again_after_a_panic() {
        let (daemons, node, mut feeds) = (mk_daemons(), NodeName::from("n1"), Feeds::new());
        feeds.follow(&daemons, &node, Some(mk_agent()));
        feeds.settled(&node);
        feeds.restart(&daemons);
        assert!(!feeds.is_awaited(&node), "what goes on is left alone");
        let panics = tokio::spawn(async { panic!("on purpose") });
        let followed = feeds.by_node.get_mut(&node).unwrap();
        followed.task = AbortOnDropHandle::new(panics);
        while !feeds.by_node[&node].task.is_finished() {
            tokio::task::yield_now().await;
        }
        feeds.restart(&daemons);
        assert!(feeds.is_awaited(&node) && !feeds.by_node[&node].task.is_finished());
    }

    #[test]
    fn an_agent_cannot_set_the_servers_own_keys() {
        let mut user = UserPart::default();
        let keys = [crate::api::labels::TOKEN, "team"];
        user.annotations = keys.map(|key| (key.into(), "x".into())).into();
        assert!(taken(user).annotations.keys().eq(["team"]));
    }
}
