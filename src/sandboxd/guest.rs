//! Into a sandbox: commands, and the files that its guest's agent reads and writes.
//!
//! Each call has a connection of its own, beside those that are kept: it may take minutes, and must not take the place that a
//! claim or a release needs. It ends with its connection, on the node and in the guest.

use std::io;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, client::conn::http1::SendRequest, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncWriteExt, ReadHalf, WriteHalf},
    time::{Instant, timeout_at},
};

use super::{
    Error, Node, Result,
    answer::{Answer, ORDINARY, OUTPUT},
    client::{body, sandbox_path},
    frames::{GuestEntry, GuestStat, Lines, MAX_DATA, Operation, Reply, data_line},
    token::bearer,
};
use crate::api::{ClaimId, Token};

/// Names of one directory that are taken from a guest.
const MAX_ENTRIES: usize = 65_536;
/// Requests that are on their way to an agent at once. More could fill its buffers and ours, and each wait for the other.
const BATCH: usize = 64;
/// The version of the agent's protocol from which a connection takes more than one request.
const LASTING: u32 = 2;
const PROTOCOL: HeaderValue = HeaderValue::from_static("silkd");

/// Why a guest's agent did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The connection to it ended.
    #[error("the connection to the guest was lost")]
    Lost(#[from] io::Error),
    /// It says that it does not do it.
    #[error("the guest refused: {text}")]
    Refused {
        /// Why, in one word.
        refusal: GuestRefusal,
        /// Its text, cut to 256 printable characters.
        text: String,
    },
    /// It answered something else.
    #[error("the guest's agent answered what its protocol does not describe: {reason}")]
    Malformed {
        /// What.
        reason: String,
    },
    /// The directory has more names than are taken.
    #[error("the directory has more than {limit} names")]
    TooLarge {
        /// How many are taken.
        limit: usize,
    },
}

/// The agent's word for why it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestRefusal {
    /// What the path names is not there.
    NotFound,
    /// The path names something of which this cannot be asked.
    BadRequest,
    /// The agent is too old, or the guest cannot.
    Unimplemented,
    /// The guest failed; also a word this client does not know.
    Internal,
}

impl From<&str> for GuestRefusal {
    fn from(word: &str) -> Self {
        match word {
            "not_found" => Self::NotFound,
            "bad_request" => Self::BadRequest,
            "unimplemented" => Self::Unimplemented,
            _ => Self::Internal,
        }
    }
}

impl GuestError {
    pub(super) fn malformed(reason: &str) -> Self {
        Self::Malformed {
            reason: reason.to_owned(),
        }
    }
}

/// Why a file was not written: for what its bytes come from, or for the guest.
#[derive(Debug)]
pub enum WriteError<E> {
    /// The bytes did not come to their end.
    Source(E),
    /// The guest.
    Guest(GuestError),
}

/// Body of `POST /v1/sandboxes/{id}/exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExecRequest {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Where it runs.
    pub cwd: String,
    /// When it is killed, in seconds; 0 for never.
    pub timeout_seconds: u64,
}

/// What a command said, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ExecReply {
    /// 0 for success; -1 when it was killed.
    pub exit_code: i64,
    /// Its output, U+FFFD in place of what is no UTF-8.
    #[serde(default)]
    pub stdout: String,
    /// What it complained of.
    #[serde(default)]
    pub stderr: String,
}

/// A connection to a guest's agent, for one request: older agents take no second one. Dropped, it ends what it was asked for.
pub struct Guest {
    lines: Lines<ReadHalf<TokioIo<Upgraded>>>,
    out: WriteHalf<TokioIo<Upgraded>>,
}

/// A connection to an agent that takes one request after another.
#[derive(Debug)]
pub struct LastingGuest(Guest);

/// A file on its way out of a guest.
pub struct GuestFile {
    guest: Guest,
    first: Option<Reply>,
}

