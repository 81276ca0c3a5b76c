//! What answers while the server is being put together: health, and 503 for everything else.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{Request, Response};

use super::{
    ApiServer, Body, Status,
    audit::{audit_id, finish},
    body::status_response,
    negotiate::error_media_type,
    paths,
    query::Query,
    route::{Route, route},
    transform::Delivery,
};
use crate::{serving::Connection, telemetry::Readiness};

/// Seconds after which a client may ask a starting server again.
const RETRY_SECONDS: u32 = 5;

/// The door of a server that may not be there yet. A clone is the same door.
///
/// The listener opens before the server is ready, so that probes see a process that lives and clients get a Status and not a
/// refused connection.
#[derive(Clone, Debug)]
pub struct Entrance {
    readiness: Readiness,
    server: Arc<OnceLock<Arc<ApiServer>>>,
}

impl Entrance {
    /// A door with nothing behind it yet.
    pub fn new(readiness: Readiness) -> Self {
        Self {
            readiness,
            server: Arc::default(),
        }
    }

    /// Puts the server behind the door. The first one stays.
    pub fn open(&self, server: ApiServer) {
        let _ = self.server.set(Arc::new(server));
    }

    /// Answers a request.
    pub async fn handle<B>(self, connection: Arc<Connection>, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display,
    {
        match self.server.get() {
            Some(server) => server.clone().handle(connection, request).await,
            None => {
                let audit_id = audit_id(request.headers());
                let answer = self.starting(&request);
                let mut answer = Delivery::of(&request).apply(answer, false);
                finish(&mut answer, &audit_id);
                answer
            }
        }
    }

    fn starting<B>(&self, request: &Request<B>) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default();
        let path = Query::parse(query)
            .and_then(|query| route(request.method(), request.uri().path(), &query));
        if let Ok(Route::Path(path)) = &path
            && paths::is_health(&path.asked)
            && let Some(answer) = paths::health(&self.readiness, &path.served, query)
        {
            return answer;
        }
        let status = match path {
            Ok(Route::Resource(target)) => {
                Status::not_ready(target.verb, "the server is starting", RETRY_SECONDS)
            }
            Ok(Route::Path(_)) => {
                Status::unavailable("the server is starting").retry_after(RETRY_SECONDS)
            }
            Err(status) => status,
        };
        status_response(&status, error_media_type(request.headers()))
    }
}
