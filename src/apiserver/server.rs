//! The way of a request from the connection to its answer.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::BodyExt;
use tokio_util::sync::CancellationToken;

use super::{
    Annex, ApiMetrics, Body, Context, Definition, GoawayChance, Resource, Status,
    access::{Access, attributes, impersonation_refused},
    annex,
    audit::{Progress, finish},
    body::status_response,
    discovery::Discovery,
    limits::Limits,
    negotiate::{MediaType, error_media_type},
    openapi::OpenApi,
    options::{MAX_FIELD_MANAGER, Selectors},
    paths,
    query::Query,
    route::{PathRequest, ResourceRequest, Route, route},
    transform::Delivery,
    verbs::{Endpoint, Served, VerbRequest},
};
use crate::{
    admission::{Namespaces, Quotas},
    auth::{Attributes, Authenticator, Authorizer, Identity, Origin, impersonate},
    schema::{self, Verb},
    serving::Connection,
    telemetry::{Metrics, Readiness},
};

/// Largest body of a request, as of kube-apiserver.
const MAX_BODY: usize = 3 << 20;
/// Longest a read and a write may take, as of kube-apiserver.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const WRITE_TIMEOUT: Duration = Duration::from_secs(34);
/// How long a client is told to stay away from a server that is ending.
pub(super) const SHUTDOWN_RETRY_SECONDS: u32 = 5;
const AGGREGATOR: &str = "system:kube-aggregator";

/// Who the server says it is.
#[derive(Clone, Copy, Debug)]
pub struct ProductInfo {
    /// Name.
    pub name: &'static str,
    /// Version.
    pub version: &'static str,
    /// Version of Kubernetes whose API rules are followed: major and minor.
    pub kubernetes: (u32, u32),
}

/// What a server is made of.
#[derive(Debug)]
pub struct Builder {
    /// Who it says it is.
    pub product: ProductInfo,
    /// Who calls.
    pub authenticator: Authenticator,
    /// What they may.
    pub authorizer: Arc<Authorizer>,
    /// Which namespaces there are.
    pub namespaces: Namespaces,
    /// How many objects they may have.
    pub quotas: Quotas,
    /// The registry behind `/metrics`.
    pub metrics: Metrics,
    /// The checks behind `/readyz`.
    pub readiness: Readiness,
    /// Cancelled when new requests are to be refused and streams to end.
    pub shutdown: CancellationToken,
    /// How likely an answer is to end its HTTP/2 connection.
    pub goaway_chance: GoawayChance,
    /// Answers for core discovery paths (`/api`, …), for a server that stands alone.
    pub fixed: HashMap<String, serde_json::Value>,
}

/// The server, to be shared by all connections.
pub struct ApiServer {
    pub(super) parts: Builder,
    counters: ApiMetrics,
    pub(super) limits: Limits,
    endpoints: Vec<Box<dyn Endpoint>>,
    annexes: Vec<Box<dyn Annex>>,
    discovery: Discovery,
    openapi: OpenApi,
    /// Whether it served once: from then on discovery is served whatever happens, since clients take a missing
    /// document for a missing resource.
    started: AtomicBool,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer")
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// A server of one resource. Further ones are added with [`ApiServer::with`].
    ///
    /// # Errors
    /// When a type has no form in OpenAPI.
    pub fn serve<R: Resource>(self, resource: Arc<R>) -> schema::Result<ApiServer> {
        let counters = ApiMetrics::register(&self.metrics);
        let endpoints: Vec<Box<dyn Endpoint>> = vec![Box::new(Served(resource))];
        ApiServer::new(self, counters, endpoints)
    }
}

