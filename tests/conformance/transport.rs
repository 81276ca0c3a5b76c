//! TLS, the registration, and kube-apiserver's proxy.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::Body;
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use sandbox_apiserver::serving::{CertificateAuthority, PemPair};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    client::SOON,
    credentials::{Door, certificate, expired, service_account},
    grants::Grant,
    relay::{Relay, Reply},
    subject::Subject,
    witness::Witness,
};
use crate::{
    api_service::SERVER_NAME,
    auth::certificate_of,
    chart,
    stage::{API, eventually},
    tls_client,
    users::ADMIN,
};

items! {
    c_001 P0 "The serving certificate has the DNS name `SERVICE.NAMESPACE.svc`, and its CA is what the registration trusts.", ours;
    c_002 P0 "HTTP/2 and HTTP/1.1 are both offered, and whichever the client takes is served.", ours;
    c_003 P0 "The handshake asks for a client certificate and takes any or none: who it is is judged with the request.", ours;
    c_004 P1 "A new serving certificate and new CAs of clients count for the next handshake, without a restart.", ours;
    c_005 P0 "What the aggregator asks for its health check is answered from memory, whatever else cannot be reached.", ours;
    c_006 P0 "The shipped Service has the port of the registration, and a Pod whose port of the same name can be ready.", ours;
    c_007 P0 "Each version has an APIService `VERSION.GROUP`, with v1beta1 above v1alpha1.", ours;
    c_008 P1 "The shipped APIServices do not let a CRD of the same name take them over.", ours;
    c_009 P0 "Nothing is answered with a redirect.", ours;
    c_010 P0 "Any Host is served, and `X-Forwarded-*` says nothing about who is asking.", ours;
    c_011 P0 "Through the aggregator a token's user is known without the token; path and query mean the same.", ours;
    c_012 P0 "A watch has no Content-Length, and its head is sent before the first event.";
    c_013 P0 "What kube-apiserver ends after 60 s ends before, and only streams that it lets be may last.", ours;
    c_014 P0 "The resources of a version are told within 5 s, also when many ask.";
    c_015 P0 "What is refused instead of an upgrade is refused with 4xx or 5xx.", ours;
    c_016 P1 "A connection has 100 streams at once, and one that stalls holds up no other.", ours;
    c_017 P2 "Connections may be asked to end now and then, so that they spread over replicas.", left "not built yet";
    c_018 P0 "Two replicas, a readiness gate and a disruption budget keep the registration available.", later "one server serves; followers come with a second replica";
}

/// The aggregator gives a health check so long.
const HEALTH_CHECK: Duration = Duration::from_secs(5);
const V1ALPHA1: &str = "/apis/agents.x-k8s.io/v1alpha1";
/// Where the registrations are.
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// The shipped objects: with kubectl, and with helm.
fn shipped() -> [Vec<Value>; 2] {
    [chart::manifests(), chart::helm_template(&[])].map(|yaml| chart::documents(&yaml))
}

#[track_caller]
fn one<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut of_kind = objects.iter().filter(|object| object["kind"] == kind);
    let one = of_kind.next().expect(kind);
    assert!(of_kind.next().is_none(), "one {kind}");
    one
}

fn api_services(objects: &[Value]) -> impl Iterator<Item = &Value> {
    objects
        .iter()
        .filter(|object| object["kind"] == "APIService")
}

/// The registration as kube-apiserver has it.
async fn registration(subject: &Subject, version: &str) -> Value {
    let path = format!("{API_SERVICES}/{version}.agents.x-k8s.io");
    subject.proxied().get(&path).await.ok()
}

