//! The node's `NodeInventory`, written slowly and on change.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use rand::Rng;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{Error, Identity, NodeMetrics, Options, Result};
use crate::{
    api::{InventoryEntry, InventoryPool, NodeInventory},
    feed::{Backoff, Board, Current, NodeState, Row, State},
};

/// Field manager of what the agent writes.
pub const FIELD_MANAGER: &str = "sandbox-agent";
/// How often it is considered whether there is something to publish.
const LOOK: Duration = Duration::from_millis(500);
/// How long kube-apiserver may take.
const WITHIN: Duration = Duration::from_secs(10);
/// Without a change the inventory is asserted again after this, in case that somebody deleted or edited it. It has the
/// same content to the byte then, for which etcd does nothing.
const ASSERT_AGAIN: Duration = Duration::from_secs(900);
/// How long the number of inventories in the cluster is believed.
const COUNT_AGAIN: Duration = Duration::from_secs(600);
/// Room in an inventory for everything but its entries.
const FRAME_BYTES: usize = 16 << 10;
/// Pools that are published.
const MAX_POOLS: usize = 1_024;

/// Where inventories go.
#[derive(Clone)]
pub enum Inventories {
    /// A cluster, by server-side apply. The client must repeat nothing by itself.
    Cluster(kube::Client),
    /// This process, for a server that stands alone.
    InProcess(mpsc::Sender<NodeInventory>),
}

/// Publishes what the board says.
pub(super) struct Publisher {
    pub(super) inventories: Inventories,
    pub(super) identity: Identity,
    pub(super) board: Board,
    pub(super) options: Options,
    pub(super) metrics: NodeMetrics,
}

/// What was published last.
struct Published {
    inventory: NodeInventory,
    bytes: usize,
    at: Instant,
    /// The board's number of changes up to which it says what there is.
    seq: u64,
    /// The next period is so many times as long, so that nodes which published together do not do so again.
    pace: f64,
}

/// Why an inventory differs from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    None,
    /// Only in what a live feed tells better.
    Fleeting,
    Lasting,
}

impl Publisher {
    /// Never ends.
    pub(super) async fn run(self) {
        let mut last: Option<Published> = None;
        let mut backoff = Backoff::default();
        let mut fleet = FleetSize::default();
        loop {
            let jitter = rand::rng().random_range(0.8..1.2);
            sleep(LOOK.mul_f64(jitter)).await;
            let Some(next) = self.due(last.as_mut(), &fleet) else {
                continue;
            };
            match self.publish(&next.inventory).await {
                Ok(()) => {
                    backoff.reset();
                    fleet.count(&self.inventories).await;
                    last = Some(next);
                }
                Err(error) => {
                    report(&error);
                    sleep(backoff.pause()).await;
                }
            }
        }
    }

    /// What is to be published now, if anything is.
    fn due(&self, last: Option<&mut Published>, fleet: &FleetSize) -> Option<Published> {
        let now = Instant::now();
        let listened = self.board.listeners() > 0;
        let since = last
            .as_ref()
            .map(|last| now.saturating_duration_since(last.at));
        // Cheap reasons for "no" come first: the rows are copied only when something may come of it.
        if let (Some(last), Some(since)) = (&last, since) {
            let changed = last.seq != self.board.seq();
            let period = period(&self.options, last.bytes, fleet.nodes).mul_f64(last.pace);
            if since < period || !(changed || since >= ASSERT_AGAIN) {
                return None;
            }
            let frame = frame(&self.identity, self.board.node());
            if listened
                && since < self.options.publish_entries_apart
                && same_frame(&last.inventory, &frame)
            {
                return None;
            }
        }
        let seq = self.board.seq();
        let (inventory, left_out) = inventory(&self.identity, self.board.current()?, &self.options);
        let difference = last.as_ref().map_or(Difference::Lasting, |last| {
            difference(&last.inventory, &inventory, listened)
        });
        let waits = match difference {
            Difference::None => ASSERT_AGAIN,
            Difference::Fleeting => self.options.publish_entries_apart,
            Difference::Lasting => Duration::ZERO,
        };
        let inventory = match last {
            Some(last) if since.is_some_and(|since| since < waits) => {
                if difference == Difference::None {
                    last.seq = seq;
                }
                return None;
            }
            Some(last) if difference == Difference::None => last.inventory.clone(),
            _ => inventory,
        };
        self.metrics.left_out(left_out);
        if left_out > 0 {
            tracing::warn!(
                left_out,
                "sandboxes do not fit into the inventory, which says so"
            );
        }
        let bytes = serde_json::to_vec(&inventory).map_or(0, |json| json.len());
        Some(Published {
            inventory,
            bytes,
            at: now,
            seq,
            pace: rand::rng().random_range(1.0..1.25),
        })
    }

