//! The server's end: a connection to an agent, its feed, and the user parts that are stored there.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    CertificatePin, Credential, Error, Event, Result,
    lines::Lines,
    stage::{Stage, malformed},
    wire::Message,
};
use crate::{
    api::{ClaimId, NodeAddress, NodeName, UserPart},
    sandboxd::dial,
};

/// How long a connection may take, TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// How long an agent may take to begin its answer: two reviews by kube-apiserver fit in.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// A feed that says nothing for so long is over. The agent says something every three seconds.
const SILENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read when it is a refusal.
const MAX_REFUSAL: usize = 4 << 10;
const WINDOW: u32 = 1 << 20;

/// Where a node's agent is, and how to know it.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Its node: an agent of another one tells nothing.
    pub node: NodeName,
    /// Where it listens.
    pub address: NodeAddress,
    /// Its certificate.
    pub pin: CertificatePin,
    /// What to show it.
    pub credential: Credential,
}

/// A connection to an agent. Dropped, it ends and its requests with it.
pub struct Connection {
    objects: RemoteObjects,
    /// Aborted on drop.
    _driver: JoinSet<()>,
}

/// The user parts that an agent stores. A clone uses the same connection; when that has ended, every call fails.
#[derive(Clone)]
pub struct RemoteObjects {
    sender: http2::SendRequest<Full<Bytes>>,
    agent: Arc<Agent>,
}

/// A feed.
pub struct Listening {
    body: Incoming,
    lines: Lines,
    stage: Stage,
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
            objects: RemoteObjects { sender, agent },
            _driver: driver,
        })
    }

    async fn tls(&self) -> Result<TlsStream<TcpStream>> {
        let stream = dial(&self.address).await.map_err(Error::Unreachable)?;
        let connector = TlsConnector::from(Arc::new(self.pin.client_config()));
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
    /// [`Error::Refused`] when the agent does not know the token, does not allow it, is another node's, or has too many listeners.
    pub async fn listen(&self) -> Result<Listening> {
        // A node's name needs no escapes.
        let path = format!("/v1/feed?node={}", self.objects.agent.node);
        let response = self.objects.call(Method::GET, &path, Bytes::new());
        let response = within(ANSWER_WITHIN, response).await?;
        Ok(Listening {
            body: response.into_body(),
            lines: Lines::default(),
            stage: Stage::default(),
        })
    }

    /// The user parts, over this connection.
    pub fn objects(&self) -> RemoteObjects {
        self.objects.clone()
    }
}

impl RemoteObjects {
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
    /// As [`RemoteObjects::put`].
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
