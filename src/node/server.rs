//! What the agent serves: its feed, the user parts, probes and metrics.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tokio::time::timeout;

use super::{
    Error, Objects,
    gateway::{self, Gateway},
};
use crate::{
    api::{ClaimId, EXTENSIONS_GROUP, NodeName, V1BETA1},
    auth::{Attributes, Authenticator, Authorizer, Decision, ResourceAttributes},
    feed::{Board, Overtaken},
    serving::Connection,
    telemetry::{METRICS_CONTENT_TYPE, Metrics, Probe, Readiness},
};

/// Bytes of a body that are read: more than any user part may have, so that its own error can be answered.
const MAX_BODY: usize = 1 << 20;

/// How long an object may take to come and to reach the disk. Who sends one is gone by then.
const OBJECT_WITHIN: Duration = Duration::from_secs(10);

pub(super) type Body = UnsyncBoxBody<Bytes, Overtaken>;

/// What the agent serves.
pub(super) struct Server {
    pub(super) node: NodeName,
    pub(super) board: Board,
    pub(super) objects: Objects,
    pub(super) authenticator: Authenticator,
    pub(super) authorizer: Authorizer,
    pub(super) readiness: Readiness,
    pub(super) metrics: Metrics,
    /// None for an agent without one: its routes are answered with 404 then.
    pub(super) gateway: Option<Gateway>,
}

enum Route {
    Probe(Probe),
    Metrics,
    Feed,
    Object(ClaimId),
    Gateway(gateway::Route),
    Unknown,
}