    async fn publish(&self, inventory: &NodeInventory) -> Result<()> {
        let published = timeout(WITHIN, self.inventories.publish(inventory)).await;
        let outcome = published.unwrap_or(Err(Error::PublishSilent));
        self.metrics.published(outcome.is_ok());
        outcome
    }
}

impl Inventories {
    async fn publish(&self, inventory: &NodeInventory) -> Result<()> {
        match self {
            Self::Cluster(client) => {
                let inventories: Api<NodeInventory> = Api::all(client.clone());
                let params = PatchParams::apply(FIELD_MANAGER).force();
                let patch = Patch::Apply(applied(inventory));
                let applied = inventories.patch(&inventory.node, &params, &patch).await;
                applied
                    .map(drop)
                    .map_err(|error| Error::Publish(Arc::new(error)))
            }
            Self::InProcess(inventories_tx) => {
                let sent = inventories_tx.send(inventory.clone()).await;
                sent.map_err(|_| Error::Ending)
            }
        }
    }
}

/// How many nodes publish inventories, as far as it is known.
struct FleetSize {
    nodes: u64,
    counted: Option<Instant>,
}

impl Default for FleetSize {
    fn default() -> Self {
        Self {
            nodes: 1,
            counted: None,
        }
    }
}

impl FleetSize {
    /// Counts them, if that was long ago. One object is read: the list says how many remain.
    async fn count(&mut self, inventories: &Inventories) {
        let Inventories::Cluster(client) = inventories else {
            return;
        };
        if self.counted.is_some_and(|at| at.elapsed() < COUNT_AGAIN) {
            return;
        }
        self.counted = Some(Instant::now());
        let inventories: Api<NodeInventory> = Api::all(client.clone());
        let params = ListParams::default().limit(1);
        match timeout(WITHIN, inventories.list_metadata(&params)).await {
            Ok(Ok(list)) => {
                let remaining = list.metadata.remaining_item_count.unwrap_or(0);
                self.nodes = 1 + u64::try_from(remaining).unwrap_or(0);
            }
            Ok(Err(error)) => tracing::warn!(%error, "inventories cannot be counted"),
            Err(_) => tracing::warn!("inventories were not counted in time"),
        }
    }
}

fn report(error: &Error) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(error, "will be tried again");
}

/// Shortest time between two publications: as long as the whole fleet needs, at its rate, for one each.
fn period(options: &Options, bytes: usize, nodes: u64) -> Duration {
    let fleet_bytes = nodes.saturating_mul(bytes as u64);
    let needed = Duration::from_secs(fleet_bytes / options.fleet_bytes_per_second.max(1));
    options.publish_apart.max(needed)
}

/// The inventory with its type, which server-side apply wants in the body.
fn applied(inventory: &NodeInventory) -> serde_json::Value {
    use k8s_openapi::Resource as _;
    let mut object = serde_json::to_value(inventory).expect("an inventory is plain JSON");
    object["apiVersion"] = NodeInventory::API_VERSION.into();
    object["kind"] = NodeInventory::KIND.into();
    object
}

