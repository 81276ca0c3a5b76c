//! Who gets in, over real TLS with real certificates; and what happens when kube-apiserver answers late, badly or not at all.
//!
//! The reviews here come from a stand-in that fails on request. That a real kube-apiserver agrees is proved in `tests/cluster`.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use sandbox_apiserver::{
    auth::{
        Attributes, AuthMetrics, Authenticator, Authorizer, ClientTrust, Decision, Error, Identity,
        ImpersonationError, Origin, ResourceAttributes, TokenReviewer, UserInfo, impersonate,
    },
    cli::write_client,
    serving::{
        CertificateAuthority, Connection, PemPair, ServeOptions, TlsMaterial, Transport, run,
    },
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::tls_client::{config, connect, get, http2, text};

/// A stand-in for the reviews of a kube-apiserver.
struct Reviewer {
    client: kube::Client,
    state: Arc<State>,
    _running: DropGuard,
}

#[derive(Default)]
struct State {
    n_reviews: AtomicU64,
    /// The status that every review is answered with; 0 for a proper answer.
    failure: AtomicU16,
}

impl Reviewer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let (state, shutdown) = (Arc::<State>::default(), CancellationToken::new());
        let of_app = state.clone();
        let app =
            move |_: Arc<Connection>, request: Request<Incoming>| review(of_app.clone(), request);
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

    fn n_reviews(&self) -> u64 {
        self.state.n_reviews.load(Ordering::SeqCst)
    }

    fn fail_with(&self, status: u16) {
        self.state.failure.store(status, Ordering::SeqCst);
    }

    /// An authorizer that asks for every name.
    fn authorizer(&self) -> Authorizer {
        Authorizer::delegated(self.client.clone(), true, AuthMetrics::default())
    }
}

async fn review(state: Arc<State>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    state.n_reviews.fetch_add(1, Ordering::SeqCst);
    let (parts, body) = request.into_parts();
    let mut review: Value =
        serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
    // Long enough that calls made at one time overlap.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let failure = state.failure.load(Ordering::SeqCst);
    if failure != 0 {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": failure, "reason": "x", "message": "x"});
        let mut response = Response::new(Full::from(status.to_string()));
        *response.status_mut() = StatusCode::from_u16(failure).unwrap();
        return response;
    }
    review["status"] = match parts.uri.path() {
        "/apis/authentication.k8s.io/v1/tokenreviews" => {
            whose(review["spec"]["token"].as_str().unwrap())
        }
        "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
            let reason = match review["spec"]["user"].as_str() {
                Some("rob") => {
                    "RBAC: allowed by ClusterRoleBinding \"r\" of ClusterRole \"r\" to User \"rob\""
                }
                _ => "the rules",
            };
            json!({"allowed": may(&review["spec"]), "reason": reason})
        }
        path => panic!("unexpected {path}"),
    };
    Response::new(Full::from(review.to_string()))
}

fn whose(token: &str) -> Value {
    match token {
        "of-ann" => json!({"authenticated": true, "user": {
            "username": "ann", "uid": "7", "groups": ["dev"], "extra": {"k": ["v"]}}}),
        _ => json!({"authenticated": false}),
    }
}

/// `ann` may do everything, and so may `rob`, by RBAC; `bob` only what concerns the object `x`.
fn may(spec: &Value) -> bool {
    spec["user"] == "ann"
        || spec["user"] == "rob"
        || (spec["user"] == "bob" && spec["resourceAttributes"]["name"] == "x")
}

/// A server that answers with whom it takes the caller for, and with the headers that are left.
struct Server {
    address: SocketAddr,
    serving_ca: CertificateAuthority,
    proxy_ca: CertificateAuthority,
    client_ca: CertificateAuthority,
    trust: Arc<ClientTrust>,
    reviewer: Reviewer,
    _running: DropGuard,
}

impl Server {
    async fn start() -> Self {
        Self::start_with(true).await
    }

    async fn start_with(anonymous: bool) -> Self {
        Self::start_within(anonymous, ServeOptions::default()).await
    }

