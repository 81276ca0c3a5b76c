//! The listener as clients meet it, over real TLS.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, client::ResolvesClientCert, crypto::ring, sign::CertifiedKey};
use sandbox_apiserver::{
    serving::{
        CertificateAuthority, CertificateFiles, Connection, PemPair, ServeOptions, ServingMetrics,
        TlsMaterial, Transport, Upgrade, UpgradedStream, run,
    },
    telemetry::Metrics,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::tls_client::{Body, config, config_of, connect, get, http1, http2, parsed, text};

const SOON: Duration = Duration::from_secs(10);

struct Server {
    address: SocketAddr,
    ca: CertificateAuthority,
    shutdown: CancellationToken,
    metrics: Metrics,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(options: ServeOptions) -> Self {
        let ca = CertificateAuthority::new("serving").unwrap();
        let pair = ca.server_certificate(&["localhost"]).unwrap();
        let material = Arc::new(TlsMaterial::from_pem(&pair).unwrap());
        Self::start_with(options, ca, material).await
    }

    async fn start_with(
        options: ServeOptions,
        ca: CertificateAuthority,
        material: Arc<TlsMaterial>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown, metrics) = (
            listener.local_addr().unwrap(),
            CancellationToken::new(),
            Metrics::new(),
        );
        let options = ServeOptions {
            metrics: ServingMetrics::register(&metrics),
            ..options
        };
        let task = tokio::spawn(run(
            listener,
            Transport::Tls(material),
            handle,
            options,
            shutdown.clone(),
        ));
        Self {
            address,
            ca,
            shutdown,
            metrics,
            task,
        }
    }

    fn config(&self, alpn: &str) -> ClientConfig {
        config(self.ca.certificate(), None, &[alpn])
    }

    async fn http2(&self) -> hyper::client::conn::http2::SendRequest<Body> {
        http2(connect(self.address, self.config("h2")).await.unwrap()).await
    }

    async fn http1(&self) -> hyper::client::conn::http1::SendRequest<Body> {
        http1(
            connect(self.address, self.config("http/1.1"))
                .await
                .unwrap(),
        )
        .await
    }

    #[track_caller]
    fn counted(&self, metric: &str) -> u64 {
        let (text, name) = (
            self.metrics.encode(),
            format!("sandbox_apiserver_serving_{metric} "),
        );
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("no {metric} in {text}"))
            .parse()
            .unwrap()
    }
}

