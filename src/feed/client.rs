//! The server's end: a connection to an agent, its feed, and the user parts that are stored there.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    CertificatePin, Credential, Error, Event, NodeState, Result, Sandbox,
    lines::Lines,
    pin,
    wire::{Message, Part},
};
use crate::{
    api::{ClaimId, NodeAddress, UserPart},
    sandboxd::dial,
};

/// How long a connection may take, TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// How long an agent may take to begin its answer: two reviews by kube-apiserver fit in.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// A feed that says nothing for so long is over. The agent says something every three seconds.
const SILENCE: Duration = Duration::from_secs(10);
/// Sandboxes, and bytes of them, that one feed may tell of, in its snapshot and afterwards.
const MAX_SANDBOXES: usize = 100_000;
const MAX_BYTES: usize = 256 << 20;
/// Bytes of an answer that are read when it is a refusal.
const MAX_REFUSAL: usize = 4 << 10;
const WINDOW: u32 = 1 << 20;

/// Where a node's agent is, and how to know it.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Where it listens.
    pub address: NodeAddress,
    /// Its certificate.
    pub pin: CertificatePin,
    /// What to show it.
    pub credential: Credential,
}

/// A connection to an agent. Dropped, it ends and its requests with it.
pub struct Connection {
    objects: Objects,
    /// Aborted on drop.
    _driver: JoinSet<()>,
}

/// The user parts that an agent stores. A clone uses the same connection; when that has ended, every call fails.
#[derive(Clone)]
pub struct Objects {
    sender: http2::SendRequest<Full<Bytes>>,
    agent: Arc<Agent>,
}

/// A feed.
pub struct Listening {
    body: Incoming,
    lines: Lines,
    stage: Stage,
}

enum Stage {
    /// Nothing was said.
    Silent,
    /// The snapshot comes.
    Told(Telling),
    /// Changes come; the last was `seq`.
    Following { seq: u64, tally: Tally },
}

#[derive(Default)]
struct Telling {
    epoch: u64,
    sandboxes: Vec<Sandbox>,
    node: NodeState,
    tally: Tally,
}

/// The sandboxes that the agent told of and did not take back, for the listener keeps as many.
#[derive(Default)]
struct Tally {
    /// The length of the longest line about each: one without the user's part takes back nothing.
    by_claim: HashMap<ClaimId, usize>,
    bytes: usize,
}

impl Agent {
    /// Connects, within three seconds.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::WrongCertificate`], [`Error::Silent`].
    pub async fn connect(&self) -> Result<Connection> {
        let connect = async {
            let stream = self.tls().await?;
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .keep_alive_interval(SILENCE / 2)
                .keep_alive_timeout(SILENCE / 2);
            builder
                .handshake(TokioIo::new(stream))
                .await
                .map_err(Error::Broken)
        };
        let (sender, connection) = within(CONNECT_WITHIN, connect).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to an agent ended early");
            }
        });
        let agent = Arc::new(self.clone());
        Ok(Connection {
            objects: Objects { sender, agent },
            _driver: driver,
        })
    }

    async fn tls(&self) -> Result<TlsStream<TcpStream>> {
        let stream = dial(&self.address).await.map_err(Error::Unreachable)?;
        let connector = TlsConnector::from(Arc::new(pin::client_config(self.pin)));
        let name = ServerName::try_from(self.address.host().to_owned())
            .map_err(|error| Error::Unreachable(std::io::Error::other(error)))?;
        connector.connect(name, stream).await.map_err(|error| {
            let refused = error.get_ref().and_then(|error| error.downcast_ref());
            match refused {
                Some(rustls::Error::InvalidCertificate(_)) => Error::WrongCertificate,
                _ => Error::Unreachable(error),
            }
        })
    }
}

impl Connection {
    /// Asks for the feed.
    ///
    /// # Errors
    /// [`Error::Refused`] when the agent does not know the token, does not allow it, or has too many listeners.
    pub async fn listen(&self) -> Result<Listening> {
        let response = self.objects.call(Method::GET, "/v1/feed", Bytes::new());
        let response = within(ANSWER_WITHIN, response).await?;
        Ok(Listening {
            body: response.into_body(),
            lines: Lines::default(),
            stage: Stage::Silent,
        })
    }

