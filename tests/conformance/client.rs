//! A client that speaks of sandboxes, to whomever it talks.

use std::time::Duration;

use http::HeaderMap;
use kube::client::Body;
use serde_json::Value;

use crate::{
    caller::{self, Answer, Caller},
    twin,
};

/// What kubectl asks for to print rows.
pub(super) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
pub(super) const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
pub(super) const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
pub(super) const MERGE: &str = "application/merge-patch+json";
pub(super) const JSON_PATCH: &str = "application/json-patch+json";
pub(super) const APPLY: &str = "application/apply-patch+yaml";
/// Within which an event comes.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// One user at one server.
#[derive(Clone)]
pub(super) struct Client {
    caller: Caller,
    /// The other side serves twins, and is asked for those.
    is_twin: bool,
}

impl Client {
    pub(super) fn new(config: kube::Config, is_twin: bool) -> Self {
        Self {
            caller: Caller::new(config),
            is_twin,
        }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    /// The answer, if the server gives one.
    pub(super) async fn try_get(&self, path: &str) -> Option<Answer> {
        let request = self.request("GET", path, &[], "");
        self.caller.try_send(request).await.ok()
    }

    /// As [`Self::post`]; the answer, if the server gives one.
    pub(super) async fn try_post(&self, path: &str, body: &Value) -> Option<Answer> {
        let request = self.request("POST", path, &[], &body.to_string());
        self.caller.try_send(request).await.ok()
    }

    /// Asks for a media type.
    pub(super) async fn get_as(&self, path: &str, accept: &str) -> Answer {
        self.send("GET", path, &[("accept", accept)], "").await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[], &body.to_string()).await
    }

    pub(super) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send("PUT", path, &[], &body.to_string()).await
    }

    /// A patch of a media type; see [`MERGE`], [`JSON_PATCH`] and [`APPLY`].
    pub(super) async fn patch(&self, media_type: &str, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", media_type)];
        self.send("PATCH", path, &headers, &body.to_string()).await
    }

    pub(super) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], "").await
    }

    pub(super) async fn delete_with(&self, path: &str, options: &Value) -> Answer {
        self.send("DELETE", path, &[], &options.to_string()).await
    }

    /// Any request. A body without a `content-type` is JSON.
    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let request = self.request(method, path, headers, body);
        self.answer(request).await
    }

    /// A POST that does not say what its body is.
    pub(super) async fn post_untyped(&self, path: &str, body: &str) -> Answer {
        let mut request = self.request("POST", path, &[], body);
        request.headers_mut().remove("content-type");
        self.answer(request).await
    }

    async fn answer(&self, request: http::Request<Body>) -> Answer {
        let mut answer = self.caller.send(request).await;
        if self.is_twin
            && let Ok(text) = std::str::from_utf8(&answer.bytes)
        {
            let text = twin::of_twin(text);
            answer.body = serde_json::from_str(&text).unwrap_or(Value::String(text.clone()));
            answer.bytes = text.into();
        }
        answer
    }

    /// Opens a watch: `path` has the query. Returns when the answer's head is there.
    pub(super) async fn watch(&self, path: &str) -> Events {
        self.watch_with(path, &[]).await
    }

    /// As [`Self::watch`], with headers.
    pub(super) async fn watch_with(&self, path: &str, headers: &[(&str, &str)]) -> Events {
        let request = self.request("GET", path, headers, "");
        Events {
            events: self.caller.stream(request).await,
            is_twin: self.is_twin,
        }
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> http::Request<Body> {
        let translated = |text: &str| match self.is_twin {
            true => twin::for_twin(text),
            false => text.to_owned(),
        };
        let mut request = http::Request::builder()
            .method(method)
            .uri(translated(path));
        let has_type = headers.iter().any(|(name, _)| *name == "content-type");
        if !has_type && !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, translated(value));
        }
        let body = translated(body).into_bytes();
        request.body(Body::from(body)).unwrap()
    }
}

/// Events of a watch.
pub(super) struct Events {
    events: caller::Events,
    is_twin: bool,
}

impl Events {
    pub(super) fn headers(&self) -> &HeaderMap {
        &self.events.headers
    }

    /// The next event; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<Value> {
        let event = self.events.next().await?;
        Some(match self.is_twin {
            true => serde_json::from_str(&twin::of_twin(&event.to_string())).unwrap(),
            false => event,
        })
    }

    /// The next event, which has to come [`SOON`].
    pub(super) async fn event(&mut self) -> Value {
        let next = tokio::time::timeout(SOON, self.next()).await;
        next.expect("an event comes in time")
            .expect("the watch goes on")
    }

    /// Whether the stream ends within `within`, with no event before.
    pub(super) async fn ends(&mut self, within: Duration) -> bool {
        matches!(tokio::time::timeout(within, self.next()).await, Ok(None))
    }

    /// Whether nothing comes for `time`.
    pub(super) async fn is_silent(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.next()).await.is_err()
    }

    /// All events up to the bookmark that ends the initial ones, that one last.
    pub(super) async fn initial(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.event().await;
            let ends = event.to_string().contains("k8s.io/initial-events-end");
            events.push(event);
            if ends {
                return events;
            }
        }
    }
}
