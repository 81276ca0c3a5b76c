//! temporary
#![allow(missing_docs)]
use crate::{api::*, fleet::*, sandboxd::Client, telemetry::*};
use std::sync::Arc;
pub enum Update {
    Published(Box<NodeInventory>),
    Listed,
}
pub type UpdateSender = tokio::sync::mpsc::Sender<Update>;
pub enum Source {
    Channel(tokio::sync::mpsc::Receiver<Update>),
    Cluster(kube::Client),
}
impl Source {
    pub fn channel() -> (Self, UpdateSender) {
        let (tx, rx) = tokio::sync::mpsc::channel(16);
        (Self::Channel(rx), tx)
    }
    pub fn cluster(c: kube::Client) -> Self {
        Self::Cluster(c)
    }
}
#[derive(Default)]
pub struct Options {
    pub node_address_cidrs: Vec<ipnet::IpNet>,
}
pub fn start(
    source: Source,
    fleet: Arc<Fleet>,
    _d: Client,
    _o: Options,
    readiness: &Readiness,
    _m: &Metrics,
    tasks: &mut Tasks,
) {
    let check = readiness.check("inventory");
    let Source::Channel(mut rx) = source else {
        return;
    };
    tasks.spawn("inventory", async move {
        while let Some(update) = rx.recv().await {
            match update {
                Update::Listed => check.pass(),
                Update::Published(i) => {
                    let node: NodeName = i.node.as_str().into();
                    let rows = i
                        .entries
                        .iter()
                        .map(|e| Row {
                            claim: e.id.as_str().into(),
                            claim_ref: e.claim_ref.as_str().into(),
                            phase: Phase::parse(&e.phase),
                            deadline: e.deadline.as_ref().and_then(|t| t.parse().ok()),
                            claimed_at: e.claimed_at.as_ref().and_then(|t| t.parse().ok()),
                            pool: Some(PoolKey {
                                template: e.template.as_str().into(),
                                net: e.net.as_str().into(),
                                size: e.size.as_str().into(),
                            }),
                            address: e.addr.as_str().into(),
                            from_checkpoint: None,
                            metadata: Default::default(),
                        })
                        .collect();
                    let pools = i
                        .pools
                        .iter()
                        .map(|p| Pool {
                            key: PoolKey {
                                template: p.template.as_str().into(),
                                net: p.net.as_str().into(),
                                size: p.size.as_str().into(),
                            },
                            warm: p.warm as u32,
                            target: p.target as u32,
                        })
                        .collect();
                    fleet.publish(
                        &node,
                        &Report {
                            address: i.address.parse().ok(),
                            rows,
                            pools: Some(pools),
                            complete: true,
                            published_since: crate::meta::UnixTime::now(),
                        },
                        true,
                        true,
                        Now::read(),
                    );
                }
            }
        }
    });
}
