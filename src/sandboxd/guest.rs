//! A guest's agent, which writes and reads its files.

use std::io;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};

use super::frames::{
    GuestEntry, GuestStat, Lines, MAX_DATA, MAX_FRAME, MAX_NAMES, MAX_WORD, Operation, Reply,
    data_line,
};

/// Bytes of names of one directory that are taken from a guest.
const MAX_LISTED: usize = 4 << 20;
/// What a name costs beside its bytes: no name is too short to be counted.
const PER_NAME: usize = 64;
/// Longest name, as of Linux, where an agent puts U+FFFD in the place of each byte.
const MAX_NAME: usize = 3 * 255;
/// Requests that are on their way to an agent at once. More could fill its buffers and ours, and each wait for the other.
const BATCH: usize = 64;
/// The version of the agent's protocol from which a connection takes more than one request.
const LASTING: u32 = 2;

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
    #[error("the directory has more names than the {limit} bytes that are taken of them")]
    TooLarge {
        /// Bytes that are taken, with what each name costs beside its own.
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

impl Guest {
    pub(super) fn new(upgraded: Upgraded) -> Self {
        let (reader, out) = tokio::io::split(TokioIo::new(upgraded));
        Self {
            lines: Lines::new(reader),
            out,
        }
    }

    async fn ask(&mut self, operation: Operation<'_>) -> Result<(), GuestError> {
        say(&mut self.out, &operation.line()).await
    }

    /// The next reply, of at most `longest` bytes.
    async fn reply(&mut self, longest: usize) -> Result<Reply, GuestError> {
        Reply::parse(&self.lines.next(longest).await?)
    }

    async fn done(&mut self) -> Result<(), GuestError> {
        match self.reply(MAX_WORD).await? {
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
        match self.reply(MAX_WORD).await? {
            Reply::Stat(stat) => Ok(stat),
            _ => Err(GuestError::malformed("another reply than a stat")),
        }
    }

    /// What is in a directory, in the guest's order.
    ///
    /// # Errors
    /// See [`GuestError`]; [`GuestError::TooLarge`] for more than 4 MiB of names, each counted as 64 bytes more than it has.
    pub async fn list(mut self, path: &str) -> Result<Vec<GuestEntry>, GuestError> {
        self.ask(Operation::FsList { path }).await?;
        let (mut found, mut listed) = (Vec::new(), 0);
        loop {
            let entries = match self.reply(MAX_NAMES).await? {
                Reply::Entries(entries) => entries,
                Reply::Done => return Ok(found),
                _ => return Err(GuestError::malformed("another reply than entries")),
            };
            for entry in &entries {
                check_name(&entry.name)?;
                listed += entry.name.len() + PER_NAME;
            }
            if listed > MAX_LISTED {
                return Err(GuestError::TooLarge { limit: MAX_LISTED });
            }
            found.extend(entries);
        }
    }

    /// The connection for any number of requests, where the agent takes them.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn lasting(mut self) -> Result<Option<LastingGuest>, GuestError> {
        self.ask(Operation::Info).await?;
        match self.reply(MAX_WORD).await? {
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
        let first = Some(self.reply(MAX_FRAME).await?);
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
            early = lines.next(MAX_WORD) => {
                let reply = early.and_then(|line| Reply::parse(&line));
                let early = |_| GuestError::malformed("a reply before the end of the file");
                return Err(WriteError::Guest(reply.map_or_else(|error| error, early)));
            }
        };
        match sent {
            Ok(()) => self.done().await.map_err(WriteError::Guest),
            // Who closes its end has mostly said why.
            Err(WriteError::Guest(lost)) => {
                Err(WriteError::Guest(match self.reply(MAX_WORD).await {
                    Err(refused @ GuestError::Refused { .. }) => refused,
                    _ => lost,
                }))
            }
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
            say(&mut self.0.out, &lines.collect::<Vec<_>>().concat()).await?;
            for _ in batch {
                stats.push(match self.0.reply(MAX_WORD).await {
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

/// A name that leads elsewhere, or is none, is not shown to anybody.
fn check_name(name: &str) -> Result<(), GuestError> {
    match name.len() > MAX_NAME || name.contains(['/', '\0']) {
        true => Err(GuestError::malformed("a name that no directory has")),
        false => Ok(()),
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
    say(out, &end).await.map_err(WriteError::Guest)
}

/// Sends what is answered. TLS keeps the last of what it is given until it is told that nothing follows.
async fn say(out: &mut WriteHalf<TokioIo<Upgraded>>, lines: &[u8]) -> Result<(), GuestError> {
    out.write_all(lines).await?;
    Ok(out.flush().await?)
}

impl GuestFile {
    /// The next bytes; `None` once all have come.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, GuestError> {
        let reply = match self.first.take() {
            Some(first) => first,
            None => self.guest.reply(MAX_FRAME).await?,
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
