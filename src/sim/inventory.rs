//! A node's `NodeInventory`, with every optional field.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    claim::{Claim, Millis, Number, Phase},
    daemon::Daemon,
};
use crate::{
    api::{InventoryEntry, InventoryPool, NodeInventory, labels},
    meta::UnixTime,
};

/// What `daemon` would publish of itself.
pub(super) fn of(daemon: &Daemon<'_>) -> NodeInventory {
    let node = &daemon.world.nodes[daemon.index];
    let address = node.address.authority();
    let claims = daemon.state.claims.iter();
    let entries: Vec<_> = claims
        .map(|(&number, claim)| entry(number, claim, &address))
        .collect();
    let pools = pools(daemon);
    NodeInventory {
        metadata: ObjectMeta {
            name: Some(node.name.to_string()),
            ..ObjectMeta::default()
        },
        node: node.name.to_string(),
        observed_at: time(daemon.now),
        total: i64::try_from(entries.len()).ok(),
        truncated: false,
        agent: None,
        entries,
        warm: Some(pools.iter().map(|pool| pool.warm).sum()),
        pools,
        releases: Vec::new(),
        address,
    }
}

fn entry(number: Number, claim: &Claim, address: &str) -> InventoryEntry {
    let extra = claim.extra.as_deref();
    // As the node agent does.
    let in_metadata = extra.and_then(|extra| extra.metadata.get(labels::CLAIM_REF));
    let claim_ref = match (&*claim.claim_ref, in_metadata) {
        ("", Some(in_metadata)) => in_metadata.clone(),
        (claim_ref, _) => claim_ref.to_owned(),
    };
    InventoryEntry {
        name: claim_ref.clone(),
        id: number.to_string(),
        phase: match claim.phase {
            Phase::Running => "Running",
            Phase::Hibernated => "Hibernated",
            Phase::Archived => "Archived",
            Phase::Failed => "Failed",
        }
        .to_owned(),
        claim_ref,
        addr: address.to_owned(),
        deadline: time(claim.deadline),
        template: claim.key.template.to_string(),
        net: claim.key.net.to_string(),
        size: claim.key.size.to_string(),
        claimed_at: time(claim.claimed_at),
        from_checkpoint: extra
            .and_then(|extra| extra.from_checkpoint)
            .map(Number::checkpoint)
            .unwrap_or_default(),
    }
}

fn pools(daemon: &Daemon<'_>) -> Vec<InventoryPool> {
    let pools = daemon.state.pools.iter().map(|(key, pool)| InventoryPool {
        template: key.template.to_string(),
        net: key.net.to_string(),
        size: key.size.to_string(),
        warm: pool.warm.into(),
        target: pool.target.into(),
    });
    pools.collect()
}

/// Whole seconds; no end is no field.
fn time(millis: Millis) -> Option<String> {
    (millis != Millis::FOREVER).then(|| UnixTime::from_secs(millis.0.div_euclid(1000)).to_string())
}
