//! Inventories and Nodes, taken over by the follower.

use std::collections::HashSet;

use super::{
    ClusterNode, Error, Publication, Update, address,
    clocks::Taken,
    feeds::News,
    fields::{MAX_WORD, word},
    follow::{Follower, Known, Startup},
    lenient::Scalar,
    publication::{Content, PublishedAgent},
    rejection::Reason,
};
use crate::{
    api::{NodeAddress, NodeName},
    feed::Agent,
    fleet::{Now, Report},
    meta::UnixTime,
};

impl Follower {
    pub(super) fn inventory_update(&mut self, update: Update<Publication>) {
        let metrics = &self.daemons.metrics;
        match update {
            Update::Listed(publication) => self.publish(publication, false),
            Update::Applied(publication) => self.publish(publication, true),
            Update::Deleted(node) => self.forget(&node),
            Update::ListEnds => {
                if let Startup::Starting { listed, .. } = &mut self.startup {
                    *listed = true;
                }
            }
            Update::Undecodable(reason) => {
                metrics.rejected(Reason::Undecodable);
                self.complain("NodeInventory", Reason::Undecodable, &reason);
            }
            Update::Interrupted(reason) => {
                metrics.interrupted("NodeInventory");
                tracing::warn!(
                    reason,
                    "NodeInventories cannot be watched: what is known stays"
                );
                self.not_ready(&format!("NodeInventories cannot be watched: {reason}"));
                self.await_nodes_again();
            }
        }
    }

    /// Whatever hinders the first list of inventories may hinder that of the Nodes, which is to come before it.
    fn await_nodes_again(&mut self) {
        let is_first_list = matches!(self.startup, Startup::Starting { listed: false, .. });
        if is_first_list && !self.nodes_listed && self.known.is_empty() {
            self.startup = Startup::awaiting_nodes(&self.daemons.options);
        }
    }

    fn not_ready(&self, reason: &str) {
        if !matches!(self.startup, Startup::Live) {
            self.ready.fail(reason.to_owned());
        }
    }

    /// Takes an inventory over. `looked_on`: it was published while this server watched.
    fn publish(&mut self, publication: Publication, looked_on: bool) {
        let Some(node) = publication.node() else {
            self.daemons.metrics.rejected(Reason::Name);
            return self.complain("NodeInventory", Reason::Name, "its name is no node's");
        };
        let content = publication.content;
        self.left_out(&node, &content.rejections);
        let now = Now::read();
        let agent = content.agent.clone();
        let edition = content.edition.clone();
        let before = self.known.get(&node).map(|known| &known.edition);
        let is_news = before.is_none_or(|before| edition.is_news_after(before));
        let is_repeated = before.is_some_and(|before| edition.repeats(before));
        let since = self.note(&node, &content, now);
        let address = self.address_of(&node, content.address.clone());
        let report = Report {
            address,
            ..content.into_report(since)
        };
        let daemons = self.daemons.clone();
        daemons.metrics.applied.inc();
        daemons.roster.enter(&node);
        let mut taken = Taken {
            had_address: daemons.fleet.address(&node).is_some(),
            watched: looked_on && is_news,
            is_repeated,
            report,
        };
        match self.clock_of(&node, &taken.report) {
            Some(offset) => {
                // The node has answered, and this one is later than what waited for that.
                let waited = self.end_hearing(&node);
                taken.is_repeated &= waited.is_none();
                taken.had_address &= waited.is_none_or(|waited| waited.had_address);
                self.take_over(&node, taken.by_our_clock(offset), agent);
            }
            None => self.hear_first(&node, taken, agent),
        }
    }

    /// Takes a publication over whose times are by our clock.
    pub(super) fn take_over(
        &mut self,
        node: &NodeName,
        taken: Taken,
        agent: Option<PublishedAgent>,
    ) {
        let Taken {
            report,
            watched,
            is_repeated,
            had_address,
        } = taken;
        let (daemons, now) = (self.daemons.clone(), Now::read());
        let fleet = &daemons.fleet;
        let merge = || match is_repeated {
            // What the node or its agent said since is newer than these rows.
            true => fleet.publish(node, &addressed(&report), watched, false, now),
            false => fleet.publish(node, &report, watched, false, now),
        };
        let Some(doubt) = daemons.feeds.unless_live(node, merge) else {
            fleet.publish(node, &addressed(&report), watched, false, now);
            return self.follow_agent(node, agent);
        };
        fleet.set_cordoned(node, self.is_cordoned(node));
        if !is_repeated {
            self.reads.set_cut(node, !report.complete);
        }
        self.follow_agent(node, agent);
        if doubt.unlisted > 0
            && let Some(known) = self.known.get_mut(node)
        {
            known.edition.leave_open();
        }
        let undated = (doubt.unlisted > 0).then(|| undated_of(report));
        match fleet.address(node) {
            None => self.admit(node, undated.as_ref(), now),
            // A snapshot will tell more, if it comes.
            Some(_) if self.feeds.is_awaited(node) => self.reads.hold(node, undated),
            Some(_) if doubt.is_some() || !had_address => self.want_read(node, undated),
            Some(_) => {}
        }
    }

