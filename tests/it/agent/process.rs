//! The agent as a process of its own, beside a stand-in for kube-apiserver.

use std::{
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use sandbox_apiserver::{
    api::{ClaimId, NodeInventory, Token},
    feed::{self, Credential, Error},
    serving::{Connection, ServeOptions, Transport, run},
    sim,
};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    process::{Child, Command},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{PATIENCE, address, mk_user, snapshot};

/// Reviews tokens and access, and takes what is applied.
struct Cluster {
    url: String,
    applied: Arc<Mutex<Vec<(String, Value)>>>,
    _running: DropGuard,
}

impl Cluster {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (applied, shutdown) = (Arc::<Mutex<Vec<_>>>::default(), CancellationToken::new());
        let of_app = applied.clone();
        let app =
            move |_: Arc<Connection>, request: Request<Incoming>| answer(of_app.clone(), request);
        let options = ServeOptions::default();
        tokio::spawn(run(
            listener,
            Transport::Plain,
            app,
            options,
            shutdown.clone(),
        ));
        Self {
            url,
            applied,
            _running: shutdown.drop_guard(),
        }
    }

    /// What the agent applied last, once it did.
    async fn applied(&self) -> (String, NodeInventory) {
        let begun = Instant::now();
        loop {
            if let Some((query, object)) = self.applied.lock().unwrap().last().cloned() {
                return (query, serde_json::from_value(object).unwrap());
            }
            assert!(begun.elapsed() < PATIENCE, "nothing was applied");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// `server` may do everything, `reader` only read; both with a token of the right audience.
async fn answer(
    applied: Arc<Mutex<Vec<(String, Value)>>>,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut object: Value = serde_json::from_slice(&body).unwrap_or_default();
    match (&parts.method, parts.uri.path()) {
        (&Method::POST, path) if path.ends_with("/tokenreviews") => {
            let name = object["spec"]["token"].as_str().unwrap().to_owned();
            let audiences = object["spec"]["audiences"].clone();
            assert_eq!(audiences, json!(["sandbox-agent"]));
            let known = name == "server" || name == "reader";
            object["status"] =
                json!({"authenticated": known, "audiences": audiences, "user": {"username": name}});
        }
        (&Method::POST, path) if path.ends_with("/subjectaccessreviews") => {
            let spec = &object["spec"];
            let asked = &spec["resourceAttributes"];
            let (user, verb) = (spec["user"].as_str(), asked["verb"].as_str());
            let is_inventory = asked["resource"] == "nodeinventories"
                && asked["group"] == "extensions.agents.x-k8s.io";
            let allowed = is_inventory && (user == Some("server") || verb == Some("get"));
            object["status"] = json!({"allowed": allowed});
        }
        (&Method::PATCH, path) if path.contains("/nodeinventories/") => {
            let query = parts.uri.query().unwrap_or_default().to_owned();
            applied.lock().unwrap().push((query, object.clone()));
        }
        (&Method::GET, path) if path.ends_with("/nodeinventories") => {
            object = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"remainingItemCount": 4}, "items": []});
        }
        (method, path) => panic!("{method} {path}"),
    }
    Response::new(Full::new(object.to_string().into()))
}

struct Process {
    child: Child,
}

impl Process {
    fn start(dir: &Path, cluster: &Cluster, daemon: &sim::Handle) -> Self {
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": cluster.url}}], "users": [],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}]});
        std::fs::write(dir.join("kubeconfig"), kubeconfig.to_string()).unwrap();
        std::fs::write(dir.join("token"), "sim\n").unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_sandbox-apiserver"))
            .arg("agent")
            .args(["--node-name", daemon.name().as_str()])
            .args(["--sandboxd-address", &daemon.address().authority()])
            .args(["--listen-address", "127.0.0.1:0"])
            .arg("--sandboxd-token-file")
            .arg(dir.join("token"))
            .arg("--kubeconfig")
            .arg(dir.join("kubeconfig"))
            .arg("--state-dir")
            .arg(dir.join("state"))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self { child }
    }

