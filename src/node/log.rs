//! The file of user parts: lines that are appended, synced together, and rewritten when most of them are dead.
//!
//! A line is `{"put": {"id": …, "user": …}}` or `{"delete": id}`. The last line of an id counts. A process that dies while it
//! writes leaves at most one line without its end, which the next life cuts off; nothing was acknowledged for it.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{Error, Result};
use crate::api::{ClaimId, UserPart};

const FILE: &str = "objects.log";
/// Dead bytes that are not worth a rewrite.
const MIN_DEAD: u64 = 1 << 20;

/// What is stored of an id from now on: a user part, or nothing.
pub(super) type Change = (ClaimId, Option<Arc<UserPart>>);

/// The open file. One process at a time has it.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Bytes of the last line of each id that is stored.
    live: HashMap<ClaimId, u64>,
    live_bytes: u64,
    /// A write failed, so that nobody knows what the file holds.
    doubtful: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Line {
    Put { id: ClaimId, user: Arc<UserPart> },
    Delete(ClaimId),
}

impl Log {
    /// Opens the log in `state_dir`, or makes it. Gives what is stored.
    ///
    /// # Errors
    /// [`Error::State`] when the file cannot be used, also when another process has it.
    pub(super) fn open(state_dir: &Path) -> Result<(Self, HashMap<ClaimId, Arc<UserPart>>)> {
        let path = state_dir.join(FILE);
        Self::read(&path).map_err(|source| Error::state(&path, source))
    }

    fn read(path: &Path) -> io::Result<(Self, HashMap<ClaimId, Arc<UserPart>>)> {
        let mut log = Self {
            file: open(path, false)?,
            path: path.to_owned(),
            bytes: 0,
            live: HashMap::new(),
            live_bytes: 0,
            doubtful: false,
        };
        let mut stored = HashMap::new();
        let mut reader = BufReader::new(&log.file);
        let (mut line, mut lengths) = (Vec::new(), Vec::new());
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            let length = line.len() as u64;
            match serde_json::from_slice(&line) {
                Ok(Line::Put { id, user }) => {
                    stored.insert(id.clone(), user);
                    lengths.push((id, length));
                }
                Ok(Line::Delete(id)) => {
                    stored.remove(&id);
                    lengths.push((id, 0));
                }
                Err(error) => {
                    tracing::error!(path = %path.display(), offset = log.bytes, %error, "a stored object cannot be read");
                }
            }
            log.bytes += length;
            line.clear();
        }
        drop(reader);
        for (id, length) in lengths {
            log.note(id, length);
        }
        log.file.set_len(log.bytes)?;
        log.file.seek(io::SeekFrom::End(0))?;
        sync_directory(path)?;
        Ok((log, stored))
    }

    /// Appends the changes and syncs them. `stored` is what is stored with them, for the case that the file is rewritten.
    pub(super) fn append(
        &mut self,
        changes: &[Change],
        stored: impl FnOnce() -> Vec<(ClaimId, Arc<UserPart>)>,
    ) -> Result<()> {
        let written = if self.doubtful || self.is_mostly_dead() {
            self.rewrite(stored())
        } else {
            self.write(changes)
        };
        self.doubtful = written.is_err();
        written.map_err(|source| Error::state(&self.path, source))
    }

    fn write(&mut self, changes: &[Change]) -> io::Result<()> {
        let (mut lines, mut lengths) = (Vec::new(), Vec::new());
        for (id, user) in changes {
            let before = lines.len();
            encode(&mut lines, id, user.as_ref())?;
            let length = user.as_ref().map_or(0, |_| lines.len() - before);
            lengths.push((id.clone(), length as u64));
        }
        self.file.write_all(&lines)?;
        self.file.sync_data()?;
        self.bytes += lines.len() as u64;
        for (id, length) in lengths {
            self.note(id, length);
        }
        Ok(())
    }

    /// Writes a new file with what is stored and nothing else, and puts it in the old one's place.
    fn rewrite(&mut self, stored: Vec<(ClaimId, Arc<UserPart>)>) -> io::Result<()> {
        let unfinished = self.path.with_extension("new");
        let mut file = BufWriter::new(open(&unfinished, true)?);
        let (mut line, mut live, mut bytes) = (Vec::new(), HashMap::new(), 0);
        for (id, user) in stored {
            line.clear();
            encode(&mut line, &id, Some(&user))?;
            file.write_all(&line)?;
            live.insert(id, line.len() as u64);
            bytes += line.len() as u64;
        }
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        fs::rename(&unfinished, &self.path)?;
        sync_directory(&self.path)?;
        (self.file, self.live) = (file, live);
        (self.bytes, self.live_bytes) = (bytes, bytes);
        Ok(())
    }

    /// Notes how long the line that counts for an id is; 0 for none.
    fn note(&mut self, id: ClaimId, length: u64) {
        let before = match length {
            0 => self.live.remove(&id),
            _ => self.live.insert(id, length),
        };
        self.live_bytes = self.live_bytes + length - before.unwrap_or(0);
    }

    fn is_mostly_dead(&self) -> bool {
        let dead = self.bytes - self.live_bytes;
        dead > MIN_DEAD && dead > self.live_bytes
    }
}