    /// Notes what the next inventory of the node is compared with. Gives since when it is known.
    fn note(&mut self, node: &NodeName, content: &Content, now: Now) -> UnixTime {
        let before = self.known.get(node);
        let since = before.map_or(now.wall, |known| known.since);
        let known = Known {
            since,
            edition: content.edition.clone(),
            address: content.address.clone(),
            agent: content.agent.clone(),
        };
        self.known.insert(node.clone(), known);
        since
    }

    /// Listens to the node's agent, if it has one at an address that is the node's.
    pub(super) fn follow_agent(&mut self, node: &NodeName, published: Option<PublishedAgent>) {
        let credential = self.daemons.options.agent_credential.clone();
        let agent = published
            .zip(credential)
            .and_then(|(published, credential)| {
                let pin = word(published.certificate_sha256, MAX_WORD).ok();
                let Some(pin) = pin.and_then(|pin| pin.parse().ok()) else {
                    self.complain(
                        node.as_str(),
                        Reason::Characters,
                        "its agent's certificate is no SHA-256",
                    );
                    return None;
                };
                let address = self.judge(node, published.address)?;
                Some(Agent {
                    node: node.clone(),
                    address,
                    pin,
                    credential,
                })
            });
        if agent.is_none() {
            self.reads.set_unfed(node, false);
        }
        let was_awaited = self.feeds.is_awaited(node);
        self.feeds.follow(&self.daemons, node, agent);
        // A first snapshot answers what a direct read would, and the start waits for either.
        if !self.feeds.is_awaited(node) {
            if was_awaited {
                self.want_read_again(node);
            }
        } else if let Startup::Starting { unread, .. } = &mut self.startup {
            unread.insert(node.clone());
        }
    }

    /// Takes in that a node's feed became live, or is not: then the node is read, for its inventory is as old as it may be.
    pub(super) fn feed_news(&mut self, node: &NodeName, news: News) {
        self.feeds.settled(node);
        if !self.known.contains_key(node) {
            return;
        }
        match news {
            News::Lost => {
                // Nobody tells what becomes of it, until there is a feed again or its agent publishes.
                self.reads.set_unfed(node, true);
                self.want_read_again(node);
            }
            News::Live => {
                self.reads.set_cut(node, false);
                self.reads.set_unfed(node, false);
                self.reads.hold(node, None);
                if let Startup::Starting { unread, .. } = &mut self.startup {
                    unread.remove(node);
                }
            }
        }
    }

    /// Lists new sandboxes of which nobody can be asked when they were claimed.
    pub(super) fn admit(&self, node: &NodeName, undated: Option<&Report>, now: Now) {
        if let Some(undated) = undated {
            self.daemons.fleet.publish(node, undated, false, true, now);
        }
    }

    fn forget(&mut self, node: &NodeName) {
        self.known.remove(node);
        self.unheard.remove(node);
        self.reads.forget(node);
        self.feeds.follow(&self.daemons, node, None);
        if let Startup::Starting { unread, asked, .. } = &mut self.startup {
            unread.remove(node);
            asked.remove(node);
        }
        let daemons = &self.daemons;
        daemons
            .roster
            .strike(node, || daemons.fleet.forget_node(node));
        self.reconsider_homeless();
    }

    /// Judges again the addresses of nodes that have none: one of them may have waited for that of a node that is gone.
    fn reconsider_homeless(&mut self) {
        let fleet = &self.daemons.fleet;
        let homeless = self
            .known
            .keys()
            .filter(|node| fleet.address(node).is_none());
        let homeless: Vec<_> = homeless.cloned().collect();
        for node in homeless {
            self.reconsider(&node);
        }
    }

    pub(super) fn node_update(&mut self, update: Update<ClusterNode>) {
        match update {
            Update::Listed(node) | Update::Applied(node) => {
                let name = node.name();
                self.nodes.insert(name.clone(), node);
                self.reconsider(&name);
            }
            Update::Deleted(name) => {
                self.nodes.remove(&name);
                self.reconsider(&name);
            }
            Update::ListEnds => {
                self.nodes_listed = true;
                self.stop_awaiting_nodes();
            }
            Update::Undecodable(reason) => self.complain("Node", Reason::Undecodable, &reason),
            Update::Interrupted(reason) => {
                self.daemons.metrics.interrupted("Node");
                tracing::warn!(
                    reason,
                    "Nodes cannot be watched: addresses and cordons stay as they are known"
                );
                self.not_ready(&format!("Nodes cannot be watched: {reason}"));
            }
        }
    }