    /// The connection to the agent that was published last, as `token`.
    async fn connect(cluster: &Cluster, token: &str) -> feed::Connection {
        let (_, inventory) = cluster.applied().await;
        let endpoint = inventory.agent.unwrap();
        let port = endpoint
            .address
            .rsplit_once(':')
            .unwrap()
            .1
            .parse()
            .unwrap();
        let agent = feed::Agent {
            node: inventory.node.as_str().into(),
            address: address(port),
            pin: endpoint.certificate_sha256.parse().unwrap(),
            credential: Credential::Fixed(Token::from(token.to_owned())),
        };
        agent.connect().await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_kill() {
    let (sim, cluster) = (super::sim(1).await, Cluster::start().await);
    let (daemon, dir) = (&sim.nodes()[0], tempfile::tempdir().unwrap());
    let claim: ClaimId = daemon.claims_of("default/sb-000000")[0].clone();
    for life in 1..=3 {
        let mut process = Process::start(dir.path(), &cluster, daemon);
        let connection = Process::connect(&cluster, "server").await;
        if life > 1 {
            let mut feed = connection.listen().await.unwrap();
            let user = user_of(&mut feed, &claim).await;
            assert_eq!(
                user,
                (life - 1) * 1_000,
                "the last one that was acknowledged"
            );
        }
        // Many writers, and one that is killed in the middle of them.
        let objects = connection.objects();
        let noise = tokio::spawn(async move {
            for n in 0.. {
                let claim = format!("sb_{n}").as_str().into();
                let record = mk_user(n);
                if objects.put(&claim, &record, PATIENCE).await.is_err() {
                    return;
                }
            }
        });
        let objects = connection.objects();
        for n in 1..=20 {
            let record = mk_user(life * 1_000 - 20 + n);
            objects.put(&claim, &record, PATIENCE).await.unwrap();
        }
        process.child.kill().await.unwrap();
        noise.await.unwrap();
        cluster.applied.lock().unwrap().clear();
    }
}

/// The generation of the user part that the snapshot has for a claim.
async fn user_of(feed: &mut feed::Listening, claim: &ClaimId) -> i64 {
    loop {
        if let feed::Event::Snapshot { sandboxes, .. } = feed.next().await.unwrap() {
            let mut sandboxes = sandboxes.into_iter();
            let found = sandboxes.find(|sandbox| sandbox.row.id == *claim).unwrap();
            return found.user.unwrap().generation;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_says_who_may_listen_and_who_may_store() {
    let (sim, cluster) = (super::sim(1).await, Cluster::start().await);
    let (daemon, dir) = (&sim.nodes()[0], tempfile::tempdir().unwrap());
    let mut process = Process::start(dir.path(), &cluster, daemon);
    let (query, inventory) = cluster.applied().await;
    assert!(query.contains("fieldManager=sandbox-agent"), "{query}");
    assert_eq!(inventory.metadata.managed_fields, None);
    assert_eq!(inventory.entries.len(), 1);

    let status = |error: Error| match error {
        Error::Refused { status, .. } => status,
        error => panic!("{error}"),
    };
    let stranger = Process::connect(&cluster, "stranger").await;
    let refused = stranger.listen().await.err().map(status);
    assert_eq!(refused, Some(StatusCode::UNAUTHORIZED));
    let reader = Process::connect(&cluster, "reader").await;
    let mut feed = reader.listen().await.unwrap();
    snapshot(&mut feed).await;
    let record = mk_user(1);
    let put = reader
        .objects()
        .put(&"sb_1".into(), &record, PATIENCE)
        .await;
    assert_eq!(put.err().map(status), Some(StatusCode::FORBIDDEN));

    // Asked to end, it ends its feeds and then itself.
    let pid = process.child.id().unwrap().to_string();
    let killed = Command::new("kill").arg(pid).status().await.unwrap();
    assert!(killed.success());
    let error = loop {
        if let Err(error) = feed.next().await {
            break error;
        }
    };
    assert!(matches!(error, Error::Ended), "{error}");
    let ended = tokio::time::timeout(PATIENCE, process.child.wait()).await;
    assert!(ended.unwrap().unwrap().success());
}
