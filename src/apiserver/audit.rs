//! The line that every request leaves in the log, and the headers that every answer has.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use uuid::Uuid;

use super::{
    Body, Definition, Matter,
    metrics::Subject,
    route::{ResourceRequest, SCALE, STATUS},
};
use crate::auth::UserInfo;

const AUDIT_ID: &str = "audit-id";
/// Longest id of a client's that is taken over.
const MAX_AUDIT_ID: usize = 64;

/// A request whose answer is being made: what its log line and its counters say.
///
/// The line is written when this is dropped: also for a client that hangs up, since what it asked for may be done by then.
pub(super) struct Progress {
    pub(super) audit_id: String,
    pub(super) subject: Subject,
    begun: Instant,
    stage: Stage,
    caller: Option<Arc<UserInfo>>,
    /// Whom the caller acts as, if that is somebody else.
    impersonated: Option<Arc<UserInfo>>,
    namespace: String,
    name: String,
    /// What an annex does, where the verb is always the same.
    action: Option<&'static str>,
}

/// How far a request has come.
enum Stage {
    /// Nothing is done.
    Received,
    /// The caller may do it, and it may be done or not.
    Authorized,
    /// The head of the answer is there.
    Answered(StatusCode),
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
            begun: Instant::now(),
            stage: Stage::Received,
            caller: None,
            impersonated: None,
            namespace: String::new(),
            name: String::new(),
            action: None,
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
            None if target.is_of_scale() => SCALE,
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

    /// Notes what a request to an annex is about. Of what it says no more than that is logged.
    pub(super) fn about_annex(&mut self, matter: &Matter) {
        self.subject = Subject {
            verb: Matter::VERB.as_str(),
            resource: matter.resource.to_owned(),
            subresource: matter.subresource.to_owned(),
        };
        self.namespace.clone_from(&matter.namespace);
        self.name.clone_from(&matter.name);
        self.action = Some(matter.action);
    }

    /// Notes who asks.
    pub(super) fn by(&mut self, caller: &Arc<UserInfo>) {
        self.caller = Some(caller.clone());
    }

    /// Notes as whom the caller acts.
    pub(super) fn acting_as(&mut self, user: &Arc<UserInfo>) {
        let is_other = self
            .caller
            .as_ref()
            .is_none_or(|caller| !Arc::ptr_eq(caller, user));
        self.impersonated = is_other.then(|| user.clone());
    }

    /// Notes that it is being done.
    pub(super) fn authorized(&mut self) {
        self.stage = Stage::Authorized;
    }

    /// Notes the answer.
    pub(super) fn answered(&mut self, code: StatusCode) {
        self.stage = Stage::Answered(code);
    }

    pub(super) fn took(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let Subject {
            verb,
            resource,
            subresource,
        } = &self.subject;
        let (stage, code) = match self.stage {
            Stage::Received => ("received", None),
            Stage::Authorized => ("authorized", None),
            Stage::Answered(code) => ("answered", Some(code.as_u16())),
        };
        let (caller, impersonated) = (self.caller.as_deref(), self.impersonated.as_deref());
        tracing::info!(
            target: "audit",
            audit_id = self.audit_id, stage,
            user = caller.map_or("", |user| &user.name),
            groups = caller.map(|user| tracing::field::debug(&user.groups)),
            impersonated_user = impersonated.map(|user| user.name.as_str()),
            impersonated_groups = impersonated.map(|user| tracing::field::debug(&user.groups)),
            verb, resource, subresource, namespace = self.namespace, name = self.name, action = self.action,
            code, seconds = self.took().as_secs_f64(),
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