    pub(super) fn stop_awaiting_nodes(&mut self) {
        if matches!(self.startup, Startup::AwaitingNodes { .. }) {
            self.startup = Startup::Starting {
                listed: false,
                unread: HashSet::new(),
                asked: HashSet::new(),
            };
        }
    }

    /// Judges a node's address and cordon again after its Node changed.
    fn reconsider(&mut self, name: &NodeName) {
        let Some(published) = self.known.get(name).map(|known| known.address.clone()) else {
            return;
        };
        if let Some(agent) = self.known.get(name).map(|known| known.agent.clone()) {
            self.follow_agent(name, agent);
        }
        let daemons = self.daemons.clone();
        daemons.fleet.set_cordoned(name, self.is_cordoned(name));
        let known = daemons.fleet.address(name);
        let address = self.address_of(name, published);
        if address.is_none() || address == known {
            return;
        }
        let now = Now::read();
        let report = Report {
            address,
            rows: Vec::new(),
            pools: None,
            complete: false,
            published_since: now.wall,
        };
        daemons.fleet.publish(name, &report, false, false, now);
        if !(self.feeds.is_awaited(name) || daemons.feeds.is_live(name)) {
            self.want_read(name, None);
        }
    }

    pub(super) fn is_cordoned(&self, name: &NodeName) -> bool {
        self.nodes.get(name).is_some_and(|node| node.cordoned)
    }

    /// Where the node's daemon is by what was published; `None` when that is no address for our token.
    ///
    /// Then the one that is known stays, unless it is the node's no more: whoever has it by now must not be shown the token.
    fn address_of(&mut self, name: &NodeName, published: Scalar) -> Option<NodeAddress> {
        let address = self.judge(name, published);
        let address = address.filter(|address| self.is_free(name, address));
        if address.is_none()
            && self.nodes_listed
            && let Some(known) = self.daemons.fleet.address(name)
        {
            let (networks, node) = (
                &self.daemons.options.node_address_cidrs,
                self.nodes.get(name),
            );
            if address::judge_known(&known, networks, node).is_err() {
                tracing::warn!(node = %name, address = %known, "the node has left its address: nothing is sent there");
                self.daemons.fleet.withdraw_address(name);
            }
        }
        address
    }

    /// Whether no other node's daemon is at the address. Daemons do not say which node they are on: the sandboxes of one that
    /// is asked for two nodes would be listed twice, and released as the other's. So the first keeps it, unless its Node is gone
    /// and the newcomer's is there, as where a machine took over the other's address.
    fn is_free(&mut self, name: &NodeName, address: &NodeAddress) -> bool {
        let holder = self.daemons.fleet.node_at(address);
        let Some(holder) = holder.filter(|holder| holder != name) else {
            return true;
        };
        let is_left = !self.nodes.contains_key(&holder) && self.nodes.contains_key(name);
        if self.nodes_listed && is_left {
            tracing::warn!(node = %holder, heir = %name, %address, "the node is gone, and its address another one's");
            self.daemons.fleet.withdraw_address(&holder);
            return true;
        }
        let reason = Reason::TakenAddress;
        self.daemons.metrics.refused_address(reason);
        let why = format!("{address} is the address of node {holder}");
        self.complain(name.as_str(), reason, &why);
        false
    }

    fn judge(&mut self, name: &NodeName, published: Scalar) -> Option<NodeAddress> {
        let networks = &self.daemons.options.node_address_cidrs;
        let error = match address::judge(published, networks, self.nodes.get(name)) {
            Ok(address) => return Some(address),
            Err(error) => error,
        };
        let reason = match error {
            Error::ForeignAddress(_) => Reason::ForeignAddress,
            Error::InvalidAddress(_) | Error::NoAddress | Error::NotJson(_) => Reason::Address,
        };
        self.daemons.metrics.refused_address(reason);
        self.complain(name.as_str(), reason, &error.to_string());
        None
    }
}

/// What an inventory says that no feed does.
pub(super) fn addressed(report: &Report) -> Report {
    Report {
        address: report.address.clone(),
        rows: Vec::new(),
        pools: None,
        complete: false,
        published_since: report.published_since,
    }
}

/// The rows that do not say when they were claimed.
fn undated_of(report: Report) -> Report {
    let mut rows = report.rows;
    rows.retain(|row| row.claimed_at.is_none());
    Report {
        address: None,
        rows,
        pools: None,
        complete: false,
        published_since: report.published_since,
    }
}
