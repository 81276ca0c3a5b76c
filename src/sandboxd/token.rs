//! The fleet's API token, from a file that may change at any time.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use http::HeaderValue;
use parking_lot::Mutex;

use super::{Error, Result};
use crate::api::Token;

/// How old a read of the token file may be. A read costs microseconds, a call to a node more, so this could be shorter;
/// a second is what a rotation may go unnoticed.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A longer file is no token.
const MAX_TOKEN_BYTES: u64 = 8 << 10;

/// Where the token for the daemons comes from.
#[derive(Clone, Debug, Default)]
pub enum TokenSource {
    /// There is none: every call that needs one fails with [`Error::NoToken`].
    #[default]
    Absent,
    /// This one.
    Fixed(Token),
    /// The trimmed content of a file, read again when a call finds the last read over a second old. A file that is gone
    /// or empty is no token: calls fail closed.
    File(PathBuf),
}

/// The `Authorization` header of every call.
pub(super) struct Credential {
    source: TokenSource,
    /// Held over the read of a small local file, at most once a second.
    last: Mutex<Option<Reading>>,
}

struct Reading {
    at: Instant,
    header: Result<HeaderValue, String>,
}

impl Credential {
    pub(super) fn new(source: TokenSource) -> Self {
        Self {
            source,
            last: Mutex::new(None),
        }
    }

    /// The header for a call that begins at `now`.
    pub(super) fn header(&self, now: Instant) -> Result<HeaderValue> {
        let mut last = self.last.lock();
        let fresh = |reading: &&Reading| now.duration_since(reading.at) < READ_AGAIN_AFTER;
        let header = match last.as_ref().filter(fresh) {
            Some(reading) => reading.header.clone(),
            None => {
                let header = self.read();
                *last = Some(Reading {
                    at: now,
                    header: header.clone(),
                });
                header
            }
        };
        header.map_err(|reason| Error::NoToken { reason })
    }

    /// A node refused the token: the next call reads the file again, whatever its age.
    pub(super) fn doubt(&self) {
        *self.last.lock() = None;
    }

    fn read(&self) -> Result<HeaderValue, String> {
        match &self.source {
            TokenSource::Absent => Err("none is configured".to_owned()),
            TokenSource::Fixed(token) => bearer(token.expose()),
            TokenSource::File(path) => {
                let text =
                    read_bounded(path).map_err(|error| format!("{}: {error}", path.display()))?;
                bearer(text.trim()).map_err(|reason| format!("{}: {reason}", path.display()))
            }
        }
    }
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(MAX_TOKEN_BYTES)
        .read_to_string(&mut text)?;
    Ok(text)
}

pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    if token.is_empty() {
        return Err("the token is empty".to_owned());
    }
    let mut header = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| "the token has characters that no header can carry".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(credential: &Credential, now: Instant, expected: &str) {
        let header = credential.header(now);
        let shown = match &header {
            Ok(header) => header.to_str().unwrap().to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(shown.contains(expected), "{shown:?} has no {expected:?}");
    }

    #[test]
    fn a_changed_file_is_seen_after_a_second_or_a_refusal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let credential = Credential::new(TokenSource::File(path.clone()));
        let start = Instant::now();
        check(&credential, start, "No such file");
        std::fs::write(&path, "one\n").unwrap();
        check(&credential, start, "No such file");
        check(&credential, start + READ_AGAIN_AFTER, "Bearer one");
        std::fs::write(&path, "two").unwrap();
        check(&credential, start + READ_AGAIN_AFTER, "Bearer one");
        credential.doubt();
        check(&credential, start + READ_AGAIN_AFTER, "Bearer two");
    }

    #[test]
    fn what_is_no_token_fails_closed() {
        let now = Instant::now();
        check(
            &Credential::new(TokenSource::Absent),
            now,
            "none is configured",
        );
        for (text, reason) in [("", "is empty"), ("a\nb", "no header can carry")] {
            let fixed = TokenSource::Fixed(Token::from(text.to_owned()));
            check(&Credential::new(fixed), now, reason);
        }
    }
}
