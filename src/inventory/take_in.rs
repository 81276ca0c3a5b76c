//! Inventories and Nodes, taken over by the follower.

use std::collections::HashSet;

use super::{
    ClusterNode, Error, Publication, Update, address,
    follow::{Follower, Known, Phase},
    lenient::Scalar,
    publication::Edition,
    rejection::Reason,
};
use crate::{
    api::{NodeAddress, NodeName},
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
                if let Phase::Starting { listed, .. } = &mut self.phase {
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
        let is_first_list = matches!(self.phase, Phase::Starting { listed: false, .. });
        if is_first_list && !self.nodes_listed && self.known.is_empty() {
            self.phase = Phase::awaiting_nodes(&self.daemons.options);
        }
    }

    fn not_ready(&self, reason: &str) {
        if !matches!(self.phase, Phase::Live) {
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
        let (since, is_news) = self.note(&node, &content.edition, &content.address, now);
        let address = self.judge(&node, content.address.clone());
        let report = Report {
            address,
            ..content.into_report(since)
        };
        let daemons = self.daemons.clone();
        daemons.metrics.applied.inc();
        daemons.roster.enter(&node);
        let fleet = &daemons.fleet;
        let had_address = fleet.address(&node).is_some();
        let doubt = fleet.publish(&node, &report, looked_on && is_news, false, now);
        fleet.set_cordoned(&node, self.is_cordoned(&node));
        self.reads.set_cut(&node, !report.complete);
        let undated = (doubt.undated > 0).then(|| undated_of(report));
        match fleet.address(&node) {
            None => self.admit(&node, undated.as_ref(), now),
            Some(_) if doubt.is_some() || !had_address => self.want_read(&node, undated),
            Some(_) => {}
        }
    }

    /// Notes what the next inventory of the node is compared with. Gives since when it is known, and whether its publisher
    /// wrote this one.
    fn note(
        &mut self,
        node: &NodeName,
        edition: &Edition,
        address: &Scalar,
        now: Now,
    ) -> (UnixTime, bool) {
        let (edition, address) = (edition.clone(), address.clone());
        match self.known.get_mut(node) {
            Some(known) => {
                let is_news = edition.is_news_after(&known.edition);
                (known.edition, known.address) = (edition, address);
                (known.since, is_news)
            }
            None => {
                let since = now.wall;
                let known = Known {
                    since,
                    edition,
                    address,
                };
                self.known.insert(node.clone(), known);
                (since, true)
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
        self.reads.forget(node);
        if let Phase::Starting { unread, .. } = &mut self.phase {
            unread.remove(node);
        }
        let daemons = &self.daemons;
        daemons
            .roster
            .strike(node, || daemons.fleet.forget_node(node));
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
        if matches!(self.phase, Phase::AwaitingNodes { .. }) {
            self.phase = Phase::Starting {
                listed: false,
                unread: HashSet::new(),
            };
        }
    }

    /// Judges a node's address and cordon again after its Node changed.
    fn reconsider(&mut self, name: &NodeName) {
        let Some(published) = self.known.get(name).map(|known| known.address.clone()) else {
            return;
        };
        let daemons = self.daemons.clone();
        daemons.fleet.set_cordoned(name, self.is_cordoned(name));
        let known = daemons.fleet.address(name);
        let address = self.judge(name, published);
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
        self.want_read(name, None);
    }

    fn is_cordoned(&self, name: &NodeName) -> bool {
        self.nodes.get(name).is_some_and(|node| node.cordoned)
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
