//! The agents that are followed, a task each.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{daemons::Daemons, feed_task::FeedTask};
use crate::{api::NodeName, feed::Agent};

/// A node whose first snapshot takes longer is read directly.
pub(super) const FIRST_SNAPSHOT_WITHIN: Duration = Duration::from_secs(2);
/// News on their way to the follower.
const NEWS: usize = 256;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::Token,
        feed::Credential,
        fleet::{Fleet, HealthLimits},
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
            node: "n1".into(),
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
}
