//! From an HTTP response to a value or an [`Error`].

use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Error, Result};

/// Longest ordinary answer.
pub(super) const ORDINARY: usize = 1 << 20;
/// Longest list: some 700 000 rows, far more than one node holds.
pub(super) const LIST: usize = 256 << 20;
/// What a command said, 8 MiB of it, as JSON at its longest: every character escaped.
pub(super) const OUTPUT: usize = 50 << 20;
/// Long outputs of commands that may be in memory at once. Apart from the lists: a command is waited for much longer.
pub(super) const OUTPUTS_AT_ONCE: usize = 8;
/// Answers over [`ORDINARY`] that may be in memory at once, over all nodes: 2 GiB at the very worst.
pub(super) const LARGE_AT_ONCE: usize = 8;
/// Characters of a daemon's text that are kept.
const MAX_TEXT: usize = 256;

/// A whole answer with a status of success.
pub(super) struct Answer<'a> {
    status: StatusCode,
    body: Bytes,
    /// Kept until the body is decoded.
    _large: Option<SemaphorePermit<'a>>,
}

impl<'a> Answer<'a> {
    /// Reads the body up to `limit` bytes; one beyond [`ORDINARY`] waits for its turn among the large ones.
    pub(super) async fn read(
        response: Response<Incoming>,
        limit: usize,
        large: &'a Semaphore,
    ) -> Result<Self> {
        let (head, mut incoming) = response.into_parts();
        if incoming.size_hint().lower() > limit as u64 {
            return Err(Error::TooLarge { limit });
        }
        let (mut body, mut turn) = (BytesMut::new(), None);
        while let Some(frame) = incoming.frame().await {
            let Ok(data) = frame.map_err(Error::Interrupted)?.into_data() else {
                continue;
            };
            if body.len() + data.len() > limit {
                return Err(Error::TooLarge { limit });
            }
            if turn.is_none() && body.len() + data.len() > ORDINARY {
                turn = large.acquire().await.ok();
            }
            body.extend_from_slice(&data);
        }
        if head.status.is_success() {
            Ok(Self {
                status: head.status,
                body: body.freeze(),
                _large: turn,
            })
        } else {
            Err(refusal(head.status, &body))
        }
    }

    /// Nothing: what a daemon answers with when it has done what it was asked to. Another status of success is not its own.
    pub(super) fn nothing(self) -> Result<()> {
        match self.status {
            StatusCode::NO_CONTENT => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    /// A status of success that means nothing here.
    pub(super) fn unexpected(self) -> Error {
        Error::Malformed {
            reason: format!("status {}", self.status),
        }
    }

    /// The value in the body. A large one is decoded off the threads that serve everybody else.
    pub(super) async fn json<T: DeserializeOwned + Send + 'static>(self) -> Result<T> {
        if self.body.len() <= ORDINARY {
            return decode(&self.body);
        }
        let body = self.body.clone();
        match tokio::task::spawn_blocking(move || decode(&body)).await {
            Ok(decoded) => decoded,
            Err(stopped) => Err(Error::Malformed {
                reason: stopped.to_string(),
            }),
        }
    }
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    // The decoder's own message may quote the answer, and an answer may hold a token: only the place is kept.
    serde_json::from_slice(body).map_err(|error| Error::Malformed {
        reason: format!(
            "{:?} error at line {} column {}",
            error.classify(),
            error.line(),
            error.column()
        ),
    })
}

/// What a status without success means.
fn refusal(status: StatusCode, body: &[u8]) -> Error {
    let spoken = daemon_text(body);
    let by_daemon = spoken.is_some();
    let text = spoken.unwrap_or_else(|| printable(&String::from_utf8_lossy(body)));
    match status.as_u16() {
        300..400 => Error::Redirected { status },
        401 | 403 => Error::Unauthorized { text },
        404 | 405 if !by_daemon => Error::RouteMissing,
        404 => Error::NotFound { text },
        409 => Error::Conflict { text },
        429 => Error::AtCapacity { text },
        400..500 => Error::BadRequest { status, text },
        500.. => Error::ServerError {
            status,
            text,
            by_daemon,
        },
        _ => Error::Malformed {
            reason: format!("status {status}"),
        },
    }
}

/// The text of the daemon's error body, if it is one.
fn daemon_text(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct ErrorBody {
        error: String,
    }
    serde_json::from_slice::<ErrorBody>(body)
        .ok()
        .map(|body| printable(&body.error))
}

/// At most [`MAX_TEXT`] characters that neither move a cursor nor break a log line.
pub(super) fn printable(text: &str) -> String {
    text.trim()
        .chars()
        .take(MAX_TEXT)
        .map(|c| {
            if c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric() {
                c
            } else {
                '?'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: u16, body: &str, expected: &str, unknown: bool) {
        let error = refusal(StatusCode::from_u16(status).unwrap(), body.as_bytes());
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.outcome_unknown(), unknown, "{expected}");
        assert_eq!(error.nothing_happened(), !unknown, "{expected}");
    }

    #[test]
    fn each_status_says_what_it_means() {
        let said = r#"{"error":"why"}"#;
        check(401, said, "node refused our token: why", false);
        check(403, said, "node refused our token: why", false);
        check(404, said, "not found on the node: why", false);
        check(409, said, "node refused: why", false);
        check(429, said, "node is at capacity: why", false);
        check(
            400,
            said,
            "node refused the request (400 Bad Request): why",
            false,
        );
        check(
            500,
            said,
            "node failed (500 Internal Server Error): why",
            true,
        );
        check(
            503,
            said,
            "node failed (503 Service Unavailable): why",
            false,
        );
        check(
            307,
            "",
            "node answered with an HTTP redirect (307 Temporary Redirect)",
            false,
        );
    }

    #[test]
    fn without_the_daemons_error_body_it_was_not_the_daemon() {
        check(404, "404 page not found\n", "node has no such route", false);
        check(405, "Method Not Allowed\n", "node has no such route", false);
        check(404, r#"{"message":"x"}"#, "node has no such route", false);
        check(
            503,
            "upstream reset",
            "node failed (503 Service Unavailable): upstream reset",
            true,
        );
    }

    #[test]
    fn a_daemons_text_is_cut_and_printable() {
        let body =
            serde_json::json!({ "error": format!("a\u{1b}[2J\n\u{202e}{}", "é".repeat(300)) });
        let error = refusal(StatusCode::CONFLICT, body.to_string().as_bytes());
        assert_eq!(
            error.to_string(),
            format!("node refused: a?[2J??{}", "é".repeat(249))
        );
    }
}