impl Node<'_> {
    /// Runs a command to its end. Never repeated: without an answer it may have run. The deadline of the node is for all of it.
    ///
    /// # Errors
    /// A [`Error::ServerError`] of 504 when the command took too long, 502 when the guest cannot be reached, 503 when the node has no
    /// room for its output; a [`Error::BadRequest`] of 413 when that is over 8 MiB, of 400 when the command cannot be started.
    ///
    /// Source: `POST /v1/sandboxes/{id}/exec`, which takes the sandbox's own token and no other.
    pub async fn exec(
        &self,
        id: &ClaimId,
        token: &Token,
        request: &ExecRequest,
    ) -> Result<ExecReply> {
        let path = sandbox_path(id, "/exec");
        let request = self.of_sandbox(Method::POST, &path, Some(body(request)), token)?;
        let mut sent = false;
        let exchange = async {
            let (response, _connection) = self.ask_apart(request, &mut sent).await?;
            Answer::read(response, OUTPUT, &self.client.inner.outputs).await
        };
        let answer = timeout_at(Instant::now() + self.within, exchange).await;
        self.in_time(answer, sent)?.json().await
    }

    /// A connection to the guest's agent. Wakes a sandbox that is paused.
    ///
    /// Source: `GET /v1/sandboxes/{id}/agent`.
    pub async fn guest(&self, id: &ClaimId, token: &Token) -> Result<Guest> {
        let mut request = self.of_sandbox(Method::GET, &sandbox_path(id, "/agent"), None, token)?;
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, PROTOCOL);
        let mut sent = false;
        let exchange = async {
            let (response, _connection) = self.ask_apart(request, &mut sent).await?;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                let upgraded = hyper::upgrade::on(response).await;
                return upgraded.map(Guest::new).map_err(Error::Interrupted);
            }
            let answer = Answer::read(response, ORDINARY, &self.client.inner.outputs).await?;
            Err(answer.unexpected())
        };
        let answer = timeout_at(Instant::now() + self.within, exchange).await;
        self.in_time(answer, sent)
    }

    /// A request under a sandbox's own token.
    fn of_sandbox(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        token: &Token,
    ) -> Result<Request<Full<Bytes>>> {
        // What is asked of a guest changes it, whatever the method.
        self.client.check_fence()?;
        let token = bearer(token.expose()).map_err(|reason| Error::NoToken { reason })?;
        Ok(self.request(method, path, body, Some(token)))
    }

    /// The head of the answer, with the connection that it comes over. `sent` becomes true before anything is sent.
    async fn ask_apart(
        &self,
        request: Request<Full<Bytes>>,
        sent: &mut bool,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>)> {
        let connections = &self.client.inner.connections;
        let mut connection = connections
            .connect(self.address)
            .await
            .map_err(Error::Unreachable)?;
        *sent = true;
        let response = connection.send_request(request).await;
        Ok((response.map_err(Error::Interrupted)?, connection))
    }
}

impl Guest {
    fn new(upgraded: Upgraded) -> Self {
        let (reader, out) = tokio::io::split(TokioIo::new(upgraded));
        Self {
            lines: Lines::new(reader),
            out,
        }
    }

    async fn ask(&mut self, operation: Operation<'_>) -> Result<(), GuestError> {
        Ok(self.out.write_all(&operation.line()).await?)
    }

    async fn reply(&mut self) -> Result<Reply, GuestError> {
        Reply::parse(&self.lines.next().await?)
    }

    async fn done(&mut self) -> Result<(), GuestError> {
        match self.reply().await? {
            Reply::Done => Ok(()),
            _ => Err(GuestError::malformed("another reply than done")),
        }
    }

    /// What a path names.
    ///
    /// # Errors
    /// [`GuestRefusal::NotFound`] when it names nothing.
    pub async fn stat(mut self, path: &str) -> Result<GuestStat, GuestError> {
        self.ask(Operation::FsStat { path }).await?;
        match self.reply().await? {
            Reply::Stat(stat) => Ok(stat),
            _ => Err(GuestError::malformed("another reply than a stat")),
        }
    }

    /// What is in a directory, in the guest's order.
    ///
    /// # Errors
    /// See [`GuestError`]; [`GuestError::TooLarge`] for more than 65 536 names.
    pub async fn list(mut self, path: &str) -> Result<Vec<GuestEntry>, GuestError> {
        self.ask(Operation::FsList { path }).await?;
        let mut found = Vec::new();
        loop {
            match self.reply().await? {
                Reply::Entries(entries) => found.extend(entries),
                Reply::Done => return Ok(found),
                _ => return Err(GuestError::malformed("another reply than entries")),
            }
            if found.len() > MAX_ENTRIES {
                return Err(GuestError::TooLarge { limit: MAX_ENTRIES });
            }
        }
    }

