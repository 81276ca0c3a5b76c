//! The server as its clients meet it: over real TLS and HTTP/2, in this process, on a port of its own.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use sandbox_apiserver::{
    admission::{Namespaces, Quotas},
    api::Token,
    apiserver::{ApiServer, Builder, Entrance, GoawayChance, ProductInfo},
    auth::{Authenticator, Authorizer, UserInfo},
    dataplane::{DataPlane, DataPlaneMetrics},
    fleet::{Fleet, HealthLimits},
    gateway::{Gateway, GatewayMetrics, GatewayOptions},
    inventory::{Inventory, InventoryMetrics, Options, Publication, Source, Update},
    meta::ResourceVersion,
    resources::{
        KUBERNETES_VERSION, SandboxSnapshots, Sandboxes, sandbox_definition, snapshot_definition,
    },
    sandboxd::{Client as Daemons, ClientOptions, TokenSource},
    serving::{self, CertificateAuthority, ServeOptions, TlsMaterial, Transport},
    sim,
    store::Limits,
    telemetry::{Metrics, Readiness},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::tls_client::{self, Body};

/// Long enough for a loaded machine, short enough to fail a test.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// A user of the group that is never refused, and one of no group.
pub(crate) const ADMIN: &str = "admin-token";
pub(crate) const ALICE: &str = "alice-token";
/// The collection that most tests are about, and the resource over all namespaces.
pub(crate) const SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
pub(crate) const ALL_SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1/sandboxes";
/// The rows and columns that kubectl asks for.
pub(crate) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
pub(crate) const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
pub(crate) const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

/// A listener with nothing behind it yet.
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    pub(crate) ca: CertificateAuthority,
    pub(crate) metrics: Metrics,
    pub(crate) readiness: Readiness,
    /// Cancelled when new requests are refused and streams end.
    pub(crate) closing: CancellationToken,
    entrance: Entrance,
    /// Aborted on drop.
    _tasks: JoinSet<()>,
}

impl Door {
    pub(crate) async fn open() -> Self {
        let ca = CertificateAuthority::new("api").unwrap();
        let pair = ca.server_certificate(&["localhost"]).unwrap();
        let tls = Arc::new(TlsMaterial::from_pem(&pair).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Readiness::new();
        let entrance = Entrance::new(readiness.clone());
        let door = entrance.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(serving::run(
            listener,
            Transport::Tls(tls),
            move |connection, request| door.clone().handle(connection, request),
            ServeOptions::default(),
            CancellationToken::new(),
        ));
        Self {
            address,
            ca,
            metrics: Metrics::new(),
            readiness,
            closing: CancellationToken::new(),
            entrance,
            _tasks: tasks,
        }
    }

    /// What a server here is made of: two users, who may do everything in every namespace.
    pub(crate) fn builder(&self) -> Builder {
        let users = [
            (
                ADMIN.to_owned(),
                UserInfo::new("admin", &["system:masters"]),
            ),
            (ALICE.to_owned(), UserInfo::new("alice", &[])),
        ];
        Builder {
            product: ProductInfo {
                name: "sandbox-apiserver",
                version: "0.0.0",
                kubernetes: KUBERNETES_VERSION,
            },
            authenticator: Authenticator::fixed(users, true),
            authorizer: Authorizer::always_allow().into(),
            namespaces: Namespaces::every(),
            quotas: Quotas::none(),
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            shutdown: self.closing.clone(),
            goaway_chance: GoawayChance::default(),
            fixed: std::collections::HashMap::new(),
        }
    }

    pub(crate) fn serve(&self, server: ApiServer) {
        self.entrance.open(server);
    }

    /// A client on a connection of its own.
    pub(crate) async fn client(&self, token: &str) -> Client {
        let config = tls_client::config(self.ca.certificate(), None, &["h2"]);
        let stream = tls_client::connect(self.address, config).await.unwrap();
        Client {
            sender: tls_client::http2(stream).await,
            token: token.to_owned(),
        }
    }

    /// The value of a series without labels.
    #[track_caller]
    pub(crate) fn counted(&self, series: &str) -> f64 {
        let text = self.metrics.encode();
        let prefix = format!("{series} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("no {series} in {text}"))
            .parse()
            .unwrap()
    }
}

/// The whole server over simulated nodes.
pub(crate) struct Cluster {
    pub(crate) door: Door,
    pub(crate) nodes: sim::Fleet,
    pub(crate) fleet: Arc<Fleet>,
    /// The server's way to the nodes.
    pub(crate) daemons: Daemons,
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) gateway: Gateway,
    pub(crate) client: Client,
    inventories_tx: mpsc::Sender<Update<Publication>>,
    /// Aborted on drop.
    _tasks: JoinSet<()>,
}

impl Cluster {
    /// Nodes with these options, all of them known to the server.
    pub(crate) async fn start(options: sim::Options) -> Self {
        Self::with_history(options, Limits::default()).await
    }

