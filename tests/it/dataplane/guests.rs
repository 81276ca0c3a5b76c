//! Guests that mean harm, behind a daemon that lets calls through to them.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http_body_util::BodyExt;
use parking_lot::Mutex;
use sandbox_apiserver::sim;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::{ROUTER, mk_bytes};
use crate::{
    harness::{ADMIN, Cluster, SOON, mk_node, mk_request, until},
    tls_client,
};

const SWITCHED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: silkd\r\n\r\n";
const STAT: &str =
    "{\"type\":\"stat\",\"info\":{\"kind\":\"file\",\"size\":6,\"mtime_epoch_secs\":0}}\n";
const DATA: &str = "{\"type\":\"data\",\"data\":\"YWJj\"}\n";

/// What a guest's agent does on its next connection, once it is asked for something.
#[derive(Clone, Copy)]
enum Act {
    /// Says this, and nothing more.
    Say(&'static str),
    /// Says this, and ends the connection.
    SayAndClose(&'static str),
    /// Says bytes without a line's end.
    Flood,
    /// Neither says nor hears anything.
    Stop,
}

/// A cluster whose only node stands behind this.
struct Front {
    cluster: Cluster,
    acts: Arc<Mutex<VecDeque<Act>>>,
    /// Connections to the agent that are over.
    n_ended: Arc<AtomicUsize>,
}

impl Front {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let first_port = free.local_addr().unwrap().port();
        let first_advertised_port = listener.local_addr().unwrap().port();
        drop(free);
        let (acts, n_ended) = (Arc::default(), Arc::default());
        let (played, ended) = (Arc::clone(&acts), Arc::clone(&n_ended));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acts, ended) = (Arc::clone(&played), Arc::clone(&ended));
                tokio::spawn(lead(stream, first_port, acts, ended));
            }
        });
        let options = sim::Options {
            first_port,
            first_advertised_port,
            ..mk_node(2)
        };
        let cluster = Cluster::start(options).await;
        cluster.create("box").await;
        Self {
            cluster,
            acts,
            n_ended,
        }
    }

    fn plays(&self, acts: &[Act]) {
        self.acts.lock().extend(acts);
    }

    /// Waits until the agent has seen so many connections end, and no call is left.
    async fn is_over(&self, n_ended: usize) {
        until("the guest's part is over", || {
            self.n_ended.load(Ordering::Relaxed) == n_ended && self.cluster.open_calls() == 0.0
        })
        .await;
    }
}

/// Leads a connection to the node, but those to an agent to what it plays.
async fn lead(
    mut stream: TcpStream,
    port: u16,
    acts: Arc<Mutex<VecDeque<Act>>>,
    ended: Arc<AtomicUsize>,
) {
    let mut head = [0; 64];
    while stream.peek(&mut head).await.unwrap_or(head.len()) < head.len() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    if !String::from_utf8_lossy(&head).contains("/agent") {
        let mut node = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let _ = copy_bidirectional(&mut stream, &mut node).await;
        return;
    }
    let act = acts.lock().pop_front().expect("an act for each connection");
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(SWITCHED).await.unwrap();
    play(&mut stream, act).await;
    ended.fetch_add(1, Ordering::Relaxed);
}

