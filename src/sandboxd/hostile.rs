//! The client against peers that are not a daemon: scripted byte by byte, over real sockets.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use proptest::prelude::*;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};

use super::{ClaimRequest, Client, ClientOptions, Error, Info, Sandbox, TokenSource, wire};
use crate::api::{NodeAddress, PoolKey, Token};

const SOON: Duration = Duration::from_secs(5);
const GRANTED: &str = r#"{"id":"sb_1","token":"t","deadline":"2026-01-01T00:00:00Z"}"#;

/// What a scripted peer does with the next request that it reads.
#[derive(Clone)]
enum Act {
    /// Sends these bytes and waits for the next request on the same connection.
    Send(String),
    /// Sends these bytes and closes.
    SendAndClose(String),
    /// Sends these bytes, again and again.
    Flood(String),
    /// Sends these bytes after a while.
    Late(String),
    /// Sends nothing and keeps the connection.
    Nothing,
}

fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A peer that plays `acts` in order, over however many connections, and the heads of the requests that it read.
#[derive(Clone)]
struct Peer {
    address: SocketAddr,
    acts: Arc<Mutex<std::vec::IntoIter<Act>>>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Peer {
    async fn start(acts: Vec<Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = Self {
            address: listener.local_addr().unwrap(),
            acts: Arc::new(Mutex::new(acts.into_iter())),
            seen: Arc::default(),
        };
        let serving = peer.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().play(stream));
            }
        });
        peer
    }

    async fn play(self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        while let Some(request) = read_request(&mut stream).await {
            self.seen.lock().unwrap().push(request);
            let act = self.acts.lock().unwrap().next();
            match act.unwrap_or(Act::Nothing) {
                Act::Send(bytes) => stream.write_all(bytes.as_bytes()).await.unwrap(),
                Act::SendAndClose(bytes) => {
                    let _ = stream.write_all(bytes.as_bytes()).await;
                    return;
                }
                Act::Flood(bytes) => while stream.write_all(bytes.as_bytes()).await.is_ok() {},
                Act::Late(bytes) => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    let _ = stream.write_all(bytes.as_bytes()).await;
                }
                Act::Nothing => {}
            }
        }
    }

    fn node(&self) -> NodeAddress {
        self.address.to_string().parse().unwrap()
    }

    fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// One request, head and body; None at the end of the connection.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
                .unwrap_or(0);
            if body.len() >= length {
                return Some(text);
            }
        }
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk).await {
            Ok(n @ 1..) => bytes.extend_from_slice(&chunk[..n]),
            _ => return None,
        }
    }
}

fn mk_client() -> Client {
    Client::new(ClientOptions {
        token: TokenSource::Fixed(Token::from("secret".to_owned())),
        ca_file: None,
    })
    .unwrap()
}

fn mk_claim() -> ClaimRequest {
    ClaimRequest::new(PoolKey {
        template: "t".into(),
        net: "none".into(),
        size: "small".into(),
    })
}

/// Claims once at a peer that plays `act`; the error must say `outcome_unknown` as told, and one request may be seen at most.
#[track_caller]
fn claim_fails(
    act: Act,
    unknown: bool,
    is_expected: fn(&Error) -> bool,
) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let peer = Peer::start(vec![act, Act::Send(ok(GRANTED))]).await;
        let (client, node) = (mk_client(), peer.node());
        let error = client
            .node(&node, Duration::from_millis(300))
            .claim(&mk_claim())
            .await
            .unwrap_err();
        assert!(is_expected(&error), "{caller}: {error:?}");
        assert_eq!(error.outcome_unknown(), unknown, "{caller}: {error:?}");
        assert_eq!(peer.requests(), 1, "{caller}: a claim was repeated");
    }
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_not_repeated() {
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 60\r\n\r\n{\"id\":".to_owned();
    claim_fails(Act::SendAndClose(String::new()), true, |e| {
        matches!(e, Error::Interrupted(_))
    })
    .await;
    claim_fails(Act::SendAndClose(half), true, |e| {
        matches!(e, Error::Interrupted(_))
    })
    .await;
    claim_fails(Act::Nothing, true, |e| matches!(e, Error::Silent { .. })).await;
    claim_fails(Act::SendAndClose("SSH-2.0-x\r\n".to_owned()), true, |e| {
        matches!(e, Error::Interrupted(_))
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_is_none_is_malformed() {
    let malformed = |e: &Error| matches!(e, Error::Malformed { .. });
    for body in [
        "",
        "{}",
        "null",
        "[]",
        "{\"id\":7}",
        &format!("{GRANTED}x"),
        &"[".repeat(100_000),
    ] {
        claim_fails(Act::Send(ok(body)), true, malformed).await;
    }
}

#[tokio::test]
async fn nothing_but_the_daemons_own_word_says_that_a_sandbox_is_released() {
    for body in ["", "{}", "<html>welcome</html>"] {
        let peer = Peer::start(vec![Act::Send(ok(body))]).await;
        let (client, node) = (mk_client(), peer.node());
        let node = client.node(&node, Duration::from_millis(300));
        let error = node.release(&"sb_1".into()).await.unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error:?}");
        assert!(error.outcome_unknown());
    }
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let announced = "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n".to_owned();
    claim_fails(
        Act::Send(announced),
        true,
        |e| matches!(e, Error::TooLarge { limit } if *limit == 1 << 20),
    )
    .await;
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    let chunked = format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunk}{}",
        chunk.repeat(16)
    );
    claim_fails(Act::SendAndClose(chunked), true, |e| {
        matches!(e, Error::TooLarge { .. })
    })
    .await;
    claim_fails(
        Act::Flood("HTTP/1.1 200 OK\r\nx: y\r\n".to_owned()),
        true,
        |e| matches!(e, Error::Interrupted(_)),
    )
    .await;
}

#[tokio::test]
async fn an_http_redirect_is_not_followed_and_the_token_stays_here() {
    let elsewhere = Peer::start(vec![]).await;
    let redirect = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{}/v1/claim\r\ncontent-length: 0\r\n\r\n",
        elsewhere.address
    );
    claim_fails(Act::Send(redirect), false, |e| {
        matches!(e, Error::Redirected { .. })
    })
    .await;
    assert_eq!(elsewhere.requests(), 0);
}