    /// The same, with a history of this size.
    pub(crate) async fn with_history(options: sim::Options, history: Limits) -> Self {
        let token = options.api_token.clone();
        let nodes = sim::Fleet::start(options).await.unwrap();
        Self::over(nodes, token, history).await
    }

    /// The same, with a server that waits for nodes as long as this says.
    pub(crate) async fn waiting(options: sim::Options, waits: GatewayOptions) -> Self {
        let token = options.api_token.clone();
        let nodes = sim::Fleet::start(options).await.unwrap();
        Self::made_of(nodes, token, Limits::default(), waits).await
    }

    /// The server over nodes that are there already.
    pub(crate) async fn over(nodes: sim::Fleet, token: Option<Token>, history: Limits) -> Self {
        Self::made_of(nodes, token, history, GatewayOptions::default()).await
    }

    async fn made_of(
        nodes: sim::Fleet,
        token: Option<Token>,
        history: Limits,
        waits: GatewayOptions,
    ) -> Self {
        let door = Door::open().await;
        let first = ResourceVersion::first_of_epoch(7).unwrap();
        let fleet = Arc::new(Fleet::new(first, history, HealthLimits::default()));
        let daemons = Daemons::new(ClientOptions {
            token: token.map_or(TokenSource::Absent, TokenSource::Fixed),
            ca_file: None,
        });
        let daemons = daemons.unwrap();
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let inventory = Inventory::new(
            fleet.clone(),
            daemons.clone(),
            Options {
                node_address_cidrs: vec![loopback.into()],
                ..Options::default()
            },
            InventoryMetrics::register(&door.metrics),
        );
        let gateway = Gateway::start(
            fleet.clone(),
            inventory.clone(),
            daemons.clone(),
            waits,
            GatewayMetrics::register(&door.metrics),
            door.closing.clone(),
        );
        let definition = sandbox_definition().unwrap();
        let sandboxes = Sandboxes::new(definition, fleet.clone(), gateway.clone());
        let sandboxes = Arc::new(sandboxes);
        let definition = snapshot_definition().unwrap();
        let snapshots = SandboxSnapshots::new(definition, fleet.clone(), gateway.clone());
        let server = door.builder().serve(sandboxes.clone()).unwrap();
        let data_plane = DataPlane::new(
            fleet.clone(),
            gateway.clone(),
            DataPlaneMetrics::register(&door.metrics),
            door.closing.clone(),
        );
        let server = server.with(Arc::new(snapshots)).unwrap();
        door.serve(server.beside(data_plane));

        let (inventories_tx, inventories) = mpsc::channel(16);
        let (_, no_nodes) = mpsc::channel(1);
        let source = Source::InProcess {
            inventories,
            nodes: no_nodes,
        };
        let mut tasks = JoinSet::new();
        let ready = door.readiness.check("inventory");
        tasks.spawn(inventory.run(source, ready, door.closing.clone()));
        let client = door.client(ADMIN).await;
        let cluster = Self {
            door,
            nodes,
            fleet,
            daemons,
            sandboxes,
            gateway,
            client,
            inventories_tx,
            _tasks: tasks,
        };
        for publication in cluster.publications() {
            cluster.tell(Update::Listed(publication)).await;
        }
        cluster.tell(Update::ListEnds).await;
        until("the server is ready", || cluster.door.readiness.is_ready()).await;
        cluster
    }

    /// Three nodes with four warm VMs each and so many sandboxes.
    pub(crate) async fn of(sandboxes: usize) -> Self {
        Self::start(sim::Options {
            sandboxes,
            ..sim::Options::default()
        })
        .await
    }

    /// Lets every node publish what it holds now.
    pub(crate) async fn publish(&self) {
        for publication in self.publications() {
            self.tell(Update::Applied(publication)).await;
        }
    }

