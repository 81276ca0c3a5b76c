//! `serve`: the aggregated API server.

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use clap::{ArgAction, Args};
use ipnet::IpNet;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{
    certificate::{Certificate, TlsArgs},
    cluster::{kube_config, write_client},
    server::{Access, Process},
};
use crate::{
    admission::{Namespaces, Quotas},
    apiserver::GoawayChance,
    auth::{AuthMetrics, Authenticator, Authorizer, ClientTrust, TokenReviewer, WhenUnreadable},
    claims,
    feed::Credential,
    fleet::{Fleet, HealthLimits},
    gateway::Gateway,
    inventory::Source,
    ledger::Ledger,
    sandboxd::{Client, ClientOptions, TokenSource},
    sequencer::{LeaseOptions, Sequencer, Tenure, own_namespace},
    serving::ServingMetrics,
    store::Limits,
    telemetry::{Metrics, Tasks, shutdown_on_signal},
    warmpool,
};

const SHUTDOWN_DELAY_SECONDS: u64 = 3;

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Port for HTTPS.
    #[arg(long, default_value_t = 6443)]
    secure_port: u16,
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0")]
    bind_address: IpAddr,
    #[command(flatten)]
    tls: TlsArgs,
    /// How to reach kube-apiserver. Unset: the pod's ServiceAccount.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Token for the nodes' daemons. Read again when it changes. Unset: reads work, writes are refused.
    #[arg(long)]
    sandboxd_token_file: Option<PathBuf>,
    /// Authorities that sign the certificates of daemons behind https, PEM.
    #[arg(long)]
    sandboxd_ca_file: Option<PathBuf>,
    /// Token of audience sandbox-agent, to listen to the nodes' agents. Read again when it changes. Unset: nodes are known from
    /// their inventories and read directly.
    #[arg(long)]
    agent_token_file: Option<PathBuf>,
    /// Networks that nodes' daemons may be called in, beside the addresses of the Node objects.
    #[arg(long, value_delimiter = ',')]
    node_address_cidrs: Vec<IpNet>,
    /// Whether this server drives the nodes' warm pools from SandboxWarmPool objects.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    warm_pool_driver: bool,
    /// Replace the pools of nodes that have some which this driver never wrote. Otherwise such nodes are left alone.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    warm_pool_takeover: bool,
    /// Whether this server binds SandboxClaim objects to sandboxes.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    claim_controller: bool,
    /// Namespace of the Lease that elects the writer, of the server's own CA, and of the warm-pool driver's record. Unset: the
    /// pod's own, else kube-system.
    #[arg(long)]
    lease_namespace: Option<String>,
    /// Whether requests without a credential are those of system:anonymous, or refused.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    anonymous_auth: bool,
    /// Start although the ConfigMap extension-apiserver-authentication cannot be read; until it can, no certificate is trusted,
    /// only tokens are, and /readyz fails.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    authentication_tolerate_lookup_failure: bool,
    /// Ask for every name of a direct request, for clusters where an authorizer before RBAC denies single names.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    authorization_ask_every_name: bool,
    /// Likelihood that an answer ends its HTTP/2 connection, so that clients behind a load balancer spread over replicas: 0 to 0.02.
    /// Watches go on.
    #[arg(long, default_value = "0")]
    goaway_chance: GoawayChance,
    /// Seconds between the end of readiness and the refusal of requests, for load balancers to notice.
    #[arg(long, default_value_t = SHUTDOWN_DELAY_SECONDS)]
    shutdown_delay_seconds: u64,
    /// Changes kept for watches and pages.
    #[arg(long, default_value_t = Limits::default().events)]
    history_events: usize,
    /// Bytes of objects kept for watches and pages.
    #[arg(long, default_value_t = Limits::default().weight_bytes)]
    history_bytes: usize,
}

