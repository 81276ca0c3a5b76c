//! What the holder of the Lease does when kube-apiserver fails it.
//!
//! The Lease here lies in a stand-in that fails on request. That a real kube-apiserver elects one is proved in `tests/cluster`.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use sandbox_apiserver::{
    api::Token,
    cli::write_client,
    fleet::{Fleet, HealthLimits},
    gateway::{Gateway, GatewayMetrics, GatewayOptions},
    inventory,
    ledger::{Ledger, Recorded},
    meta::ResourceVersion,
    sandboxd::{self, Client, ClientOptions, TokenSource},
    sequencer::{Error, LeaseOptions, Sequencer},
    serving::{Connection, ServeOptions, Transport, run},
    sim::{self, Planted},
    store::Limits,
    telemetry::{Readiness, Tasks},
};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::harness::{mk_node, until};

const SOON: Duration = Duration::from_secs(10);
/// What a patch of an inventory is answered with.
const INVENTORY: &str =
    r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"n1"}}"#;

/// A place for one Lease, with resourceVersion as precondition.
struct Place {
    client: kube::Client,
    state: Arc<Mutex<State>>,
    _running: DropGuard,
}

#[derive(Default)]
struct State {
    lease: Option<Value>,
    version: u64,
    mood: Mood,
    /// How often what a node owes was recorded.
    n_records: usize,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Mood {
    #[default]
    Well,
    Failing,
    Silent,
    /// Writes, and hangs up instead of saying so.
    Forgetful,
}

impl Place {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let (state, shutdown) = (Arc::<Mutex<State>>::default(), CancellationToken::new());
        let of_app = state.clone();
        let app = move |_: Arc<Connection>, request| answer(of_app.clone(), request);
        tokio::spawn(run(
            listener,
            Transport::Plain,
            app,
            ServeOptions::default(),
            shutdown.clone(),
        ));
        let client = write_client(kube::Config::new(url)).unwrap();
        Self {
            client,
            state,
            _running: shutdown.drop_guard(),
        }
    }

    fn feel(&self, mood: Mood) {
        self.state.lock().mood = mood;
    }

    fn holder(&self) -> Value {
        self.state.lock().lease.as_ref().unwrap()["spec"]["holderIdentity"].clone()
    }

    /// Changes the Lease behind everybody's back.
    fn meddle(&self, change: impl FnOnce(&mut Value)) {
        let mut state = self.state.lock();
        state.version += 1;
        let version = state.version.to_string();
        let lease = state.lease.as_mut().unwrap();
        lease["metadata"]["resourceVersion"] = json!(version);
        change(lease);
    }

    async fn acquire(&self, identity: &str, readiness: &Readiness) -> Sequencer {
        let shutdown = CancellationToken::new();
        let check = readiness.check(identity.to_owned());
        let acquired =
            Sequencer::acquire(self.client.clone(), mk_options(identity), check, &shutdown);
        timeout(SOON, acquired)
            .await
            .expect("the lease is free")
            .unwrap()
    }
}

async fn answer(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mood = state.lock().mood;
    match mood {
        Mood::Silent => std::future::pending().await,
        Mood::Failing => return status(StatusCode::INTERNAL_SERVER_ERROR),
        Mood::Well | Mood::Forgetful => {}
    }
    if parts.method == Method::PATCH && parts.uri.path().contains("/nodeinventories/") {
        state.lock().n_records += 1;
        return Response::new(Full::from(INVENTORY));
    }
    let outcome = state.lock().serve(&parts.method, &body);
    if mood == Mood::Forgetful && parts.method == Method::PUT {
        state.lock().mood = Mood::Well;
        return status(StatusCode::INTERNAL_SERVER_ERROR);
    }
    match outcome {
        Ok(lease) => Response::new(Full::from(lease.to_string())),
        Err(code) => status(code),
    }
}

impl State {
    fn serve(&mut self, method: &Method, body: &[u8]) -> Result<Value, StatusCode> {
        if method == Method::GET {
            return self.lease.clone().ok_or(StatusCode::NOT_FOUND);
        }
        let mut lease: Value = serde_json::from_slice(body).unwrap();
        let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
        if version(&lease) != self.lease.as_ref().map_or(Value::Null, version) {
            return Err(StatusCode::CONFLICT);
        }
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        Ok(lease)
    }
}