#[track_caller]
fn is_available(api_service: &Value) {
    let conditions = api_service["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let available = conditions.find(|condition| condition["type"] == "Available");
    let available = available.expect("kube-apiserver has looked");
    assert_eq!(
        (&available["status"], &available["reason"]),
        (&json!("True"), &json!("Passed"))
    );
}

/// Whether a client that trusts `ca` takes the certificate for that of a server of this name. Its common name is not looked at.
fn is_for(name: &str, certificate: &str, ca: &str) -> bool {
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(der(ca)).unwrap();
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let verified = verifier.build().unwrap().verify_server_cert(
        &der(certificate),
        &[],
        &name,
        &[],
        UnixTime::now(),
    );
    verified.is_ok()
}

fn decoded(base64: &Value) -> String {
    use base64::Engine as _;
    let text = base64.as_str().unwrap_or_default();
    String::from_utf8(base64::prelude::BASE64_STANDARD.decode(text).unwrap()).unwrap()
}

/// kube-apiserver proves the name with every request that it passes on, and so with its own health check.
async fn c_001(subject: &Subject) {
    for version in ["v1beta1", "v1alpha1"] {
        let registered = registration(subject, version).await;
        is_available(&registered);
        let service = &registered["spec"]["service"];
        let name = |field: &str| service[field].as_str().unwrap_or_default().to_owned();
        let name = format!("{}.{}.svc", name("name"), name("namespace"));
        assert_eq!(name, SERVER_NAME);
        assert_eq!(decoded(&registered["spec"]["caBundle"]), subject.ca());
        assert_ne!(registered["spec"]["insecureSkipTLSVerify"], true);
        let served = served(subject.address(), &subject.ca()).await;
        let served = pem(&served);
        assert!(is_for(&name, &served, &subject.ca()));
        assert!(!is_for(
            "another.sandbox-system.svc",
            &served,
            &subject.ca()
        ));
    }
    // What the chart makes is what its registrations trust, in whatever namespace.
    for namespace in ["sandbox-system", "elsewhere"] {
        let yaml = chart::helm_template(&["--namespace", namespace]);
        let objects = chart::documents(&yaml);
        let certificate = decoded(&one(&objects, "Secret")["data"]["tls.crt"]);
        for api_service in api_services(&objects) {
            let service = &api_service["spec"]["service"];
            assert_eq!(service["namespace"], namespace);
            let name = service["name"].as_str().unwrap_or_default();
            let ca = decoded(&api_service["spec"]["caBundle"]);
            assert!(is_for(
                &format!("{name}.{namespace}.svc"),
                &certificate,
                &ca
            ));
        }
    }
}

/// The certificate that a server shows.
async fn served(address: SocketAddr, ca: &str) -> CertificateDer<'static> {
    let tls = tls_client::config(ca, None, &["h2"]);
    let stream = tls_client::connect(address, tls).await.unwrap();
    let (_, session) = stream.get_ref();
    session.peer_certificates().unwrap()[0].clone()
}

fn pem(der: &CertificateDer<'_>) -> String {
    use base64::Engine as _;
    let body = base64::prelude::BASE64_STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
}

async fn c_002(subject: &Subject) {
    let admin = certificate_of(subject.control_plane, ADMIN);
    for (offered, taken) in [
        (&["h2", "http/1.1"][..], "h2"),
        (&["http/1.1"], "http/1.1"),
        (&["h2"], "h2"),
    ] {
        let tls = tls_client::config(&subject.ca(), Some(&admin), offered);
        let stream = tls_client::connect(subject.address(), tls).await.unwrap();
        let (_, session) = stream.get_ref();
        assert_eq!(
            session.alpn_protocol(),
            Some(taken.as_bytes()),
            "{offered:?}"
        );
        let request = tls_client::get(API);
        let answer = match taken {
            "h2" => tls_client::http2(stream).await.send_request(request).await,
            _ => tls_client::http1(stream).await.send_request(request).await,
        };
        let text = tls_client::text(answer.unwrap()).await;
        let resources: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(resources["kind"], "APIResourceList", "{offered:?}");
    }
}

async fn c_003(subject: &Subject) {
    let (_, token) = service_account(subject, "robot").await;
    let stranger = CertificateAuthority::new("stranger").unwrap();
    let unknown = certificate(&stranger, "eve", None);
    let late = expired(&stranger, "eve");
    let of_server = stranger.server_certificate(&["eve"]).unwrap();
    let bearer = format!("Bearer {token}");
    for (what, shown) in [
        ("none", None),
        ("of an unknown CA", Some(&unknown)),
        ("expired", Some(&late)),
        ("for servers", Some(&of_server)),
    ] {
        for versions in [&[&rustls::version::TLS13][..], &[&rustls::version::TLS12]] {
            let tls = tls_client::config_of(versions, &subject.ca(), shown, &["http/1.1"]);
            let status = async |token: Option<&str>| {
                let stream = tls_client::connect(subject.address(), tls.clone()).await;
                let mut request = tls_client::get("/version");
                let token =
                    token.map(|token| (http::header::AUTHORIZATION, token.parse().unwrap()));
                request.headers_mut().extend(token);
                let mut sender = tls_client::http1(stream.expect(what)).await;
                sender
                    .send_request(request)
                    .await
                    .unwrap()
                    .status()
                    .as_u16()
            };
            assert_eq!(status(Some(&bearer)).await, 200, "{what}, and a token");
            // Anybody may read the version, but for whoever shows a bad credential.
            let alone = if shown.is_some() { 401 } else { 200 };
            assert_eq!(status(None).await, alone, "{what}");
        }
    }
}