    async fn tell(&self, update: Update<Publication>) {
        self.inventories_tx.send(update).await.unwrap();
    }

    fn publications(&self) -> Vec<Publication> {
        let inventories = self.nodes.inventories();
        let json = inventories.iter().map(|it| serde_json::to_vec(it).unwrap());
        json.map(|json| Publication::decode(&json).unwrap())
            .collect()
    }

    /// Number of requests that changed something at a node, or tried to.
    pub(crate) fn writes_at_nodes(&self) -> usize {
        let logs = self.nodes.nodes().iter().flat_map(sim::Handle::log);
        logs.filter(|request| request.method != "GET").count()
    }

    /// Creates a sandbox from a warm VM.
    pub(crate) async fn create(&self, name: &str) -> Value {
        let created = self.client.post(SANDBOXES, &mk_sandbox(name)).await;
        assert_eq!(created.code(), 201, "{created:?}");
        created.json()
    }
}

/// A client of one user on one connection.
#[derive(Clone)]
pub(crate) struct Client {
    sender: SendRequest<Body>,
    token: String,
}

impl Client {
    /// The answer's head, as soon as it is there.
    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<Incoming> {
        let body = Full::new(body.into()).boxed();
        self.send(mk_request(&self.token, method, path, headers, body))
            .await
    }

    /// The connection, for requests that may find it ended.
    pub(crate) fn sender(&self) -> SendRequest<Body> {
        self.sender.clone()
    }

    /// The answer's head to a request that may have any body.
    pub(crate) async fn send(&self, request: Request<Body>) -> Response<Incoming> {
        let mut sender = self.sender.clone();
        let answer = async {
            sender.ready().await.unwrap();
            sender.send_request(request).await.unwrap()
        };
        timeout(SOON, answer).await.expect("an answer")
    }

    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        Answer::of(self.open(method, path, headers, body).await).await
    }

    pub(crate) async fn get(&self, path: impl AsRef<str>) -> Answer {
        self.request("GET", path.as_ref(), &[], "").await
    }

    pub(crate) async fn get_as(&self, path: impl AsRef<str>, accept: &str) -> Answer {
        self.request("GET", path.as_ref(), &[("accept", accept)], "")
            .await
    }

    pub(crate) async fn post(&self, path: impl AsRef<str>, body: &Value) -> Answer {
        self.request("POST", path.as_ref(), &[], body.to_string())
            .await
    }

    pub(crate) async fn put(&self, path: impl AsRef<str>, body: &Value) -> Answer {
        self.request("PUT", path.as_ref(), &[], body.to_string())
            .await
    }

    pub(crate) async fn merge(&self, path: impl AsRef<str>, patch: &Value) -> Answer {
        let content_type = [("content-type", "application/merge-patch+json")];
        self.request("PATCH", path.as_ref(), &content_type, patch.to_string())
            .await
    }

    pub(crate) async fn operations(&self, path: impl AsRef<str>, patch: &Value) -> Answer {
        let content_type = [("content-type", "application/json-patch+json")];
        self.request("PATCH", path.as_ref(), &content_type, patch.to_string())
            .await
    }

    /// DELETE with these DeleteOptions; none for null.
    pub(crate) async fn delete(&self, path: impl AsRef<str>, options: Value) -> Answer {
        let body = match options {
            Value::Null => String::new(),
            options => options.to_string(),
        };
        self.request("DELETE", path.as_ref(), &[], body).await
    }

    /// A watch that is open: its head has come.
    pub(crate) async fn watch(&self, path: impl AsRef<str>) -> Watch {
        self.watch_as(path, "application/json").await
    }

    pub(crate) async fn watch_as(&self, path: impl AsRef<str>, accept: &str) -> Watch {
        let path = path.as_ref();
        let response = self.open("GET", path, &[("accept", accept)], "").await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        Watch {
            headers: response.headers().clone(),
            body: response.into_body(),
            pending: BytesMut::new(),
            ended: false,
        }
    }
}

