//! The merge rule, a sentence a test, on a bench of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

mod doubts;
mod histories;
mod merge;
mod naming;
mod nodes;

use super::*;
use crate::{
    api::{ClaimId, NodeName, PoolKey, SandboxKey, UserPart},
    meta::{ResourceVersion, UnixTime},
    store::{EventKind, Limits, Scope, Stored},
};

const START: i64 = 1_000_000;

struct Bench {
    fleet: Arc<Fleet>,
    begun: Instant,
    elapsed: u64,
}

impl Bench {
    fn new() -> Self {
        let start = ResourceVersion::first_of_epoch(1).unwrap();
        let fleet = Arc::new(Fleet::new(
            start,
            Limits::default(),
            HealthLimits::default(),
        ));
        Self {
            fleet,
            begun: Instant::now(),
            elapsed: 0,
        }
    }

    fn now(&self) -> Now {
        Now {
            instant: self.begun + Duration::from_secs(self.elapsed),
            wall: UnixTime::from_secs(START + self.elapsed as i64),
        }
    }

    fn publish(&self, node: &str, rows: &[Row]) -> Doubt {
        self.fleet
            .publish(&node.into(), &mk_report(rows), true, false, self.now())
    }

    fn read(&self, node: &str, rows: &[Row]) {
        let guard = self
            .fleet
            .begin_read(&node.into())
            .expect("no read is under way");
        assert!(self.fleet.read(guard, rows, self.now()));
    }

    fn create(&self, key: &str, node: &str, claim: &str) -> Result<(), ClaimLost> {
        let (namespace, name) = key.split_once('/').unwrap();
        let reserved = self
            .fleet
            .reserve(SandboxKey::new(namespace, name))
            .expect("the name is free");
        self.fleet
            .granted(
                &reserved,
                mk_granted(node, claim, self.now().wall),
                &[],
                self.now(),
            )
            .map(|_| ())
    }

    /// What is listed: `namespace/name=claim@node`, with a mark where the state is not plain.
    #[track_caller]
    fn lists(&self, expected: &str) {
        let page = self
            .fleet
            .store()
            .page(&Scope::All, None, self.fleet.store().head(), 1_000)
            .unwrap();
        let show = |s: &Sandbox| {
            let lost = if s.node_lost { " lost" } else { "" };
            let phase = if s.phase == Phase::Running {
                String::new()
            } else {
                format!(" {}", s.phase.as_str())
            };
            format!(
                "{}/{}={}@{}{phase}{lost}",
                s.namespace, s.name, s.claim, s.node
            )
        };
        let found: Vec<_> = page.items.iter().map(|item| show(&item.value)).collect();
        assert_eq!(found.join("; "), expected);
    }

    /// The changes since `version`: `+name`, `~name`, `-name`.
    fn changes(&self, version: ResourceVersion) -> String {
        let sign = |kind| match kind {
            EventKind::Added => '+',
            EventKind::Modified => '~',
            EventKind::Deleted => '-',
        };
        let events = self.fleet.store().changes_after(version, 1_000).unwrap();
        let shown: Vec<_> = events
            .iter()
            .map(|e| format!("{}{}", sign(e.kind()), e.object().value.name))
            .collect();
        shown.join(" ")
    }
}

fn mk_row(claim: &str, claim_ref: &str) -> Row {
    Row {
        claim: claim.into(),
        claim_ref: claim_ref.into(),
        phase: Phase::Running,
        deadline: Some(UnixTime::from_secs(START + 10_000)),
        claimed_at: Some(UnixTime::from_secs(START - 10)),
        pool: Some(mk_pool_key()),
        address: "10.0.0.9:80".into(),
        from_checkpoint: None,
        metadata: BTreeMap::new(),
    }
}

fn mk_pool_key() -> PoolKey {
    PoolKey {
        template: "t".into(),
        net: "none".into(),
        size: "small".into(),
    }
}

fn mk_report(rows: &[Row]) -> Report {
    Report {
        address: Some("127.0.0.1:7777".parse().unwrap()),
        rows: rows.to_vec(),
        pools: None,
        complete: true,
        published_since: UnixTime::from_secs(START - 1_000),
    }
}

fn mk_granted(node: &str, claim: &str, claimed_at: UnixTime) -> Granted {
    Granted {
        node: node.into(),
        claim: claim.into(),
        pool: Some(mk_pool_key()),
        address: "10.0.0.9:80".into(),
        from_checkpoint: None,
        claimed_at,
        deadline: Some(UnixTime::from_secs(START + 10_000)),
        phase: Phase::Running,
        user: None,
    }
}
