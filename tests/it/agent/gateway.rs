//! The claim gateway of an agent, beside a simulated daemon and a stand-in for kube-apiserver.

mod cluster;
mod records;

use std::{collections::BTreeMap, path::Path, sync::atomic::Ordering, time::Duration};

use http::StatusCode;
use sandbox_apiserver::{
    api::{ClaimId, labels},
    auth::{AuthMetrics, Authenticator, Authorizer, ClientTrust, TokenReviewer},
    node::{Agent, ClaimAccess, GatewayOptions, Identity, Inventories, NodeMetrics},
    sim::{self, Fault, FaultKind, Handle, Planted},
    telemetry::Metrics,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use self::cluster::Cluster;
use super::{LIST, PATIENCE, address, client, key, opened, quick, until};
use crate::gateway_client::GatewayClient;

const CLAIM: &str = "/v1/claim";

/// A node with a gateway, and a caller who may claim in the namespace `team`.
struct Bench {
    sim: sim::Fleet,
    cluster: Cluster,
    state: TempDir,
    agent: Running,
    caller: GatewayClient,
}

struct Running {
    metrics: Metrics,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(daemon: &Handle, cluster: &Cluster, state: &Path) -> (Self, GatewayClient) {
        Self::with(daemon, cluster, state, true).await
    }

    /// An agent with a gateway or without one.
    async fn with(
        daemon: &Handle,
        cluster: &Cluster,
        state: &Path,
        hands_over: bool,
    ) -> (Self, GatewayClient) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = address(listener.local_addr().unwrap().port());
        let name = daemon.name().clone();
        let identity = Identity::load(name, daemon.address().clone(), at, state).unwrap();
        let endpoint = identity.endpoint();
        let trust = ClientTrust::fixed(&BTreeMap::new(), AuthMetrics::default());
        let tokens = TokenReviewer::new(cluster.client(), Vec::new(), AuthMetrics::default());
        let (inventories_tx, mut published) = mpsc::channel(64);
        let counters = NodeMetrics::default();
        let agent = Agent {
            identity,
            daemon: client(),
            daemon_address: daemon.address().clone(),
            objects: opened(state, &counters).await,
            inventories: Inventories::InProcess(inventories_tx),
            authenticator: Authenticator::delegated(trust, tokens, true, AuthMetrics::default()),
            authorizer: Authorizer::delegated(cluster.client(), false, AuthMetrics::default()),
            options: quick(),
            counters,
            gateway: hands_over.then(|| GatewayOptions {
                client: cluster.client(),
                access: ClaimAccess::default(),
            }),
        };
        let (shutdown, metrics) = (CancellationToken::new(), Metrics::new());
        let run = agent.run(listener, metrics.clone(), shutdown.clone());
        let task = tokio::spawn(async move { run.await.unwrap() });
        // It publishes after the first look at its daemon, and not before.
        let first = tokio::time::timeout(PATIENCE, published.recv()).await;
        first.expect("an inventory in time").unwrap();
        tokio::spawn(async move { while published.recv().await.is_some() {} });
        let running = Self {
            metrics,
            shutdown,
            task,
        };
        (
            running,
            GatewayClient::connect(&endpoint, Some("team")).await,
        )
    }

    async fn stop(self) {
        self.shutdown.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.task).await;
        ended.expect("the agent ends").unwrap();
    }

    fn outcome(&self, name: &str, outcome: &str) -> u64 {
        self.metric(&format!("{name}{{outcome=\"{outcome}\"}}"))
    }

    fn metric(&self, name: &str) -> u64 {
        let metrics = self.metrics.encode();
        let name = format!("sandbox_apiserver_node_gateway_{name} ");
        let mut values = metrics.lines().filter_map(|line| line.strip_prefix(&name));
        values.next().map_or(0, |value| value.parse().unwrap())
    }
}

impl Bench {
    async fn start() -> Self {
        Self::with(sim::Options::default()).await
    }