/// An answer that has arrived whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) async fn of(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        let body = timeout(SOON, body.collect()).await.expect("a whole body");
        Self {
            status: head.status,
            headers: head.headers,
            body: body.unwrap().to_bytes(),
        }
    }

    pub(crate) fn code(&self) -> u16 {
        self.status.as_u16()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    /// All values of a header that may stand several times.
    pub(crate) fn headers(&self, name: &str) -> Vec<&str> {
        let values = self.headers.get_all(name).into_iter();
        values.map(|value| value.to_str().unwrap()).collect()
    }

    /// The Status that this refusal is, checked for what every Status has.
    #[track_caller]
    pub(crate) fn refusal(&self, code: u16, reason: &str) -> Value {
        let status = self.json();
        assert_eq!(
            (self.code(), &status["code"], &status["reason"]),
            (code, &json!(code), &json!(reason)),
            "{status}"
        );
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["apiVersion"], "v1");
        assert_eq!(status["status"], "Failure");
        assert_eq!(self.header("x-content-type-options"), "nosniff");
        let retry = self.headers.get(header::RETRY_AFTER);
        let retry = retry.map(|value| value.to_str().unwrap().parse::<u64>().unwrap());
        assert_eq!(status["details"]["retryAfterSeconds"].as_u64(), retry);
        status
    }

    /// The names of a list's items or of a table's rows.
    pub(crate) fn names(&self) -> Vec<String> {
        let list = self.json();
        let (items, pointer) = match list["items"].as_array() {
            Some(items) => (items, "/metadata/name"),
            None => (list["rows"].as_array().unwrap(), "/cells/0"),
        };
        items
            .iter()
            .map(|item| item.pointer(pointer).unwrap().as_str().unwrap().to_owned())
            .collect()
    }
}

/// A watch, read event by event.
pub(crate) struct Watch {
    pub(crate) headers: HeaderMap,
    body: Incoming,
    pending: BytesMut,
    ended: bool,
}

impl Watch {
    /// The next line with its end; `None` once the stream has ended cleanly.
    pub(crate) async fn line(&mut self) -> Option<Bytes> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                return Some(self.pending.split_to(end + 1).freeze());
            }
            let frame = timeout(SOON, self.body.frame()).await.expect("an event");
            match frame {
                Some(frame) => {
                    if let Ok(data) = frame.expect("a stream that does not break").into_data() {
                        self.pending.extend_from_slice(&data);
                    }
                }
                None => {
                    assert!(self.pending.is_empty(), "a cut event: {:?}", self.pending);
                    self.ended = true;
                    return None;
                }
            }
        }
    }

    pub(crate) async fn event(&mut self) -> Value {
        let line = self.line().await.expect("an event, not the end");
        serde_json::from_slice(&line).unwrap()
    }

    /// The next event as its type and its object's name.
    pub(crate) async fn next(&mut self) -> String {
        shown(&self.event().await)
    }

    /// All events up to the bookmark that ends the initial ones, that one last.
    pub(crate) async fn initial(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.event().await;
            let ends = event.to_string().contains("k8s.io/initial-events-end");
            events.push(event);
            if ends {
                return events;
            }
        }
    }

    /// Whether nothing comes within a time in which something would have come.
    pub(crate) async fn is_silent(&mut self) -> bool {
        let quiet = timeout(Duration::from_millis(300), self.body.frame());
        self.pending.is_empty() && quiet.await.is_err()
    }
}

/// `TYPE name` of a watch event.
pub(crate) fn shown(event: &Value) -> String {
    let object = &event["object"];
    let name = match object["rows"].get(0) {
        Some(row) => &row["cells"][0],
        None => &object["metadata"]["name"],
    };
    format!(
        "{} {}",
        event["type"].as_str().unwrap(),
        name.as_str().unwrap_or("-")
    )
}

pub(crate) fn mk_request(
    token: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Body,
) -> Request<Body> {
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(format!("https://localhost{path}"));
    if !token.is_empty() {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).unwrap()
}

/// A sandbox of the template that the simulated nodes keep warm; nameless for the empty name.
pub(crate) fn mk_sandbox(name: &str) -> Value {
    let mut sandbox = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "python:3.12"}]}}},
    });
    if !name.is_empty() {
        sandbox["metadata"]["name"] = name.into();
    }
    sandbox
}

/// One node with so many warm VMs and a log that forgets nothing.
pub(crate) fn mk_node(warm: u32) -> sim::Options {
    sim::Options {
        nodes: 1,
        warm,
        api_token: Some(Token::from("node-token".to_owned())),
        log: 10_000,
        ..sim::Options::default()
    }
}

pub(crate) fn item(name: &str) -> String {
    format!("{SANDBOXES}/{name}")
}

/// Waits for a condition.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, wait)
        .await
        .unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"));
}
