//! Misbehaviour on request.

use std::time::Duration;

use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Faults that a node may have at once.
const MAX_FAULTS: usize = 64;

/// One way in which a node misbehaves, and for which requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// For requests of this method only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// For paths like this only, `*` standing for anything: `/v1/claim`, `/v1/sandboxes/*/release`. Empty for every path.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// For so many requests; None until cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum FaultKind {
    /// The request waits before anything is done with it; then further faults apply.
    Late {
        /// How long.
        millis: u64,
    },
    /// The port refuses connections and open ones are cut, until the fault is cleared. Speaks of the whole node, so
    /// method, path and times do not apply.
    Refuse,
    /// The connection is reset after the request was read; nothing is done.
    Reset,
    /// The work is done, and the connection ends half-way through the answer's body.
    Cut,
    /// The work is done, and the connection ends without an answer.
    AnswerLost,
    /// The connection ends without an answer, and the work is done afterwards: as by a daemon that boots a VM for a client that
    /// has gone.
    Overtime {
        /// How long afterwards.
        millis: u64,
    },
    /// The request is read and never answered; nothing is done.
    Hang,
    /// The daemon's error body with this status; nothing is done.
    Status {
        /// The status.
        status: u16,
        /// The text.
        #[serde(default)]
        text: String,
    },
    /// The answer names other nodes, as a claim's may; nothing is done.
    Redirect {
        /// Their addresses.
        addresses: Vec<String>,
        /// Whether a promoted template is required there.
        #[serde(default)]
        require_promoted: bool,
    },
    /// A redirect of HTTP to another place, which no daemon sends; nothing is done.
    HttpRedirect {
        /// Where to.
        location: String,
        /// 3xx; 307 when it is not said.
        #[serde(default = "temporary_redirect")]
        status: u16,
    },
    /// 200 with a body that is no JSON; nothing is done.
    WrongJson,
    /// 200 with JSON in which every field has a wrong type; nothing is done.
    WrongTypes,
    /// 200 with a body of so many bytes; nothing is done.
    Oversized {
        /// How many, up to 1 GiB.
        bytes: u64,
    },
    /// 401, as if the token were another; nothing is done.
    Unauthorized,
}

fn temporary_redirect() -> u16 {
    StatusCode::TEMPORARY_REDIRECT.as_u16()
}

impl FaultKind {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Late { .. } => "late",
            Self::Refuse => "refuse",
            Self::Reset => "reset",
            Self::Cut => "cut",
            Self::AnswerLost => "answer lost",
            Self::Overtime { .. } => "overtime",
            Self::Hang => "hang",
            Self::Status { .. } => "status",
            Self::Redirect { .. } => "redirect",
            Self::HttpRedirect { .. } => "http redirect",
            Self::WrongJson => "wrong json",
            Self::WrongTypes => "wrong types",
            Self::Oversized { .. } => "oversized",
            Self::Unauthorized => "unauthorized",
        }
    }

    fn is_possible(&self) -> bool {
        match self {
            Self::Status { status, .. } => StatusCode::from_u16(*status).is_ok() && *status >= 200,
            Self::HttpRedirect { location, status } => {
                (300..400).contains(status) && http::HeaderValue::from_str(location).is_ok()
            }
            Self::Oversized { bytes } => *bytes <= 1 << 30,
            _ => true,
        }
    }
}

impl Fault {
    /// This for every request until cleared.
    pub fn always(kind: FaultKind) -> Self {
        Self {
            kind,
            method: None,
            path: String::new(),
            times: None,
        }
    }

    /// This for the next request whose path is like `path`.
    pub fn once(kind: FaultKind, path: &str) -> Self {
        Self {
            path: path.to_owned(),
            times: Some(1),
            ..Self::always(kind)
        }
    }

    fn applies(&self, method: &Method, path: &str) -> bool {
        self.times != Some(0)
            && self.kind != FaultKind::Refuse
            && self.method.as_deref().is_none_or(|m| m == method.as_str())
            && (self.path.is_empty() || matches(&self.path, path))
    }
}

/// The faults of one node, in the order that they were set.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    pub(super) fn list(&self) -> Vec<Fault> {
        self.0.lock().clone()
    }

    /// Adds one; false if it is impossible or one too many.
    pub(super) fn add(&self, fault: Fault) -> bool {
        let mut faults = self.0.lock();
        faults.retain(|fault| fault.times != Some(0));
        let fits = fault.kind.is_possible() && faults.len() < MAX_FAULTS;
        if fits {
            faults.push(fault);
        }
        fits
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    pub(super) fn refuses(&self) -> bool {
        let faults = self.0.lock();
        faults.iter().any(|fault| fault.kind == FaultKind::Refuse)
    }

    /// What this request meets: a delay and perhaps a fault. Uses up one of the times of each.
    pub(super) fn meet(&self, method: &Method, path: &str) -> (Duration, Option<FaultKind>) {
        let mut delay = Duration::ZERO;
        for fault in self.0.lock().iter_mut().filter(|f| f.applies(method, path)) {
            fault.times = fault.times.map(|times| times - 1);
            match &fault.kind {
                FaultKind::Late { millis } => delay += Duration::from_millis(*millis),
                kind => return (delay, Some(kind.clone())),
            }
        }
        (delay, None)
    }
}

/// Whether `path` is like `pattern`, in which `*` stands for anything.
fn matches(pattern: &str, path: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = path.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_fits_whole_paths() {
        for (pattern, path, fits) in [
            ("/v1/claim", "/v1/claim", true),
            ("/v1/claim", "/v1/claims", false),
            (
                "/v1/sandboxes/*/release",
                "/v1/sandboxes/sb_1/release",
                true,
            ),
            ("/v1/sandboxes/*/release", "/v1/sandboxes/sb_1/wake", false),
            ("/v1/*", "/v1/", true),
            ("*", "", true),
            ("*a*b", "xaxb", true),
            ("*a*b", "xbxa", false),
        ] {
            assert_eq!(matches(pattern, path), fits, "{pattern} {path}");
        }
    }

    #[test]
    fn faults_count_down_and_delays_add_up() {
        let faults = Faults::default();
        let late = FaultKind::Late { millis: 5 };
        assert!(faults.add(Fault::always(late.clone())));
        assert!(faults.add(Fault::always(late)));
        assert!(faults.add(Fault::once(FaultKind::Hang, "/v1/claim")));
        let ten = Duration::from_millis(10);
        assert_eq!(faults.meet(&Method::GET, "/healthz"), (ten, None));
        assert_eq!(
            faults.meet(&Method::POST, "/v1/claim"),
            (ten, Some(FaultKind::Hang))
        );
        assert_eq!(faults.meet(&Method::POST, "/v1/claim"), (ten, None));
        let impossible = FaultKind::Status {
            status: 42,
            text: String::new(),
        };
        assert!(!faults.add(Fault::always(impossible)));
    }
}
