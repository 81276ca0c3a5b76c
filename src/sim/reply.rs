//! What a node answers with: the JSON of its replies and refusals.
//!
//! Written apart from the client's types on purpose, so that a misspelt field shows up in a test between the two.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::claim::Number;
use crate::api::PoolKey;

/// A request that the node does not do, with the status and the text that it gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) text: String,
}

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }
    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
    pub(super) fn unauthorized(text: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, text)
    }
    pub(super) fn forbidden(text: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, text)
    }
    pub(super) fn not_found(text: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }
    pub(super) fn unknown_sandbox() -> Self {
        Self::not_found("unknown sandbox")
    }
    pub(super) fn conflict(text: &str) -> Self {
        Self::new(StatusCode::CONFLICT, text)
    }
    pub(super) fn full(text: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, text)
    }
    pub(super) fn failed(text: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }
    pub(super) fn with_status(status: StatusCode, text: &str) -> Self {
        Self::new(status, text)
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) content_type: Option<&'static str>,
    pub(super) location: Option<String>,
    pub(super) upgrade: Option<&'static str>,
    /// Whose agent is spoken to from now on.
    pub(super) guest: Option<Number>,
    pub(super) body: Bytes,
}

impl Reply {
    pub(super) const JSON: &'static str = "application/json";
    const PLAIN: &'static str = "text/plain; charset=utf-8";

    pub(super) fn json(value: &impl Serialize) -> Self {
        let body = serde_json::to_vec(value).expect("replies are strings, numbers and lists");
        Self::raw(StatusCode::OK, Some(Self::JSON), body)
    }
    pub(super) fn no_content() -> Self {
        Self::raw(StatusCode::NO_CONTENT, None, Bytes::new())
    }
    /// As Go's mux and `http.Error` answer.
    pub(super) fn plain(status: StatusCode, text: &'static str) -> Self {
        Self::raw(status, Some(Self::PLAIN), text.as_bytes())
    }
    pub(super) fn metrics(text: String) -> Self {
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        Self::raw(StatusCode::OK, Some(kind), text)
    }
    /// The end of HTTP, and the beginning of what the agent of this sandbox speaks.
    pub(super) fn into_guest(number: Number) -> Self {
        Self {
            upgrade: Some("silkd"),
            guest: Some(number),
            ..Self::raw(StatusCode::SWITCHING_PROTOCOLS, None, Bytes::new())
        }
    }
    pub(super) fn raw(
        status: StatusCode,
        content_type: Option<&'static str>,
        body: impl Into<Bytes>,
    ) -> Self {
        Self {
            status,
            content_type,
            location: None,
            upgrade: None,
            guest: None,
            body: body.into(),
        }
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        let body = json!({ "error": refusal.text }).to_string();
        Self::raw(refusal.status, Some(Self::JSON), body)
    }
}

/// A grant, or where else to ask.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum ClaimAnswer {
    Granted(Box<Granted>),
    Redirect(Redirect),
}

#[derive(Serialize)]
pub(super) struct Granted {
    pub(super) id: String,
    pub(super) token: String,
    pub(super) deadline: Timestamp,
    pub(super) owner_addr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) template_digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from_checkpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) net_route: Option<&'static str>,
}

#[derive(Serialize)]
pub(super) struct Redirect {
    pub(super) redirect: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) require_promoted: bool,
}

/// A row of the list; `token` only in the answer for one sandbox.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    pub(super) id: String,
    pub(super) key: &'a PoolKey,
    pub(super) deadline: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) claimed_at: Option<Timestamp>,
    pub(super) hibernated: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) archived: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from_checkpoint: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) claim_ref: &'a str,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) b: Option<RowB<'a>>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) c: Option<RowC<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

/// What generation B adds to a row.
#[derive(Serialize)]
pub(super) struct RowB<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<&'a BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) on_expire: Option<&'static str>,
    pub(super) cpu_count: u32,
    pub(super) mem_total_bytes: u64,
}

/// What generation C adds to a row.
#[derive(Serialize)]
pub(super) struct RowC<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct Stats {
    pub(super) id: String,
    pub(super) cpu_count: u32,
    pub(super) mem_total_bytes: u64,
    pub(super) mem_used_bytes: u64,
    pub(super) mem_used_measured: bool,
    pub(super) hibernated: bool,
    pub(super) measured_at: Timestamp,
}

#[derive(Serialize)]
pub(super) struct Info<'a> {
    pub(super) pools: Vec<PoolInfo<'a>>,
    pub(super) claimed: usize,
    pub(super) hibernated: usize,
    pub(super) archived: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) draining: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) peers: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) at_capacity: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at_capacity_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) templates: Option<Vec<TemplateInfo<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advertise_addr: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<usize>,
}

#[derive(Serialize)]
pub(super) struct PoolInfo<'a> {
    pub(super) key: &'a PoolKey,
    pub(super) warm: u32,
    pub(super) refilling: u32,
    pub(super) target: u32,
    pub(super) golden: bool,
}

#[derive(Serialize)]
pub(super) struct TemplateInfo<'a> {
    pub(super) key: &'a PoolKey,
    pub(super) content_digest: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<&'a str>,
    pub(super) created_at: Timestamp,
    pub(super) cpu_count: u32,
    pub(super) mem_total_bytes: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) labels: &'a BTreeMap<String, String>,
}

#[derive(Clone, Serialize)]
pub(super) struct CheckpointRecord {
    pub(super) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) sandbox_id: String,
    pub(super) key: PoolKey,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<String>,
    pub(super) created_at: Timestamp,
}
