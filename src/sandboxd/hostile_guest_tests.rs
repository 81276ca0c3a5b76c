//! The way into a guest against peers that are neither a daemon nor an agent: scripted byte by byte, over real sockets.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::stream;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::timeout,
};

use super::{
    Client, ClientOptions, Error, ExecRequest, Guest, GuestError, GuestKind, GuestRefusal,
    TokenSource, WriteError,
};
use crate::api::{ClaimId, NodeAddress, Token};

const SOON: Duration = Duration::from_secs(20);
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: silkd\r\n\r\n";

/// A peer that reads one request, says `answer`, and leaves the rest to the test.
struct Peer {
    node: NodeAddress,
    connected: oneshot::Receiver<(String, TcpStream)>,
}

impl Peer {
    async fn start(answer: impl Into<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (connected_tx, connected) = oneshot::channel();
        let answer = answer.into();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            let head = String::from_utf8(head).unwrap();
            connected_tx.send((head, stream)).unwrap();
        });
        Self { node, connected }
    }

    /// The head of the request, and the connection once it is answered.
    async fn connection(self) -> (String, TcpStream) {
        timeout(SOON, self.connected).await.unwrap().unwrap()
    }
}

fn mk_client() -> Client {
    let options = ClientOptions {
        token: TokenSource::Absent,
        ca_file: None,
    };
    Client::new(options).unwrap()
}

async fn enter(peer: &Peer, within: Duration) -> Result<Guest, Error> {
    let (id, token) = (ClaimId::from("sb_1"), Token::from("own".to_owned()));
    mk_client()
        .node(&peer.node, within)
        .guest(&id, &token)
        .await
}

/// A guest and its agent's end.
async fn mk_guest() -> (Guest, TcpStream) {
    let peer = Peer::start(SWITCHED).await;
    let guest = enter(&peer, SOON).await.unwrap();
    (guest, peer.connection().await.1)
}

async fn heard(agent: &mut TcpStream) -> String {
    let mut said = String::new();
    let all = timeout(SOON, agent.read_to_string(&mut said)).await;
    // A client that goes with something unread resets the connection.
    let _ = all.expect("the client ends the connection");
    said
}

fn ok(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}")
}

fn mk_exec() -> ExecRequest {
    ExecRequest {
        argv: vec!["true".to_owned()],
        cwd: "/".to_owned(),
        timeout_seconds: 1,
    }
}

#[tokio::test]
async fn the_sandbox_s_own_token_goes_with_the_upgrade() {
    let peer = Peer::start(SWITCHED).await;
    enter(&peer, SOON).await.unwrap();
    let (head, _) = peer.connection().await;
    for line in [
        "GET /v1/sandboxes/sb_1/agent HTTP/1.1\r\n",
        "authorization: Bearer own\r\n",
        "upgrade: silkd\r\n",
        "connection: Upgrade\r\n",
    ] {
        assert!(head.contains(line), "{line:?} in {head:?}");
    }
}

#[tokio::test]
async fn an_upgrade_that_is_refused_says_why() {
    for (answer, expected) in [
        (
            "HTTP/1.1 404 Not Found\r\ncontent-length: 27\r\n\r\n{\"error\":\"unknown sandbox\"}",
            "not found on the node: unknown sandbox",
        ),
        (
            "HTTP/1.1 426 Upgrade Required\r\ncontent-length: 0\r\n\r\n",
            "node refused the request (426 Upgrade Required): ",
        ),
        (
            "HTTP/1.1 204 No Content\r\n\r\n",
            "node answered what its API does not describe: status 204 No Content",
        ),
        (
            "nonsense\r\n\r\n",
            "connection to the node was lost before its answer",
        ),
    ] {
        let peer = Peer::start(answer).await;
        let refused = enter(&peer, SOON).await.unwrap_err();
        assert_eq!(refused.to_string(), expected);
    }
    let silent = Peer::start("").await;
    let refused = enter(&silent, Duration::from_millis(50)).await;
    assert!(matches!(refused, Err(Error::Silent { .. })), "{refused:?}");
}