pub(super) async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let asked = shutdown_on_signal().context("listening for signals")?;
    let metrics = Metrics::new();
    let mut tasks = Tasks::new(asked.clone());
    let serving_metrics = ServingMetrics::register(&metrics);
    let config = kube_config(args.kubeconfig.as_deref()).await?;
    let reader =
        kube::Client::try_from(config.clone()).context("building the client for kube-apiserver")?;
    let writer = write_client(config).context("building the client for kube-apiserver")?;
    let certificate = Certificate::new(&args.tls, lease_namespace(&args), writer.clone(), &metrics);
    let certificate = certificate.await?;
    let listener = TcpListener::bind((args.bind_address, args.secure_port))
        .await
        .with_context(|| {
            format!(
                "listening on {}:{}, --bind-address and --secure-port",
                args.bind_address, args.secure_port
            )
        })?;
    let port = listener.local_addr()?.port();
    let process = Process::start(
        listener,
        certificate.material(),
        metrics.clone(),
        serving_metrics.clone(),
        &mut tasks,
    );
    tracing::info!(port, "listening");
    let elected = certificate.keep(&process, serving_metrics, &mut tasks);

    let access = access(&args, &process, &mut tasks, &reader, &writer).await?;

    let lease = LeaseOptions::new(lease_namespace(&args), port);
    let sequencer = Sequencer::acquire(
        writer.clone(),
        lease,
        process.readiness.check("lease"),
        &asked,
    )
    .await;
    let sequencer = sequencer.context("taking the Lease")?;
    let tenure = sequencer.tenure().clone();
    // Nobody hears it where the certificate is that of files.
    let _ = elected.send(tenure.clone());

    let history = Limits {
        events: args.history_events,
        weight_bytes: args.history_bytes,
    };
    let fleet = Arc::new(Fleet::new(
        sequencer.first_version(),
        history,
        HealthLimits::default(),
    ));
    let daemons = Client::new(ClientOptions {
        token: args
            .sandboxd_token_file
            .clone()
            .map_or(TokenSource::Absent, TokenSource::File),
        ca_file: args.sandboxd_ca_file.clone(),
    })?;
    let of_daemons = tenure.clone();
    daemons.fence(move || of_daemons.holds());
    let inventory = process.inventory(
        fleet.clone(),
        daemons.clone(),
        args.node_address_cidrs.clone(),
        args.agent_token_file.clone().map(Credential::File),
    );
    let gateway = process.gateway(
        fleet.clone(),
        inventory.clone(),
        daemons.clone(),
        &mut tasks,
    );
    let quotas = access.quotas.clone();
    process.open(access, fleet.clone(), gateway.clone(), args.goaway_chance)?;
    let ledger = Ledger::new(reader.clone(), writer.clone(), tenure.clone());
    let recorded = ledger.recorded(&asked).await;
    let keeping = ledger.keep(gateway.clone(), recorded, &mut tasks);
    process.follow(&inventory, Source::Cluster(reader.clone()), &mut tasks);
    let controllers = Controllers {
        fleet,
        daemons,
        gateway: gateway.clone(),
        quotas,
        reader,
        writer,
        tenure: tenure.clone(),
        lost: tenure.lost().clone(),
    };
    controllers.start(&args, &process, &mut tasks);
    let asked_to_end = asked.clone();
    let lost = tenure.lost().clone();
    tasks.spawn("lease guard", async move {
        lost.cancelled().await;
        if !asked_to_end.is_cancelled() {
            tracing::error!(
                "the Lease is lost: ending, so that the next life starts with a newer epoch"
            );
            asked_to_end.cancel();
        }
    });
    process
        .end(Duration::from_secs(args.shutdown_delay_seconds), gateway)
        .await;
    keeping.finish().await;
    let held = tenure.holds();
    sequencer.release().await;
    // Nothing is left that has anything to finish.
    drop(tasks);
    anyhow::ensure!(held, "the Lease was lost");
    Ok(())
}

/// What the controllers work with.
struct Controllers {
    fleet: Arc<Fleet>,
    daemons: Client,
    gateway: Gateway,
    quotas: Quotas,
    reader: kube::Client,
    writer: kube::Client,
    tenure: Tenure,
    /// Cancelled when the Lease is lost.
    lost: CancellationToken,
}

