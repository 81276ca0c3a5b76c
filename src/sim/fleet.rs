//! Starting and stopping a simulated fleet.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rand::Rng;
use tokio::{net::TcpListener, task::JoinSet};

use super::{
    Error, Handle, Options, Result, admin,
    claim::{Claim, Millis, OnExpire, Owner, Phase},
    journal::JournalEvent,
    server,
    state::Pool,
    world::{Gate, Node, World},
};
use crate::api::NodeInventory;

/// How often the nodes of a mesh learn of each other's warm VMs.
const GOSSIP_EVERY: Duration = Duration::from_secs(1);
const MAX_NODES: usize = 10_000;
const MAX_TENANTS: usize = 1_000;
/// The sandboxes at the start were claimed within this much time before it.
const CLAIMED_WITHIN: Duration = Duration::from_secs(3600);

/// A running fleet. Dropped, it stops: ports close and connections are cut.
pub struct Fleet {
    handles: Vec<Handle>,
    world: Arc<World>,
    admin: Option<SocketAddr>,
    /// Aborted on drop.
    _tasks: JoinSet<()>,
}

impl Fleet {
    /// Binds every port and starts the nodes, with their sandboxes and warm VMs in place.
    ///
    /// # Errors
    /// [`Error::Listen`] when a port cannot be had, [`Error::InvalidOptions`] when nothing could be simulated.
    pub async fn start(options: Options) -> Result<Self> {
        check(&options)?;
        let listeners = listen_all(&options)?;
        let nodes = listeners.iter().enumerate().map(|(index, (_, address))| {
            let name = format!("sim-{:04}", options.first_node + index);
            Node::new(name.into(), *address, &options, index)
        });
        let nodes = nodes.collect();
        let salt = options.seed.unwrap_or_else(|| rand::rng().random());
        let admin_address = options.admin;
        let world = Arc::new(World::new(options, nodes, salt));
        seed(&world);
        world.gossip();
        let mut tasks = JoinSet::new();
        for (index, (listener, _)) in listeners.into_iter().enumerate() {
            let world = world.clone();
            tasks.spawn(async move {
                if let Err(error) = server::serve(world, index, listener).await {
                    tracing::warn!(index, %error, "simulated node lost its port");
                }
            });
        }
        if world.options.mesh && world.nodes.len() > 1 {
            tasks.spawn(gossip(world.clone()));
        }
        let handles: Vec<Handle> = (0..world.nodes.len())
            .map(|index| Handle {
                world: world.clone(),
                index,
            })
            .collect();
        let admin = match admin_address {
            Some(address) => Some(admin::start(address, handles.clone(), &mut tasks)?),
            None => None,
        };
        Ok(Self {
            handles,
            world,
            admin,
            _tasks: tasks,
        })
    }

    /// The nodes, in the order of their names.
    pub fn nodes(&self) -> &[Handle] {
        &self.handles
    }

    /// Where the admin endpoint listens, if it does.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// What each node would publish now.
    pub fn inventories(&self) -> Vec<NodeInventory> {
        self.handles.iter().map(Handle::inventory).collect()
    }

    /// Moves the nodes' clocks forward: leases end sooner, refills fall due.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.world.advance(by);
    }

    /// Lets the nodes know each other's warm VMs at once, instead of a tick later.
    pub fn gossip(&self) {
        self.world.gossip();
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // The tasks of connections are their own; the gate ends them.
        for node in &self.world.nodes {
            node.gate.send_replace(Gate::Closed);
        }
    }
}

fn check(options: &Options) -> Result<()> {
    let invalid = |reason| Err(Error::InvalidOptions(reason));
    if options.nodes == 0 || options.nodes > MAX_NODES {
        return invalid("nodes must be 1 to 10000");
    }
    if options.tenants.len() > MAX_TENANTS {
        return invalid("more than 1000 tenants");
    }
    if options.sandboxes > 0 && (options.pools.is_empty() || options.namespaces.is_empty()) {
        return invalid("sandboxes need a pool and a namespace");
    }
    let is_over = |first: u16| {
        let last = usize::from(first) + options.nodes - 1;
        first != 0 && last > usize::from(u16::MAX)
    };
    if is_over(options.first_port) || is_over(options.first_advertised_port) {
        return invalid("the last port would be over 65535");
    }
    Ok(())
}

fn listen_all(options: &Options) -> Result<Vec<(TcpListener, SocketAddr)>> {
    let port = |index: usize| match options.first_port {
        0 => 0,
        first => first + u16::try_from(index).expect("checked: the last port fits"),
    };
    (0..options.nodes)
        .map(|index| {
            let address = SocketAddr::new(options.bind, port(index));
            server::bind(address)
                .and_then(server::listen)
                .and_then(|listener| {
                    let bound = listener.local_addr()?;
                    Ok((listener, bound))
                })
                .map_err(|source| Error::Listen {
                    address: address.to_string(),
                    source,
                })
        })
        .collect()
}

async fn gossip(world: Arc<World>) {
    loop {
        tokio::time::sleep(GOSSIP_EVERY).await;
        world.gossip();
    }
}

/// Puts warm VMs and sandboxes in place: sandbox `i` on node `i mod nodes`, its pool and namespace in turn.
fn seed(world: &World) {
    let options = &world.options;
    let mut rng = world.rng();
    let n_nodes = options.nodes;
    for index in 0..n_nodes {
        let mut daemon = world.daemon(index);
        for key in &options.pools {
            let pool = Pool {
                warm: options.warm,
                target: options.warm,
                ..Pool::default()
            };
            let key = daemon.state.shared_key(key);
            daemon.state.pools.insert(key, pool);
        }
        for number in (index..options.sandboxes).step_by(n_nodes) {
            let turn = number / n_nodes;
            let namespace = &options.namespaces[turn % options.namespaces.len()];
            let age = rng.random_range(0..CLAIMED_WITHIN.as_millis()) as i64;
            let mut claim = Claim {
                claim_ref: format!("{namespace}/sb-{number:06}").into(),
                key: daemon
                    .state
                    .shared_key(&options.pools[turn % options.pools.len()]),
                claimed_at: Millis(daemon.now.0 - age),
                deadline: daemon.now,
                lease_seconds: 0,
                owner: Owner::ROOT,
                phase: Phase::Running,
                on_expire: OnExpire::default(),
                extra: None,
            };
            claim.set_lease(daemon.now, options.lease);
            daemon
                .state
                .insert(world.issue(), claim, JournalEvent::Planted);
        }
    }
}