#[tokio::test]
async fn a_connection_is_kept_and_one_that_died_meanwhile_costs_nothing() {
    let acts = vec![
        Act::Send(ok(GRANTED)),
        Act::SendAndClose(ok(GRANTED)),
        Act::Send(ok(GRANTED)),
    ];
    let peer = Peer::start(acts).await;
    let (client, node) = (mk_client(), peer.node());
    for served in 1..=3 {
        client.node(&node, SOON).claim(&mk_claim()).await.unwrap();
        assert_eq!(peer.requests(), served);
        // Lets the close after the second answer reach the client, which is what this is about.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let seen = peer.seen.lock().unwrap();
    assert!(
        seen[0].starts_with("POST /v1/claim HTTP/1.1\r\n"),
        "{}",
        seen[0]
    );
    assert!(
        seen[0].contains("authorization: Bearer secret\r\n"),
        "{}",
        seen[0]
    );
    assert!(
        seen[0].ends_with(r#"{"template":"t","net":"none","size":"small"}"#),
        "{}",
        seen[0]
    );
}

#[tokio::test]
async fn a_kept_connection_that_takes_the_claim_and_dies_is_not_replaced() {
    let acts = vec![
        Act::Send(ok(GRANTED)),
        Act::SendAndClose(String::new()),
        Act::Send(ok(GRANTED)),
    ];
    let peer = Peer::start(acts).await;
    let (client, node) = (mk_client(), peer.node());
    client.node(&node, SOON).claim(&mk_claim()).await.unwrap();
    let error = client
        .node(&node, SOON)
        .claim(&mk_claim())
        .await
        .unwrap_err();
    assert!(error.outcome_unknown(), "{error:?}");
    assert_eq!(peer.requests(), 2);
}

#[tokio::test]
async fn a_late_answer_is_never_taken_for_the_next_one() {
    let peer = Peer::start(vec![Act::Late(ok("{}")), Act::Late(ok(GRANTED))]).await;
    let (client, node) = (mk_client(), peer.node());
    let error = client
        .node(&node, Duration::from_millis(50))
        .info()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Silent { .. }), "{error:?}");
    client.node(&node, SOON).claim(&mk_claim()).await.unwrap();
}

#[tokio::test]
async fn where_nobody_listens_nothing_happened() {
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (client, node) = (mk_client(), free.to_string().parse().unwrap());
    let error = client
        .node(&node, SOON)
        .claim(&mk_claim())
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable(e) if e.kind() == ErrorKind::ConnectionRefused),
        "{error:?}"
    );
    assert!(error.nothing_happened());
}