    /// The user parts, over this connection.
    pub fn objects(&self) -> Objects {
        self.objects.clone()
    }
}

impl Objects {
    /// Stores a sandbox's user part. On success it is on the node's disk.
    ///
    /// # Errors
    /// [`Error::Silent`] when that takes longer than `patience`, and it may be stored or not; [`Error::Refused`] when the record
    /// is too long or the node has no room for more.
    pub async fn put(&self, claim: &ClaimId, user: &UserPart, patience: Duration) -> Result<()> {
        let body = serde_json::to_vec(user).map_err(|error| Error::Malformed {
            reason: format!("a user part that is no JSON: {error}"),
        })?;
        let path = path(claim);
        let call = self.call(Method::PUT, &path, body.into());
        within(patience, call).await.map(drop)
    }

    /// Forgets a sandbox's user part. It would be forgotten anyway some time after the sandbox is gone.
    ///
    /// # Errors
    /// As [`Objects::put`].
    pub async fn delete(&self, claim: &ClaimId, patience: Duration) -> Result<()> {
        let path = path(claim);
        let call = self.call(Method::DELETE, &path, Bytes::new());
        within(patience, call).await.map(drop)
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        let request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.agent.address.authority()))
            .header(header::AUTHORIZATION, self.agent.credential.header().await?)
            .body(Full::new(body))
            .expect("a checked address and an id without special characters");
        let mut sender = self.sender.clone();
        sender.ready().await.map_err(Error::Broken)?;
        let response = sender.send_request(request).await.map_err(Error::Broken)?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status => Err(refusal(status, response).await),
        }
    }
}

impl Listening {
    /// What the agent tells next. Waits ten seconds at most.
    ///
    /// # Errors
    /// After any of them the feed is over: connect again.
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            let line = self
                .lines
                .next()
                .map_err(|_| malformed("a line too long"))?;
            let Some(line) = line else {
                self.read().await?;
                continue;
            };
            let message = Message::decode(&line).map_err(malformed)?;
            if let Some(event) = self.stage.step(message, line.len())? {
                return Ok(event);
            }
        }
    }

    async fn read(&mut self) -> Result<()> {
        let frame = timeout(SILENCE, self.body.frame())
            .await
            .map_err(|_| Error::Silent { after: SILENCE })?;
        let frame = frame.ok_or(Error::Ended)?.map_err(Error::Broken)?;
        if let Some(bytes) = frame.data_ref() {
            self.lines.extend(bytes);
        }
        Ok(())
    }
}

impl Stage {
    /// Takes a message in its place. Gives what it amounts to, if it does by itself.
    fn step(&mut self, message: Message, length: usize) -> Result<Option<Event>> {
        match (&mut *self, message) {
            (Self::Silent, Message::Hello { epoch, .. }) => {
                *self = Self::Told(Telling {
                    epoch,
                    ..Telling::default()
                });
                Ok(None)
            }
            (Self::Told(telling), Message::Part(part)) => telling.take(part, length).map(|()| None),
            (Self::Told(telling), Message::SnapshotEnd { seq, sandboxes }) => {
                if telling.sandboxes.len() != sandboxes {
                    return Err(malformed("a snapshot of another size than its end says"));
                }
                let told = std::mem::take(telling);
                let tally = told.tally;
                *self = Self::Following { seq, tally };
                Ok(Some(Event::Snapshot {
                    epoch: told.epoch,
                    sandboxes: told.sandboxes,
                    node: told.node,
                }))
            }
            (Self::Told(_), Message::Heartbeat { daemon_answers, .. }) => {
                Ok(Some(Event::Heartbeat { daemon_answers }))
            }
            (Self::Following { seq, tally }, Message::Change { seq: found, part }) => {
                in_order(seq.wrapping_add(1), found)?;
                *seq = found;
                tally.take(&part, length)?;
                Ok(Some(match part {
                    Part::Sandbox(sandbox) if sandbox.row_repeats => {
                        let Some(user) = sandbox.user else {
                            return Ok(None);
                        };
                        Event::User(sandbox.row.id, Box::new(user))
                    }
                    Part::Sandbox(sandbox) => Event::Sandbox(sandbox),
                    Part::Removed(id) => Event::Removed(id),
                    Part::Node(node) => Event::Node(node),
                }))
            }
            (
                Self::Following { seq, .. },
                Message::Heartbeat {
                    seq: found,
                    daemon_answers,
                },
            ) => {
                in_order(*seq, found)?;
                Ok(Some(Event::Heartbeat { daemon_answers }))
            }
            _ => Err(malformed("a line out of its place")),
        }
    }
}