#[tokio::test]
async fn frames_before_the_first_question_are_the_answer_to_it() {
    let entries = r#"{"type":"entries","entries":[{"name":"a","kind":"dir"}]}"#;
    let early = format!("{SWITCHED}{entries}\n{{\"type\":\"done\"}}\n");
    let peer = Peer::start(early).await;
    let found = enter(&peer, SOON).await.unwrap().list("/").await.unwrap();
    assert_eq!(
        (found[0].name.as_str(), found[0].kind),
        ("a", GuestKind::Dir)
    );
}

#[tokio::test]
async fn a_frame_without_end_is_given_up() {
    let (guest, mut agent) = mk_guest().await;
    let flood = tokio::spawn(async move {
        let piece = vec![b'x'; 64 << 10];
        while agent.write_all(&piece).await.is_ok() {}
    });
    let read = timeout(SOON, guest.read("/a")).await.unwrap();
    assert!(
        matches!(read, Err(GuestError::Malformed { .. })),
        "{read:?}"
    );
    timeout(SOON, flood).await.expect("hung up").unwrap();
}

#[tokio::test]
async fn names_without_end_are_given_up() {
    for (name, most) in [("", 66_000), (&*"a".repeat(255), 14_000)] {
        let (guest, mut agent) = mk_guest().await;
        let entry = format!(r#"{{"name":"{name}","kind":"file"}}"#);
        let entries = vec![entry; 1_000].join(",");
        let frame = format!("{{\"type\":\"entries\",\"entries\":[{entries}]}}\n");
        let all = frame.repeat(most / 1_000) + "{\"type\":\"done\"}\n";
        // Kept open, or what is on its way could be lost.
        let flood = tokio::spawn(async move {
            let _ = agent.write_all(all.as_bytes()).await;
            agent
        });
        let listed = timeout(SOON, guest.list("/")).await.unwrap();
        assert!(matches!(listed, Err(GuestError::TooLarge { .. })));
        timeout(SOON, flood).await.expect("hung up").unwrap();
    }
}

#[tokio::test]
async fn a_name_that_is_none_is_not_shown() {
    for name in ["../a", "a\\u0000", &"a".repeat(766)] {
        let (guest, mut agent) = mk_guest().await;
        let entry = format!(r#"{{"name":"{name}","kind":"file"}}"#);
        let frame = format!("{{\"type\":\"entries\",\"entries\":[{entry}]}}\n");
        agent.write_all(frame.as_bytes()).await.unwrap();
        let listed = timeout(SOON, guest.list("/")).await.unwrap();
        assert!(
            matches!(listed, Err(GuestError::Malformed { .. })),
            "{name}: {listed:?}"
        );
    }
}

#[tokio::test]
async fn an_old_agent_is_asked_one_thing_and_a_new_one_many() {
    let (guest, mut agent) = mk_guest().await;
    let info = b"{\"type\":\"info\",\"version\":\"0.1\",\"proto\":1}\n";
    agent.write_all(info).await.unwrap();
    assert!(guest.lasting().await.unwrap().is_none());

    let (guest, mut agent) = mk_guest().await;
    let known =
        "{\"type\":\"stat\",\"info\":{\"kind\":\"file\",\"size\":1,\"mtime_epoch_secs\":7}}\n";
    let gone = "{\"type\":\"error\",\"kind\":\"not_found\",\"message\":\"b\"}\n";
    let info = "{\"type\":\"info\",\"version\":\"0.2\",\"proto\":2}\n";
    let said = format!("{info}{}{gone}", known.repeat(99));
    agent.write_all(said.as_bytes()).await.unwrap();
    let guest = guest.lasting().await.unwrap().unwrap();
    let paths: Vec<_> = (0..100).map(|number| format!("/{number}")).collect();
    let stats = guest.stats(&paths).await.unwrap();
    assert_eq!(stats[98].unwrap().modified, 7);
    assert_eq!((stats.len(), stats[99]), (100, None));
    let asked = heard(&mut agent).await;
    assert_eq!(asked.lines().count(), 101, "{asked}");
    assert!(asked.ends_with("{\"v\":1,\"op\":\"fs_stat\",\"path\":\"/99\"}\n"));
}

#[tokio::test]
async fn a_file_that_breaks_off_is_not_a_shorter_file() {
    let (guest, mut agent) = mk_guest().await;
    agent
        .write_all(b"{\"type\":\"data\",\"data\":\"AP8=\"}\n{\"type\":\"da")
        .await
        .unwrap();
    let mut file = guest.read("/a").await.unwrap();
    assert_eq!(file.next().await.unwrap().unwrap(), [0, 0xff].as_slice());
    drop(agent);
    let cut = timeout(SOON, file.next()).await.unwrap();
    assert!(matches!(cut, Err(GuestError::Lost(_))), "{cut:?}");
}

#[tokio::test]
async fn a_guest_without_room_is_heard_before_the_file_has_come() {
    let (guest, mut agent) = mk_guest().await;
    agent
        .write_all(b"{\"type\":\"error\",\"kind\":\"internal\",\"message\":\"no space left\"}\n")
        .await
        .unwrap();
    let endless = stream::pending::<Result<Bytes, Infallible>>();
    let written = timeout(SOON, guest.write("/a", endless)).await.unwrap();
    let Err(WriteError::Guest(GuestError::Refused { refusal, text })) = written else {
        panic!("{written:?}");
    };
    assert_eq!(
        (refusal, text.as_str()),
        (GuestRefusal::Internal, "no space left")
    );
    assert!(!heard(&mut agent).await.contains("data_end"));
}

#[tokio::test]
async fn a_file_whose_source_breaks_off_never_ends() {
    let (guest, mut agent) = mk_guest().await;
    let pieces = stream::iter([Ok(Bytes::from_static(b"abc")), Err("broken")]);
    let written = guest.write("/a", pieces).await;
    assert!(matches!(written, Err(WriteError::Source("broken"))));
    assert_eq!(
        heard(&mut agent).await,
        "{\"v\":1,\"op\":\"fs_write\",\"path\":\"/a\"}\n{\"v\":1,\"op\":\"data\",\"data\":\"YWJj\"}\n"
    );
}

#[tokio::test]
async fn a_call_that_is_given_up_ends_its_connection() {
    let (guest, mut agent) = mk_guest().await;
    let endless = stream::pending::<Result<Bytes, Infallible>>();
    let writing = guest.write("/a", endless);
    assert!(
        timeout(Duration::from_millis(50), writing).await.is_err(),
        "the guest says nothing"
    );
    let said = heard(&mut agent).await;
    assert_eq!(said, "{\"v\":1,\"op\":\"fs_write\",\"path\":\"/a\"}\n");
}

#[tokio::test]
async fn a_command_is_answered_once_or_its_outcome_is_unknown() {
    let (id, token) = (ClaimId::from("sb_1"), Token::from("own".to_owned()));
    let client = mk_client();
    for (answer, expected) in [
        (ok(r#"{"exit_code":3,"stdout":"a"}"#), Ok(3)),
        (ok(r#"{"stdout":"a"}"#), Err(true)),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n".to_owned(),
            Err(true),
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_owned(),
            Err(true),
        ),
        (
            "HTTP/1.1 503 Busy\r\ncontent-length: 16\r\n\r\n{\"error\":\"full\"}".to_owned(),
            Err(false),
        ),
    ] {
        let peer = Peer::start(answer.clone()).await;
        let node = client.node(&peer.node, Duration::from_millis(500));
        let ran = node.exec(&id, &token, &mk_exec()).await;
        let ran = ran.map(|reply| reply.exit_code);
        let ran = ran.map_err(|error| error.outcome_unknown());
        assert_eq!(ran, expected, "{answer}");
    }
}