fn status(code: StatusCode) -> Response<Full<Bytes>> {
    let reason = match code {
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::CONFLICT => "Conflict",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(), "reason": reason, "message": "x"});
    let mut response = Response::new(Full::from(status.to_string()));
    *response.status_mut() = code;
    response
}

fn mk_options(identity: &str) -> LeaseOptions {
    LeaseOptions {
        identity: identity.to_owned(),
        duration: Duration::from_secs(2),
        renew_deadline: Duration::from_secs(1),
        period: Duration::from_millis(50),
        ..LeaseOptions::new("ns".to_owned(), 443)
    }
}

#[tokio::test]
async fn a_silent_kube_apiserver_ends_the_term_before_another_may_begin() {
    let (place, readiness) = (Place::start().await, Readiness::new());
    let sequencer = place.acquire("a", &readiness).await;
    assert!(sequencer.tenure().holds() && readiness.is_ready());
    place.feel(Mood::Silent);
    let since = Instant::now();
    timeout(SOON, sequencer.tenure().lost().cancelled())
        .await
        .expect("the term ends");
    assert!(
        since.elapsed() < Duration::from_millis(1_500),
        "{:?}",
        since.elapsed()
    );
    assert!(!sequencer.tenure().holds() && !readiness.is_ready());
}

#[tokio::test]
async fn a_short_failure_ends_nothing() {
    let (place, readiness) = (Place::start().await, Readiness::new());
    let sequencer = place.acquire("a", &readiness).await;
    for mood in [Mood::Failing, Mood::Silent, Mood::Forgetful] {
        place.feel(mood);
        sleep(Duration::from_millis(400)).await;
        place.feel(Mood::Well);
        sleep(Duration::from_millis(1_200)).await;
        assert!(sequencer.tenure().holds() && readiness.is_ready());
    }
    // Somebody labels the Lease.
    place.meddle(|lease| lease["metadata"]["labels"] = json!({"a": "b"}));
    sleep(Duration::from_millis(1_200)).await;
    assert!(sequencer.tenure().holds());
    let labels = place.state.lock().lease.as_ref().unwrap()["metadata"]["labels"].clone();
    assert_eq!(labels, json!({"a": "b"}));
}

#[tokio::test]
async fn who_renews_no_more_holds_no_more() {
    let (place, readiness) = (Place::start().await, Readiness::new());
    let sequencer = place.acquire("a", &readiness).await;
    let tenure = sequencer.tenure().clone();
    assert!(tenure.holds());
    // The renewal ends with it, without a word, as it would by a panic.
    drop(sequencer);
    timeout(SOON, tenure.lost().cancelled())
        .await
        .expect("it is lost");
    assert!(!tenure.holds());
}

#[tokio::test]
async fn without_the_lease_no_node_is_changed() {
    let (place, readiness) = (Place::start().await, Readiness::new());
    let sequencer = place.acquire("a", &readiness).await;
    let nodes = sim::Fleet::start(mk_node(1)).await.unwrap();
    let daemon = &nodes.nodes()[0];
    let claim = daemon.plant(Planted::new("default/a", mk_node(1).pools[0].clone()));
    let daemons = daemons();
    let tenure = sequencer.tenure().clone();
    daemons.fence(move || tenure.holds());
    let node = daemons.node(daemon.address(), SOON);
    node.renew(&claim, SOON).await.unwrap();

    place.meddle(|lease| lease["spec"]["holderIdentity"] = json!("b"));
    timeout(SOON, sequencer.tenure().lost().cancelled())
        .await
        .expect("it is lost");
    let before = daemon.counters();
    assert!(matches!(
        node.renew(&claim, SOON).await,
        Err(sandboxd::Error::Fenced)
    ));
    assert!(matches!(
        node.release(&claim).await,
        Err(sandboxd::Error::Fenced)
    ));
    assert!(matches!(
        node.put_pools(&[]).await,
        Err(sandboxd::Error::Fenced)
    ));
    assert_eq!(daemon.counters(), before, "nothing has reached the node");
    node.sandbox(&claim).await.expect("reading goes on");
}

