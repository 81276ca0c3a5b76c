//! What a node was asked, and how each request ended. Bounded; without secrets.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{Method, Uri};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

/// Longest body that is remembered.
const MAX_BODY: usize = 2 << 10;

/// One request that a node saw.
#[derive(Clone, Debug, Serialize)]
pub struct Request {
    /// Place in the node's order of requests, from 0.
    pub sequence: u64,
    /// When its head had been read, RFC 3339.
    pub at: String,
    /// Method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The body as JSON, with every `token` and env value blanked; null if there was none, or it was long or not JSON.
    pub body: Value,
    /// The status sent, the fault that took the place of an answer, or `in progress`, or `hung up` when the caller left.
    pub outcome: String,
}

/// The latest requests of a node.
#[derive(Debug)]
pub(super) struct Log {
    capacity: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    /// The last one has the sequence `next - 1`.
    latest: VecDeque<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    at: Timestamp,
    method: Method,
    uri: Uri,
    body: Bytes,
    outcome: Outcome,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    InProgress,
    Status(u16),
    Fault(&'static str),
    HungUp,
}

/// A request under way. Dropped without an end, its caller hung up.
pub(super) struct Entered<'a> {
    log: &'a Log,
    sequence: u64,
    ended: bool,
}

impl Log {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: Mutex::default(),
        }
    }

    pub(super) fn enter(&self, method: &Method, uri: &Uri, body: &[u8]) -> Entered<'_> {
        let mut entries = self.entries.lock();
        let sequence = entries.next;
        entries.next += 1;
        if self.capacity > 0 {
            if entries.latest.len() == self.capacity {
                entries.latest.pop_front();
            }
            let kept = if body.len() <= MAX_BODY {
                // A copy: the original is a slice of the connection's whole buffer.
                Bytes::copy_from_slice(body)
            } else {
                Bytes::new()
            };
            entries.latest.push_back(Entry {
                at: Timestamp::now(),
                method: method.clone(),
                uri: uri.clone(),
                body: kept,
                outcome: Outcome::InProgress,
            });
        }
        Entered {
            log: self,
            sequence,
            ended: false,
        }
    }

    fn end(&self, sequence: u64, outcome: Outcome) {
        let mut entries = self.entries.lock();
        let first = entries.next - entries.latest.len() as u64;
        let place = sequence
            .checked_sub(first)
            .and_then(|p| usize::try_from(p).ok());
        if let Some(entry) = place.and_then(|place| entries.latest.get_mut(place)) {
            entry.outcome = outcome;
        }
    }

    pub(super) fn snapshot(&self) -> Vec<Request> {
        let (first, latest) = {
            let entries = self.entries.lock();
            (
                entries.next - entries.latest.len() as u64,
                entries.latest.clone(),
            )
        };
        (first..)
            .zip(latest)
            .map(|(sequence, entry)| Request {
                sequence,
                at: entry.at.to_string(),
                method: entry.method.to_string(),
                path: entry.uri.to_string(),
                body: redacted(&entry.body),
                outcome: entry.outcome.to_string(),
            })
            .collect()
    }
}

impl Entered<'_> {
    pub(super) fn end(mut self, outcome: Outcome) {
        self.ended = true;
        self.log.end(self.sequence, outcome);
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.log.end(self.sequence, Outcome::HungUp);
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InProgress => f.write_str("in progress"),
            Self::Status(status) => status.fmt(f),
            Self::Fault(name) => f.write_str(name),
            Self::HungUp => f.write_str("hung up"),
        }
    }
}

fn redacted(body: &[u8]) -> Value {
    let mut value = serde_json::from_slice(body).unwrap_or(Value::Null);
    blank(&mut value);
    value
}

fn blank(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if matches!(name.as_str(), "token" | "value") => {
                        *text = "***".to_owned();
                    }
                    _ => blank(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(blank),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_bounded_ordered_and_without_secrets() {
        let log = Log::new(2);
        let enter = |path: &'static str, body: &'static str| {
            log.enter(&Method::POST, &Uri::from_static(path), body.as_bytes())
        };
        let first = enter("/a", "");
        enter("/b", r#"{"token":"secret","env":{"K":{"value":"hidden"}}}"#)
            .end(Outcome::Status(204));
        drop(enter("/c", "no json"));
        first.end(Outcome::Status(200));
        let seen: Vec<_> = log
            .snapshot()
            .into_iter()
            .map(|r| (r.sequence, r.path, r.outcome, r.body.to_string()))
            .collect();
        let expect = |sequence, path: &str, outcome: &str, body: &str| {
            (
                sequence,
                path.to_owned(),
                outcome.to_owned(),
                body.to_owned(),
            )
        };
        assert_eq!(
            seen,
            [
                expect(
                    1,
                    "/b",
                    "204",
                    r#"{"env":{"K":{"value":"***"}},"token":"***"}"#
                ),
                expect(2, "/c", "hung up", "null"),
            ]
        );
    }
}