/// The inventory of what there is now, and how many sandboxes did not fit.
fn inventory(identity: &Identity, current: Current, options: &Options) -> (NodeInventory, usize) {
    let n_rows = current.rows.len();
    let mut entries: Vec<_> = current.rows.into_iter().map(entry).collect();
    let room = options.max_inventory_bytes.saturating_sub(FRAME_BYTES);
    entries.truncate(fitting(&entries, room));
    let left_out = n_rows - entries.len();
    let inventory = NodeInventory {
        observed_at: Some(current.observed_at.to_string()),
        total: i64::try_from(n_rows).ok(),
        truncated: left_out > 0,
        entries,
        ..frame(identity, current.node)
    };
    (inventory, left_out)
}

/// What an inventory says beside its entries.
fn frame(identity: &Identity, node: NodeState) -> NodeInventory {
    let pools: Vec<_> = node.pools.into_iter().take(MAX_POOLS).collect();
    NodeInventory {
        metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            name: Some(identity.node.to_string()),
            ..Default::default()
        },
        node: identity.node.to_string(),
        address: origin(&identity.daemon_address),
        observed_at: None,
        total: None,
        warm: Some(pools.iter().map(|pool| i64::from(pool.warm)).sum()),
        truncated: false,
        agent: Some(identity.endpoint()),
        entries: Vec::new(),
        pools: pools
            .into_iter()
            .map(|pool| InventoryPool {
                template: pool.key.template.to_string(),
                net: pool.key.net.to_string(),
                size: pool.key.size.to_string(),
                warm: pool.warm.into(),
                target: pool.target.into(),
            })
            .collect(),
        releases: Vec::new(),
    }
}

/// How many entries fit into so many bytes of JSON.
fn fitting(entries: &[InventoryEntry], room: usize) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&InventoryEntry| {
        bytes += 1 + serde_json::to_vec(entry).map_or(0, |json| json.len());
        bytes <= room
    };
    entries.iter().take_while(fits).count()
}

fn entry(row: Row) -> InventoryEntry {
    let claim_ref = row.reference().to_owned();
    InventoryEntry {
        name: claim_ref.clone(),
        id: row.id.to_string(),
        phase: match row.state {
            State::Running => "Running",
            State::Hibernated => "Hibernated",
            State::Archived => "Archived",
            State::Failed => "Failed",
            State::Unknown => "Unknown",
        }
        .to_owned(),
        claim_ref,
        addr: String::new(),
        deadline: row.deadline.map(|time| time.to_string()),
        template: row.pool.template.to_string(),
        net: row.pool.net.to_string(),
        size: row.pool.size.to_string(),
        claimed_at: row.claimed_at.map(|time| time.to_string()),
        from_checkpoint: row.from_checkpoint.map(String::from).unwrap_or_default(),
    }
}

/// `host:port` for plain HTTP, the form that every reader of inventories knows.
fn origin(address: &crate::api::NodeAddress) -> String {
    match address.is_tls() {
        true => address.origin(),
        false => address.authority(),
    }
}

/// What differs, when it was observed apart. To who listens, entries and warm counts are told as they change.
fn difference(before: &NodeInventory, after: &NodeInventory, listened: bool) -> Difference {
    let entries_differ = before.entries != after.entries || before.truncated != after.truncated;
    let frame_differs = !same_frame(before, after);
    if frame_differs || entries_differ && !listened {
        Difference::Lasting
    } else if entries_differ {
        Difference::Fleeting
    } else if before.pools != after.pools && !listened {
        Difference::Lasting
    } else {
        Difference::None
    }
}