    async fn with(options: sim::Options) -> Self {
        let options = sim::Options {
            nodes: 1,
            mesh: false,
            ..options
        };
        let sim = sim::Fleet::start(options).await.unwrap();
        let (cluster, state) = (Cluster::start().await, tempfile::tempdir().unwrap());
        let (agent, caller) = Running::start(&sim.nodes()[0], &cluster, state.path()).await;
        Self {
            sim,
            cluster,
            state,
            agent,
            caller,
        }
    }

    fn daemon(&self) -> &Handle {
        &self.sim.nodes()[0]
    }

    /// Ends the agent as a kill does, and starts it again, on a disk that has nothing of it.
    async fn kill_and_restart(&mut self) {
        self.agent.task.abort();
        self.state = tempfile::tempdir().unwrap();
        let (agent, caller) =
            Running::start(&self.sim.nodes()[0], &self.cluster, self.state.path()).await;
        (self.agent, self.caller) = (agent, caller);
    }

    async fn until_bound(&self, name: &str, id: &str) {
        let message = format!("node {} handed over {id}", self.daemon().name());
        let bound = || {
            let claim = self.cluster.claim(name).unwrap_or_default();
            let condition = &claim["status"]["conditions"][0];
            condition["type"] == "Bound"
                && condition["status"] == "True"
                && condition["reason"] == "Delivered"
                && condition["message"] == message
        };
        until(&format!("{name} is bound"), bound).await;
    }
}

fn id_of(granted: &Value) -> String {
    granted["id"].as_str().unwrap().to_owned()
}