/// What the listener serves here: a path, a behaviour.
async fn handle(
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Response<UnsyncBoxBody<Bytes, std::io::Error>> {
    let say = |text: String| {
        Response::new(
            Full::from(text)
                .map_err(|never| match never {})
                .boxed_unsync(),
        )
    };
    match request.uri().path() {
        "/certificates" => say(connection.peer_certificates.len().to_string()),
        "/slow" => {
            tokio::time::sleep(Duration::from_millis(200)).await;
            say("slow but sure".to_owned())
        }
        "/stall" => std::future::pending().await,
        "/identify" => {
            connection.identified();
            say("hello".to_owned())
        }
        "/refuse" => {
            let mut response = say("too much".to_owned());
            *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            response
        }
        "/panic" => panic!("on purpose"),
        "/close" => {
            let mut response = say("bye".to_owned());
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
            response
        }
        "/watch" => {
            let ticks = futures::stream::unfold(0_u64, async |n| {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Some((Ok(Frame::data(Bytes::from(format!("{n}\n")))), n + 1))
            });
            Response::new(StreamBody::new(ticks).boxed_unsync())
        }
        "/quiet" => {
            let nothing = futures::stream::pending();
            Response::new(StreamBody::new(nothing).boxed_unsync())
        }
        "/page" => say(" ".repeat(64 << 10)),
        "/endless" => {
            let chunks =
                futures::stream::repeat_with(|| Ok(Frame::data(Bytes::from(vec![0; 64 << 10]))));
            Response::new(StreamBody::new(chunks).boxed_unsync())
        }
        "/reverse" => upgraded(async |mut io| {
            let mut word = [0; 4];
            io.read_exact(&mut word).await.unwrap();
            word.reverse();
            io.write_all(&word).await.unwrap();
            io.shutdown().await.unwrap();
        }),
        "/flood" => upgraded(async |mut io| while io.write_all(&[0; 64 << 10]).await.is_ok() {}),
        "/silence" => upgraded(async |mut io| drop(io.read_u8().await)),
        _ => say(format!("{:?}", request.version())),
    }
}

/// 101, and what is spoken then.
fn upgraded<F>(
    speak: impl FnOnce(UpgradedStream) -> F + Send + 'static,
) -> Response<UnsyncBoxBody<Bytes, std::io::Error>>
where
    F: Future<Output = ()> + Send + 'static,
{
    let nothing = http_body_util::Empty::new();
    let mut response = Response::new(nothing.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("words"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.extensions_mut().insert(Upgrade::new(speak));
    response
}

#[tokio::test]
async fn both_protocols_are_offered() {
    let server = Server::start(ServeOptions::default()).await;
    let response = server.http2().await.send_request(get("/")).await.unwrap();
    assert_eq!(text(response).await, format!("{:?}", Version::HTTP_2));
    let response = server.http1().await.send_request(get("/")).await.unwrap();
    assert_eq!(text(response).await, format!("{:?}", Version::HTTP_11));
}

#[tokio::test]
async fn every_client_certificate_completes_the_handshake() {
    let server = Server::start(ServeOptions::default()).await;
    let stranger = CertificateAuthority::new("stranger").unwrap();
    let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
    let unknown = stranger
        .client_certificate("eve", None, now - day..now + day)
        .unwrap();
    let expired = server
        .ca
        .client_certificate("old", None, now - 2 * day..now - day)
        .unwrap();
    let future = server
        .ca
        .client_certificate("new", None, now + day..now + 2 * day)
        .unwrap();
    for (certificate, expected) in [
        (None, "0"),
        (Some(&unknown), "1"),
        (Some(&expired), "1"),
        (Some(&future), "1"),
    ] {
        for versions in [&[&rustls::version::TLS13][..], &[&rustls::version::TLS12]] {
            let tls = config_of(versions, server.ca.certificate(), certificate, &["h2"]);
            let mut client = http2(connect(server.address, tls).await.unwrap()).await;
            let response = client.send_request(get("/certificates")).await.unwrap();
            assert_eq!(text(response).await, expected, "{versions:?}");
        }
    }
}

/// Shows one certificate and signs with the key of another.
#[derive(Debug)]
struct Thief(Arc<CertifiedKey>);

impl ResolvesClientCert for Thief {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_certificate_without_its_key_is_no_certificate() {
    let server = Server::start(ServeOptions::default()).await;
    let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
    let mk_pair = || {
        parsed(
            &server
                .ca
                .client_certificate("admin", None, now - day..now + day)
                .unwrap(),
        )
    };
    let ((chain, _), (_, key)) = (mk_pair(), mk_pair());
    let key = ring::sign::any_supported_type(&key).unwrap();
    let mut tls = server.config("http/1.1");
    tls.client_auth_cert_resolver = Arc::new(Thief(Arc::new(CertifiedKey::new(chain, key))));
    // In TLS 1.3 the client is done before the server has checked, so that it learns with its first read.
    let mut stream = connect(server.address, tls).await.unwrap();
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(stream.read_u8().await.is_err());
    assert_eq!(server.counted("tls_handshake_failures_total"), 1);
}

#[tokio::test]
async fn a_stalled_stream_blocks_no_other() {
    let server = Server::start(ServeOptions::default()).await;
    let mut client = server.http2().await;
    // Uploads that nobody reads, and answers that nobody reads, beyond every window.
    let mut held = Vec::new();
    for _ in 0..20 {
        let upload = Full::from(vec![0; 3 << 20]).boxed();
        let stalled = client.send_request(
            Request::post("https://localhost/stall")
                .body(upload)
                .unwrap(),
        );
        held.push(tokio::spawn(stalled));
        let unread = client.send_request(get("/endless")).await.unwrap();
        held.push(tokio::spawn(async { Ok(unread) }));
    }
    for _ in 0..5 {
        let response = timeout(SOON, client.send_request(get("/")))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_panic_answers_500_and_nothing_else_ends() {
    let server = Server::start(ServeOptions::default()).await;
    let mut client = server.http2().await;
    let response = client.send_request(get("/panic")).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let status: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(
        (status["kind"].as_str(), status["code"].as_u64()),
        (Some("Status"), Some(500))
    );
    let response = client.send_request(get("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(server.counted("panics_total"), 1);
}

#[tokio::test]
async fn connection_close_ends_an_http2_connection_but_not_its_streams() {
    let server = Server::start(ServeOptions::default()).await;
    let mut client = server.http2().await;
    let slow = tokio::spawn(client.send_request(get("/slow")));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let response = client.send_request(get("/close")).await.unwrap();
    assert_eq!(text(response).await, "bye");
    assert_eq!(text(slow.await.unwrap().unwrap()).await, "slow but sure");
    let refused = timeout(SOON, async {
        while client.send_request(get("/")).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    refused.await.expect("the connection ends");
}

/// A connection on which HTTP is over.
async fn upgrade(server: &Server, path: &str) -> TokioIo<hyper::upgrade::Upgraded> {
    let mut request = get(path);
    let headers = request.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("words"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    let response = server.http1().await.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    TokioIo::new(hyper::upgrade::on(response).await.unwrap())
}

#[tokio::test]
async fn upgrades_become_raw_streams() {
    let server = Server::start(ServeOptions::default()).await;
    let mut io = upgrade(&server, "/reverse").await;
    io.write_all(b"abcd").await.unwrap();
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "dcba");
    drop(io);
    until_connections(&server, 0, "it is over").await;
    assert_eq!(server.counted("requests_in_flight"), 0);
}

#[tokio::test]
async fn an_upgraded_connection_keeps_its_place_and_is_cut_when_nothing_of_it_is_taken() {
    let server = Server::start(hasty()).await;
    let silence = upgrade(&server, "/silence").await;
    let flood = upgrade(&server, "/flood").await;
    assert_eq!(
        (
            server.counted("connections"),
            server.counted("requests_in_flight")
        ),
        (2, 2)
    );
    until_connections(&server, 1, "the flood that nobody reads is cut").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(
        server.counted("connections"),
        1,
        "silence is what was asked for"
    );
    drop((silence, flood));
    until_connections(&server, 0, "nobody is left").await;
    assert_eq!(server.counted("requests_in_flight"), 0);
}

#[tokio::test]
async fn the_listener_waits_for_what_is_spoken_on_upgraded_connections() {
    let options = ServeOptions {
        drain_timeout: SOON,
        ..ServeOptions::default()
    };
    let mut server = Server::start(options).await;
    let mut io = upgrade(&server, "/reverse").await;
    server.shutdown.cancel();
    let early = timeout(Duration::from_millis(300), &mut server.task).await;
    assert!(early.is_err(), "it has not said its word");
    io.write_all(b"abcd").await.unwrap();
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "dcba");
    drop(io);
    timeout(SOON, server.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_upgraded_connection_that_does_not_end_is_cut_with_the_listener() {
    let options = ServeOptions {
        drain_timeout: Duration::from_millis(100),
        ..ServeOptions::default()
    };
    let server = Server::start(options).await;
    let mut io = upgrade(&server, "/silence").await;
    server.shutdown.cancel();
    timeout(SOON, server.task).await.unwrap().unwrap();
    assert!(!matches!(
        timeout(SOON, io.read(&mut [0])).await.unwrap(),
        Ok(1..)
    ));
}

#[tokio::test]
async fn shutdown_finishes_what_is_in_flight() {
    let server = Server::start(ServeOptions::default()).await;
    let (mut over_http2, mut over_http1) = (server.http2().await, server.http1().await);
    let slow = [
        tokio::spawn(over_http2.send_request(get("/slow"))),
        tokio::spawn(async move { over_http1.send_request(get("/slow")).await }),
    ];
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.shutdown.cancel();
    for request in slow {
        assert_eq!(text(request.await.unwrap().unwrap()).await, "slow but sure");
    }
    timeout(SOON, server.task)
        .await
        .expect("the listener returns")
        .unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
    assert!(over_http2.send_request(get("/")).await.is_err());
}

#[tokio::test]
async fn shutdown_cuts_what_does_not_end() {
    let options = ServeOptions {
        drain_timeout: Duration::from_millis(100),
        ..ServeOptions::default()
    };
    let server = Server::start(options).await;
    let mut client = server.http2().await;
    let mut watch = client
        .send_request(get("/watch"))
        .await
        .unwrap()
        .into_body();
    assert!(watch.frame().await.unwrap().is_ok());
    server.shutdown.cancel();
    timeout(SOON, server.task)
        .await
        .expect("the listener returns")
        .unwrap();
    let ended = timeout(SOON, async {
        while watch.frame().await.is_some_and(|frame| frame.is_ok()) {}
    });
    ended.await.expect("the watch is cut");
}

#[tokio::test]
async fn who_says_nothing_is_let_go() {
    let options = ServeOptions {
        handshake_timeout: Duration::from_millis(50),
        idle_timeout: Duration::from_millis(50),
        header_read_timeout: Duration::from_millis(50),
        ..ServeOptions::default()
    };
    let server = Server::start(options).await;
    let mut mute = TcpStream::connect(server.address).await.unwrap();
    assert!(!matches!(
        timeout(SOON, mute.read(&mut [0])).await.unwrap(),
        Ok(1..)
    ));
    assert_eq!(server.counted("tls_handshake_failures_total"), 1);

    // After the handshake, without a byte of HTTP.
    for alpn in ["h2", "http/1.1"] {
        let mut idle = connect(server.address, server.config(alpn)).await.unwrap();
        let read = async { while idle.read_u8().await.is_ok() {} };
        timeout(SOON, read)
            .await
            .unwrap_or_else(|_| panic!("idle {alpn} connection stays"));
    }

    // Half a header.
    let mut slow = connect(server.address, server.config("http/1.1"))
        .await
        .unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nhost: ").await.unwrap();
    timeout(SOON, async { while slow.read_u8().await.is_ok() {} })
        .await
        .expect("half a header is not waited for");

    // A watch is not idle.
    let mut client = server.http2().await;
    let mut watch = client
        .send_request(get("/watch"))
        .await
        .unwrap()
        .into_body();
    for _ in 0..30 {
        assert!(watch.frame().await.unwrap().is_ok());
    }
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let server = Server::start(ServeOptions {
        max_connections: 1,
        ..ServeOptions::default()
    })
    .await;
    let mut first = server.http2().await;
    assert!(first.send_request(get("/")).await.is_ok());
    let second = connect(server.address, server.config("h2"));
    let mut second = Box::pin(second);
    assert!(
        timeout(Duration::from_millis(200), &mut second)
            .await
            .is_err()
    );
    assert_eq!(server.counted("connections"), 1);
    drop(first);
    assert!(
        timeout(SOON, second)
            .await
            .expect("there is room now")
            .is_ok()
    );
}

/// Bounds that are over soon.
fn hasty() -> ServeOptions {
    ServeOptions {
        idle_timeout: Duration::from_millis(100),
        closing_timeout: Duration::from_millis(100),
        ..ServeOptions::default()
    }
}

/// Waits until the server holds so many connections.
async fn until_connections(server: &Server, n: u64, why: &str) {
    let reached = async {
        while server.counted("connections") != n {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let reached = timeout(SOON, reached).await;
    reached.unwrap_or_else(|_| panic!("{} connections: {why}", server.counted("connections")));
}

/// An HTTP/2 client that gives no answer any room, and answers pings.
async fn without_window(server: &Server) -> hyper::client::conn::http2::SendRequest<Body> {
    let stream = connect(server.address, server.config("h2")).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(0);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn who_takes_no_answer_is_let_go() {
    let server = Server::start(hasty()).await;
    // Every answer waits for a window: a short one, an endless one, one behind which the connection is to end.
    for path in ["/", "/endless", "/close"] {
        let mut client = without_window(&server).await;
        let _held = client.send_request(get(path)).await.unwrap();
        until_connections(&server, 0, path).await;
    }
    // Every answer waits for somebody to read the socket, when the kernel has taken what it does.
    for path in ["/page", "/endless"] {
        let stream = connect(server.address, server.config("http/1.1"));
        let mut stream = stream.await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").repeat(1_000);
        let asking = async { while stream.write_all(request.as_bytes()).await.is_ok() {} };
        let let_go = until_connections(&server, 0, path);
        tokio::select! {
            () = async { tokio::join!(asking, std::future::pending::<()>()); } => {}
            () = let_go => {}
        }
    }
}

#[tokio::test]
async fn to_be_asked_to_close_is_no_way_to_stay() {
    let options = ServeOptions {
        closing_timeout: Duration::from_millis(100),
        ..ServeOptions::default()
    };
    let server = Server::start(options).await;
    let mut client = without_window(&server).await;
    let _held = client.send_request(get("/close")).await.unwrap();
    until_connections(&server, 0, "after GOAWAY").await;
}

#[tokio::test]
async fn a_stalled_answer_ends_no_connection_on_which_another_goes_on() {
    let server = Server::start(hasty()).await;
    let mut client = server.http2().await;
    let _unread = client.send_request(get("/endless")).await.unwrap();
    let mut watch = client
        .send_request(get("/watch"))
        .await
        .unwrap()
        .into_body();
    for _ in 0..60 {
        assert!(watch.frame().await.unwrap().is_ok());
    }
    let slow = client.send_request(get("/slow")).await.unwrap();
    assert_eq!(text(slow).await, "slow but sure");
}

#[tokio::test]
async fn a_watch_on_which_nothing_happens_is_not_idle() {
    let server = Server::start(hasty()).await;
    let (mut over_http2, mut over_http1) = (server.http2().await, server.http1().await);
    let _watches = [
        over_http2.send_request(get("/quiet")).await.unwrap(),
        over_http1.send_request(get("/quiet")).await.unwrap(),
    ];
    // Several times as long as an idle connection has.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.counted("connections"), 2);
    assert!(over_http2.send_request(get("/")).await.is_ok());
}

#[tokio::test]
async fn one_address_has_so_many_strangers() {
    let server = Server::start(ServeOptions {
        max_strangers: 2,
        ..ServeOptions::default()
    })
    .await;
    let (mut first, _second) = (server.http2().await, server.http1().await);
    assert!(connect(server.address, server.config("h2")).await.is_err());
    assert_eq!(server.counted("strangers_refused_total"), 1);
    // Somebody who is known is no stranger, and makes room for one.
    first.send_request(get("/identify")).await.unwrap();
    let mut third = server.http2().await;
    assert!(third.send_request(get("/")).await.is_ok());
    assert!(connect(server.address, server.config("h2")).await.is_err());
    drop(third);
    until_connections(&server, 2, "one has left").await;
    assert!(connect(server.address, server.config("h2")).await.is_ok());
}

#[tokio::test]
async fn a_refused_upload_reads_its_refusal() {
    let server = Server::start(ServeOptions::default()).await;
    let stream = connect(server.address, server.config("http/1.1"));
    let mut stream = stream.await.unwrap();
    // As most clients do: first send everything, then read.
    let head = format!(
        "POST /refuse HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n",
        8 << 20
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let upload = stream.write_all(&vec![b'x'; 8 << 20]).await;
    upload.expect("what is not wanted is read all the same");
    let mut answer = vec![0; 12];
    timeout(SOON, stream.read_exact(&mut answer))
        .await
        .expect("an answer")
        .unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
}

#[tokio::test]
async fn many_groups_fit_and_too_many_bytes_are_refused() {
    let server = Server::start(ServeOptions::default()).await;
    let with_groups = |n_groups: usize, length: usize| {
        let mut request = get("/");
        let group = HeaderValue::from_str(&"g".repeat(length)).unwrap();
        for _ in 0..n_groups {
            request
                .headers_mut()
                .append("x-remote-group", group.clone());
        }
        request
    };
    assert_eq!(
        server
            .http2()
            .await
            .send_request(with_groups(1_000, 50))
            .await
            .unwrap()
            .status(),
        StatusCode::OK
    );
    assert_eq!(
        server
            .http1()
            .await
            .send_request(with_groups(1_000, 50))
            .await
            .unwrap()
            .status(),
        StatusCode::OK
    );
    let refused = server
        .http2()
        .await
        .send_request(with_groups(300, 1_000))
        .await;
    assert!(
        refused.is_err()
            || refused.unwrap().status() == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
    );
}

/// A directory as the kubelet mounts a secret: files are links through `..data`, which is swapped in one rename.
fn mount(directory: &Path, generation: &str, pair: &PemPair) {
    let data = directory.join(generation);
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("tls.crt"), &pair.certificate).unwrap();
    std::fs::write(data.join("tls.key"), &pair.private_key).unwrap();
    let (next, current) = (directory.join("..data_tmp"), directory.join("..data"));
    std::os::unix::fs::symlink(generation, &next).unwrap();
    std::fs::rename(next, current).unwrap();
    for file in ["tls.crt", "tls.key"] {
        let _ = std::os::unix::fs::symlink(Path::new("..data").join(file), directory.join(file));
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart() {
    let ca = CertificateAuthority::new("serving").unwrap();
    let [first, second, third, other] =
        std::array::from_fn(|_| ca.server_certificate(&["localhost"]).unwrap());
    let directory = tempfile::tempdir().unwrap();
    mount(directory.path(), "..1", &first);
    let files = CertificateFiles {
        certificate: directory.path().join("tls.crt"),
        private_key: directory.path().join("tls.key"),
    };
    let material = Arc::new(TlsMaterial::load(&files).await.unwrap());
    let server = Server::start_with(ServeOptions::default(), ca, material.clone()).await;
    let counters = Metrics::new();
    let metrics = ServingMetrics::register(&counters);
    let _following = tokio::spawn(material.follow(files, Duration::from_millis(20), metrics));
    let failures = || {
        counters
            .encode()
            .contains("certificate_reload_failures_total 1\n")
    };

    let served = async || {
        let stream = connect(server.address, server.config("h2")).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let until_served = async |pair: &PemPair| {
        let (chain, _) = parsed(pair);
        timeout(SOON, async {
            while served().await != chain[0] {
                tokio::time::sleep(Duration::from_millis(10)).await
            }
        })
        .await
        .expect("the pair is served")
    };
    until_served(&first).await;
    let mut client = server.http2().await;
    let (seen_tx, mut seen_rx) = mpsc::channel(1_000);
    let mut watch = client
        .send_request(get("/watch"))
        .await
        .unwrap()
        .into_body();
    let watching = tokio::spawn(async move {
        while let Some(Ok(_)) = watch.frame().await {
            let _ = seen_tx.try_send(());
        }
    });

    mount(directory.path(), "..2", &second);
    until_served(&second).await;
    assert!(!failures());

    let mismatched = PemPair {
        private_key: other.private_key,
        ..third.clone()
    };
    mount(directory.path(), "..3", &mismatched);
    timeout(SOON, async {
        while !failures() {
            tokio::time::sleep(Duration::from_millis(10)).await
        }
    })
    .await
    .expect("the pair is counted");
    until_served(&second).await;
    // Counted once for a content, and not with every look.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(failures());

    mount(directory.path(), "..4", &third);
    until_served(&third).await;
    assert!(!watching.is_finished(), "the watch was dropped");
    while seen_rx.try_recv().is_ok() {}
    assert!(
        timeout(SOON, seen_rx.recv()).await.unwrap().is_some(),
        "the watch goes on"
    );
}