async fn c_004(subject: &Subject) {
    let witness = Witness::start(subject).await;
    let newcomer = CertificateAuthority::new("client").unwrap();
    let nora = certificate(&newcomer, "nora", None);
    let nora = witness.door.with_certificate(&nora);
    assert_eq!(witness.who(&nora, &[]).await, None);
    let both = format!(
        "{}{}",
        witness.client_ca.certificate(),
        newcomer.certificate()
    );
    let mut data = witness.trust();
    data["client-ca-file"] = both.into();
    witness
        .trust_until(subject, &data, &nora, (&[], "nora"))
        .await;
    assert_eq!(witness.name(&witness.user("jane"), &[]).await, "jane");
    drop(witness);

    let mut server = subject.server(&[]);
    server.ready().await;
    let before = served(server.address, &server.ca).await;
    let admin = server.client();
    let mut watch = admin
        .watch(&format!("{}?watch=1", subject.collection()))
        .await;
    let running = server.running();
    let renewed = running
        .authority
        .serving(&[SERVER_NAME, "localhost"])
        .unwrap();
    let files = [
        ("tls.crt", &renewed.certificate_pem),
        ("tls.key", &renewed.key_pem),
    ];
    for (file, content) in files {
        std::fs::write(running.directory.path().join(file), content).unwrap();
    }
    let renewed = CertificateDer::from_pem_slice(renewed.certificate_pem.as_bytes()).unwrap();
    assert_ne!(before, renewed);
    eventually(SOON, "the new certificate is shown", async || {
        served(server.address, &server.ca).await == renewed
    })
    .await;
    // Who was there before stays.
    assert!(watch.is_silent(Duration::from_millis(100)).await);
    assert!(server.running().process.exited().unwrap().is_none());
}

/// One node is down here; that none needs to be up is told by the server's own state, which the path is answered from.
async fn c_005(subject: &Subject) {
    for version in ["v1beta1", "v1alpha1"] {
        is_available(&registration(subject, version).await);
    }
    let relay = Relay::start(subject).await;
    let mut server = subject.server_through(&relay, &[]);
    server.ready().await;
    subject.nodes().stop(subject.own_node().index).await;
    relay.rule(|_| Reply::Silence);
    let front_proxy = subject.control_plane.front_proxy();
    let front_proxy = Door::of_server(&server).with_certificate(&front_proxy);
    let aggregator = [
        ("x-remote-user", "system:kube-aggregator"),
        ("x-remote-group", "system:masters"),
    ];
    for path in [API, V1ALPHA1] {
        let checks = (0..5).map(|_| front_proxy.send("GET", path, &aggregator, ""));
        let answers = timeout(HEALTH_CHECK, join_all(checks)).await;
        for answer in answers.expect("all are answered in time") {
            assert_eq!(answer.ok()["kind"], "APIResourceList");
        }
    }
    // Nobody was asked, since nobody would have answered.
    let stranger = server.client_as("walter");
    let asking = timeout(Duration::from_secs(1), stranger.get(API)).await;
    assert!(asking.is_err(), "others are asked about");
}

