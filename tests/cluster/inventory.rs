//! The watches of a real kube-apiserver, under the rights that the server is shipped with.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use sandbox_apiserver::{
    api::{NodeInventory, PoolKey, Token},
    fleet::{Fleet, HealthLimits},
    inventory::{Inventory, InventoryMetrics, Options, Source},
    meta::ResourceVersion,
    sandboxd::{Client, ClientOptions, TokenSource},
    sim::{self, Planted, Publisher},
    store::{Limits, Scope},
    telemetry::{Readiness, Tasks},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    control_plane::{self, ControlPlane},
    stage::forget_nodes,
};

const PATIENCE: Duration = Duration::from_secs(60);
const SERVER: &str = "system:serviceaccount:sandbox-system:sandbox-apiserver";

struct Follower {
    fleet: Arc<Fleet>,
    readiness: Readiness,
    _tasks: Tasks,
}

impl Follower {
    /// Follows the cluster as `user`, with no network configured.
    fn start(client: kube::Client) -> Self {
        let start = ResourceVersion::first_of_epoch(1).unwrap();
        let fleet = Arc::new(Fleet::new(
            start,
            Limits::default(),
            HealthLimits::default(),
        ));
        let daemons = Client::new(ClientOptions {
            token: TokenSource::Fixed(Token::from("sim".to_owned())),
            ca_file: None,
        });
        let inventory = Inventory::new(
            fleet.clone(),
            daemons.unwrap(),
            Options::default(),
            InventoryMetrics::default(),
        );
        let (readiness, shutdown) = (Readiness::new(), CancellationToken::new());
        let mut tasks = Tasks::new(shutdown.clone());
        let run = inventory.run(
            Source::Cluster(client),
            readiness.check("inventory"),
            shutdown,
        );
        tasks.spawn("inventory", run);
        Self {
            fleet,
            readiness,
            _tasks: tasks,
        }
    }

    fn n_sandboxes(&self) -> usize {
        self.fleet.store().count(&Scope::All)
    }
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// A Node with this address of its own.
async fn create_node(nodes: &Api<Node>, name: &str, address: &str) {
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
    patch_node(nodes, name, &status, true).await;
}

async fn patch_node(nodes: &Api<Node>, name: &str, patch: &Value, status: bool) {
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    let patched = match status {
        true => nodes.patch_status(name, &params, &patch).await,
        false => nodes.patch(name, &params, &patch).await,
    };
    patched.unwrap();
}

async fn apply(control_plane: &ControlPlane, file: &str) {
    let file = format!("--filename=apiservice/{file}.yaml");
    let args = ["apply", "--server-side", "--force-conflicts", &file];
    control_plane.kubectl().stdout(&args).await;
}

#[tokio::test]
async fn the_shipped_rights_are_enough_to_follow_a_fleet() {
    let control_plane = control_plane::shared();
    // Inventories are the whole cluster's: who registers an APIService may follow them too.
    let _turn = control_plane.api_service.lock().await;
    control_plane.apply_crds(Path::new("crds")).await;
    forget_nodes(&control_plane).await;
    let fleet = sim::Fleet::start(sim::Options {
        nodes: 2,
        sandboxes: 6,
        ..sim::Options::default()
    });
    let fleet = fleet.await.unwrap();
    let [one, other] = fleet.nodes() else {
        panic!("two nodes were started")
    };
    let admin = control_plane.client();
    let nodes: Api<Node> = Api::all(admin.clone());
    let inventories: Api<NodeInventory> = Api::all(admin.clone());
    let publisher = Publisher::start(&fleet, admin, Duration::ZERO);
    publisher.publish_now(one).await.unwrap();
    publisher.publish_now(other).await.unwrap();
    create_node(&nodes, one.name().as_str(), "127.0.0.1").await;
    create_node(&nodes, other.name().as_str(), "192.0.2.1").await;

    let powerless = Follower::start(control_plane.client_as("inventory-powerless"));
    sleep(Duration::from_secs(1)).await;
    assert!(
        !powerless.readiness.is_ready(),
        "without a right it knows nothing"
    );
    drop(powerless);
    for file in ["00-namespace", "10-rbac"] {
        apply(&control_plane, file).await;
    }
    let follower = Follower::start(control_plane.client_as(SERVER));
    eventually("ready", || follower.readiness.is_ready()).await;
    assert_eq!(follower.n_sandboxes(), 6);
    let address = |node: &sim::Handle| follower.fleet.address(node.name());
    assert_eq!(address(one).as_ref(), Some(one.address()));
    assert_eq!(address(other), None, "it is not that Node's own");
    assert!(other.log().is_empty() && !one.log().is_empty());

    one.plant(Planted::new(
        "team/new",
        sim::Options::default().pools[0].clone(),
    ));
    publisher.publish_now(one).await.unwrap();
    eventually("the new one is listed", || follower.n_sandboxes() == 7).await;

    let pool: PoolKey = sim::Options::default().pools[0].clone();
    let cordon = json!({"spec": {"unschedulable": true}});
    patch_node(&nodes, one.name().as_str(), &cordon, false).await;
    eventually("cordoned", || {
        let placed = follower.fleet.place(&pool, &[]);
        placed
            .inspect(|placed| follower.fleet.give_back(&pool, &placed.node))
            .is_none()
    })
    .await;

    for node in fleet.nodes() {
        let (name, params) = (node.name().as_str(), DeleteParams::default());
        inventories.delete(name, &params).await.unwrap();
        nodes.delete(name, &params).await.unwrap();
    }
    eventually("all are forgotten", || follower.n_sandboxes() == 0).await;
}