/// Whether everything is the same that no live feed tells.
fn same_frame(one: &NodeInventory, other: &NodeInventory) -> bool {
    let is_alike = |(one, other): (&InventoryPool, &InventoryPool)| {
        let kept = |pool: &InventoryPool| InventoryPool {
            warm: 0,
            ..pool.clone()
        };
        kept(one) == kept(other)
    };
    let pools = || one.pools.iter().zip(&other.pools);
    one.node == other.node
        && one.address == other.address
        && one.agent == other.agent
        && one.pools.len() == other.pools.len()
        && pools().all(is_alike)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::PoolKey,
        feed::{NodeState, Pool},
        meta::UnixTime,
        sandboxd::NodeTime,
    };

    fn mk_identity() -> Identity {
        let dir = tempfile::tempdir().unwrap();
        let address = |text: &str| text.parse().unwrap();
        let (daemon, agent) = (address("10.0.0.1:8080"), address("10.0.0.1:9443"));
        Identity::load("n1".into(), daemon, agent, dir.path()).unwrap()
    }

    fn mk_current(n_rows: usize, warm: u32) -> Current {
        let pool = PoolKey {
            template: "t".into(),
            net: "none".into(),
            size: "small".into(),
        };
        let row = |n: usize| Row {
            id: format!("sb_{n:05}").as_str().into(),
            claim_ref: format!("default/sandbox-{n}").into(),
            state: State::Running,
            deadline: Some(NodeTime::told(UnixTime::from_secs(1_800_000_000))),
            claimed_at: Some(NodeTime::told(UnixTime::from_secs(1_700_000_000))),
            pool: pool.clone(),
            from_checkpoint: None,
            metadata: Default::default(),
        };
        Current {
            rows: (0..n_rows).map(row).collect(),
            node: NodeState {
                pools: vec![Pool {
                    key: pool.clone(),
                    warm,
                    target: 4,
                }],
                draining: false,
            },
            observed_at: NodeTime::told(UnixTime::from_secs(1_700_000_100)),
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_the_inventory_says_so() {
        let options = Options::default();
        let (whole, left_out) = inventory(&mk_identity(), mk_current(2_000, 1), &options);
        assert_eq!(
            (whole.truncated, left_out, whole.total),
            (false, 0, Some(2_000))
        );
        let (cut, left_out) = inventory(&mk_identity(), mk_current(20_000, 1), &options);
        let bytes = serde_json::to_vec(&cut).unwrap().len();
        assert!((900_000..=1 << 20).contains(&bytes), "{bytes}");
        assert!(cut.truncated && cut.total == Some(20_000));
        assert_eq!(left_out, 20_000 - cut.entries.len());
    }

    #[test]
    fn only_what_no_feed_tells_is_published_at_once_to_listeners() {
        let identity = mk_identity();
        let of =
            |n_rows, warm| inventory(&identity, mk_current(n_rows, warm), &Options::default()).0;
        let base = of(2, 4);
        let mut later = of(2, 4);
        later.observed_at = Some("2030-01-01T00:00:00Z".to_owned());
        assert_eq!(difference(&base, &later, false), Difference::None);
        assert_eq!(difference(&base, &of(2, 3), true), Difference::None);
        assert_eq!(difference(&base, &of(2, 3), false), Difference::Lasting);
        assert_eq!(difference(&base, &of(3, 4), true), Difference::Fleeting);
        assert_eq!(difference(&base, &of(3, 4), false), Difference::Lasting);
        let mut moved = of(2, 4);
        moved.agent = None;
        assert_eq!(difference(&base, &moved, true), Difference::Lasting);
        let mut retargeted = of(2, 4);
        retargeted.pools[0].target = 9;
        assert_eq!(difference(&base, &retargeted, true), Difference::Lasting);
    }

    #[test]
    fn a_large_fleet_publishes_more_slowly() {
        let period = |bytes, nodes| period(&Options::default(), bytes, nodes).as_secs();
        assert_eq!(period(100_000, 10), 30);
        assert_eq!(period(100_000, 1_000), 100);
        assert_eq!(period(1_000_000, 5_000), 5_000);
    }
}
