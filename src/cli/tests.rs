//! What a command runs on, and how a server ends with the agents of its nodes in the same process.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use clap::Parser;
use tokio::{
    net::TcpListener,
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Cli,
    dev::{access, publish, start_agents, wait_until_ready},
    server::Process,
};
use crate::{
    api::{NodeName, Token, UserPart},
    apiserver::GoawayChance,
    feed::Credential,
    fleet::{Fleet, HealthLimits},
    gateway::Gateway,
    inventory::{Inventory, Source},
    meta::ResourceVersion,
    sandboxd::{Client, ClientOptions, TokenSource},
    serving::{CertificateAuthority, ServingMetrics, TlsMaterial},
    sim::{self, Planted},
    store::Limits,
    telemetry::{Metrics, Tasks},
};

const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough for some writes on a slow machine.
const DELAY: Duration = Duration::from_secs(2);

/// A server over one simulated node with its agent, ready.
struct Bench {
    process: Process,
    inventory: Inventory,
    gateway: Gateway,
    nodes: sim::Fleet,
    tasks: Tasks,
    _state: tempfile::TempDir,
}

impl Bench {
    async fn start() -> Self {
        let (mut tasks, metrics) = (Tasks::new(CancellationToken::new()), Metrics::new());
        let authority = CertificateAuthority::new("test").unwrap();
        let pair = authority.server_certificate(&["localhost"]).unwrap();
        let tls = Arc::new(TlsMaterial::from_pem(&pair).unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let counters = ServingMetrics::default();
        let process = Process::start(listener, tls, metrics, counters, &mut tasks);
        let token = Token::from("of-the-node".to_owned());
        let nodes = sim::Fleet::start(sim::Options {
            nodes: 1,
            mesh: false,
            api_token: Some(token.clone()),
            ..sim::Options::default()
        })
        .await
        .unwrap();
        let first = ResourceVersion::first_of_epoch(1).unwrap();
        let fleet = Fleet::new(first, Limits::default(), HealthLimits::default());
        let fleet = Arc::new(fleet);
        let daemons = Client::new(ClientOptions {
            token: TokenSource::Fixed(token),
            ca_file: None,
        })
        .unwrap();
        let of_agent = Token::from("of-the-agent".to_owned());
        let inventory = process.inventory(
            fleet.clone(),
            daemons.clone(),
            vec!["127.0.0.0/8".parse().unwrap()],
            Some(Credential::Fixed(of_agent.clone())),
        );
        let gateway = process.gateway(
            fleet.clone(),
            inventory.clone(),
            daemons.clone(),
            &mut tasks,
        );
        let server = process.open(
            access("admin"),
            fleet,
            gateway.clone(),
            GoawayChance::default(),
        );
        server.unwrap();
        let (updates_tx, inventories) = mpsc::channel(16);
        let (_, no_nodes) = mpsc::channel(1);
        let source = Source::InProcess {
            inventories,
            nodes: no_nodes,
        };
        process.follow(&inventory, source, &mut tasks);
        let state = tempfile::tempdir().unwrap();
        let dir = state.path();
        let published = start_agents(
            &nodes,
            &daemons,
            dir,
            &of_agent,
            &process.served,
            &mut tasks,
        );
        let published = published.await.unwrap();
        tasks.spawn("publisher", publish(1, published, updates_tx));
        timeout(PATIENCE, wait_until_ready(&process)).await.unwrap();
        Self {
            process,
            inventory,
            gateway,
            nodes,
            tasks,
            _state: state,
        }
    }

    fn node(&self) -> NodeName {
        self.nodes.nodes()[0].name().clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_while_the_server_ends_is_kept_on_its_node() {
    let bench = Bench::start().await;
    let (node, inventory) = (bench.node(), bench.inventory.clone());
    let key = sim::Options::default().pools[0].clone();
    let claim = bench.nodes.nodes()[0].plant(Planted::new("default/a", key));
    let live = async {
        while !inventory.is_live(&node) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, live).await.expect("the feed is live");

    bench.process.asked.cancel();
    let ending = tokio::spawn(bench.process.end(DELAY, bench.gateway));
    // While the server still takes writes, and tells nobody that they would be lost.
    for generation in 1..=4 {
        sleep(DELAY / 20).await;
        let user = UserPart {
            generation,
            ..UserPart::default()
        };
        let kept = inventory.keep_user(&node, &claim, &user).await;
        kept.expect("the agent keeps it");
    }
    timeout(PATIENCE, ending).await.unwrap().unwrap();
    timeout(PATIENCE, bench.tasks.finish(PATIENCE))
        .await
        .expect("inventory and agent end with the last answer");
}

#[test]
fn an_agent_works_on_one_thread_unless_more_are_asked_for() {
    let n_workers = |command: &[&str], asked| {
        let arguments = ["sandbox-apiserver"].iter().chain(command);
        Cli::parse_from(arguments).n_workers(asked)
    };
    let agent = [
        "agent",
        "--node-name=n1",
        "--sandboxd-token-file=t",
        "--state-dir=s",
    ];
    assert_eq!(n_workers(&agent, false), Some(1));
    assert_eq!(n_workers(&agent, true), None);
    assert_eq!(n_workers(&["sim"], false), None);
}