impl Telling {
    fn take(&mut self, part: Part, length: usize) -> Result<()> {
        self.tally.take(&part, length)?;
        match part {
            Part::Sandbox(_) if self.tally.by_claim.len() == self.sandboxes.len() => {
                return Err(malformed("a sandbox twice in a snapshot"));
            }
            Part::Sandbox(sandbox) => self.sandboxes.push(*sandbox),
            Part::Node(node) => self.node = node,
            Part::Removed(_) => return Err(malformed("a removal in a snapshot")),
        }
        Ok(())
    }
}

impl Tally {
    fn take(&mut self, part: &Part, length: usize) -> Result<()> {
        match part {
            Part::Sandbox(sandbox) => {
                let longest = self.by_claim.entry(sandbox.row.id.clone()).or_default();
                let more = length.saturating_sub(*longest);
                *longest += more;
                self.bytes += more;
            }
            Part::Removed(id) => self.bytes -= self.by_claim.remove(id).unwrap_or(0),
            Part::Node(_) => {}
        }
        match self.by_claim.len() <= MAX_SANDBOXES && self.bytes <= MAX_BYTES {
            true => Ok(()),
            false => Err(malformed("more than a node may have")),
        }
    }
}

fn in_order(expected: u64, found: u64) -> Result<()> {
    if expected == found {
        Ok(())
    } else {
        Err(Error::Gap { expected, found })
    }
}

fn malformed(reason: impl Into<String>) -> Error {
    Error::Malformed {
        reason: reason.into(),
    }
}

/// Ids have letters, digits, `-` and `_`; whatever else one has, it is no path of ours.
fn path(claim: &ClaimId) -> String {
    let id =
        percent_encoding::utf8_percent_encode(claim.as_str(), percent_encoding::NON_ALPHANUMERIC);
    format!("/v1/objects/{id}")
}

