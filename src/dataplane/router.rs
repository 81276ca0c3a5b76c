//! The routes: a request is led to its sandbox and to what is done there.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use http::{HeaderMap, Request, Response, request::Parts};
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    DataPlaneMetrics,
    calls::{Call, Calls, End},
    error::{of_gateway, unknown},
    execute::execute,
    files::{download, exists, list},
    target::{PATH, Route, Target},
    upload::upload,
};
use crate::{
    api::{GROUP, SandboxKey, V1BETA1},
    apiserver::{Annex, Body, Matter, RequestBody, Status},
    fleet::{Fleet, Phase, Sandbox},
    gateway::{Entry, Gateway},
    sandboxd::Guest,
    store::Stored,
};

/// Commands and files of the sandboxes of a fleet.
pub struct DataPlane {
    fleet: Arc<Fleet>,
    gateway: Gateway,
    calls: Calls,
    metrics: DataPlaneMetrics,
}

/// A call of a known sandbox.
pub(super) struct Visit<'a> {
    plane: &'a DataPlane,
    sandbox: Arc<Stored<Sandbox>>,
    key: SandboxKey,
    call: Arc<Call>,
    deadline: Instant,
    end: End,
}

impl DataPlane {
    /// The data plane over an index and the gateway to its nodes. New calls are refused by who asks it; those under way end soon
    /// after `shutdown`.
    pub fn new(
        fleet: Arc<Fleet>,
        gateway: Gateway,
        metrics: DataPlaneMetrics,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            fleet,
            gateway,
            calls: Calls::new(metrics.clone(), shutdown),
            metrics,
        }
    }

    /// The sandbox, if its node may still have it.
    fn find(&self, key: &SandboxKey) -> Result<Arc<Stored<Sandbox>>, Status> {
        let found = self.fleet.store().get(&key.namespace, &key.name);
        let is_over = |sandbox: &Sandbox| {
            sandbox.gone || sandbox.phase == Phase::Expired || sandbox.deleted_at.is_some()
        };
        found
            .filter(|found| !is_over(&found.value))
            .ok_or_else(|| unknown(key))
    }

    async fn answer(&self, request: Request<RequestBody>) -> Result<Response<Body>, Status> {
        let begun = Instant::now();
        let (head, body) = request.into_parts();
        let route = Route::read(&head)?;
        let Some(action) = route.action() else {
            return Ok(Response::new(Body::whole("ok")));
        };
        let Target { key, within } = Target::read(&head.headers)?;
        let sandbox = self.find(&key)?;
        let call = self.calls.begin(action, &key)?;
        let deadline = begun + within;
        let end = self.calls.end(deadline);
        let visit = Visit {
            plane: self,
            sandbox,
            key,
            call: call.clone(),
            deadline,
            end: end.clone(),
        };
        let answer = tokio::select! {
            answer = visit.make(route, &head.headers, body) => answer,
            status = end => Err(status),
        };
        // How another one ends is known once its answer is on its way.
        answer.inspect_err(|status| call.refused(status))
    }
}

impl Annex for DataPlane {
    fn path(&self) -> &'static str {
        PATH
    }

    fn matter(&self, head: &Parts) -> Result<Option<Matter>, Status> {
        let Some(action) = Route::read(head)?.action() else {
            return Ok(None);
        };
        let SandboxKey { namespace, name } = Target::read(&head.headers)?.key;
        Ok(Some(Matter {
            action: action.as_str(),
            group: GROUP,
            version: V1BETA1,
            resource: "sandboxes",
            subresource: "exec",
            namespace: namespace.into(),
            name: name.into(),
        }))
    }

    fn serve(
        &self,
        request: Request<RequestBody>,
    ) -> BoxFuture<'_, Result<Response<Body>, Status>> {
        self.answer(request).boxed()
    }
}

impl Visit<'_> {
    /// Does what was asked for. Dropped, it ends what is under way in the guest.
    async fn make(
        &self,
        route: Route,
        headers: &HeaderMap,
        body: RequestBody,
    ) -> Result<Response<Body>, Status> {
        match route {
            Route::Health => Err(Status::resource_not_found()),
            Route::Execute => execute(self, body).await,
            Route::Upload => upload(self, headers, body).await,
            Route::Download(path) => download(self, &path).await,
            Route::List(path) => list(self, &path).await,
            Route::Exists(path) => exists(self, &path).await,
        }
    }

    /// What opens the sandbox.
    pub(super) async fn entry(&self) -> Result<Entry, Status> {
        let entry = self.plane.gateway.entry(&self.sandbox.value).await;
        entry.map_err(|error| of_gateway(&self.key, &error))
    }

    /// A connection to the guest's agent, for one request.
    pub(super) async fn guest(&self, entry: &Entry) -> Result<Guest, Status> {
        let guest = self.plane.gateway.guest(&self.sandbox.value, entry).await;
        guest.map_err(|error| of_gateway(&self.key, &error))
    }

    pub(super) fn gateway(&self) -> &Gateway {
        &self.plane.gateway
    }

    pub(super) fn sandbox(&self) -> &Sandbox {
        &self.sandbox.value
    }

    pub(super) fn key(&self) -> &SandboxKey {
        &self.key
    }

    pub(super) fn call(&self) -> Arc<Call> {
        self.call.clone()
    }

    pub(super) fn end(&self) -> End {
        self.end.clone()
    }

    /// How long it may still take.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The counter of bytes that go this way.
    pub(super) fn bytes(&self, direction: &'static str) -> Counter {
        self.plane.metrics.bytes(direction)
    }
}
