//! Direct reads and probes, begun and ended by the follower.

use std::time::Instant;

use rand::Rng;
use tokio::time::sleep;

use super::{
    daemons::ReadOutcome,
    follow::{Done, Follower, Startup},
    reads::Read,
};
use crate::{
    api::NodeName,
    fleet::{Now, Report},
};

impl Follower {
    pub(super) fn want_read(&mut self, node: &NodeName, undated: Option<Report>) {
        self.reads.hold(node, undated);
        self.want_read_again(node);
    }

    /// The same, for what no publication said.
    pub(super) fn want_read_again(&mut self, node: &NodeName) {
        if let Startup::Starting { unread, asked, .. } = &mut self.startup
            && asked.insert(node.clone())
        {
            unread.insert(node.clone());
        }
        self.reads.want_again(node);
    }

    pub(super) fn begin_reads(&mut self) {
        while let Some(read) = self.reads.next(Instant::now()) {
            let daemons = self.daemons.clone();
            let within = match self.startup {
                Startup::Live => daemons.options.read_within,
                _ => daemons.options.first_read_within,
            };
            self.tasks.spawn(async move {
                let outcome = daemons.read(&read.node, within).await;
                Done::Read(read, outcome)
            });
        }
    }

    pub(super) fn probe(&mut self, node: NodeName) {
        if !self.probing.insert(node.clone()) {
            return;
        }
        let (daemons, slots) = (self.daemons.clone(), self.probe_slots.clone());
        let jitter = daemons.options.probe_jitter.mul_f64(rand::rng().random());
        self.tasks.spawn(async move {
            sleep(jitter).await;
            let _slot = slots.acquire().await;
            daemons.ask(&node).await;
            Done::Probe(node)
        });
    }

    pub(super) fn done(&mut self, done: Done) {
        match done {
            Done::Probe(node) => {
                self.probing.remove(&node);
            }
            Done::Heard(node, asked) => self.heard_first(&node, asked.as_ref()),
            Done::Read(read, ReadOutcome::Busy) => self.reads.put_back(read),
            Done::Read(read, outcome) => {
                self.reads.end(&read);
                if let Startup::Starting { unread, .. } = &mut self.startup {
                    unread.remove(&read.node);
                }
                if self.known.contains_key(&read.node) {
                    self.read(&read, outcome);
                }
            }
        }
    }

    fn read(&mut self, read: &Read, outcome: ReadOutcome) {
        let now = Now::read();
        match outcome {
            ReadOutcome::Merged {
                rejections,
                settled,
            } => {
                self.left_out(&read.node, &rejections);
                if !settled {
                    // The start does not wait for this one: a node that publishes without end would hold it up.
                    self.reads.want_again(&read.node);
                }
            }
            ReadOutcome::Busy => {}
            ReadOutcome::Unaddressed => self.admit(&read.node, read.undated.as_ref(), now),
            ReadOutcome::Failed(error) => {
                self.daemons.fleet.not_heard(&read.node, now);
                self.admit(&read.node, read.undated.as_ref(), now);
                if self
                    .complaints
                    .is_due(read.node.as_str(), "direct_read", now.instant)
                {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(node = %read.node, error, "node cannot be read: its sandboxes stay as they are known");
                }
            }
        }
    }
}
