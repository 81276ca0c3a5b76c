//! The whole simulated fleet: its nodes, its clock, its ids, and what the nodes gossip to each other.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rand::{rngs::StdRng, seq::IndexedRandom};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{
    Options,
    claim::{Millis, Number},
    daemon::Daemon,
    faults::Faults,
    log::Log,
    state::State,
};
use crate::api::{NodeAddress, NodeName, PoolKey};

/// Peers that a redirect names at most.
const MAX_REDIRECTS: usize = 2;

pub(super) struct World {
    pub(super) options: Options,
    pub(super) nodes: Box<[Node]>,
    /// How far the fleet's clock runs ahead of the machine's.
    ahead_ms: AtomicI64,
    issued: AtomicU64,
    salt: u64,
    gossip: ArcSwap<Gossip>,
}

pub(super) struct Node {
    pub(super) name: NodeName,
    pub(super) socket: SocketAddr,
    pub(super) address: NodeAddress,
    /// Never held over an await: a [`Daemon`] lives in synchronous functions only.
    state: Mutex<State>,
    /// How far this node's clock is ahead of the fleet's.
    ahead_ms: AtomicI64,
    pub(super) faults: Faults,
    pub(super) log: Log,
    /// Whether it is to take connections.
    pub(super) gate: watch::Sender<Gate>,
    /// Whether it does; follows the gate.
    pub(super) listening: watch::Sender<bool>,
}

/// Whether a node takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Listening.
    Up,
    /// The port is held but refuses connections, and the open ones are cut.
    Down,
    /// For good.
    Closed,
}

/// What every node knows of the others, a moment late: by pool key the places in `nodes` that have a warm VM, and those
/// that have a promoted template.
#[derive(Default)]
struct Gossip {
    warm: HashMap<Arc<PoolKey>, Vec<usize>>,
    promoted: HashMap<PoolKey, Vec<usize>>,
}

impl Node {
    pub(super) fn new(name: NodeName, socket: SocketAddr, options: &Options, index: usize) -> Self {
        let mut advertised = socket;
        if options.first_advertised_port != 0 {
            let place = u16::try_from(index).expect("checked: the last port fits");
            advertised.set_port(options.first_advertised_port + place);
        }
        let offsets = &options.clock_offsets;
        let ahead = match offsets.is_empty() {
            true => 0,
            false => offsets[index % offsets.len()],
        };
        let ahead_ms = ahead.saturating_mul(1_000);
        Self {
            name,
            socket,
            address: advertised
                .to_string()
                .parse()
                .expect("a socket address is a node address"),
            state: Mutex::new(State::new(
                Millis(machine_time().0 + ahead_ms),
                options.journal,
            )),
            ahead_ms: AtomicI64::new(ahead_ms),
            faults: Faults::default(),
            log: Log::new(options.log),
            gate: watch::Sender::new(Gate::Up),
            listening: watch::Sender::new(true),
        }
    }
}

impl World {
    pub(super) fn new(options: Options, nodes: Box<[Node]>, salt: u64) -> Self {
        Self {
            options,
            nodes,
            ahead_ms: AtomicI64::new(0),
            issued: AtomicU64::new(0),
            salt,
            gossip: ArcSwap::default(),
        }
    }

    /// What the clock of the node at `index` shows.
    pub(super) fn now(&self, index: usize) -> Millis {
        let ahead = |ahead_ms: &AtomicI64| ahead_ms.load(Ordering::Relaxed);
        let own = ahead(&self.nodes[index].ahead_ms);
        Millis(machine_time().0 + ahead(&self.ahead_ms) + own)
    }

    /// Sets the clock of the node at `index`, from one moment to the next. Its leases keep the ends that they have by that clock.
    pub(super) fn set_clock(&self, index: usize, ahead_ms: i64) {
        let node = &self.nodes[index];
        let mut state = node.state.lock();
        let before = node.ahead_ms.swap(ahead_ms, Ordering::Relaxed);
        state.clock_was_set(self.now(index), ahead_ms - before);
    }

    pub(super) fn advance(&self, by_ms: i64) {
        self.ahead_ms.fetch_add(by_ms, Ordering::Relaxed);
    }

    /// A number that this fleet has not used. The mixing is a bijection, so distinct counts give distinct numbers.
    pub(super) fn issue(&self) -> Number {
        let count = self.issued.fetch_add(1, Ordering::Relaxed);
        Number(mix(count.wrapping_add(self.salt)))
    }

    /// The credential of a sandbox, computed and not kept.
    pub(super) fn sandbox_token(&self, number: Number) -> String {
        let digest = Sha256::new()
            .chain_update(self.salt.to_be_bytes())
            .chain_update(number.0.to_be_bytes())
            .finalize();
        let head: [u8; 16] = std::array::from_fn(|i| digest[i]);
        format!("{:032x}", u128::from_be_bytes(head))
    }

    /// The node at `index`, locked, as of now. One at a time: a thread that holds one and asks for another, or for the
    /// same again, may wait for itself.
    pub(super) fn daemon(&self, index: usize) -> Daemon<'_> {
        let mut state = self.nodes[index].state.lock();
        let now = self.now(index);
        state.settle(now);
        Daemon {
            world: self,
            index,
            now,
            state,
        }
    }

    pub(super) fn is_up(&self, index: usize) -> bool {
        *self.nodes[index].gate.borrow() == Gate::Up
    }

    /// Collects anew what the nodes know of each other.
    pub(super) fn gossip(&self) {
        let mut gossip = Gossip::default();
        for index in (0..self.nodes.len()).filter(|&index| self.is_up(index)) {
            let daemon = self.daemon(index);
            for (key, _) in daemon.state.pools.iter().filter(|(_, pool)| pool.warm > 0) {
                gossip.warm.entry(key.clone()).or_default().push(index);
            }
            for key in daemon.state.templates.keys() {
                gossip.promoted.entry(key.clone()).or_default().push(index);
            }
        }
        self.gossip.store(Arc::new(gossip));
    }

    /// Addresses of up to two other nodes that had a warm VM of `key`.
    pub(super) fn warm_peers(&self, own: usize, key: &PoolKey) -> Vec<String> {
        self.pick(own, self.gossip.load().warm.get(key))
    }

    /// Addresses of up to two other nodes that promoted `key`.
    pub(super) fn promoted_peers(&self, own: usize, key: &PoolKey) -> Vec<String> {
        self.pick(own, self.gossip.load().promoted.get(key))
    }

    /// Every other node's address, for a mesh.
    pub(super) fn peers(&self, own: usize) -> Vec<String> {
        if !self.options.mesh {
            return Vec::new();
        }
        let others = self.nodes.iter().enumerate();
        others
            .filter(|(index, _)| *index != own)
            .map(|(_, node)| node.address.authority())
            .collect()
    }

    fn pick(&self, own: usize, found: Option<&Vec<usize>>) -> Vec<String> {
        let others: Vec<usize> = found
            .into_iter()
            .flatten()
            .copied()
            .filter(|&index| index != own && self.options.mesh)
            .collect();
        others
            .choose_multiple(&mut rand::rng(), MAX_REDIRECTS)
            .map(|&index| self.nodes[index].address.authority())
            .collect()
    }

    pub(super) fn rng(&self) -> StdRng {
        rand::SeedableRng::seed_from_u64(self.salt)
    }
}

fn machine_time() -> Millis {
    Millis(jiff::Timestamp::now().as_millisecond())
}

/// The finalizer of splitmix64.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