impl ApiServer {
    fn new(
        parts: Builder,
        counters: ApiMetrics,
        endpoints: Vec<Box<dyn Endpoint>>,
    ) -> schema::Result<Self> {
        let definitions: Vec<&Definition> = endpoints
            .iter()
            .map(|endpoint| endpoint.definition())
            .collect();
        let discovery = Discovery::new(&definitions);
        let openapi = OpenApi::new(&parts.product, &definitions)?;
        Ok(Self {
            parts,
            counters,
            limits: Limits::default(),
            endpoints,
            annexes: Vec::new(),
            discovery,
            openapi,
            started: AtomicBool::new(false),
        })
    }

    /// The same server with one more resource.
    ///
    /// # Errors
    /// When a type has no form in OpenAPI.
    pub fn with<R: Resource>(self, resource: Arc<R>) -> schema::Result<Self> {
        let mut endpoints = self.endpoints;
        endpoints.push(Box::new(Served(resource)));
        Ok(Self {
            annexes: self.annexes,
            ..Self::new(self.parts, self.counters, endpoints)?
        })
    }

    /// The same server with something beside the API.
    #[must_use]
    pub fn beside(mut self, annex: impl Annex) -> Self {
        self.annexes.push(Box::new(annex));
        self
    }

    /// Answers a request.
    pub async fn handle<B>(
        self: Arc<Self>,
        connection: Arc<Connection>,
        request: Request<B>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display,
    {
        let mut progress = Progress::of(&request);
        let media_type = error_media_type(request.headers());
        let delivery = Delivery::of(&request);
        let version = request.version();
        let answer = match self.answer(&connection, request, &mut progress).await {
            Ok(answer) => answer,
            Err(status) => self.refused(&connection, &status, media_type),
        };
        let is_watch = progress.subject.verb == Verb::Watch.as_str();
        if !is_watch && version == Version::HTTP_2 && self.parts.goaway_chance.strikes() {
            connection.close();
        }
        let mut answer = delivery.apply(answer, is_watch);
        finish(&mut answer, &progress.audit_id);
        self.counters
            .answered(&progress.subject, answer.status(), progress.took());
        progress.answered(answer.status());
        answer
    }

    async fn answer<B>(
        &self,
        connection: &Connection,
        request: Request<B>,
        progress: &mut Progress,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display,
    {
        let (mut head, body) = request.into_parts();
        let version = head.version;
        if version != Version::HTTP_11 || head.method != Method::GET {
            // Means nothing there. Behind this point it is the wish to go on in another protocol.
            head.headers.remove(header::UPGRADE);
        }
        if let Some(annex) = annex::find(&self.annexes, head.uri.path()) {
            let request = Request::from_parts(head, body);
            return self.beside_api(annex, connection, request, progress).await;
        }
        let query_text = head.uri.query().unwrap_or_default();
        let query = Query::parse(query_text)?;
        match route(&head.method, head.uri.path(), &query)? {
            Route::Path(path) if paths::is_health(&path.asked) => {
                if shows_nothing(&head.headers, connection) {
                    let_go(version, connection);
                }
                paths::health(&self.parts.readiness, &path.served, query_text)
                    .ok_or_else(Status::resource_not_found)
            }
            Route::Path(path) => {
                let identity = self
                    .identify(&mut head.headers, version, connection, progress)
                    .await?;
                self.path(
                    &path,
                    &query,
                    query_text,
                    &head.method,
                    &head.headers,
                    &identity,
                )
                .await
            }
            Route::Resource(target) => {
                let identity = self
                    .identify(&mut head.headers, version, connection, progress)
                    .await?;
                self.resource(target, query, head.headers, body, identity, progress)
                    .await
            }
        }
    }

    /// Who asks, and on whose behalf.
    pub(super) async fn identify(
        &self,
        headers: &mut HeaderMap,
        version: Version,
        connection: &Connection,
        progress: &mut Progress,
    ) -> Result<Identity, Status> {
        let identity = self
            .parts
            .authenticator
            .authenticate(headers, connection)
            .await;
        let identity = identity.map_err(|_| Status::unauthorized())?;
        progress.by(&identity.user);
        // A proxied one comes over a connection of kube-apiserver's, which is there for all users.
        if identity.user.is_anonymous() && identity.origin == Origin::Direct {
            let_go(version, connection);
        }
        let identity = impersonate(&self.parts.authorizer, identity, headers)
            .await
            .map_err(impersonation_refused)?;
        progress.acting_as(&identity.user);
        Ok(identity)
    }

    async fn path(
        &self,
        path: &PathRequest,
        query: &Query,
        query_text: &str,
        method: &Method,
        headers: &HeaderMap,
        identity: &Identity,
    ) -> Result<Response<Body>, Status> {
        let (asked, path) = (path.asked.as_str(), path.served.as_str());
        // The aggregator's health check asks for this path; it must be answered from memory, whatever is down.
        let is_checked = identity.origin == Origin::Proxied && identity.user.name == AGGREGATOR;
        if !(is_checked && path.starts_with("/apis/")) {
            let verb = method.as_str().to_ascii_lowercase();
            self.access(identity.clone())
                .check(&Attributes::NonResource {
                    verb: &verb,
                    path: asked,
                })
                .await?;
        }
        let started = self.started.load(Ordering::Relaxed) || self.parts.readiness.serves();
        self.started.store(started, Ordering::Relaxed);
        if let Some(answer) = paths::health(&self.parts.readiness, path, query_text) {
            return Ok(answer);
        }
        // All of them, or none: kube-apiserver finds a server available by a version's own document, and asks for the rest then. If
        // that is refused, clients do not find the resources until it asks again, up to a minute later.
        let is_document = path.starts_with("/apis") || path.starts_with("/openapi/");
        if is_document && !started {
            return Err(
                Status::unavailable("the server is starting").retry_after(SHUTDOWN_RETRY_SECONDS)
            );
        }
        let known = match path {
            "/metrics" => Some(Ok(paths::metrics(&self.parts.metrics))),
            "/version" => Some(Ok(paths::version(&self.parts.product))),
            _ => self
                .discovery
                .answer(path, headers)
                .or_else(|| self.openapi.answer(path, query, headers)),
        };
        let fixed = || {
            Some(Ok(super::body::value_response(
                StatusCode::OK,
                MediaType::Json,
                self.parts.fixed.get(path)?,
            )))
        };
        match (
            known.or_else(fixed),
            *method == Method::GET || *method == Method::HEAD,
        ) {
            (Some(answer), true) => answer,
            (Some(_), false) => Err(Status::method_unknown(method.as_str())),
            (None, _) if !started => {
                Err(Status::unavailable("the server is starting")
                    .retry_after(SHUTDOWN_RETRY_SECONDS))
            }
            (None, _) => Ok(paths::not_found()),
        }
    }

    async fn resource<B>(
        &self,
        target: ResourceRequest,
        query: Query,
        headers: HeaderMap,
        body: B,
        identity: Identity,
        progress: &mut Progress,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin,
        B::Error: std::fmt::Display,
    {
        let endpoint = self.endpoint(&target);
        if let Some((endpoint, version)) = &endpoint {
            progress.about(endpoint.definition(), *version, &target);
        }
        let access = self.access(identity);
        let privileged = access.user().is_in("system:masters");
        let _place = self.limits.enter(target.verb, privileged)?;
        let selectors = Selectors::read(&query);
        access
            .check(&Attributes::Resource(attributes(&target, Some(&selectors))))
            .await?;
        progress.authorized();
        if self.parts.shutdown.is_cancelled() {
            return Err(Status::too_many_requests(
                "The apiserver is shutting down, please try again later.",
                SHUTDOWN_RETRY_SECONDS,
            ));
        }
        if !self.parts.readiness.serves() {
            return Err(Status::not_ready(
                target.verb,
                "the server is not ready: it does not know all nodes yet",
                1,
            ));
        }
        let (endpoint, version) = endpoint.ok_or_else(Status::resource_not_found)?;
        let time = time_limit(&target, &query)?;
        let work = async {
            let body = match target.verb.is_write() {
                true => read_body(body).await?,
                false => Bytes::new(),
            };
            let request = VerbRequest {
                context: Context::new(
                    access.user().clone(),
                    progress.audit_id.clone(),
                    field_manager(&query, &headers),
                    self.parts.quotas.clone(),
                ),
                target,
                query,
                headers,
                body,
                version,
                access,
                namespaces: self.parts.namespaces.clone(),
                counters: self.counters.clone(),
                shutdown: self.parts.shutdown.clone(),
            };
            if let Some(warning) = endpoint.definition().versions[version].deprecation {
                request.context.warn(warning);
            }
            let mut answer = match endpoint.serve(&request).await {
                Ok(answer) => answer,
                Err(status) => status_response(&status, error_media_type(&request.headers)),
            };
            for warning in request.context.warning_headers() {
                if let Ok(value) = HeaderValue::from_str(&warning) {
                    answer.headers_mut().append(header::WARNING, value);
                }
            }
            Ok(answer)
        };
        match tokio::time::timeout(time, work).await {
            Ok(answer) => answer,
            Err(_) => Err(Status::timeout(
                "Timeout: request did not complete within the allotted timeout",
            )),
        }
    }

    /// The resource and the version of a request, if they are served.
    fn endpoint(&self, target: &ResourceRequest) -> Option<(&dyn Endpoint, usize)> {
        self.endpoints.iter().find_map(|endpoint| {
            let definition = endpoint.definition();
            if definition.group != target.group || definition.plural != target.resource {
                return None;
            }
            let version = definition
                .versions
                .iter()
                .position(|version| version.name == target.version)?;
            Some((endpoint.as_ref(), version))
        })
    }

    pub(super) fn access(&self, identity: Identity) -> Access {
        Access::new(self.parts.authorizer.clone(), identity)
    }

    fn refused(
        &self,
        connection: &Connection,
        status: &Status,
        media_type: MediaType,
    ) -> Response<Body> {
        let mut answer = status_response(status, media_type);
        if self.parts.shutdown.is_cancelled() || status.code() == StatusCode::UNAUTHORIZED {
            connection.close();
            answer
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

/// Whether a request comes without any credential.
pub(super) fn shows_nothing(headers: &HeaderMap, connection: &Connection) -> bool {
    connection.peer_certificates.is_empty() && !headers.contains_key(header::AUTHORIZATION)
}

/// Ends the HTTP/2 connection of somebody unknown with this answer, as kube-apiserver does: what one connection may ask of the
/// server for nothing is then bounded by handshakes.
pub(super) fn let_go(version: Version, connection: &Connection) {
    if version == Version::HTTP_2 {
        connection.close();
    }
}

/// The longest a request may take; a watch takes as long as it likes.
fn time_limit(target: &ResourceRequest, query: &Query) -> Result<Duration, Status> {
    let asked = query.timeout()?.filter(|timeout| !timeout.is_zero());
    Ok(match target.verb {
        Verb::Watch => Duration::MAX,
        verb => {
            let collection = verb == Verb::DeleteCollection;
            let limit = if verb.is_write() && !collection {
                WRITE_TIMEOUT
            } else {
                READ_TIMEOUT
            };
            asked.map_or(limit, |asked| asked.min(limit))
        }
    })
}

async fn read_body<B>(mut body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(Status::too_large(MAX_BODY));
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Status::bad_request("the body broke off"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if whole.len() + data.len() > MAX_BODY {
            return Err(Status::too_large(MAX_BODY));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// The query's `fieldManager`, else the client's name: its User-Agent up to the first slash.
fn field_manager(query: &Query, headers: &HeaderMap) -> String {
    let agent = headers
        .get(header::USER_AGENT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let agent = agent.split('/').next().unwrap_or_default();
    let named = query.get("fieldManager").filter(|name| !name.is_empty());
    let name = named.unwrap_or(agent);
    name[..name.floor_char_boundary(MAX_FIELD_MANAGER)].to_owned()
}
