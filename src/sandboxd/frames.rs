//! The frames that are exchanged with a guest's agent, `silkd`: JSON objects, one a line.
//!
//! A frame may have 8 MiB. What is sent stays far below, so that a guest that reads slowly holds back little; what comes is bounded
//! as it comes, by what it may be, since a guest is not to be trusted, and neither is its node.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Buf, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{GuestError, answer::printable};

/// The longest frame that `silkd` sends or takes: what one with bytes may have.
pub(super) const MAX_FRAME: usize = 8 << 20;
/// The longest with names, which come in batches.
pub(super) const MAX_NAMES: usize = 1 << 20;
/// The longest of any other kind.
pub(super) const MAX_WORD: usize = 64 << 10;
/// Bytes of a file in one frame that is sent.
pub(super) const MAX_DATA: usize = 64 << 10;
/// Bytes that are read at once.
const READ_AHEAD: usize = 64 << 10;
const VERSION: u8 = 1;

/// What the agent is asked for, and what follows it.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum Operation<'a> {
    FsWrite { path: &'a str },
    FsRead { path: &'a str },
    FsList { path: &'a str },
    FsStat { path: &'a str },
    FsMkdir { path: &'a str, parents: bool },
    Info,
    Data { data: &'a str },
    DataEnd,
}

#[derive(Serialize)]
struct Frame<'a> {
    v: u8,
    #[serde(flatten)]
    operation: Operation<'a>,
}

impl Operation<'_> {
    /// The line that says it.
    pub(super) fn line(self) -> Vec<u8> {
        let frame = Frame {
            v: VERSION,
            operation: self,
        };
        let mut line = serde_json::to_vec(&frame).expect("strings always encode");
        line.push(b'\n');
        line
    }
}

/// The line of a piece of a file, of at most [`MAX_DATA`] bytes.
pub(super) fn data_line(piece: &[u8]) -> Vec<u8> {
    let data = STANDARD.encode(piece);
    Operation::Data { data: &data }.line()
}

/// What the agent answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Data(Bytes),
    Entries(Vec<GuestEntry>),
    Stat(GuestStat),
    /// The version of its protocol.
    Info(u32),
    Done,
}

/// One name in a directory of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct GuestEntry {
    /// The name, without its directory.
    pub name: String,
    /// What it names.
    pub kind: GuestKind,
    /// Size in bytes.
    #[serde(default)]
    pub size: u64,
}

/// What a path in a guest names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct GuestStat {
    /// What it is.
    pub kind: GuestKind,
    /// Size in bytes.
    #[serde(default)]
    pub size: u64,
    /// Second of its last change.
    #[serde(default, rename = "mtime_epoch_secs")]
    pub modified: i64,
}

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestKind {
    /// A file.
    File,
    /// A directory.
    Dir,
    /// A link to something, or to nothing.
    Symlink,
    /// A socket, a device, a word this client does not know.
    #[serde(other)]
    Other,
}

/// The fields of every kind of reply. Not an enum by `type`: that one would take in a whole frame, in many times its size, before
/// it knows which of them it wants.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<Text<'a>>,
    entries: Option<Vec<GuestEntry>>,
    info: Option<GuestStat>,
    #[serde(default)]
    proto: u32,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Reply {
    /// What a line says.
    ///
    /// # Errors
    /// [`GuestError::Refused`] when it says that the agent does not do it, [`GuestError::Malformed`] when it says nothing known.
    pub(super) fn parse(line: &[u8]) -> Result<Self, GuestError> {
        let answer: Answer<'_> = serde_json::from_slice(line).map_err(malformed)?;
        let empty = || GuestError::malformed("a reply without what it is to tell");
        match &*answer.r#type {
            "data" => {
                let Text(data) = answer.data.ok_or_else(empty)?;
                let bytes = STANDARD.decode(data.as_bytes());
                let bytes = bytes.map_err(|_| GuestError::malformed("data that is no base64"))?;
                Ok(Self::Data(bytes.into()))
            }
            "entries" => answer.entries.map(Self::Entries).ok_or_else(empty),
            "stat" => answer.info.map(Self::Stat).ok_or_else(empty),
            "info" => Ok(Self::Info(answer.proto)),
            "done" => Ok(Self::Done),
            "error" => Err(GuestError::Refused {
                refusal: answer.kind.as_str().into(),
                text: printable(&answer.message),
            }),
            _ => Err(GuestError::malformed("a reply of another kind")),
        }
    }
}

/// The decoder's own message may quote a file: only the place is kept.
fn malformed(error: serde_json::Error) -> GuestError {
    GuestError::malformed(&format!(
        "{:?} error at column {}",
        error.classify(),
        error.column()
    ))
}