/// The names of ports in the EndpointSlices are those of the Service; the Pod is ready once its probe passes.
async fn c_006(subject: &Subject) {
    for objects in shipped() {
        let (service, deployment) = (one(&objects, "Service"), one(&objects, "Deployment"));
        let port = &service["spec"]["ports"][0];
        let template = &deployment["spec"]["template"];
        let selector = service["spec"]["selector"].as_object().unwrap();
        assert!(!selector.is_empty());
        for (label, value) in selector {
            assert_eq!(&template["metadata"]["labels"][label], value);
        }
        assert_eq!(
            deployment["metadata"]["namespace"],
            service["metadata"]["namespace"]
        );
        let container = &template["spec"]["containers"][0];
        let ports = container["ports"].as_array().unwrap();
        assert!(ports.iter().any(|it| it["name"] == port["targetPort"]));
        assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
        let mut n_registered = 0;
        for api_service in api_services(&objects) {
            let target = &api_service["spec"]["service"];
            assert_eq!(target["name"], service["metadata"]["name"]);
            assert_eq!(target["namespace"], service["metadata"]["namespace"]);
            assert_eq!(target["port"], port["port"]);
            n_registered += 1;
        }
        assert_eq!(n_registered, 2);
        // kube-apiserver fills in what it would register, and finds nothing to object to.
        for (object, path) in [
            (
                service,
                format!("/api/v1/namespaces/{}/services", subject.namespace),
            ),
            (
                api_services(&objects).next().unwrap(),
                API_SERVICES.to_owned(),
            ),
        ] {
            let mut object = object.clone();
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            if object["kind"] == "Service" {
                object["metadata"]["namespace"] = subject.namespace.as_str().into();
            }
            let apply = format!("{path}/{name}?dryRun=All&fieldManager=shipped&force=true");
            let media_type = super::client::APPLY;
            let applied = subject
                .proxied()
                .patch(media_type, &apply, &object)
                .await
                .ok();
            assert_eq!(applied["kind"], object["kind"]);
        }
    }
}

async fn c_007(subject: &Subject) {
    for objects in shipped() {
        let mut priorities = std::collections::BTreeMap::new();
        for api_service in api_services(&objects) {
            let spec = &api_service["spec"];
            let version = spec["version"].as_str().unwrap();
            assert_eq!(spec["group"], "agents.x-k8s.io");
            let name = format!("{version}.agents.x-k8s.io");
            assert_eq!(api_service["metadata"]["name"], name.as_str());
            let minimum = spec["groupPriorityMinimum"].as_i64().unwrap();
            assert!((1..=20_000).contains(&minimum), "{minimum}");
            priorities.insert(
                version.to_owned(),
                spec["versionPriority"].as_i64().unwrap(),
            );
        }
        let [alpha, beta] = ["v1alpha1", "v1beta1"].map(|version| priorities[version]);
        assert!(0 < alpha && alpha < beta && beta <= 1_000, "{priorities:?}");
        assert_eq!(priorities.len(), 2);
    }
    // Users see what kube-apiserver computes of them, and the server says the same of itself.
    for client in subject.both_ways() {
        let group = client.get("/apis/agents.x-k8s.io").await.ok();
        assert_eq!(group["preferredVersion"]["version"], "v1beta1");
        let versions = group["versions"].as_array().unwrap().iter();
        let versions: Vec<_> = versions.map(|version| &version["version"]).collect();
        assert_eq!(versions, ["v1beta1", "v1alpha1"]);
        let groups = client.get("/apis").await.ok();
        let mut groups = groups["groups"].as_array().unwrap().iter();
        let listed = groups.find(|it| it["name"] == "agents.x-k8s.io").unwrap();
        assert_eq!(listed["versions"], group["versions"]);
    }
}

/// That a CRD takes an APIService over by this label, and by nothing else, is kube-apiserver's way. A CRD of this name is not put
/// into the cluster that other checks share.
async fn c_008(subject: &Subject) {
    const LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";
    let live = [
        registration(subject, "v1beta1").await,
        registration(subject, "v1alpha1").await,
    ];
    for registered in &live {
        is_available(registered);
        assert_eq!(registered["spec"]["service"]["namespace"], "sandbox-system");
    }
    let shipped = shipped();
    let all = shipped.iter().flat_map(|objects| api_services(objects));
    for api_service in all.chain(&live) {
        assert_eq!(api_service["metadata"]["labels"].get(LABEL), None);
    }
    assert!(include_str!("../../apiservice/README.md").contains(LABEL));
    assert!(
        include_str!("../../README.md")
            .contains("what to do where the CRD of the same name is in the")
    );
}

