//! The line that every request leaves in the log, and the headers that every answer has.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use uuid::Uuid;

use super::{
    Body, Definition,
    metrics::Subject,
    route::{ResourceRequest, STATUS},
};

const AUDIT_ID: &str = "audit-id";
/// Longest id of a client's that is taken over.
const MAX_AUDIT_ID: usize = 64;

/// A request whose answer is being made: what its log line and its counters say.
pub(super) struct Progress {
    pub(super) audit_id: String,
    pub(super) subject: Subject,
    pub(super) user: String,
    namespace: String,
    name: String,
}

impl Progress {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        Self {
            audit_id: audit_id(request.headers()),
            subject: Subject {
                verb: "other",
                resource: String::new(),
                subresource: String::new(),
            },
            user: String::new(),
            namespace: String::new(),
            name: String::new(),
        }
    }

    /// Notes what the request is about, in the names of what is served.
    pub(super) fn about(
        &mut self,
        definition: &Definition,
        version: usize,
        target: &ResourceRequest,
    ) {
        let subresource = match definition.action(version, &target.subresource) {
            Some(index) => definition.subresources[index].name,
            None if target.is_of_status() => STATUS,
            None => "",
        };
        self.subject = Subject {
            verb: target.verb.as_str(),
            resource: definition.plural.to_owned(),
            subresource: subresource.to_owned(),
        };
        self.namespace.clone_from(&target.namespace);
        self.name.clone_from(&target.name);
    }

    pub(super) fn log(&self, code: StatusCode, took: Duration) {
        let Subject {
            verb,
            resource,
            subresource,
        } = &self.subject;
        tracing::info!(
            target: "audit",
            audit_id = self.audit_id, user = self.user, verb, resource, subresource,
            namespace = self.namespace, name = self.name, code = code.as_u16(), seconds = took.as_secs_f64(),
        );
    }
}

/// The request's own id, else a new one.
pub(super) fn audit_id(headers: &HeaderMap) -> String {
    let given = headers.get(AUDIT_ID).and_then(|id| id.to_str().ok());
    let is_sane = |id: &&str| {
        let graphic = id.bytes().all(|byte| byte.is_ascii_graphic());
        !id.is_empty() && id.len() <= MAX_AUDIT_ID && graphic
    };
    given
        .filter(is_sane)
        .map_or_else(|| Uuid::new_v4().to_string(), str::to_owned)
}

/// Sets what every answer has.
pub(super) fn finish(answer: &mut Response<Body>, audit_id: &str) {
    let headers = answer.headers_mut();
    if let Ok(id) = HeaderValue::from_str(audit_id) {
        headers.insert(AUDIT_ID, id);
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-cache, private"),
        );
    }
}