fn encode(lines: &mut Vec<u8>, id: &ClaimId, user: Option<&Arc<UserPart>>) -> io::Result<()> {
    let id = id.clone();
    let line = match user {
        Some(user) => Line::Put {
            id,
            user: user.clone(),
        },
        None => Line::Delete(id),
    };
    serde_json::to_writer(&mut *lines, &line)?;
    lines.push(b'\n');
    Ok(())
}

/// A file that only its owner reads, locked for this process.
fn open(path: &Path, empty: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(empty)
        .mode(0o600)
        .open(path)?;
    file.try_lock()?;
    Ok(file)
}

/// Makes a file's name as durable as its content.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_user(generation: i64) -> Arc<UserPart> {
        Arc::new(UserPart {
            generation,
            spec: format!(r#"{{"filler":"{}"}}"#, "x".repeat(1_000)).into(),
            ..UserPart::default()
        })
    }

    fn append(log: &mut Log, changes: &[Change], stored: &[(ClaimId, Arc<UserPart>)]) {
        log.append(changes, || stored.to_vec()).unwrap();
    }

    /// The generation that is stored of each id.
    fn stored(dir: &Path) -> Vec<(String, i64)> {
        let (_, stored) = Log::open(dir).unwrap();
        let mut shown: Vec<_> = stored
            .iter()
            .map(|(id, user)| (id.to_string(), user.generation))
            .collect();
        shown.sort();
        shown
    }

    #[test]
    fn the_last_line_of_an_id_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = Log::open(dir.path()).unwrap();
        append(
            &mut log,
            &[
                ("a".into(), Some(mk_user(1))),
                ("b".into(), Some(mk_user(1))),
            ],
            &[],
        );
        append(
            &mut log,
            &[("a".into(), Some(mk_user(2))), ("b".into(), None)],
            &[],
        );
        assert!(
            matches!(Log::open(dir.path()), Err(Error::State { .. })),
            "it is locked"
        );
        drop(log);
        assert_eq!(stored(dir.path()), [("a".to_owned(), 2)]);
    }

    #[test]
    fn a_line_that_was_cut_is_as_if_it_had_never_been() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = Log::open(dir.path()).unwrap();
        append(&mut log, &[("a".into(), Some(mk_user(1)))], &[]);
        let whole = log.bytes;
        append(&mut log, &[("a".into(), Some(mk_user(2)))], &[]);
        drop(log);
        let path = dir.path().join(FILE);
        let full = fs::metadata(&path).unwrap().len();
        for length in (whole..full).rev().step_by(97) {
            OpenOptions::new()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(length)
                .unwrap();
            assert_eq!(stored(dir.path()), [("a".to_owned(), 1)], "cut at {length}");
            assert_eq!(fs::metadata(&path).unwrap().len(), whole);
        }
        let (mut log, _) = Log::open(dir.path()).unwrap();
        append(&mut log, &[("a".into(), Some(mk_user(3)))], &[]);
        drop(log);
        assert_eq!(stored(dir.path()), [("a".to_owned(), 3)]);
    }

    #[test]
    fn a_bad_line_costs_itself_only() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = Log::open(dir.path()).unwrap();
        append(&mut log, &[("a".into(), Some(mk_user(1)))], &[]);
        log.file.write_all(b"\0\xff not a line\n").unwrap();
        append(&mut log, &[("b".into(), Some(mk_user(1)))], &[]);
        drop(log);
        assert_eq!(
            stored(dir.path()),
            [("a".to_owned(), 1), ("b".to_owned(), 1)]
        );
    }

    #[test]
    fn the_file_does_not_grow_with_the_number_of_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = Log::open(dir.path()).unwrap();
        for generation in 0..3_000 {
            let user = mk_user(generation);
            append(
                &mut log,
                &[("a".into(), Some(user.clone()))],
                &[("a".into(), user)],
            );
            assert!(log.bytes < 2 * MIN_DEAD, "{}", log.bytes);
        }
        drop(log);
        assert_eq!(stored(dir.path()), [("a".to_owned(), 2_999)]);
    }
}