async fn c_009(subject: &Subject) {
    subject.create("a").await;
    let (collection, item) = (subject.collection(), subject.item("a"));
    let direct = subject.direct();
    for path in [
        "/",
        "/api",
        "/apis",
        "/version",
        "/metrics",
        "/healthz",
        "/openapi/v2",
        "/openapi/v3",
        API,
        "/absent",
    ] {
        let path = path.trim_end_matches('/');
        let plain = direct.get(if path.is_empty() { "/" } else { path }).await;
        for other in [format!("{path}/"), format!("/{path}"), format!("{path}//")] {
            let answer = direct.get(&other).await;
            assert!(!answer.status.is_redirection(), "{other}: {answer:?}");
            assert_eq!(answer.headers.get("location"), None, "{other}");
            assert_eq!(answer.status, plain.status, "{other}");
        }
    }
    for (path, kind) in [
        (format!("{collection}/"), "SandboxList"),
        (format!("{item}/"), "Sandbox"),
    ] {
        assert_eq!(direct.get(&path).await.ok()["kind"], kind, "{path}");
    }
    // A hash that names another document, as an old index does.
    let index = direct.get("/openapi/v3").await.ok();
    let named = index["paths"][&API[1..]]["serverRelativeURL"]
        .as_str()
        .unwrap();
    let (path, hash) = named.split_once("?hash=").expect("it is named by its hash");
    let document = direct.get(named).await.ok();
    assert!(document["components"].is_object());
    let stale = format!("{path}?hash={}", hash.chars().rev().collect::<String>());
    assert_eq!(direct.get(&stale).await.ok(), document);
}

async fn c_010(subject: &Subject) {
    subject.create("a").await;
    let (admin, item) = (subject.direct(), subject.item("a"));
    for host in [
        "10.1.2.3:6443",
        "[fd00::1]:6443",
        "another.example.org",
        "localhost",
    ] {
        let answer = admin.send("GET", &item, &[("host", host)], "").await;
        assert_eq!(answer.ok()["metadata"]["name"], "a", "{host}");
    }
    let forwarded = [
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "localhost"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-uri", "/version"),
        ("x-forwarded-user", ADMIN),
        ("x-forwarded-groups", "system:masters"),
        ("x-real-ip", "127.0.0.1"),
        ("forwarded", "for=127.0.0.1;host=localhost"),
    ];
    let walter = subject.direct_as("walter");
    let refused = walter.send("GET", &item, &forwarded, "").await;
    refused.expect(403, "Forbidden");
    assert_eq!(refused.body, walter.get(&item).await.body);
    for client in subject.both_ways() {
        let answer = client.send("GET", &item, &forwarded, "").await;
        assert_eq!(answer.ok()["metadata"]["name"], "a");
    }
}

async fn c_011(subject: &Subject) {
    let (robot, token) = service_account(subject, "robot").await;
    let mut object = subject.mk("a-b");
    object["metadata"]["labels"] = json!({"color": "red", "n": "2"});
    subject.create_from(object).await;
    subject.create("plain").await;
    Grant::to(&robot, &["list", "get"]).in_force(subject).await;
    let (collection, escaped) = (subject.collection(), subject.item("a%2Db"));
    // In no order, with characters that are escaped in more than one way.
    let query = "timeoutSeconds=20&limit=5&labelSelector=color%20in%20(blue,red)%2Cn!%3D1&fieldSelector=metadata.name!=x";
    let proxied = subject.proxied_with_token(&token);
    let direct = Door::of(subject).with_token(&token);
    for client in [&proxied, &direct] {
        let list = client.get(&format!("{collection}?{query}")).await.ok();
        let names = list["items"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|item| &item["metadata"]["name"]).collect();
        assert_eq!(names, ["a-b"]);
        assert_eq!(client.get(&escaped).await.ok()["metadata"]["name"], "a-b");
    }
    let log = subject.log();
    assert!(log.contains(&robot), "the server knows who asked");
    assert!(!log.contains(&token));
}

async fn c_012(subject: &Subject) {
    for client in subject.both_ways() {
        let list = client.get(&subject.collection()).await.ok();
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        let query = format!("watch=1&resourceVersion={version}&timeoutSeconds=20");
        let path = format!("{}?{query}", subject.collection());
        let head = timeout(Duration::from_secs(5), client.watch(&path)).await;
        let mut watch = head.expect("the head comes before any event");
        assert_eq!(watch.headers().get("content-length"), None);
        assert!(watch.is_silent(Duration::from_millis(200)).await);
    }
}

