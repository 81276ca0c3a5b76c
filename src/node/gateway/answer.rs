//! What callers of the gateway are told.

use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};

use super::super::server::{Body, of_type};
use crate::{
    api::{ClaimId, NodeName, SandboxKey, Token},
    sandboxd::NodeTime,
};

const JSON: &str = "application/json";

/// A VM that was handed over.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Granted {
    /// The claim's id, by which it is given back.
    pub(super) id: ClaimId,
    pub(super) namespace: String,
    /// The Sandbox, and the SandboxClaim, that it is shown as.
    pub(super) sandbox_name: String,
    pub(super) node: NodeName,
    /// Where the daemon is reached that the sandbox's token is for.
    pub(super) address: String,
    /// The sandbox's credential, which nobody is told again.
    pub(super) token: Token,
    /// End of the lease by the node's clock, unless it is renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deadline: Option<NodeTime>,
}

/// Why a caller got nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("Unauthorized")]
    Unauthorized,
    #[error("{text}")]
    Forbidden { text: String },
    #[error("{text}")]
    BadRequest { text: String },
    #[error("the body has more than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the server does not allow this method on the requested resource")]
    Method,
    #[error("{field}: {reason}")]
    Invalid { field: &'static str, reason: String },
    #[error("sandboxclaims \"{}\" already exists", key.name)]
    NameTaken { key: SandboxKey },
    /// Another claim of the name is under way, or is being given back. What comes of it is known soon.
    #[error("sandboxclaims \"{}\" is being claimed or given back", key.name)]
    NameUndecided { key: SandboxKey },
    #[error("the warm pool {pool:?} is {found}, not what the selector says")]
    OtherPool { pool: String, found: String },
    #[error("the node's gateway did not hand over claim {0}")]
    NotOurs(ClaimId),
    /// Nothing was handed over, and a SandboxClaim may fare better.
    #[error("{text}")]
    Fallback { text: String },
    #[error("kube-apiserver cannot be asked")]
    Unasked,
    #[error(
        "the end of claim {0} is not confirmed by the daemon and kube-apiserver, and is tried again"
    )]
    NotReleased(ClaimId),
    #[error("the body did not come in time")]
    Slow,
    #[error("this agent hands nothing over")]
    NoGateway,
}

impl Refusal {
    pub(super) fn fallback(text: impl Into<String>) -> Self {
        Self::Fallback { text: text.into() }
    }

    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::Forbidden { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::BadRequest { .. } => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge"),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
            Self::Invalid { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
            Self::NameTaken { .. } => (StatusCode::CONFLICT, "AlreadyExists"),
            Self::OtherPool { .. } => (StatusCode::CONFLICT, "Conflict"),
            Self::NotOurs(_) | Self::NoGateway => (StatusCode::NOT_FOUND, "NotFound"),
            Self::Slow => (StatusCode::REQUEST_TIMEOUT, "Timeout"),
            Self::Fallback { .. }
            | Self::Unasked
            | Self::NameUndecided { .. }
            | Self::NotReleased(_) => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
        }
    }

    /// The word for it in metrics.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden { .. } => "forbidden",
            Self::NameTaken { .. } | Self::NameUndecided { .. } => "name_taken",
            Self::Fallback { .. } => "fallback",
            Self::Unasked | Self::NotReleased(_) => "error",
            Self::BadRequest { .. }
            | Self::TooLarge { .. }
            | Self::Method
            | Self::Invalid { .. }
            | Self::OtherPool { .. }
            | Self::NotOurs(_)
            | Self::NoGateway
            | Self::Slow => "invalid",
        }
    }

    /// A `metav1.Status`, and beside its fields whether the caller should make a SandboxClaim.
    fn body(&self) -> Value {
        let (code, reason) = self.status();
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.to_string(), "reason": reason, "code": code.as_u16(),
        });
        match self {
            Self::Fallback { .. } | Self::NoGateway => status["fallback"] = true.into(),
            Self::Unasked | Self::NameUndecided { .. } => status["fallback"] = false.into(),
            Self::Invalid { field, reason } => {
                let cause =
                    json!({"reason": "FieldValueInvalid", "message": reason, "field": field});
                status["details"] = json!({"causes": [cause]});
            }
            Self::NameTaken { key } => {
                status["details"] = json!({"name": key.name, "kind": "sandboxclaims",
                    "group": crate::api::EXTENSIONS_GROUP});
            }
            _ => {}
        }
        status
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = of_type(self.body().to_string(), JSON);
        *response.status_mut() = self.status().0;
        let comes_again = matches!(
            self,
            Self::NotReleased(_) | Self::Unasked | Self::NameUndecided { .. }
        );
        if comes_again {
            let after = HeaderValue::from_static("1");
            response.headers_mut().insert(header::RETRY_AFTER, after);
        }
        response
    }
}

/// 201 with what was handed over. It holds a credential, which no cache may keep.
pub(super) fn created(granted: &Granted) -> Response<Body> {
    let json = serde_json::to_vec(granted).expect("strings and times");
    let mut response = of_type(json, JSON);
    *response.status_mut() = StatusCode::CREATED;
    let no_store = HeaderValue::from_static("no-store");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_store);
    response
}

/// 204: the VM is gone, and the SandboxClaim that was made for it goes.
pub(super) fn gone() -> Response<Body> {
    let mut response = of_type("", JSON);
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().remove(header::CONTENT_TYPE);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(refusal: Refusal, expected: &str) {
        let body = refusal.body();
        let shown = format!(
            "{} {} {} {}",
            body["code"], body["reason"], body["fallback"], body["kind"]
        );
        assert_eq!(shown, expected);
        assert_eq!(body["message"], refusal.to_string());
    }

    #[test]
    fn only_who_may_fare_better_is_sent_the_other_way() {
        check(
            Refusal::fallback("nothing warm"),
            r#"503 "ServiceUnavailable" true "Status""#,
        );
        check(
            Refusal::Unasked,
            r#"503 "ServiceUnavailable" false "Status""#,
        );
        check(Refusal::Unauthorized, r#"401 "Unauthorized" null "Status""#);
        let key = SandboxKey::new("a", "x");
        check(
            Refusal::NameTaken { key },
            r#"409 "AlreadyExists" null "Status""#,
        );
    }
}