    /// The connection for any number of requests, where the agent takes them.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn lasting(mut self) -> Result<Option<LastingGuest>, GuestError> {
        self.ask(Operation::Info).await?;
        match self.reply().await? {
            Reply::Info(version) if version >= LASTING => Ok(Some(LastingGuest(self))),
            Reply::Info(_) => Ok(None),
            _ => Err(GuestError::malformed("another reply than of itself")),
        }
    }

    /// Makes a directory and those above it, as far as they are missing.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn make_directories(mut self, path: &str) -> Result<(), GuestError> {
        let parents = true;
        self.ask(Operation::FsMkdir { path, parents }).await?;
        self.done().await
    }

    /// The bytes of a file, once the guest has begun to send them.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn read(mut self, path: &str) -> Result<GuestFile, GuestError> {
        self.ask(Operation::FsRead { path }).await?;
        let first = Some(self.reply().await?);
        Ok(GuestFile { guest: self, first })
    }

    /// Puts a file of these bytes in the place of what the path names, once all of them have come. The guest is listened to meanwhile:
    /// one that has no room says so at once.
    ///
    /// # Errors
    /// After which the path names what it did before, unless the answer was lost.
    pub async fn write<E>(
        mut self,
        path: &str,
        bytes: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<(), WriteError<E>> {
        let guest = WriteError::Guest;
        self.ask(Operation::FsWrite { path }).await.map_err(guest)?;
        let Self { lines, out } = &mut self;
        let sent = tokio::select! {
            sent = send(out, bytes) => sent,
            early = lines.next() => {
                let reply = early.and_then(|line| Reply::parse(&line));
                let early = |_| GuestError::malformed("a reply before the end of the file");
                return Err(WriteError::Guest(reply.map_or_else(|error| error, early)));
            }
        };
        match sent {
            Ok(()) => self.done().await.map_err(WriteError::Guest),
            // Who closes its end has mostly said why.
            Err(WriteError::Guest(lost)) => Err(WriteError::Guest(match self.reply().await {
                Err(refused @ GuestError::Refused { .. }) => refused,
                _ => lost,
            })),
            Err(broken) => Err(broken),
        }
    }
}

impl LastingGuest {
    /// What each path names, if it names anything that can be looked at.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn stats(mut self, paths: &[String]) -> Result<Vec<Option<GuestStat>>, GuestError> {
        let mut stats = Vec::with_capacity(paths.len());
        for batch in paths.chunks(BATCH) {
            let lines = batch.iter().map(|path| Operation::FsStat { path }.line());
            self.0
                .out
                .write_all(&lines.collect::<Vec<_>>().concat())
                .await?;
            for _ in batch {
                stats.push(match self.0.reply().await {
                    Ok(Reply::Stat(stat)) => Some(stat),
                    Err(GuestError::Refused { .. }) => None,
                    Ok(_) => return Err(GuestError::malformed("another reply than a stat")),
                    Err(error) => return Err(error),
                });
            }
        }
        Ok(stats)
    }
}

/// Sends the bytes and their end.
async fn send<E>(
    out: &mut WriteHalf<TokioIo<Upgraded>>,
    bytes: impl Stream<Item = Result<Bytes, E>>,
) -> Result<(), WriteError<E>> {
    let lost = |error: io::Error| WriteError::Guest(GuestError::Lost(error));
    let mut bytes = std::pin::pin!(bytes);
    while let Some(chunk) = bytes.next().await {
        let chunk = chunk.map_err(WriteError::Source)?;
        for piece in chunk.chunks(MAX_DATA) {
            out.write_all(&data_line(piece)).await.map_err(lost)?;
        }
    }
    let end = Operation::DataEnd.line();
    out.write_all(&end).await.map_err(lost)
}

impl GuestFile {
    /// The next bytes; `None` once all have come.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, GuestError> {
        let reply = match self.first.take() {
            Some(first) => first,
            None => self.guest.reply().await?,
        };
        match reply {
            Reply::Data(bytes) => Ok(Some(bytes)),
            Reply::Done => Ok(None),
            _ => Err(GuestError::malformed("another reply than data")),
        }
    }
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guest")
    }
}

impl std::fmt::Debug for GuestFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GuestFile")
    }
}