/// Plays until the other end is closed.
async fn play(stream: &mut TcpStream, act: Act) {
    let mut sink = tokio::io::sink();
    match act {
        Act::Say(text) => stream.write_all(text.as_bytes()).await.unwrap(),
        Act::SayAndClose(text) => return stream.write_all(text.as_bytes()).await.unwrap(),
        Act::Flood => while stream.write_all(&[b'x'; 64 << 10]).await.is_ok() {},
        // What is not read keeps the end of the connection from being seen: it is looked for by writing.
        Act::Stop => {
            while stream.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    let _ = tokio::io::copy(stream, &mut sink).await;
}

#[tokio::test]
async fn a_guest_that_says_too_much_or_nothing_sound_is_a_bad_gateway() {
    let front = Front::start().await;
    let sandbox = front.cluster.sandbox("box");
    let acts = [
        Act::Flood,
        Act::SayAndClose(""),
        Act::SayAndClose("nonsense\n"),
        Act::Say("{\"type\":\"done\"}\n"),
        Act::Say("{\"type\":\"error\",\"kind\":\"internal\",\"message\":\"why\"}\n"),
    ];
    for (index, act) in acts.into_iter().enumerate() {
        front.plays(&[act]);
        let refused = sandbox.get("download/a").await;
        refused.refusal(502, "InternalError");
        front.is_over(index + 1).await;
    }
}

#[tokio::test]
async fn a_silent_guest_costs_the_time_that_was_given() {
    let front = Front::start().await;
    let sandbox = front.cluster.sandbox("box");
    let soon = [("x-sandbox-timeout", "0.3")];
    front.plays(&[Act::Say(""), Act::Stop]);
    let asked = sandbox.call("GET", "list/", &soon, "").await;
    asked.refusal(504, "Timeout");
    front.is_over(1).await;
    // More than fits between the server and a guest that does not read.
    let kind = format!("multipart/form-data; boundary={}", super::BOUNDARY);
    let headers = [soon[0], ("content-type", kind.as_str())];
    let form = super::form("file", "a", &mk_bytes(12 << 20));
    let written = sandbox.call("POST", "upload", &headers, form).await;
    written.refusal(504, "Timeout");
    front.is_over(2).await;
}

#[tokio::test]
async fn a_list_does_without_times_that_are_not_told() {
    let front = Front::start().await;
    let entries = "{\"type\":\"entries\",\"entries\":[{\"name\":\"a\",\"kind\":\"file\"}]}\n{\"type\":\"done\"}\n";
    let info = "{\"type\":\"info\",\"proto\":2}\n";
    let acts = [
        Act::SayAndClose(""),
        Act::Say("{\"type\":\"info\",\"proto\":1}\n"),
        Act::SayAndClose(info),
        Act::Say(info),
    ];
    for act in acts {
        front.plays(&[Act::Say(entries), act]);
        let listed = front.cluster.sandbox("box").get("list/").await;
        assert_eq!(listed.code(), 200, "{}", listed.text());
        let expected = serde_json::json!([{"name": "a", "size": 0, "type": "file"}]);
        assert_eq!(listed.json(), expected);
    }
}

#[tokio::test]
async fn a_file_that_breaks_off_is_no_file_for_its_client() {
    let front = Front::start().await;
    let client = front.cluster.door.client(ADMIN).await;
    let path = format!("{ROUTER}/download/a");
    let headers = [("x-sandbox-id", "box")];
    front.plays(&[Act::Say(STAT), Act::SayAndClose(DATA)]);
    let nothing = tls_client::empty();
    let request = mk_request(ADMIN, "GET", &path, &headers, nothing);
    let read = async {
        // The stream may be reset before its head is on its way.
        match client.sender().send_request(request).await {
            Ok(answer) => answer.into_body().collect().await.is_ok(),
            Err(_) => false,
        }
    };
    let whole = timeout(SOON, read).await.expect("an end");
    assert!(!whole, "half of a file for a whole one");
    front.is_over(2).await;
    let failed = "sandbox_apiserver_dataplane_calls_total{action=\"download\",result=\"failed\"}";
    assert_eq!(front.cluster.series(failed), 1.0);
}

#[tokio::test]
async fn a_client_that_leaves_a_file_ends_the_guest_s_part() {
    let front = Front::start().await;
    let client = front.cluster.door.client(ADMIN).await;
    let path = format!("{ROUTER}/download/a");
    front.plays(&[Act::Say(STAT), Act::Say(DATA)]);
    let headers = [("x-sandbox-id", "box")];
    let answer = client.open("GET", &path, &headers, "").await;
    let mut body = answer.into_body();
    let first = timeout(SOON, body.frame()).await.expect("the first bytes");
    assert_eq!(first.unwrap().unwrap().into_data().unwrap(), "abc");
    drop(body);
    front.is_over(2).await;
    let left = "sandbox_apiserver_dataplane_calls_total{action=\"download\",result=\"left\"}";
    assert_eq!(front.cluster.series(left), 1.0);
}

#[tokio::test]
async fn a_file_that_is_too_large_is_not_begun() {
    let front = Front::start().await;
    let large = "{\"type\":\"stat\",\"info\":{\"kind\":\"file\",\"size\":268435457}}\n";
    front.plays(&[Act::Say(large)]);
    let refused = front.cluster.sandbox("box").get("download/a").await;
    refused.refusal(413, "RequestEntityTooLarge");
    front.is_over(1).await;
}