    async fn start_within(anonymous: bool, options: ServeOptions) -> Self {
        let [serving_ca, proxy_ca, client_ca] =
            ["serving", "proxy", "client"].map(|name| CertificateAuthority::new(name).unwrap());
        let reviewer = Reviewer::start().await;
        let trust = ClientTrust::fixed(&config_map(&proxy_ca, &client_ca), AuthMetrics::default());
        let tokens =
            TokenReviewer::new(reviewer.client.clone(), Vec::new(), AuthMetrics::default());
        let authenticator = Arc::new(Authenticator::delegated(
            trust.clone(),
            tokens,
            anonymous,
            AuthMetrics::default(),
        ));
        let app = move |connection: Arc<Connection>, request: Request<Incoming>| {
            whoami(authenticator.clone(), connection, request)
        };
        let pair = serving_ca.server_certificate(&["localhost"]).unwrap();
        let transport = Transport::Tls(Arc::new(TlsMaterial::from_pem(&pair).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        tokio::spawn(run(listener, transport, app, options, shutdown.clone()));
        Self {
            address,
            serving_ca,
            proxy_ca,
            client_ca,
            trust,
            reviewer,
            _running: shutdown.drop_guard(),
        }
    }

    async fn client(&self, certificate: Option<&PemPair>) -> Client {
        let tls = config(self.serving_ca.certificate(), certificate, &["h2"]);
        Client(http2(connect(self.address, tls).await.unwrap()).await)
    }

    /// Whom a new connection with `certificate` and `headers` is taken for; `None` for 401.
    async fn whoami(
        &self,
        certificate: Option<&PemPair>,
        headers: &[(&str, &str)],
    ) -> Option<Value> {
        self.client(certificate).await.whoami(headers).await
    }
}

struct Client(hyper::client::conn::http2::SendRequest<crate::tls_client::Body>);

impl Client {
    async fn whoami(&mut self, headers: &[(&str, &str)]) -> Option<Value> {
        let mut request = get("/");
        for (name, value) in headers {
            request
                .headers_mut()
                .append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        self.whoami_of(request).await
    }

    async fn whoami_of(&mut self, request: Request<crate::tls_client::Body>) -> Option<Value> {
        let response = self.0.send_request(request).await.unwrap();
        match response.status() {
            StatusCode::OK => Some(serde_json::from_str(&text(response).await).unwrap()),
            status => {
                assert_eq!(status, StatusCode::UNAUTHORIZED);
                None
            }
        }
    }
}

async fn whoami(
    authenticator: Arc<Authenticator>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let mut headers = request.into_parts().0.headers;
    let outcome = authenticator.authenticate(&mut headers, &connection).await;
    for secret in [
        "authorization",
        "x-remote-user",
        "x-remote-uid",
        "x-remote-group",
        "x-remote-extra-a",
    ] {
        assert!(!headers.contains_key(secret), "{secret} is left");
    }
    match outcome {
        Ok(Identity { user, origin }) => Response::new(Full::from(
            json!({"name": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra, "proxied": origin == Origin::Proxied}).to_string(),
        )),
        Err(_) => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            response
        }
    }
}

fn config_map(
    proxy_ca: &CertificateAuthority,
    client_ca: &CertificateAuthority,
) -> BTreeMap<String, String> {
    [
        ("client-ca-file", client_ca.certificate()),
        ("requestheader-client-ca-file", proxy_ca.certificate()),
        ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
        (
            "requestheader-extra-headers-prefix",
            r#"["X-Remote-Extra-"]"#,
        ),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn days(from: i32, to: i32) -> Range<SystemTime> {
    let day = |n: i32| {
        let distance = Duration::from_secs(86_400) * n.unsigned_abs();
        if n < 0 {
            SystemTime::now() - distance
        } else {
            SystemTime::now() + distance
        }
    };
    day(from)..day(to)
}

const SPOOFED: &[(&str, &str)] = &[
    ("X-Remote-User", "root"),
    ("X-Remote-Group", "system:masters"),
    ("X-Remote-Extra-A", "b"),
];

#[track_caller]
fn is_anonymous(who: Option<Value>) {
    let who = who.expect("an answer");
    assert_eq!(
        (&who["name"], &who["groups"]),
        (
            &json!("system:anonymous"),
            &json!(["system:unauthenticated"])
        )
    );
}

#[tokio::test]
async fn the_front_proxy_speaks_for_others() {
    let server = Server::start().await;
    let proxy = server
        .proxy_ca
        .client_certificate("front-proxy-client", None, days(-1, 1))
        .unwrap();
    let who = server
        .whoami(
            Some(&proxy),
            &[
                ("X-Remote-User", "ann"),
                ("X-Remote-Uid", "7"),
                ("X-Remote-Group", "dev"),
                ("X-Remote-Group", "ops"),
                ("X-Remote-Extra-Example.org%2fRole", "a"),
            ],
        )
        .await;
    assert_eq!(
        who,
        Some(json!({
            "name": "ann", "uid": "7", "groups": ["dev", "ops", "system:authenticated"], "extra": {"example.org/role": ["a"]}, "proxied": true,
        }))
    );
    // The aggregator's own requests come without any group.
    let who = server
        .whoami(Some(&proxy), &[("X-Remote-User", "system:aggregator")])
        .await
        .unwrap();
    assert_eq!(who["groups"], json!(["system:authenticated"]));
    // Identities change from one request of a connection to the next.
    let mut client = server.client(Some(&proxy)).await;
    for name in ["ann", "bob", "ann"] {
        assert_eq!(
            client.whoami(&[("X-Remote-User", name)]).await.unwrap()["name"],
            name
        );
    }
    // An anonymous user of kube-apiserver stays one.
    let headers = [
        ("X-Remote-User", "system:anonymous"),
        ("X-Remote-Group", "system:unauthenticated"),
    ];
    is_anonymous(server.whoami(Some(&proxy), &headers).await);
}

// Adyen/kubectl-rexec#171
#[tokio::test]
async fn nobody_else_does() {
    let server = Server::start().await;
    let stranger = CertificateAuthority::new("proxy").unwrap();
    let of_another_ca = stranger
        .client_certificate("front-proxy-client", None, days(-1, 1))
        .unwrap();
    let of_another_name = server
        .proxy_ca
        .client_certificate("somebody", None, days(-1, 1))
        .unwrap();
    let without_name = server
        .proxy_ca
        .client_certificate("", None, days(-1, 1))
        .unwrap();
    let expired = server
        .proxy_ca
        .client_certificate("front-proxy-client", None, days(-2, -1))
        .unwrap();
    let future = server
        .proxy_ca
        .client_certificate("front-proxy-client", None, days(1, 2))
        .unwrap();
    let for_servers = server
        .proxy_ca
        .server_certificate(&["front-proxy-client"])
        .unwrap();
    is_anonymous(server.whoami(None, SPOOFED).await);
    for certificate in [
        &of_another_ca,
        &of_another_name,
        &without_name,
        &expired,
        &future,
        &for_servers,
    ] {
        assert_eq!(
            server.whoami(Some(certificate), SPOOFED).await,
            None,
            "{certificate:?}"
        );
    }
}

#[tokio::test]
async fn a_credential_that_is_no_text_is_not_taken_for_none() {
    let server = Server::start().await;
    for (name, value) in [
        ("authorization", &b"Bearer \xff\xfe"[..]),
        ("authorization", b"Bearer of-ann\x80"),
        ("authorization", b"Bearer"),
        (
            "sec-websocket-protocol",
            b"v5, base64url.bearer.authorization.k8s.io.\xff",
        ),
    ] {
        let mut request = get("/");
        let unusable = HeaderValue::from_bytes(value).unwrap();
        request.headers_mut().insert(name, unusable);
        let who = server.client(None).await.whoami_of(request).await;
        assert_eq!(who, None, "{}", value.escape_ascii());
    }
    is_anonymous(
        server
            .whoami(None, &[("authorization", "Basic YWJj")])
            .await,
    );
}

#[tokio::test]
async fn only_who_is_known_makes_room_for_others() {
    let options = ServeOptions {
        max_strangers: 1,
        ..ServeOptions::default()
    };
    let server = Server::start_within(true, options).await;
    let tls = || config(server.serving_ca.certificate(), None, &["h2"]);
    let mut client = server.client(None).await;
    for headers in [&[][..], SPOOFED, &[("authorization", "Bearer wrong")]] {
        client.whoami(headers).await;
        assert!(connect(server.address, tls()).await.is_err(), "{headers:?}");
    }
    let ann = [("authorization", "Bearer of-ann")];
    assert_eq!(client.whoami(&ann).await.unwrap()["name"], "ann");
    assert!(connect(server.address, tls()).await.is_ok());
}

#[tokio::test]
async fn without_anonymous_users_no_credential_is_401() {
    let server = Server::start_with(false).await;
    assert_eq!(server.whoami(None, SPOOFED).await, None);
    assert_eq!(server.whoami(None, &[]).await, None);
    assert_eq!(
        server
            .whoami(None, &[("Authorization", "Bearer of-ann")])
            .await
            .unwrap()["name"],
        "ann"
    );
}

#[tokio::test]
async fn a_client_certificate_is_its_own_subject_whatever_the_headers_say() {
    let server = Server::start().await;
    let carol = server
        .client_ca
        .client_certificate("carol", Some("dev"), days(-1, 1))
        .unwrap();
    for headers in [&[][..], SPOOFED] {
        let who = server.whoami(Some(&carol), headers).await.unwrap();
        assert_eq!(
            (&who["name"], &who["groups"]),
            (&json!("carol"), &json!(["dev", "system:authenticated"]))
        );
        assert_eq!(who["proxied"], false);
    }
    let expired = server
        .client_ca
        .client_certificate("carol", None, days(-2, -1))
        .unwrap();
    assert_eq!(server.whoami(Some(&expired), &[]).await, None);
    // A valid proxy certificate without a user header speaks for nobody, and is itself no client.
    let proxy = server
        .proxy_ca
        .client_certificate("front-proxy-client", Some("system:masters"), days(-1, 1))
        .unwrap();
    assert_eq!(server.whoami(Some(&proxy), &[]).await, None);
}

#[tokio::test]
async fn one_good_credential_beside_a_bad_one_is_enough() {
    let server = Server::start().await;
    let stranger = CertificateAuthority::new("x")
        .unwrap()
        .client_certificate("eve", None, days(-1, 1))
        .unwrap();
    let good = ("Authorization", "Bearer of-ann");
    let who = server.whoami(Some(&stranger), &[good]).await;
    assert_eq!(
        who,
        Some(json!({
            "name": "ann", "uid": "7", "groups": ["dev", "system:authenticated"], "extra": {"k": ["v"]}, "proxied": false,
        }))
    );
    assert_eq!(server.whoami(Some(&stranger), &[]).await, None);
    assert_eq!(
        server
            .whoami(None, &[("Authorization", "Bearer wrong")])
            .await,
        None
    );
    assert_eq!(
        server
            .whoami(Some(&stranger), &[("Authorization", "Bearer wrong")])
            .await,
        None
    );
    is_anonymous(
        server
            .whoami(None, &[("Authorization", "Basic cm9vdDpyb290")])
            .await,
    );
    // "of-ann" in base64url.
    let subprotocol = "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.b2YtYW5u";
    assert_eq!(
        server
            .whoami(None, &[("Sec-WebSocket-Protocol", subprotocol)])
            .await
            .unwrap()["name"],
        "ann"
    );
}

#[tokio::test]
async fn a_changed_ca_counts_on_open_connections() {
    let mut server = Server::start().await;
    let old = server
        .proxy_ca
        .client_certificate("front-proxy-client", None, days(-1, 1))
        .unwrap();
    let mut client = server.client(Some(&old)).await;
    assert_eq!(client.whoami(SPOOFED).await.unwrap()["name"], "root");

    server.proxy_ca = CertificateAuthority::new("proxy").unwrap();
    server
        .trust
        .update(&config_map(&server.proxy_ca, &server.client_ca));
    assert_eq!(client.whoami(SPOOFED).await, None);
    let new = server
        .proxy_ca
        .client_certificate("front-proxy-client", None, days(-1, 1))
        .unwrap();
    assert_eq!(
        server.whoami(Some(&new), SPOOFED).await.unwrap()["name"],
        "root"
    );

    server.trust.update(&BTreeMap::new());
    for who in [
        server.whoami(Some(&new), SPOOFED).await,
        server.whoami(None, SPOOFED).await,
    ] {
        // Nobody is trusted, so that a certificate says nothing.
        is_anonymous(who);
    }
}

#[tokio::test]
async fn a_token_is_reviewed_once_and_never_trusted_unreviewed() {
    let server = Server::start().await;
    let good = [("Authorization", "Bearer of-ann")];
    let asking = futures::future::join_all((0..20).map(|_| server.whoami(None, &good))).await;
    assert!(asking.iter().all(Option::is_some));
    assert_eq!(server.reviewer.n_reviews(), 1);
    for _ in 0..2 {
        assert_eq!(
            server
                .whoami(None, &[("Authorization", "Bearer wrong")])
                .await,
            None
        );
    }
    assert_eq!(server.reviewer.n_reviews(), 2, "a rejection is remembered");

    server.reviewer.fail_with(403);
    let unknown = [("Authorization", "Bearer unknown")];
    assert_eq!(server.whoami(None, &unknown).await, None);
    assert_eq!(server.whoami(None, &unknown).await, None);
    assert_eq!(server.reviewer.n_reviews(), 4, "an error is not remembered");
    assert!(server.whoami(None, &good).await.is_some());
}

fn get_sandbox(name: &str) -> Attributes<'_> {
    Attributes::Resource(ResourceAttributes {
        verb: "get",
        group: "agents.x-k8s.io",
        version: "v1beta1",
        resource: "sandboxes",
        namespace: "ns",
        name,
        ..ResourceAttributes::default()
    })
}

#[tokio::test]
async fn a_decision_is_asked_once() {
    let reviewer = Reviewer::start().await;
    let (authorizer, ann) = (reviewer.authorizer(), UserInfo::new("ann", &[]));
    let attributes = get_sandbox("a");
    let asking = (0..50).map(|_| authorizer.authorize(&ann, &attributes, Origin::Direct));
    for decision in futures::future::join_all(asking).await {
        assert_eq!(decision.unwrap(), Decision::Allow);
    }
    assert_eq!(reviewer.n_reviews(), 1);
    let eve = UserInfo::new("eve", &[]);
    for _ in 0..2 {
        let decision = authorizer
            .authorize(&eve, &attributes, Origin::Direct)
            .await
            .unwrap();
        assert_eq!(
            decision,
            Decision::Deny {
                reason: Some("the rules".into())
            }
        );
    }
    assert_eq!(reviewer.n_reviews(), 2);
}

#[tokio::test]
async fn a_failed_review_allows_nothing_and_is_not_remembered() {
    let reviewer = Reviewer::start().await;
    let (authorizer, ann) = (reviewer.authorizer(), UserInfo::new("ann", &[]));
    reviewer.fail_with(403);
    for n_reviews in 1..=2 {
        let decision = authorizer
            .authorize(&ann, &get_sandbox("a"), Origin::Direct)
            .await;
        assert!(
            matches!(
                decision,
                Err(Error::Review {
                    review: "SubjectAccessReview",
                    ..
                })
            ),
            "{decision:?}"
        );
        assert_eq!(reviewer.n_reviews(), n_reviews);
    }
    // A busy kube-apiserver is asked again, by us and not by the client below.
    reviewer.fail_with(503);
    let attributes = get_sandbox("b");
    let asked = authorizer.authorize(&ann, &attributes, Origin::Direct);
    let recovers = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        reviewer.fail_with(0);
    };
    assert_eq!(tokio::join!(asked, recovers).0.unwrap(), Decision::Allow);
    assert_eq!(reviewer.n_reviews(), 4);
}

#[tokio::test]
async fn one_allow_covers_every_name_of_a_proxied_user_and_of_nobody_else() {
    let reviewer = Reviewer::start().await;
    let authorizer = reviewer.authorizer();
    let ann = UserInfo::new("ann", &[]);
    for name in ["a", "b", "c"] {
        assert_eq!(
            authorizer
                .authorize(&ann, &get_sandbox(name), Origin::Proxied)
                .await
                .unwrap(),
            Decision::Allow
        );
    }
    assert_eq!(reviewer.n_reviews(), 1);
    for name in ["a", "b"] {
        assert_eq!(
            authorizer
                .authorize(&ann, &get_sandbox(name), Origin::Direct)
                .await
                .unwrap(),
            Decision::Allow
        );
    }
    assert_eq!(reviewer.n_reviews(), 3, "direct calls ask with the name");

    // Who may only see one object is asked about by its name.
    let bob = UserInfo::new("bob", &[]);
    for (name, allowed) in [("x", true), ("y", false), ("x", true)] {
        let decision = authorizer
            .authorize(&bob, &get_sandbox(name), Origin::Proxied)
            .await
            .unwrap();
        assert_eq!(decision == Decision::Allow, allowed, "{name}");
    }
}

#[tokio::test]
async fn an_allow_of_rbac_covers_every_name_of_a_direct_request_too() {
    let reviewer = Reviewer::start().await;
    let authorizer = Authorizer::delegated(reviewer.client.clone(), false, AuthMetrics::default());
    let asked = async |user: &str, name: &str| {
        let (user, before) = (UserInfo::new(user, &[]), reviewer.n_reviews());
        let attributes = get_sandbox(name);
        let decision = authorizer
            .authorize(&user, &attributes, Origin::Direct)
            .await
            .unwrap();
        (decision == Decision::Allow, reviewer.n_reviews() - before)
    };
    assert_eq!(asked("rob", "a").await, (true, 1));
    assert_eq!(
        asked("rob", "b").await,
        (true, 0),
        "RBAC's rules without names are for all names"
    );
    assert_eq!(
        asked("ann", "a").await,
        (true, 2),
        "another authorizer's yes may have had a no behind it"
    );
    assert_eq!(asked("ann", "b").await, (true, 1));
    assert_eq!(asked("bob", "x").await, (true, 2));
    assert_eq!(asked("bob", "y").await, (false, 1));
}

#[tokio::test]
async fn an_overlong_question_is_asked_every_time() {
    let reviewer = Reviewer::start().await;
    let (authorizer, ann) = (reviewer.authorizer(), UserInfo::new("ann", &[]));
    let long = "x".repeat(10_001);
    for n_reviews in 1..=2 {
        authorizer
            .authorize(&ann, &get_sandbox(&long), Origin::Direct)
            .await
            .unwrap();
        assert_eq!(reviewer.n_reviews(), n_reviews);
    }
    let crowd = UserInfo {
        groups: (0..1_000).map(|n| format!("group-{n}")).collect(),
        ..ann
    };
    for _ in 0..2 {
        authorizer
            .authorize(&crowd, &get_sandbox("a"), Origin::Direct)
            .await
            .unwrap();
    }
    assert_eq!(
        reviewer.n_reviews(),
        3,
        "a user with many groups asks no overlong question"
    );
}

#[tokio::test]
async fn who_may_not_be_all_of_it_may_be_nothing() {
    let reviewer = Reviewer::start().await;
    let authorizer = reviewer.authorizer();
    let as_user = |name: &str| Identity {
        user: Arc::new(UserInfo::new(name, &[])),
        origin: Origin::Direct,
    };
    let headers: HeaderMap = [
        ("impersonate-user", "x"),
        ("impersonate-group", "system:masters"),
    ]
    .into_iter()
    .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
    .collect();
    let identity = impersonate(&authorizer, as_user("ann"), &mut headers.clone())
        .await
        .unwrap();
    assert_eq!(
        identity.user.groups,
        ["system:masters", "system:authenticated"]
    );
    // bob may be x, but not in that group.
    let refused = impersonate(&authorizer, as_user("bob"), &mut headers.clone()).await;
    let Err(ImpersonationError::Forbidden { wanted, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(wanted.to_string(), r#"groups "system:masters""#);
    reviewer.fail_with(403);
    let failed = impersonate(&authorizer, as_user("carol"), &mut headers.clone()).await;
    assert!(
        matches!(failed, Err(ImpersonationError::Unknown(_))),
        "{failed:?}"
    );
}

#[tokio::test]
async fn a_server_without_a_cluster_knows_its_own_tokens() {
    let admin = (
        "secret".to_owned(),
        UserInfo::new("admin", &["system:masters"]),
    );
    let authenticator = Authenticator::fixed([admin], false);
    let connection = Connection::new(([127, 0, 0, 1], 1).into(), Vec::new());
    for (token, name) in [
        (Some("Bearer secret"), Some("admin")),
        (Some("Bearer guess"), None),
        (None, None),
    ] {
        let mut headers = HeaderMap::new();
        headers.extend(token.map(|token| (http::header::AUTHORIZATION, token.parse().unwrap())));
        let who = authenticator.authenticate(&mut headers, &connection).await;
        assert_eq!(
            who.ok()
                .map(|identity| identity.user.name.clone())
                .as_deref(),
            name
        );
    }
}
