//! The agent in a simulated guest: frames of `silkd`, a JSON object a line, for the guest's files.
//!
//! Of its operations there are those for files that a client needs to write, read and look around; the others are answered with
//! `unimplemented`. Written apart from the client's types, as [`super::reply`] is.

use std::io;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Buf, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    claim::Number,
    files::{Files, MAX_BYTES, Node, Trouble},
    world::World,
};

/// Longest frame.
const MAX_FRAME: usize = 8 << 20;
/// Bytes of a file in one frame, and names in one.
const CHUNK: usize = 64 << 10;
const BATCH: usize = 100;

#[derive(Deserialize)]
struct Frame {
    v: u32,
    #[serde(flatten)]
    operation: Operation,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Operation {
    FsWrite {
        path: String,
    },
    FsRead {
        path: String,
    },
    FsList {
        path: String,
    },
    FsStat {
        path: String,
    },
    FsMkdir {
        path: String,
        #[serde(default)]
        parents: bool,
    },
    Info,
    Data {
        data: String,
    },
    DataEnd,
    #[serde(other)]
    Other,
}

/// One connection to the agent of a sandbox.
pub(super) struct Silkd<'a> {
    pub(super) world: &'a World,
    pub(super) index: usize,
    pub(super) number: Number,
    pub(super) stream: TcpStream,
    /// What has come and is not read.
    pub(super) early: BytesMut,
}

impl Silkd<'_> {
    /// Answers one request after another until its client ends the connection or breaks the rules.
    pub(super) async fn serve(mut self) -> io::Result<()> {
        while let Some(line) = self.line().await? {
            let replies = match serde_json::from_slice::<Frame>(&line) {
                Ok(Frame { v: 1, operation }) => self.answer(operation).await?,
                _ => Err(Trouble::new("bad_request", "frame", "not understood")),
            };
            match replies {
                Ok(replies) => {
                    for reply in replies {
                        self.say(&reply).await?;
                    }
                }
                Err(Trouble { kind, message }) => {
                    let error = json!({"type": "error", "kind": kind, "message": message});
                    self.say(&error).await?;
                }
            }
        }
        Ok(())
    }

    async fn answer(&mut self, operation: Operation) -> io::Result<Result<Vec<Value>, Trouble>> {
        Ok(match operation {
            Operation::FsWrite { path } => return self.write(&path).await,
            Operation::FsRead { path } => return self.read(&path).await,
            Operation::FsList { path } => self.files().and_then(|files| list(&files, &path)),
            Operation::FsStat { path } => self.files().and_then(|files| stat(&files, &path)),
            Operation::FsMkdir { path, parents } => {
                let made = self.change(|files, _| files.make_directory(&path, parents));
                made.map(|()| done())
            }
            Operation::Info => Ok(vec![json!({
                "type": "info", "version": "simulated", "proto": 2,
                "uptime_secs": 0, "procs": 0, "sessions": 0,
            })]),
            Operation::Data { .. } | Operation::DataEnd => {
                Err(Trouble::new("bad_request", "data", "for nothing"))
            }
            Operation::Other => Err(Trouble::new("unimplemented", "op", "not simulated")),
        })
    }

    /// Takes a file to its end; before that nothing is changed.
    async fn write(&mut self, path: &str) -> io::Result<Result<Vec<Value>, Trouble>> {
        let mut whole = BytesMut::new();
        while let Some(line) = self.line().await? {
            match serde_json::from_slice::<Frame>(&line).map(|frame| frame.operation) {
                Ok(Operation::Data { data }) => match STANDARD.decode(data) {
                    Ok(bytes) if whole.len() + bytes.len() <= MAX_BYTES => {
                        whole.extend_from_slice(&bytes);
                    }
                    Ok(_) => {
                        return Ok(Err(Trouble::new(
                            "internal",
                            path,
                            "No space left on device",
                        )));
                    }
                    Err(_) => return Ok(Err(Trouble::new("bad_request", path, "no base64"))),
                },
                Ok(Operation::DataEnd) => {
                    let written = self.change(|files, now| files.write(path, whole.freeze(), now));
                    return Ok(written.map(|()| done()));
                }
                _ => {
                    return Ok(Err(Trouble::new(
                        "bad_request",
                        path,
                        "neither data nor its end",
                    )));
                }
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    async fn read(&mut self, path: &str) -> io::Result<Result<Vec<Value>, Trouble>> {
        let bytes = match self.files().and_then(|files| files.read(path)) {
            Ok(bytes) => bytes,
            Err(trouble) => return Ok(Err(trouble)),
        };
        for piece in bytes.chunks(CHUNK) {
            let data = json!({"type": "data", "data": STANDARD.encode(piece)});
            self.say(&data).await?;
        }
        Ok(Ok(done()))
    }

    fn files(&self) -> Result<Files, Trouble> {
        self.change(|files, _| Ok(files.clone()))
    }

    /// Changes the files, unless the sandbox is gone.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Files, i64) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut daemon = self.world.daemon(self.index);
        let now = daemon.now.0 / 1_000;
        match daemon.claim_of(self.number) {
            Ok(claim) => change(&mut claim.extra_mut().files, now),
            Err(refusal) => Err(Trouble::new("internal", "guest", &refusal.text)),
        }
    }

    /// The next line; none at the end. One that is too long ends the connection.
    async fn line(&mut self) -> io::Result<Option<Bytes>> {
        let mut searched = 0;
        loop {
            let found = self.early[searched..]
                .iter()
                .position(|&byte| byte == b'\n');
            if let Some(end) = found.map(|at| searched + at) {
                let line = self.early.split_to(end).freeze();
                self.early.advance(1);
                return Ok(Some(line));
            }
            searched = self.early.len();
            if searched > MAX_FRAME {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.early.reserve(CHUNK);
            if self.stream.read_buf(&mut self.early).await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn say(&mut self, reply: &Value) -> io::Result<()> {
        let line = format!("{reply}\n");
        self.stream.write_all(line.as_bytes()).await
    }
}

fn done() -> Vec<Value> {
    vec![json!({"type": "done"})]
}

fn list(files: &Files, path: &str) -> Result<Vec<Value>, Trouble> {
    let entry = |(name, node): &(String, Node)| json!({"name": name, "kind": node.kind(), "size": node.size()});
    let found = files.list(path)?;
    let batches = found.chunks(BATCH).map(|batch| {
        let entries: Vec<_> = batch.iter().map(entry).collect();
        json!({"type": "entries", "entries": entries})
    });
    Ok(batches.chain(done()).collect())
}

fn stat(files: &Files, path: &str) -> Result<Vec<Value>, Trouble> {
    let node = files.stat(path)?;
    Ok(vec![json!({"type": "stat", "info": {
        "kind": node.kind(),
        "size": node.size(),
        "mode": node.mode(),
        "mtime_epoch_secs": node.modified(),
    }})])
}