#[tokio::test]
async fn without_the_lease_no_record_is_written() {
    let (place, readiness) = (Place::start().await, Readiness::new());
    let sequencer = place.acquire("a", &readiness).await;
    let gateway = gateway();
    let mut tasks = Tasks::new(CancellationToken::new());
    let tenure = sequencer.tenure().clone();
    let ledger = Ledger::new(place.client.clone(), place.client.clone(), tenure);
    let keeping = ledger.keep(gateway.clone(), Recorded::new(), &mut tasks);
    let n_records = || place.state.lock().n_records;
    gateway.owe_still("n1".into(), ["sb_1".into()]);
    until("the debt is recorded", || n_records() > 0).await;

    let before = n_records();
    place.meddle(|lease| lease["spec"]["holderIdentity"] = json!("b"));
    timeout(SOON, sequencer.tenure().lost().cancelled())
        .await
        .expect("it is lost");
    gateway.owe_still("n1".into(), ["sb_2".into()]);
    keeping.finish().await;
    assert_eq!(n_records(), before);
}

fn daemons() -> Client {
    Client::new(ClientOptions {
        token: TokenSource::Fixed(Token::from("node-token".to_owned())),
        ca_file: None,
    })
    .unwrap()
}

/// A gateway to no node.
fn gateway() -> Gateway {
    let first = ResourceVersion::first_of_epoch(1).unwrap();
    let fleet = Fleet::new(first, Limits::default(), HealthLimits::default());
    let (fleet, options) = (Arc::new(fleet), inventory::Options::default());
    let counters = inventory::InventoryMetrics::default();
    let inventory = inventory::Inventory::new(fleet.clone(), daemons(), options, counters);
    Gateway::start(
        fleet,
        inventory,
        daemons(),
        GatewayOptions::default(),
        GatewayMetrics::default(),
        CancellationToken::new(),
    )
}

#[tokio::test]
async fn a_lease_in_other_hands_is_lost_at_once() {
    let (place, readiness) = (Place::start().await, Readiness::new());
    let sequencer = place.acquire("a", &readiness).await;
    place.meddle(|lease| lease["spec"]["holderIdentity"] = json!("b"));
    timeout(SOON, sequencer.tenure().lost().cancelled())
        .await
        .expect("it is lost");
    assert!(!sequencer.tenure().holds() && !readiness.is_ready());
    sequencer.release().await;
    assert_eq!(place.holder(), "b", "what is another's is not released");
}

#[tokio::test]
async fn a_second_process_of_one_identity_ends_the_first() {
    let (place, readiness) = (Place::start().await, Readiness::new());
    let first = place.acquire("a", &readiness).await;
    let second = place.acquire("a", &Readiness::new()).await;
    timeout(SOON, first.tenure().lost().cancelled())
        .await
        .expect("it is lost");
    assert!(second.tenure().holds());
    assert!(second.first_version() > first.first_version());
}

#[tokio::test]
async fn a_released_lease_is_free_and_an_abandoned_one_after_its_duration() {
    let place = Place::start().await;
    let first = place.acquire("a", &Readiness::new()).await;
    let before = first.first_version();
    first.release().await;
    assert_eq!(place.holder(), "");
    let since = Instant::now();
    let second = place.acquire("b", &Readiness::new()).await;
    assert!(since.elapsed() < Duration::from_secs(1));
    assert!(second.first_version() > before);

    let before = second.first_version();
    drop(second);
    let since = Instant::now();
    let third = place.acquire("c", &Readiness::new()).await;
    assert!(
        since.elapsed() >= Duration::from_secs(2),
        "{:?}",
        since.elapsed()
    );
    assert!(third.first_version() > before);
}

#[tokio::test]
async fn an_unreadable_epoch_is_not_overwritten() {
    let place = Place::start().await;
    place.acquire("a", &Readiness::new()).await.release().await;
    place.meddle(|lease| {
        let annotations = lease["metadata"]["annotations"].as_object_mut().unwrap();
        annotations
            .values_mut()
            .for_each(|value| *value = json!("?"));
    });
    let (check, shutdown) = (Readiness::new().check("lease"), CancellationToken::new());
    let refused = Sequencer::acquire(place.client.clone(), mk_options("b"), check, &shutdown).await;
    assert!(
        matches!(refused, Err(Error::UnreadableEpoch(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn waiting_ends_with_the_process() {
    let place = Place::start().await;
    let holder = place.acquire("a", &Readiness::new()).await;
    let (check, shutdown) = (Readiness::new().check("lease"), CancellationToken::new());
    let waiting = Sequencer::acquire(place.client.clone(), mk_options("b"), check, &shutdown);
    let ends = async {
        sleep(Duration::from_millis(200)).await;
        shutdown.cancel();
    };
    let (waited, ()) = tokio::join!(waiting, ends);
    assert!(matches!(waited, Err(Error::Cancelled)));
    assert!(holder.tenure().holds());
}