impl Controllers {
    /// Starts those that are asked for. They end with the process, and at once when the Lease is lost.
    fn start(self, args: &ServeArgs, process: &Process, tasks: &mut Tasks) {
        let (asked, lost) = (process.asked.clone(), self.lost);
        let ends = CancellationToken::new();
        let end = ends.clone();
        tasks.spawn("controllers", async move {
            tokio::select! {
                () = asked.cancelled() => {}
                () = lost.cancelled() => {}
            }
            end.cancel();
        });
        if args.claim_controller {
            let controller = claims::Controller::new(
                self.fleet.clone(),
                self.gateway,
                self.quotas,
                self.reader.clone(),
                self.writer.clone(),
                claims::ClaimMetrics::register(&process.metrics),
            );
            let run = controller.run(process.readiness.clone(), ends.clone());
            tasks.spawn("claim controller", run);
        }
        if args.warm_pool_driver {
            let options = warmpool::DriverOptions {
                namespace: lease_namespace(args),
                takeover: args.warm_pool_takeover,
            };
            let driver = warmpool::Driver::new(
                self.fleet,
                self.daemons,
                self.reader,
                self.writer,
                options,
                self.tenure,
                warmpool::WarmPoolMetrics::register(&process.metrics),
            );
            let run = driver.run(process.readiness.clone(), ends);
            tasks.spawn("warm-pool driver", run);
        }
    }
}

/// Where the server keeps what is its own.
fn lease_namespace(args: &ServeArgs) -> String {
    args.lease_namespace.clone().unwrap_or_else(own_namespace)
}

async fn access(
    args: &ServeArgs,
    process: &Process,
    tasks: &mut Tasks,
    reader: &kube::Client,
    writer: &kube::Client,
) -> anyhow::Result<Access> {
    let counters = AuthMetrics::register(&process.metrics);
    let when_unreadable = match args.authentication_tolerate_lookup_failure {
        true => WhenUnreadable::Tolerate,
        false => WhenUnreadable::Refuse,
    };
    // Where it may be missing, who shows a token is served without it.
    let check = process.readiness.told_check("authentication");
    let trust = ClientTrust::follow(
        reader.clone(),
        when_unreadable,
        tasks,
        check,
        counters.clone(),
    )
    .await;
    let trust =
        trust.context("reading the ConfigMap kube-system/extension-apiserver-authentication")?;
    let tokens = TokenReviewer::new(writer.clone(), Vec::new(), counters.clone());
    Ok(Access {
        authenticator: Authenticator::delegated(
            trust,
            tokens,
            args.anonymous_auth,
            counters.clone(),
        ),
        authorizer: Authorizer::delegated(
            writer.clone(),
            args.authorization_ask_every_name,
            counters,
        ),
        namespaces: Namespaces::follow(
            reader.clone(),
            tasks,
            process.readiness.check("namespaces"),
        ),
        quotas: Quotas::follow(reader.clone(), tasks, process.readiness.check("quotas")),
        fixed: std::collections::HashMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::server::GATEWAY_PATIENCE, serving::ServeOptions};

    /// What `Keeping::finish` and `Sequencer::release` take at most, as they say.
    const RECORD: Duration = Duration::from_secs(5);
    const LEASE: Duration = Duration::from_secs(5);

    #[test]
    fn the_kubelet_waits_for_the_longest_end() {
        let longest = Duration::from_secs(SHUTDOWN_DELAY_SECONDS)
            + GATEWAY_PATIENCE
            + ServeOptions::default().drain_timeout
            + RECORD
            + LEASE;
        for file in [
            "charts/sandbox-apiserver/templates/deployment.yaml",
            "apiservice/40-deployment.yaml",
        ] {
            let manifest = std::fs::read_to_string(file).unwrap();
            let mut lines = manifest.lines().map(str::trim);
            let seconds = lines.find_map(|it| it.strip_prefix("terminationGracePeriodSeconds: "));
            let granted = seconds.map_or(30, |seconds| seconds.parse().unwrap());
            assert!(
                Duration::from_secs(granted) > longest,
                "{file}: {granted} s, and the end takes {longest:?}"
            );
        }
    }
}
