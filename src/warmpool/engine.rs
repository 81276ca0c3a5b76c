//! The part of the driver that speaks to the nodes. It knows nothing of kube-apiserver.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};

use super::{
    WarmPoolMetrics,
    members::{Ask, Call, Members, Stage, Written},
    objects::{PlannedNode, candidate},
    plan::{Candidate, Demand, Plan, Targets, plan},
};
use crate::{
    api::{NodeName, PoolKey},
    fleet::{Fleet, Now, Pool},
    sandboxd::{self, Client, Info, PoolSpec},
};

/// How long a node may take for a call. A set of pools is checked and written down; the VMs are made afterwards.
const CALL_WITHIN: Duration = Duration::from_secs(2);

/// What is wanted, and the Node objects to choose by.
#[derive(Clone, Debug, Default)]
pub(super) struct Intent {
    pub(super) demands: Vec<Demand>,
    pub(super) nodes: Arc<HashMap<String, Arc<PlannedNode>>>,
}

/// Plans, and calls nodes.
pub(super) struct Engine {
    fleet: Arc<Fleet>,
    daemons: Client,
    pub(super) members: Members,
    metrics: WarmPoolMetrics,
    calls: FuturesUnordered<BoxFuture<'static, Outcome>>,
    planned: Planned,
}

/// The last plan and what it was made of.
#[derive(Default)]
struct Planned {
    demands: Vec<Demand>,
    candidates: Vec<Candidate>,
    plan: Plan,
    wanted: BTreeMap<NodeName, Targets>,
    keys: BTreeSet<PoolKey>,
}

/// How a call ended.
struct Outcome {
    call: Call,
    answer: sandboxd::Result<Info>,
}

impl Engine {
    pub(super) fn new(
        fleet: Arc<Fleet>,
        daemons: Client,
        members: Members,
        metrics: WarmPoolMetrics,
    ) -> Self {
        Self {
            fleet,
            daemons,
            members,
            metrics,
            calls: FuturesUnordered::new(),
            planned: Planned::default(),
        }
    }

    /// Looks at the nodes, plans if anything changed, and begins the calls that are due. What is returned is to be put on
    /// record, and the members to be told.
    pub(super) fn advance(&mut self, intent: &Intent) -> Option<Written> {
        let now = Instant::now();
        self.members.observe(&self.fleet.nodes(), now);
        self.plan(intent);
        let steps = self
            .members
            .step(&self.planned.wanted, &self.planned.keys, now);
        for call in steps.calls {
            self.calls.push(perform(self.daemons.clone(), call).boxed());
        }
        steps.record
    }

    /// What each demand of the last intent should have on each node.
    pub(super) fn shares(&self) -> &[BTreeMap<NodeName, u32>] {
        &self.planned.plan.shares
    }

    /// The nodes that are left alone.
    pub(super) fn foreign(&self) -> Vec<NodeName> {
        let foreign = self
            .members
            .iter()
            .filter(|(_, member)| member.open && matches!(member.stage(), Stage::Foreign(_)));
        foreign.map(|(name, _)| name.clone()).collect()
    }

    /// Waits for the next call to end, and takes in all that have ended; for ever while none is under way.
    pub(super) async fn next(&mut self) {
        if self.calls.is_empty() {
            return std::future::pending().await;
        }
        let mut ended = self.calls.next().await;
        while let Some(outcome) = ended {
            self.conclude(outcome);
            ended = self.calls.next().now_or_never().flatten();
        }
    }

    fn plan(&mut self, intent: &Intent) {
        let members = self.members.iter();
        let candidates: Vec<_> = members
            .filter(|(_, member)| member.takes_part())
            .map(|(name, member)| candidate(name, &intent.nodes, member.refuses().cloned()))
            .collect();
        if candidates == self.planned.candidates && intent.demands == self.planned.demands {
            return;
        }
        let plan = plan(&intent.demands, &candidates);
        self.planned = Planned {
            wanted: plan.targets(&intent.demands),
            keys: intent.demands.iter().map(|d| d.key.clone()).collect(),
            demands: intent.demands.clone(),
            candidates,
            plan,
        };
    }

    fn conclude(&mut self, Outcome { call, answer }: Outcome) {
        let kind = match &call.ask {
            Ask::Read => "info",
            Ask::Put(_) => "put_pools",
        };
        self.metrics.called(kind, answer.is_ok());
        let now = Now::read();
        // What a daemon says that the node has left meanwhile says nothing of the node.
        let is_there = self.fleet.address(&call.node).as_ref() == Some(&call.address);
        match answer {
            Ok(info) => {
                // Whatever it has: also a pool that is not fit for the index may be somebody's.
                let has = info.pools.iter();
                let has = has.map(|pool| (pool.key.clone(), pool.target)).collect();
                let draining = info.draining;
                let pools = info.into_pools().into_iter().map(|pool| Pool {
                    key: pool.key,
                    warm: pool.warm,
                    target: pool.target,
                });
                let pools: Vec<_> = pools.collect();
                if is_there {
                    self.fleet.informed(&call.node, &pools, draining, now);
                }
                self.members.answered(&call, has, now.instant);
            }
            Err(error) => {
                tracing::info!(node = %call.node, call = kind, error = &error as &dyn std::error::Error, "a call about pools failed");
                let is_silent = matches!(
                    error,
                    sandboxd::Error::Silent { .. } | sandboxd::Error::Unreachable(_)
                );
                if is_there && is_silent {
                    self.fleet.suspect(&call.node, now);
                }
                self.members.failed(&call, &error, now.instant);
            }
        }
    }
}

async fn perform(daemons: Client, call: Call) -> Outcome {
    let node = daemons.node(&call.address, CALL_WITHIN);
    let answer = match &call.ask {
        Ask::Read => node.info().await,
        Ask::Put(targets) => {
            let pools = targets.iter().map(|(key, warm)| PoolSpec {
                key: key.clone(),
                warm: *warm,
                warm_max: 0,
                idle_hibernate_seconds: 0,
            });
            let pools: Vec<_> = pools.collect();
            node.put_pools(&pools).await
        }
    };
    Outcome { call, answer }
}