#[track_caller]
fn expect_status(answer: &(StatusCode, Value), code: u16, reason: &str, fallback: &Value) {
    let (status, body) = answer;
    assert_eq!(status.as_u16(), code, "{body:#}");
    let shown = (
        &body["kind"],
        &body["reason"],
        &body["code"],
        &body["fallback"],
    );
    let expected = (&json!("Status"), &json!(reason), &json!(code), fallback);
    assert_eq!(shown, expected, "{body:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_handed_over_and_recorded_and_given_back() {
    let bench = Bench::start().await;
    let (status, granted) = bench.caller.claim("team", "box").await;
    assert_eq!(status, StatusCode::CREATED, "{granted:#}");
    let id = id_of(&granted);
    let daemon = bench.daemon();
    assert_eq!(daemon.claims_of("team/box"), [ClaimId::from(&*id)]);
    assert_eq!(granted["sandboxName"], "box");
    assert_eq!(granted["node"], daemon.name().as_str());
    let token = daemon.token_of(&id.as_str().into()).unwrap();
    assert_eq!(granted["token"], token.expose());
    assert!(granted["address"].is_string() && granted["deadline"].is_string());

    bench.until_bound("box", &id).await;
    let made = bench.cluster.claim("box").unwrap();
    assert_eq!(made["spec"], json!({"warmPoolRef": {"name": "pool"}}));
    let metadata = &made["metadata"];
    assert_eq!(metadata["finalizers"], json!([labels::RELEASE]));
    assert_eq!(metadata["annotations"][labels::CLAIM_ID], id);

    // A second claim of the name, and then of another namespace.
    let second = bench.caller.claim("team", "box").await;
    expect_status(&second, 409, "AlreadyExists", &Value::Null);
    let other = bench.caller.showing(Some("other"));
    assert_eq!(other.delete("other", &id).await.0, StatusCode::NO_CONTENT);
    assert_eq!(daemon.claims_of("team/box").len(), 1, "it is not theirs");
    let forbidden = other.delete("team", &id).await;
    expect_status(&forbidden, 403, "Forbidden", &Value::Null);

    for _ in 0..2 {
        let path = format!("/v1/claims/{id}");
        let (status, body) = bench.caller.send("DELETE", &path, String::new()).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{body:#}");
        assert_eq!(daemon.claims_of("team/box").len(), 0);
    }
    assert!(bench.cluster.is_being_deleted("box"));
    assert_eq!(bench.agent.metric("orphans_adopted_total"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_is_who_the_token_says_and_may_what_kubernetes_says() {
    let bench = Bench::start().await;
    for token in [None, Some("stranger")] {
        let answer = bench.caller.showing(token).claim("team", "box").await;
        expect_status(&answer, 401, "Unauthorized", &Value::Null);
    }
    let ann = bench.caller.showing(Some("ann"));
    let answer = ann
        .post(
            &json!({"namespace": "team", "claimName": "box", "warmPool": "pool",
            "user": "system:serviceaccount:team:robot"}),
        )
        .await;
    expect_status(&answer, 403, "Forbidden", &Value::Null);
    let text = answer.1["message"].as_str().unwrap();
    assert!(text.contains("\"ann\" cannot create resource \"sandboxclaims\""));
    let answer = bench.caller.claim("other", "box").await;
    expect_status(&answer, 403, "Forbidden", &Value::Null);
    let answer = ann.send("DELETE", "/v1/claims/sb_1", String::new()).await;
    expect_status(&answer, 400, "BadRequest", &Value::Null);
    let answer = bench.caller.send("GET", "/v1/claims", String::new()).await;
    expect_status(&answer, 405, "MethodNotAllowed", &Value::Null);
    let answer = bench.caller.post(&json!({"namespace": "team"})).await;
    expect_status(&answer, 422, "Invalid", &Value::Null);
    assert_eq!(answer.1["details"]["causes"][0]["field"], "claimName");
    let long = json!({"namespace": "team", "claimName": "x".repeat(20_000)});
    let answer = bench.caller.post(&long).await;
    expect_status(&answer, 413, "RequestEntityTooLarge", &Value::Null);
    assert_eq!(bench.daemon().claimed(), 0);

    // Once known, neither who asks nor what the pool is costs a call.
    let asked = || bench.cluster.asked.load(Ordering::SeqCst);
    bench.caller.claim("team", "first").await;
    until("it is recorded", || bench.agent.metric("owed") == 0).await;
    let before = asked();
    let selector = json!({"size": "large"});
    let answer = bench
        .caller
        .post(&json!({"namespace": "team", "claimName": "box", "warmPool": "pool", "selector": selector}))
        .await;
    expect_status(&answer, 409, "Conflict", &Value::Null);
    assert_eq!(asked(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_known_is_told_to_come_again_and_not_that_he_is_a_stranger() {
    let bench = Bench::start().await;
    bench.cluster.set_unreviewed(true);
    let answer = bench.caller.claim("team", "box").await;
    expect_status(&answer, 503, "ServiceUnavailable", &false.into());
    let answer = bench.caller.delete("team", "sb_1").await;
    expect_status(&answer, 503, "ServiceUnavailable", &false.into());
    bench.cluster.set_unreviewed(false);
    let (status, _) = bench.caller.claim("team", "box").await;
    assert_eq!(status, StatusCode::CREATED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_cannot_be_read_keeps_all_who_ask_for_it_waiting_once() {
    let bench = Bench::start().await;
    bench.cluster.hold(Some("sandboxwarmpools"));
    let names: Vec<String> = (0..8).map(|n| format!("box-{n}")).collect();
    let begun = std::time::Instant::now();
    let calls = names.iter().map(|name| bench.caller.claim("team", name));
    let answers = futures::future::join_all(calls).await;
    let took = begun.elapsed();
    for answer in &answers {
        expect_status(answer, 503, "ServiceUnavailable", &false.into());
    }
    // One after another they would take 16 s.
    assert!(took < Duration::from_secs(8), "{took:?}");
    bench.cluster.hold(None);
    let begun = std::time::Instant::now();
    while bench.caller.claim("team", "box").await.0 != StatusCode::CREATED {
        assert!(begun.elapsed() < PATIENCE, "the pool is read again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_a_gateway_has_no_such_path() {
    let bench = Bench::start().await;
    let state = tempfile::tempdir().unwrap();
    let running = Running::with(bench.daemon(), &bench.cluster, state.path(), false).await;
    let answer = running.1.claim("team", "box").await;
    expect_status(&answer, 404, "NotFound", &true.into());
    let answer = running.1.delete("team", "sb_1").await;
    expect_status(&answer, 404, "NotFound", &true.into());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_node_cannot_do_at_once_is_left_to_a_sandbox_claim() {
    let bench = Bench::start().await;
    let body = |pool: &str| json!({"namespace": "team", "claimName": "box", "warmPool": pool});
    let fallback = async |body: &Value| {
        let answer = bench.caller.post(body).await;
        expect_status(&answer, 503, "ServiceUnavailable", &true.into());
    };
    fallback(&body("no-such-pool")).await;
    let status = |status| FaultKind::Status {
        status,
        text: String::new(),
    };
    let elsewhere = FaultKind::Redirect {
        addresses: vec!["10.0.0.1:7777".to_owned()],
        require_promoted: false,
    };
    for kind in [status(429), status(409), status(503), elsewhere] {
        assert!(bench.daemon().inject(Fault::once(kind, CLAIM)).await);
        fallback(&body("pool")).await;
    }
    bench.daemon().set_pool(&key(), 0, 0);
    // The agent may have to look first; until then a daemon with an image makes a new VM, which takes the name.
    let begun = std::time::Instant::now();
    let mut names = (0..).map(|number| format!("cold-{number}"));
    while bench.caller.claim("team", &names.next().unwrap()).await.0 == StatusCode::CREATED {
        assert!(begun.elapsed() < PATIENCE);
    }
    fallback(&body("pool")).await;
    bench.daemon().stop().await;
    fallback(&body("pool")).await;
    bench.daemon().start().await;
    bench.daemon().set_pool(&key(), 1, 1);
    let begun = std::time::Instant::now();
    while bench.caller.claim("team", "late").await.0 != StatusCode::CREATED {
        assert!(begun.elapsed() < PATIENCE, "the node serves again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_caller_left_or_whose_answer_was_lost_is_given_back() {
    let bench = Bench::start().await;
    let late = FaultKind::Late { millis: 300 };
    assert!(bench.daemon().inject(Fault::once(late, CLAIM)).await);
    let hasty = tokio::time::timeout(
        Duration::from_millis(100),
        bench.caller.claim("team", "left"),
    );
    assert!(hasty.await.is_err());
    until("it is given back", || {
        bench.agent.metric("abandoned_claims_total") == 1
            && bench.daemon().claims_of("team/left").is_empty()
    })
    .await;

    assert!(
        bench
            .daemon()
            .inject(Fault::once(FaultKind::AnswerLost, CLAIM))
            .await
    );
    // It takes a while to find out: the daemon is asked, and its next look may come first.
    let slow = Fault {
        times: Some(2),
        ..Fault::once(FaultKind::Late { millis: 500 }, LIST)
    };
    assert!(bench.daemon().inject(slow).await);
    let answer = bench.caller.claim("team", "lost").await;
    expect_status(&answer, 503, "ServiceUnavailable", &true.into());
    let early = bench.caller.claim("team", "lost").await;
    expect_status(&early, 503, "ServiceUnavailable", &false.into());
    until("it is given back", || {
        bench.agent.metric("lost_answers_total") == 1
            && bench.daemon().claims_of("team/lost").is_empty()
    })
    .await;
    assert_eq!(bench.cluster.names(), [""; 0]);
    // Nothing more of it can come, and the name is free.
    let begun = std::time::Instant::now();
    while bench.caller.claim("team", "lost").await.0 != StatusCode::CREATED {
        assert!(begun.elapsed() < PATIENCE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_claims_of_one_name_get_one_vm() {
    let bench = Bench::start().await;
    // What the pool is need not be asked in the middle of it.
    let begun = std::time::Instant::now();
    while bench.caller.claim("team", "first").await.0 != StatusCode::CREATED {
        assert!(begun.elapsed() < PATIENCE);
    }
    let calls = (0..20).map(|_| bench.caller.claim("team", "box"));
    let answers = futures::future::join_all(calls).await;
    let granted = answers.iter().filter(|(status, _)| *status == 201).count();
    let taken = answers
        .iter()
        .filter(|(status, body)| *status == 409 || (*status == 503 && body["fallback"] == false));
    assert_eq!((granted, taken.count()), (1, 19), "{answers:#?}");
    assert_eq!(bench.daemon().claims_of("team/box").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_is_recorded_although_the_agent_was_killed() {
    let mut bench = Bench::start().await;
    // No claim of the gateway: never to be recorded.
    let plain = bench.daemon().plant(Planted::new("team/plain", key()));
    bench.caller.claim("team", "known").await;
    until("it is recorded", || bench.agent.metric("owed") == 0).await;
    bench.cluster.set_down(true);
    let (_, granted) = bench.caller.claim("team", "box").await;
    let id = id_of(&granted);
    bench.kill_and_restart().await;
    bench.cluster.set_down(false);
    bench.until_bound("box", &id).await;
    until("it is counted, once", || {
        bench.agent.metric("orphans_adopted_total") == 1 && bench.agent.metric("owed") == 0
    })
    .await;
    assert_eq!(bench.cluster.names(), ["box", "known"]);
    assert_eq!(bench.daemon().claims_of("team/plain"), [plain]);
    assert!(!bench.cluster.has_listed(), "claims are read one by one");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ends_records_what_it_owes() {
    let bench = Bench::start().await;
    bench.cluster.set_down(true);
    let (_, granted) = bench.caller.claim("team", "box").await;
    until("it is owed", || bench.agent.metric("owed") == 1).await;
    bench.cluster.set_down(false);
    bench.agent.stop().await;
    let claim = bench.cluster.claim("box").unwrap();
    assert_eq!(
        claim["metadata"]["annotations"][labels::CLAIM_ID],
        granted["id"]
    );
    assert_eq!(claim["status"]["conditions"][0]["type"], "Bound");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_made_before_is_bound_unless_it_is_bound_already() {
    let bench = Bench::start().await;
    bench.cluster.make("early", json!({}));
    let (_, granted) = bench.caller.claim("team", "early").await;
    bench.until_bound("early", &id_of(&granted)).await;
    let (status, _) = bench.caller.delete("team", &id_of(&granted)).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert!(
        !bench.cluster.is_being_deleted("early"),
        "it is its maker's"
    );

    let other = json!({"conditions": [{"type": "Bound", "status": "True", "reason": "Delivered",
        "message": "node n2 handed over sb_2", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    bench.cluster.make("taken", other.clone());
    let (status, _) = bench.caller.claim("team", "taken").await;
    assert_eq!(status, StatusCode::CREATED);
    until("it is looked up", || bench.agent.metric("owed") == 0).await;
    assert_eq!(bench.cluster.claim("taken").unwrap()["status"], other);
    let held = bench.daemon().claims_of("team/taken").len();
    assert_eq!(held, 1, "what was answered is never released");
    assert_eq!(bench.agent.metric("records_total{outcome=\"double\"}"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_taken_without_a_look_at_the_daemon() {
    let bench = Bench::start().await;
    let hang = Fault {
        times: None,
        ..Fault::once(FaultKind::Hang, super::LIST)
    };
    assert!(bench.daemon().inject(hang).await);
    let (status, _) = bench.caller.claim("team", "box").await;
    assert_eq!(status, StatusCode::CREATED);
    let second = bench.caller.claim("team", "box").await;
    expect_status(&second, 409, "AlreadyExists", &Value::Null);
    assert_eq!(bench.daemon().claims_of("team/box").len(), 1);
}