/// Lines as they come, each no longer than is asked for. Reading may be given up and taken up again.
pub(super) struct Lines<R> {
    reader: R,
    buffer: BytesMut,
    /// So much of the buffer holds no line end.
    searched: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: BytesMut::new(),
            searched: 0,
        }
    }

    /// The next line, of at most `longest` bytes, without its end.
    ///
    /// # Errors
    /// [`GuestError::Lost`] also at the end: who waits for a line has not been told that there is none.
    pub(super) async fn next(&mut self, longest: usize) -> Result<Bytes, GuestError> {
        loop {
            if let Some(line) = self.line(longest)? {
                return Ok(line);
            }
            self.buffer.reserve(READ_AHEAD);
            // Bounded, or as much would be read as the buffer has grown to.
            let mut reader = (&mut self.reader).take(READ_AHEAD as u64);
            if reader.read_buf(&mut self.buffer).await? == 0 {
                return Err(GuestError::Lost(std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn line(&mut self, longest: usize) -> Result<Option<Bytes>, GuestError> {
        let unsearched = &self.buffer[self.searched..];
        let found = unsearched.iter().position(|&byte| byte == b'\n');
        let end = found.map(|at| self.searched + at);
        if end.unwrap_or(self.buffer.len()) > longest {
            let reason = format!("a frame over {longest} bytes");
            return Err(GuestError::malformed(&reason));
        }
        let Some(end) = end else {
            self.searched = self.buffer.len();
            return Ok(None);
        };
        self.searched = 0;
        let line = self.buffer.split_to(end).freeze();
        self.buffer.advance(1);
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandboxd::GuestRefusal;

    #[track_caller]
    fn check(line: &str, expected: Result<Reply, &str>) {
        let parsed = Reply::parse(line.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(parsed, expected.map_err(str::to_owned), "{line}");
    }

    #[test]
    fn requests_read_as_the_agent_reads_them() {
        let line = |operation: Operation<'_>| String::from_utf8(operation.line()).unwrap();
        assert_eq!(
            line(Operation::FsWrite { path: "/a \"b\"" }),
            "{\"v\":1,\"op\":\"fs_write\",\"path\":\"/a \\\"b\\\"\"}\n"
        );
        assert_eq!(
            line(Operation::FsMkdir {
                path: "/a",
                parents: true
            }),
            "{\"v\":1,\"op\":\"fs_mkdir\",\"path\":\"/a\",\"parents\":true}\n"
        );
        assert_eq!(line(Operation::DataEnd), "{\"v\":1,\"op\":\"data_end\"}\n");
        assert_eq!(
            String::from_utf8(data_line(b"\x00\xff")).unwrap(),
            "{\"v\":1,\"op\":\"data\",\"data\":\"AP8=\"}\n"
        );
    }

    #[test]
    fn replies_are_read_leniently_and_bytes_are_not() {
        check(
            r#"{"type":"data","data":"AP8=","later":1}"#,
            Ok(Reply::Data(vec![0, 0xff].into())),
        );
        check(r#"{"type":"done"}"#, Ok(Reply::Done));
        check(
            r#"{"type":"stat","info":{"kind":"socket","size":1,"mode":420,"mtime_epoch_secs":7}}"#,
            Ok(Reply::Stat(GuestStat {
                kind: GuestKind::Other,
                size: 1,
                modified: 7,
            })),
        );
        check(
            r#"{"type":"error","kind":"not_found","message":"no\u001b such file"}"#,
            Err("the guest refused: no? such file"),
        );
        let malformed = "the guest's agent answered what its protocol does not describe: ";
        for (line, reason) in [
            (r#"{"type":"data","data":"*"}"#, "data that is no base64"),
            (r#"{"type":"ready"}"#, "a reply of another kind"),
            (r#"{"type":"data"}"#, "a reply without what it is to tell"),
            ("{}", "Data error at column 2"),
            ("[", "Eof error at column 1"),
        ] {
            check(line, Err(&format!("{malformed}{reason}")));
        }
    }

    #[test]
    fn refusals_have_kinds() {
        for (word, refusal) in [
            ("not_found", GuestRefusal::NotFound),
            ("bad_request", GuestRefusal::BadRequest),
            ("unimplemented", GuestRefusal::Unimplemented),
            ("internal", GuestRefusal::Internal),
            ("later", GuestRefusal::Internal),
        ] {
            assert_eq!(GuestRefusal::from(word), refusal);
        }
    }

    #[tokio::test]
    async fn lines_come_whole_however_the_bytes_are_cut() {
        let text: &[u8] = b"one\n\ntwo\nthree";
        for size in 1..text.len() {
            let mut pieces = mk_reader(text, size);
            let mut lines = Lines::new(&mut pieces);
            for expected in ["one", "", "two"] {
                let line = lines.next(5).await.unwrap();
                assert_eq!(line, expected, "in pieces of {size}");
            }
            let cut = lines.next(5).await;
            assert!(matches!(cut, Err(GuestError::Lost(_))), "{cut:?}");
        }
    }

    /// A reader that gives so many bytes at a time.
    fn mk_reader(text: &'static [u8], size: usize) -> impl AsyncRead + Unpin {
        let (mut tx, rx) = tokio::io::duplex(size);
        tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            tx.write_all(text).await.unwrap();
        });
        rx
    }

    #[tokio::test]
    async fn a_line_without_end_is_not_collected() {
        for longest in [MAX_WORD, MAX_NAMES, MAX_FRAME] {
            let mut lines = Lines::new(tokio::io::repeat(b'x'));
            let refused = lines.next(longest).await;
            assert!(matches!(refused, Err(GuestError::Malformed { .. })));
            assert!(lines.buffer.len() <= longest + READ_AHEAD);
        }
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_refused_though_it_has_come() {
        let mut lines = Lines::new(&b"four\nfives\n"[..]);
        assert_eq!(lines.next(4).await.unwrap(), "four");
        let refused = lines.next(4).await;
        assert!(matches!(refused, Err(GuestError::Malformed { .. })));
    }
}
