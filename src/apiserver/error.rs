//! The one error type of the API: everything a request can be refused with, as a `metav1.Status`.
//!
//! Source: `metav1.Status` and its reasons, of the Kubernetes API machinery.

use std::fmt;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::Definition;
use crate::{
    admission::{Counted, Exceeded},
    schema::{Cause, Reason, Verb},
};

/// A refused request: code, reason and text, as the client gets them.
///
/// The text is the client's to read. What only the operator should know goes to the log where it happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Status(Box<Refusal>);

#[derive(Clone, Debug, PartialEq)]
struct Refusal {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Details,
    continue_token: Option<String>,
}

/// `status.details`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Details {
    name: String,
    group: String,
    kind: String,
    causes: Vec<StatusCause>,
    retry_after_seconds: Option<u32>,
}

/// One of `status.details.causes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusCause {
    /// Machine-readable reason.
    pub reason: String,
    /// Text.
    pub message: String,
    /// Path of the field; empty when the cause is no field's.
    pub field: String,
}

impl StatusCause {
    /// A cause that concerns no field.
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.to_owned(),
            message: message.into(),
            field: String::new(),
        }
    }

    /// A cause that concerns a field. The first words of `message` tell the reason, as in Kubernetes' own messages.
    pub fn of_field(field: impl Into<String>, message: impl Into<String>) -> Self {
        let message = message.into();
        let reason = match message
            .split_once(':')
            .map_or(message.as_str(), |(what, _)| what)
        {
            "Required value" => Reason::Required,
            "Unsupported value" => Reason::NotSupported,
            "Duplicate value" => Reason::Duplicate,
            "Forbidden" => Reason::Forbidden,
            "Too long" => Reason::TooLong,
            "Too many" => Reason::TooMany,
            _ => Reason::Invalid,
        };
        Self {
            reason: reason.as_str().to_owned(),
            message,
            field: field.into(),
        }
    }
}

impl From<Cause> for StatusCause {
    fn from(cause: Cause) -> Self {
        Self {
            reason: cause.reason.as_str().to_owned(),
            message: cause.message,
            field: cause.field,
        }
    }
}

