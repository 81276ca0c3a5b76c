//! The agent as a whole.

use std::{sync::Arc, time::Duration};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{
    GatewayOptions, Identity, Inventories, NodeMetrics, Objects, Options, Result,
    daemon::Reader,
    gateway::{Gateway, Ground},
    orphan::adopt_orphans,
    publish::Publisher,
    server::Server,
    usage::Sampler,
};
use crate::{
    api::NodeAddress,
    auth::{Authenticator, Authorizer},
    feed::Board,
    sandboxd::Client,
    serving::{self, ServeOptions, ServingMetrics, Transport},
    telemetry::{Metrics, Readiness, Tasks},
};

/// Connections: a few servers, the kubelet's probes, a scraper, and who claims from the gateway.
const MAX_CONNECTIONS: usize = 1_024;
/// Time for what is in flight at the end.
const DRAIN: Duration = Duration::from_secs(5);
/// Time for the records that are owed then, one attempt. Both together are less than the manifests grant.
const RECORD: Duration = Duration::from_secs(10);

/// What an agent is made of.
pub struct Agent {
    /// Who it is.
    pub identity: Identity,
    /// The way to the daemon.
    pub daemon: Client,
    /// Where it reaches the daemon.
    pub daemon_address: NodeAddress,
    /// What it keeps for users.
    pub objects: Objects,
    /// Where it publishes.
    pub inventories: Inventories,
    /// Who its callers are.
    pub authenticator: Authenticator,
    /// What they may.
    pub authorizer: Authorizer,
    /// How often it looks and publishes.
    pub options: Options,
    /// What it counts; the objects count here too.
    pub counters: NodeMetrics,
    /// How it hands VMs over by itself; `None`: it does not.
    pub gateway: Option<GatewayOptions>,
}

impl Agent {
    /// Reads, publishes and serves on `listener` until `shutdown`; then feeds end, what is in flight is finished, and what was
    /// handed over is recorded.
    ///
    /// # Errors
    /// [`Error::Certificate`](super::Error::Certificate) when its identity cannot be used. Nothing after the start is one.
    pub async fn run(
        self,
        listener: TcpListener,
        metrics: Metrics,
        shutdown: CancellationToken,
    ) -> Result<()> {
        let tls = self.identity.tls()?;
        let (board, readiness) = (Board::new(), Readiness::new());
        // What is passed on is told by one clock, the daemon's, and who hears it knows how far that is off.
        let daemon = self.daemon.in_node_time();
        let mut tasks = Tasks::new(shutdown.clone());
        let ground = Ground {
            daemon: daemon.clone(),
            daemon_address: self.daemon_address.clone(),
            identity: self.identity.clone(),
            board: board.clone(),
        };
        let gateway = self
            .gateway
            .map(|options| Gateway::new(ground, options, &metrics));
        let (served, mut recorder) = (CancellationToken::new(), Tasks::new(shutdown.clone()));
        if let Some(gateway) = &gateway {
            let node = self.identity.node.clone();
            tasks.spawn(
                "orphans",
                adopt_orphans(gateway.clone(), board.clone(), node),
            );
            recorder.spawn("recorder", gateway.clone().work_off(served.clone()));
        }
        let sampler = Sampler {
            client: daemon.clone(),
            address: self.daemon_address.clone(),
            board: board.clone(),
            apart: self.options.sample_apart,
            metrics: self.counters.clone(),
        };
        tasks.spawn("sampler", sampler.run());
        tasks.spawn(
            "reader",
            Reader {
                client: daemon,
                address: self.daemon_address,
                board: board.clone(),
                objects: self.objects.clone(),
                options: self.options.clone(),
                metrics: self.counters.clone(),
                check: readiness.check("daemon"),
                disk: readiness.check("disk"),
            }
            .run(),
        );
        tasks.spawn(
            "publisher",
            Publisher {
                inventories: self.inventories,
                identity: self.identity.clone(),
                board: board.clone(),
                options: self.options,
                metrics: self.counters,
            }
            .run(),
        );
        let (objects, ending) = (self.objects.clone(), shutdown.clone());
        tasks.spawn("objects", async move {
            objects.writer_ended().await;
            tracing::error!("nothing can be kept any more: shutting down");
            ending.cancel();
        });
        let options = ServeOptions {
            max_connections: MAX_CONNECTIONS,
            max_strangers: MAX_CONNECTIONS / 4,
            drain_timeout: DRAIN,
            metrics: ServingMetrics::register(&metrics),
            ..ServeOptions::default()
        };
        let server = Arc::new(Server {
            node: self.identity.node,
            board: board.clone(),
            objects: self.objects,
            authenticator: self.authenticator,
            authorizer: self.authorizer,
            readiness: readiness.clone(),
            metrics,
            gateway: gateway.clone(),
        });
        let app = move |connection, request| server.clone().handle(connection, request);
        let ending = async {
            shutdown.cancelled().await;
            readiness.shutting_down();
            board.close();
        };
        let serving = serving::run(
            listener,
            Transport::Tls(tls),
            app,
            options,
            shutdown.clone(),
        );
        tokio::join!(serving, ending);
        if let Some(gateway) = gateway {
            // Who left a claim is not waited for longer than who did not.
            let _ = tokio::time::timeout(DRAIN, gateway.settled()).await;
        }
        served.cancel();
        recorder.finish(RECORD).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::Token,
        sandboxd::{ClientOptions, TokenSource},
    };

    #[tokio::test]
    async fn an_agent_that_can_keep_nothing_ends() {
        let state = tempfile::tempdir().unwrap();
        let (at, name) = ("127.0.0.1:1".parse::<NodeAddress>().unwrap(), "n1".into());
        let client = Client::new(ClientOptions {
            token: TokenSource::Fixed(Token::from("t".to_owned())),
            ca_file: None,
        });
        let (objects, unwritten) = Objects::stalled(&[]);
        let (inventories_tx, _published) = tokio::sync::mpsc::channel(1);
        let agent = Agent {
            identity: Identity::load(name, at.clone(), at.clone(), state.path()).unwrap(),
            daemon: client.unwrap(),
            daemon_address: at,
            objects,
            inventories: Inventories::InProcess(inventories_tx),
            authenticator: Authenticator::fixed([], false),
            authorizer: Authorizer::always_allow(),
            options: Options::default(),
            counters: NodeMetrics::default(),
            gateway: None,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(agent.run(listener, Metrics::new(), shutdown.clone()));
        let early = tokio::time::timeout(Duration::from_millis(200), shutdown.cancelled());
        assert!(early.await.is_err(), "it works");
        drop(unwritten);
        let ended = tokio::time::timeout(Duration::from_secs(20), running);
        ended.await.expect("it ends").unwrap().unwrap();
    }
}