async fn refusal(status: StatusCode, response: Response<Incoming>) -> Error {
    let body = Limited::new(response.into_body(), MAX_REFUSAL)
        .collect()
        .await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&body);
    let text = text.chars().filter(|c| !c.is_control()).take(256).collect();
    Error::Refused { status, text }
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, call)
        .await
        .unwrap_or(Err(Error::Silent { after: limit }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the lines amount to: an event each, or the error that ends the feed.
    fn events(lines: &[&str]) -> Vec<String> {
        let mut stage = Stage::Silent;
        let mut shown = Vec::new();
        for line in lines {
            let message = Message::decode(line.as_bytes()).unwrap();
            match stage.step(message, line.len()) {
                Ok(None) => {}
                Ok(Some(event)) => shown.push(format!("{event:?}")),
                Err(error) => {
                    shown.push(error.to_string());
                    break;
                }
            }
        }
        shown
    }

    const HELLO: &str = r#"{"hello":{"epoch":1,"seq":5}}"#;
    const END: &str = r#"{"snapshotEnd":{"seq":5,"sandboxes":0}}"#;
    const SIX: &str = r#"{"change":{"seq":6,"part":{"removed":"sb_1"}}}"#;

    #[test]
    fn changes_follow_the_snapshot_one_by_one() {
        let alive = r#"{"heartbeat":{"seq":6,"daemonAnswers":true}}"#;
        let shown = events(&[HELLO, END, SIX, alive]);
        assert!(shown[0].starts_with("Snapshot { epoch: 1"), "{shown:?}");
        assert!(shown[1].starts_with("Removed"), "{shown:?}");
        assert_eq!(shown[2], "Heartbeat { daemon_answers: true }");
    }

    #[track_caller]
    fn ends_with(lines: &[&str], reason: &str) {
        let shown = events(lines);
        assert!(shown.last().unwrap().contains(reason), "{shown:?}");
    }

    #[test]
    fn a_gap_ends_the_feed() {
        ends_with(
            &[HELLO, END, &SIX.replace('6', "7")],
            "change 7 came where 6 was due",
        );
        ends_with(&[HELLO, END, SIX, SIX], "change 6 came where 7 was due");
        let beat = r#"{"heartbeat":{"seq":9,"daemonAnswers":true}}"#;
        ends_with(&[HELLO, END, beat], "change 9 came where 5 was due");
    }

    fn mk_change(seq: u64, id: &str, more: &str) -> String {
        format!(
            r#"{{"change":{{"seq":{seq},"part":{{"sandbox":{{"row":{{"id":"{id}","pool":{{"template":"t"}}}}{more}}}}}}}}}"#
        )
    }

    #[test]
    fn what_is_told_after_the_snapshot_is_bounded_too() {
        let step = |stage: &mut Stage, line: &str, length| {
            stage.step(Message::decode(line.as_bytes()).unwrap(), length)
        };
        let following = || {
            let mut stage = Stage::Silent;
            step(&mut stage, HELLO, 0).unwrap();
            step(&mut stage, END, 0).unwrap();
            stage
        };
        // New sandboxes, each with as much of its user as a line holds.
        let (mut stage, mut seq, line) = (following(), 5, 2 << 20);
        let last = loop {
            seq += 1;
            assert!(seq < 1_000, "never over");
            let change = mk_change(seq, &format!("sb_{seq}"), "");
            if let Err(error) = step(&mut stage, &change, line) {
                break error.to_string();
            }
        };
        assert!(last.contains("more than a node may have"), "{last}");
        assert_eq!(seq, 5 + 128 + 1);
        // New sandboxes without anything.
        let (mut stage, mut seq) = (following(), 5);
        while step(&mut stage, &mk_change(seq + 1, &format!("sb_{seq}"), ""), 9).is_ok() {
            seq += 1;
        }
        assert_eq!(seq, 5 + 100_000);
        // The same ones again and again, and those that go, take no more room.
        let mut stage = following();
        for seq in 6..1_000 {
            let change = mk_change(seq, &format!("sb_{}", seq % 4), "");
            let gone = format!(r#"{{"change":{{"seq":{seq},"part":{{"removed":"sb_3"}}}}}}"#);
            let change = if seq % 5 == 0 { &gone } else { &change };
            step(&mut stage, change, line).unwrap();
        }
        let Stage::Following { tally, .. } = &stage else {
            panic!("it follows");
        };
        assert_eq!(tally.bytes, tally.by_claim.values().sum::<usize>());
    }

    #[test]
    fn a_row_that_is_repeated_is_no_news() {
        let user = mk_change(6, "sb_1", r#","user":{"generation":2},"rowRepeats":true"#);
        let none = mk_change(7, "sb_1", r#","rowRepeats":true"#);
        let both = mk_change(8, "sb_1", r#","user":{"generation":2}"#);
        let shown = events(&[HELLO, END, &user, &none, &both]);
        assert!(shown[1].starts_with(r#"User(ClaimId("sb_1")"#), "{shown:?}");
        assert!(shown[2].starts_with("Sandbox("), "{shown:?}");
        assert_eq!(shown.len(), 3);
    }

    #[test]
    fn lines_out_of_their_place_end_the_feed() {
        ends_with(&[SIX], "out of its place");
        ends_with(&[HELLO, SIX], "out of its place");
        ends_with(&[HELLO, END, HELLO], "out of its place");
        ends_with(&[HELLO, r#"{"part":{"removed":"sb_1"}}"#], "a removal");
        ends_with(&[HELLO, &END.replace(":0", ":1")], "another size");
        let twice = r#"{"part":{"sandbox":{"row":{"id":"sb_1","pool":{"template":"t"}}}}}"#;
        ends_with(&[HELLO, twice, twice], "twice");
    }
}