impl Server {
    pub(super) async fn handle(
        self: Arc<Self>,
        connection: Arc<Connection>,
        mut request: Request<Incoming>,
    ) -> Response<Body> {
        let route = Route::of(request.uri().path());
        let caller = self
            .authenticator
            .authenticate(request.headers_mut(), &connection);
        let caller = caller.await;
        if let (Route::Gateway(route), Some(gateway)) = (&route, &self.gateway) {
            let answer = gateway.answer(
                route.clone(),
                caller.as_ref().map_err(|unauthorized| *unauthorized),
                &self.authorizer,
                request,
            );
            return answer.await;
        }
        let Ok(caller) = caller else {
            return text(StatusCode::UNAUTHORIZED, "unauthorized");
        };
        let path = request.uri().path().to_owned();
        if matches!(route, Route::Gateway(_)) {
            return gateway::no_gateway();
        }
        let Some(attributes) = self.attributes(&route, request.method(), &path) else {
            return text(StatusCode::METHOD_NOT_ALLOWED, "no such method here");
        };
        let decision = self
            .authorizer
            .authorize(&caller.user, &attributes, caller.origin);
        match decision.await {
            Ok(Decision::Allow) => self.answer(route, request).await,
            Ok(Decision::Deny { .. }) => text(StatusCode::FORBIDDEN, "forbidden"),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "caller not authorized"
                );
                text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "kube-apiserver cannot be asked",
                )
            }
        }
    }

    /// What the request is asked about as; `None` for a method that the route does not have.
    fn attributes<'a>(
        &'a self,
        route: &Route,
        method: &Method,
        path: &'a str,
    ) -> Option<Attributes<'a>> {
        let verb = match *method {
            Method::GET => "get",
            Method::PUT => "update",
            Method::DELETE => "delete",
            _ => return None,
        };
        let subresource = match route {
            Route::Object(_) => "objects",
            _ if verb != "get" => return None,
            Route::Feed => "feed",
            _ => return Some(Attributes::NonResource { verb, path }),
        };
        Some(Attributes::Resource(ResourceAttributes {
            verb,
            group: EXTENSIONS_GROUP,
            version: V1BETA1,
            resource: "nodeinventories",
            subresource,
            name: self.node.as_str(),
            ..ResourceAttributes::default()
        }))
    }

    async fn answer(&self, route: Route, request: Request<Incoming>) -> Response<Body> {
        match route {
            Route::Probe(probe) => {
                let answer = self
                    .readiness
                    .answer(probe, request.uri().query().unwrap_or_default());
                let status = match answer.healthy {
                    true => StatusCode::OK,
                    false => StatusCode::INTERNAL_SERVER_ERROR,
                };
                text(status, answer.text)
            }
            Route::Metrics => of_type(self.metrics.encode(), METRICS_CONTENT_TYPE),
            Route::Feed => self.feed(request.uri().query()),
            Route::Object(claim) => {
                let done = timeout(OBJECT_WITHIN, self.object(&claim, request)).await;
                done.unwrap_or_else(|_| text(StatusCode::SERVICE_UNAVAILABLE, "not stored in time"))
            }
            Route::Gateway(_) | Route::Unknown => text(StatusCode::NOT_FOUND, "no such path"),
        }
    }

    /// The feed. Who says by `node` which node's it wants is told when this is another one's: two inventories may name one agent.
    fn feed(&self, query: Option<&str>) -> Response<Body> {
        let mut parameters = query.unwrap_or_default().split('&');
        let wanted = parameters.find_map(|parameter| parameter.strip_prefix("node="));
        if wanted.is_some_and(|wanted| wanted != self.node.as_str()) {
            let own = format!("this is the agent of node {}", self.node);
            return text(StatusCode::MISDIRECTED_REQUEST, own);
        }
        let Some(listener) = self.board.listen() else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "too many listeners");
        };
        let mut response = Response::new(listener.into_body().boxed_unsync());
        let kind = HeaderValue::from_static("application/x-ndjson");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }

    async fn object(&self, claim: &ClaimId, request: Request<Incoming>) -> Response<Body> {
        let done = match *request.method() {
            Method::GET => match self.objects.get(claim) {
                Some(user) => {
                    let json = serde_json::to_string(&*user).expect("it was read from JSON");
                    return of_type(json, "application/json");
                }
                None => return text(StatusCode::NOT_FOUND, "no such object"),
            },
            Method::DELETE => self.objects.delete(claim).await,
            _ => match Limited::new(request.into_body(), MAX_BODY).collect().await {
                Ok(body) => self.objects.put(claim, &body.to_bytes()).await,
                Err(_) => return text(StatusCode::BAD_REQUEST, "the body cannot be read"),
            },
        };
        if let Err(error) = done {
            return refusal(&error);
        }
        self.board
            .user_changed(claim, |claim| self.objects.get(claim));
        text(StatusCode::NO_CONTENT, "")
    }
}

impl Route {
    fn of(path: &str) -> Self {
        match path {
            "/livez" => Self::Probe(Probe::Livez),
            "/readyz" => Self::Probe(Probe::Readyz),
            "/healthz" => Self::Probe(Probe::Healthz),
            "/metrics" => Self::Metrics,
            "/v1/feed" => Self::Feed,
            path => match path.strip_prefix("/v1/objects/") {
                Some(claim) => {
                    let claim = percent_encoding::percent_decode_str(claim).decode_utf8_lossy();
                    Self::Object(claim.as_ref().into())
                }
                None => gateway::Route::of(path).map_or(Self::Unknown, Self::Gateway),
            },
        }
    }
}

fn refusal(error: &Error) -> Response<Body> {
    let status = match error {
        Error::InvalidClaim | Error::Malformed { .. } => StatusCode::BAD_REQUEST,
        Error::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        Error::Full => StatusCode::INSUFFICIENT_STORAGE,
        Error::Ending => StatusCode::SERVICE_UNAVAILABLE,
        Error::State { .. } | Error::Certificate(_) | Error::Publish(_) | Error::PublishSilent => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    if status.is_server_error() {
        tracing::error!(
            error = error as &dyn std::error::Error,
            "an object is not stored"
        );
    }
    text(status, error.to_string())
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = of_type(text, "text/plain; charset=utf-8");
    *response.status_mut() = status;
    response
}

pub(super) fn of_type(body: impl Into<Bytes>, kind: &'static str) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