#[tokio::test]
async fn calls_beyond_the_bound_wait_and_none_is_lost() {
    let peer = Peer::start(vec![Act::Send(ok(GRANTED)); 300]).await;
    let (client, node) = (mk_client(), peer.node());
    let calls = (0..300).map(|_| {
        let (client, node) = (client.clone(), node.clone());
        tokio::spawn(async move { client.node(&node, SOON).claim(&mk_claim()).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    assert_eq!(peer.requests(), 300);
}

#[tokio::test]
async fn without_a_token_nothing_is_sent() {
    let peer = Peer::start(vec![Act::Send(ok("ok"))]).await;
    let client = Client::new(ClientOptions::default()).unwrap();
    let node = peer.node();
    let error = client.node(&node, SOON).info().await.unwrap_err();
    assert!(
        matches!(error, Error::NoToken { .. }) && error.nothing_happened(),
        "{error:?}"
    );
    client.node(&node, SOON).healthz().await.unwrap();
    assert!(!peer.seen.lock().unwrap()[0].contains("authorization"));
}

mod tls {
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// A CA file, and an acceptor for a certificate that it signed for `localhost`.
    fn mk_authority(dir: &std::path::Path) -> (std::path::PathBuf, TlsAcceptor) {
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_certificate = ca.self_signed(&ca_key).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()])
            .unwrap()
            .signed_by(&key, &rcgen::Issuer::from_params(&ca, &ca_key))
            .unwrap();
        let path = dir.join("ca.pem");
        std::fs::write(&path, ca_certificate.pem()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .unwrap();
        (path, TlsAcceptor::from(Arc::new(config)))
    }

    fn mk_tls_client(ca_file: Option<std::path::PathBuf>) -> Client {
        Client::new(ClientOptions {
            token: TokenSource::Fixed(Token::from("secret".to_owned())),
            ca_file,
        })
        .unwrap()
    }

    #[tokio::test]
    async fn a_node_behind_tls_is_called_if_its_authority_is_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let (ca_file, acceptor) = mk_authority(dir.path());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let peer = Peer::start(vec![Act::Send(ok(GRANTED))]).await;
        let serving = peer.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(stream) = acceptor.accept(stream).await {
                    tokio::spawn(serving.clone().play(stream));
                }
            }
        });
        let node: NodeAddress = format!("https://localhost:{port}").parse().unwrap();
        let other = tempfile::tempdir().unwrap();
        for untrusting in [None, Some(mk_authority(other.path()).0)] {
            let client = mk_tls_client(untrusting);
            let error = client
                .node(&node, SOON)
                .claim(&mk_claim())
                .await
                .unwrap_err();
            assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
        }
        mk_tls_client(Some(ca_file))
            .node(&node, SOON)
            .claim(&mk_claim())
            .await
            .unwrap();
        assert_eq!(peer.requests(), 1);
    }

    #[tokio::test]
    async fn a_deadline_before_the_request_left_means_that_nothing_happened() {
        let dir = tempfile::tempdir().unwrap();
        let (ca_file, _) = mk_authority(dir.path());
        // Accepts and never shakes hands.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = format!("https://{}", silent.local_addr().unwrap())
            .parse()
            .unwrap();
        let client = mk_tls_client(Some(ca_file));
        let error = client
            .node(&node, Duration::from_millis(50))
            .claim(&mk_claim())
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Unreachable(e) if e.kind() == ErrorKind::TimedOut),
            "{error:?}"
        );
        assert!(error.nothing_happened());
    }

    #[test]
    fn a_ca_file_without_a_certificate_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        for content in [
            None,
            Some(""),
            Some("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"),
        ] {
            content.inspect(|content| std::fs::write(&path, content).unwrap());
            let ca_file = Some(path.clone());
            let made = Client::new(ClientOptions {
                ca_file,
                ..ClientOptions::default()
            });
            assert!(matches!(made, Err(Error::UnusableCa { .. })));
        }
    }
}

/// JSON that looks like a daemon's: its field names, with values of any kind.
fn any_answer() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "[ -~]{0,12}|2026-01-01T00:00:00Z|sb_[0-9a-f]{4}|[\\x00-\\x{10ffff}]{0,3}"
            .prop_map(Into::into),
    ];
    let name = proptest::sample::select(vec![
        "id",
        "token",
        "deadline",
        "claimed_at",
        "redirect",
        "require_promoted",
        "key",
        "template",
        "net",
        "size",
        "sandboxes",
        "pools",
        "claimed",
        "hibernated",
        "archived",
        "claim_ref",
        "metadata",
        "warm",
        "target",
        "peers",
        "templates",
        "children",
        "checkpoint",
        "checkpoints",
        "sandbox_id",
        "created_at",
        "from_checkpoint",
        "error",
    ]);
    leaf.prop_recursive(4, 64, 12, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec((name.clone(), inner), 0..8).prop_map(|fields| {
                let named = fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value));
                serde_json::Value::Object(named.collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_a_node_answers_the_client_only_fails(answer in any_answer(), cut in 0usize..200) {
        let text = answer.to_string();
        let cut = text.floor_char_boundary(cut.min(text.len()));
        for text in [&text[..], &text[..cut]] {
            if let Ok(wire::Claimed::Granted(reply)) = serde_json::from_str(text) {
                prop_assert!((1..=128).contains(&reply.id.as_str().len()));
            }
            if let Ok(list) = serde_json::from_str::<wire::Sandboxes>(text) {
                prop_assert!(list.sandboxes.iter().all(|row| row.id.as_str().is_ascii()));
            }
            let _ = serde_json::from_str::<wire::Checkpoints>(text);
            let _ = serde_json::from_str::<wire::Children>(text);
            let _ = serde_json::from_str::<Info>(text);
            let _ = serde_json::from_str::<Sandbox>(text);
        }
    }

    #[test]
    fn redirects_name_addresses_and_not_many(texts in prop::collection::vec("[ -~]{0,20}|10\\.0\\.0\\.[0-9]:[1-9]", 0..40)) {
        let answer = serde_json::json!({ "redirect": texts });
        let claimed: wire::Claimed = serde_json::from_value(answer).unwrap();
        let wire::Claimed::Redirect { addresses, .. } = claimed else {
            panic!("a redirect without a claim is a redirect");
        };
        prop_assert!(addresses.len() <= 8);
    }
}