impl Status {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Refusal {
            code,
            reason,
            message: message.into(),
            details: Details::default(),
            continue_token: None,
        }))
    }

    /// 400 BadRequest.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 401 Unauthorized.
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// 403 Forbidden, with a text that is complete as it is.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 403 Forbidden of an object that a quota has no room for, as of kube-apiserver's own admission.
    pub fn over_quota(counted: Counted<'_>, name: &str, exceeded: &Exceeded) -> Self {
        let mut status = Self::forbidden(format!("{counted} {name:?} is forbidden: {exceeded}"));
        status.0.details.name = name.to_owned();
        status.0.details.group = counted.group.to_owned();
        status.0.details.kind = counted.plural.to_owned();
        status
    }

    /// 403 Forbidden of a resource, which the text goes on about.
    pub(super) fn forbidden_resource(
        group: &str,
        resource: &str,
        name: &str,
        text: String,
    ) -> Self {
        let qualified = if group.is_empty() {
            resource.to_owned()
        } else {
            format!("{resource}.{group}")
        };
        let subject = if name.is_empty() {
            qualified
        } else {
            format!("{qualified} {name:?}")
        };
        let mut status = Self::forbidden(format!("{subject} is forbidden: {text}"));
        status.0.details = Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            ..Details::default()
        };
        status
    }

    /// 404 NotFound: no object of that name.
    pub fn not_found(definition: &Definition, name: &str) -> Self {
        let message = format!("{} {name:?} not found", definition.qualified());
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).of(definition, name)
    }

    /// 404 NotFound for a kind that is not this server's, such as the namespace of an object.
    pub fn other_not_found(kind: &str, name: &str) -> Self {
        let mut status = Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{kind} {name:?} not found"),
        );
        status.0.details.kind = kind.to_owned();
        status.0.details.name = name.to_owned();
        status
    }

    /// 404 NotFound for a path below a known version that names no resource.
    pub fn resource_not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource",
        )
    }

    /// 405 MethodNotAllowed.
    pub fn method_not_allowed(definition: &Definition, verb: &str) -> Self {
        let message = format!(
            "{verb} is not supported on resources of kind {:?}",
            definition.qualified()
        );
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).of(definition, "")
    }

    /// 405 MethodNotAllowed for a method that no resource knows.
    pub fn method_unknown(method: &str) -> Self {
        let message = format!("the server does not know the method {method:?}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// 406 NotAcceptable.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!(
            "only the following media types are accepted: {}",
            accepted.join(", ")
        );
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// 409 AlreadyExists.
    pub fn already_exists(definition: &Definition, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", definition.qualified());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).of(definition, name)
    }

    /// 409 AlreadyExists for a name whose object is still going.
    pub fn being_deleted(definition: &Definition, name: &str) -> Self {
        let mut status = Self::already_exists(definition, name);
        status.0.message = format!("object is being deleted: {}", status.0.message);
        status
    }

    /// 409 Conflict.
    pub fn conflict(definition: &Definition, name: &str, reason: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {reason}",
            definition.qualified()
        );
        Self::new(StatusCode::CONFLICT, "Conflict", message).of(definition, name)
    }

    /// 409 Conflict about an object that is named by its kind alone.
    pub fn other_conflict(kind: &str, name: &str, reason: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {kind} {name:?}: {reason}");
        let mut status = Self::new(StatusCode::CONFLICT, "Conflict", message);
        status.0.details.kind = kind.to_owned();
        status.0.details.name = name.to_owned();
        status
    }

    /// 409 Conflict: the object is not the one that a deletion's preconditions name. The text names the kind, as
    /// kube-apiserver's does.
    pub(super) fn precondition_failed(definition: &Definition, name: &str, reason: &str) -> Self {
        let Definition { kind, group, .. } = definition;
        let message = format!("Operation cannot be fulfilled on {kind}.{group} {name:?}: {reason}");
        let mut status = Self::new(StatusCode::CONFLICT, "Conflict", message).of(definition, name);
        status.0.details.kind = (*kind).to_owned();
        status
    }

    /// 409 Conflict with the owners of fields.
    pub(super) fn apply_conflict(message: impl fmt::Display, causes: Vec<StatusCause>) -> Self {
        let mut status = Self::new(StatusCode::CONFLICT, "Conflict", message.to_string());
        status.0.details.causes = causes;
        status
    }

    /// 410 Expired.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// 413 RequestEntityTooLarge.
    pub fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
    }

    /// 413 RequestEntityTooLarge, of something that is not the request's body.
    pub fn over_limit(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            message,
        )
    }

    /// 415 UnsupportedMediaType.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        )
    }

    /// 422 Invalid, with a cause for each fault. `kind` and `group` name what is invalid.
    pub fn invalid(group: &str, kind: &str, name: &str, causes: Vec<StatusCause>) -> Self {
        let subject = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        };
        let shown: Vec<_> = causes.iter().map(StatusCause::to_string).collect();
        let list = match shown.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let mut status = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{subject} {name:?} is invalid: {list}"),
        );
        status.0.details = Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            causes,
            retry_after_seconds: None,
        };
        status
    }

    /// 422 Invalid for an option of a request. `kind` names the options, `message` is as for [`StatusCause::of_field`].
    pub(super) fn invalid_option(kind: &str, field: &str, message: impl Into<String>) -> Self {
        let cause = StatusCause::of_field(field, message);
        Self::invalid("meta.k8s.io", kind, "", vec![cause])
    }

    /// As [`Self::invalid_option`], for all that is wrong with options, if anything is.
    pub(super) fn invalid_options(kind: &str, causes: Vec<StatusCause>) -> Result<(), Self> {
        match causes.is_empty() {
            true => Ok(()),
            false => Err(Self::invalid("meta.k8s.io", kind, "", causes)),
        }
    }

    /// 413 for a patch of too many operations.
    pub(super) fn too_many_operations(limit: usize, found: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("The allowed maximum operations in a JSON patch is {limit}, got {found}"),
        )
    }

    /// 422 Invalid without causes.
    pub(super) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    /// 429 TooManyRequests: nothing was done, come back after `seconds`.
    pub fn too_many_requests(message: impl Into<String>, seconds: u32) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(seconds)
    }

    /// 500 InternalError. Carries no Retry-After: clients would repeat a write of which nobody knows the outcome.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {message}"),
        )
    }

    /// 502 of somebody whose answer was needed for this one. Kubernetes has no reason of its own for it.
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "InternalError", message)
    }

    /// 503 ServiceUnavailable.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            message,
        )
    }

    /// For a server that cannot serve yet: 503, and 429 for a watch, which its client then takes up again where it was.
    pub(super) fn not_ready(verb: Verb, message: &str, seconds: u32) -> Self {
        match verb {
            Verb::Watch => Self::too_many_requests(message, seconds),
            _ => Self::unavailable(message).retry_after(seconds),
        }
    }

    /// 504 Timeout.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
    }

    /// Says when the client may try again. Only for refusals after which nothing is done: clients of Kubernetes repeat any
    /// verb on it.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.0.details.retry_after_seconds = Some(seconds);
        self
    }

    /// Adds a cause.
    #[must_use]
    pub fn cause(mut self, cause: StatusCause) -> Self {
        self.0.details.causes.push(cause);
        self
    }

    /// Names the object it is about.
    #[must_use]
    pub fn of(mut self, definition: &Definition, name: &str) -> Self {
        self.0.details.name = name.to_owned();
        self.0.details.group = definition.group.to_owned();
        self.0.details.kind = definition.plural.to_owned();
        self
    }

    /// Gives the client a token to go on with.
    #[must_use]
    pub(super) fn continue_with(mut self, token: String) -> Self {
        self.0.continue_token = Some(token);
        self
    }

    /// The HTTP status.
    pub fn code(&self) -> StatusCode {
        self.0.code
    }

    /// The machine-readable reason.
    pub fn reason(&self) -> &'static str {
        self.0.reason
    }

    /// The text.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Seconds after which the client may try again.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        self.0.details.retry_after_seconds
    }

    /// The object on the wire.
    pub fn to_json(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.0.continue_token {
            metadata.insert("continue".to_owned(), token.as_str().into());
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": escaped(&self.0.message),
            "reason": self.0.reason,
            "code": self.0.code.as_u16(),
        });
        if let Some(details) = self.0.details.to_json() {
            status["details"] = details;
        }
        status
    }
}

impl Details {
    fn to_json(&self) -> Option<Value> {
        let mut details = Map::new();
        for (key, text) in [
            ("name", &self.name),
            ("group", &self.group),
            ("kind", &self.kind),
        ] {
            if !text.is_empty() {
                details.insert(key.to_owned(), escaped(text).into());
            }
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(StatusCause::to_json).collect();
            details.insert("causes".to_owned(), Value::Array(causes));
        }
        if let Some(seconds) = self.retry_after_seconds {
            details.insert("retryAfterSeconds".to_owned(), seconds.into());
        }
        (!details.is_empty()).then_some(Value::Object(details))
    }
}

impl StatusCause {
    fn to_json(&self) -> Value {
        let mut cause = json!({"reason": self.reason, "message": escaped(&self.message)});
        if !self.field.is_empty() {
            cause["field"] = escaped(&self.field).into();
        }
        cause
    }
}

impl fmt::Display for StatusCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Status {}

/// The text without angle brackets, which a browser could take for markup.
fn escaped(text: &str) -> String {
    text.replace('<', "\u{ff1c}").replace('>', "\u{ff1e}")
}

/// The name of a JSON value's type, for texts.
pub(super) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