/// A node that never answers, and less than the server's own patience; the longest is that of a fork, 25 s.
async fn c_013(subject: &Subject) {
    let lasting = ["attach", "exec", "proxy", "log", "portforward"];
    let short = ["status", "scale", "pause", "resume", "fork", "snapshot"];
    let resources = subject.proxied().get(API).await.ok();
    for resource in resources["resources"].as_array().unwrap() {
        let name = resource["name"].as_str().unwrap();
        if let Some((_, subresource)) = name.split_once('/') {
            let known = lasting.contains(&subresource) || short.contains(&subresource);
            assert!(known, "is {subresource} a stream?");
        }
    }
    let node = subject.own_node();
    for (name, action) in [
        ("a", "pause"),
        ("b", "fork"),
        ("c", "snapshot"),
        ("d", "resume"),
    ] {
        let object = crate::stage::sandbox(name, &node.template);
        subject.create_from(object).await;
        if action == "resume" {
            let path = format!("{}/pause", subject.item(name));
            subject.proxied().post(&path, &json!({})).await.ok();
        }
    }
    let faults = json!([{"kind": "hang", "method": "POST"}]);
    subject.nodes().set_faults(node.index, faults).await;
    // Without kube-apiserver, which heeds the same parameter.
    let client = subject.direct();
    let call = async |name: &str, action: &str| {
        let path = format!("{}/{action}?timeout=10s", subject.item(name));
        let started = Instant::now();
        let answer = client.post(&path, &json!({})).await;
        let took = started.elapsed();
        assert!(answer.status.is_server_error(), "{action}: {answer:?}");
        assert_eq!(answer.body["kind"], "Status", "{action}");
        assert!(took < Duration::from_secs(15), "{action} took {took:?}");
    };
    tokio::join!(
        call("a", "pause"),
        call("b", "fork"),
        call("c", "snapshot"),
        call("d", "resume")
    );
    subject.nodes().clear_faults(node.index).await;
}

async fn c_014(subject: &Subject) {
    let client = subject.proxied();
    let asked = (0..50).map(|_| client.get(API));
    let answers = timeout(HEALTH_CHECK, join_all(asked)).await;
    for answer in answers.expect("all are answered in time") {
        let resources = answer.ok();
        assert_eq!(resources["kind"], "APIResourceList");
        assert_eq!(resources["groupVersion"], "agents.x-k8s.io/v1beta1");
    }
}

/// That what is upgraded is relayed is seen where there is something to upgrade: in C-133.
async fn c_015(subject: &Subject) {
    subject.create("a").await;
    for client in subject.upgraders() {
        for (path, code) in [
            (format!("{}/exec?command=true", subject.item("a")), 404),
            (subject.item("absent"), 404),
            (
                format!("{}?watch=1&resourceVersion=nonsense", subject.collection()),
                400,
            ),
        ] {
            for protocol in ["websocket", "SPDY/3.1"] {
                let request = http::Request::get(&path)
                    .header("connection", "Upgrade")
                    .header("upgrade", protocol)
                    .header("sec-websocket-version", "13")
                    .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
                let answer = client.send(request.body(Body::empty()).unwrap()).await;
                let status = answer.unwrap().status().as_u16();
                assert_eq!(status, code, "{protocol} {path}");
            }
        }
    }
}

async fn c_016(subject: &Subject) {
    const N_STREAMS: usize = 100;
    let mut object = subject.mk("big");
    object["metadata"]["annotations"] = json!({"pad": "x".repeat(100_000)});
    subject.create_from(object).await;
    let admin = certificate_of(subject.control_plane, ADMIN);
    let tls = tls_client::config(&subject.ca(), Some(&admin), &["h2"]);
    let stream = tls_client::connect(subject.address(), tls).await.unwrap();
    // Each stream stalls in its first event, and the connection has room for all of them.
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(1_000)
        .initial_connection_window_size(1 << 20);
    let handshake = builder
        .handshake::<_, tls_client::Body>(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = handshake.unwrap();
    tokio::spawn(connection);
    let path = format!("{}?watch=1", subject.collection());
    let mut stalled = Vec::new();
    for n in 0..N_STREAMS - 1 {
        let answer = timeout(SOON, sender.send_request(tls_client::get(&path))).await;
        let answer = answer
            .unwrap_or_else(|_| panic!("stream {n} waits"))
            .unwrap();
        let media_type = answer.headers().get("content-type").cloned();
        assert_eq!(
            media_type.as_ref().map(|it| it.as_bytes()),
            Some(&b"application/json"[..])
        );
        stalled.push(answer);
    }
    for _ in 0..5 {
        let answer = timeout(SOON, sender.send_request(tls_client::get("/version"))).await;
        let text = tls_client::text(answer.expect("no other stream is waited for").unwrap()).await;
        let version: Value = serde_json::from_str(&text).unwrap();
        assert!(version["gitVersion"].is_string(), "{version}");
    }
    drop(stalled);
}
