//! A client that shows every answer as it came: status, headers, body.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, BodyStream};
use kube::client::Body;
use serde_json::{Value, json};

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The body as JSON; as text if it is none.
    pub(crate) body: Value,
    /// The body as it came.
    pub(crate) bytes: Bytes,
}

/// Somebody who calls one server, and repeats nothing.
#[derive(Clone)]
pub(crate) struct Caller(kube::Client);

/// Events of a watch, a line each.
pub(crate) struct Events {
    /// Of the answer.
    pub(crate) headers: HeaderMap,
    body: BodyStream<Body>,
    rest: Vec<u8>,
}

impl Caller {
    pub(crate) fn new(mut config: kube::Config) -> Self {
        config.default_retry = false;
        Self(kube::Client::try_from(config).unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, None).await
    }

    /// The answer, if the server gives one.
    pub(crate) async fn try_get(&self, path: &str) -> Option<Answer> {
        let request = Request::get(path).body(Body::empty()).unwrap();
        self.try_send(request).await.ok()
    }

    /// The value of a series of the server's metrics, by the end of its name; for callers at its own port.
    ///
    /// # Panics
    /// When there is none.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics").await.ok();
        let lines = metrics.as_str().unwrap_or_default().lines();
        let mut samples = lines.filter_map(|line| line.split_once(' '));
        let sample = samples.find(|(series, _)| series.ends_with(name));
        let sample = sample.unwrap_or_else(|| panic!("no metric {name}: {metrics}"));
        sample.1.parse().unwrap()
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, Some(body)).await
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json");
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        self.send(request.body(Body::from(body)).unwrap()).await
    }

    /// Sends a request as it is.
    ///
    /// # Panics
    /// When there is no answer.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let what = format!("{} {}", request.method(), request.uri());
        match self.try_send(request).await {
            Ok(answer) => answer,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    pub(crate) async fn try_send(&self, request: Request<Body>) -> kube::Result<Answer> {
        let response = self.0.send(request).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body: serde_json::from_slice(&body).unwrap_or_else(|_| text()),
            bytes: body.clone(),
        })
    }

    /// Opens a watch. Returns when its headers are there.
    pub(crate) async fn watch(&self, path: &str) -> Events {
        self.stream(Request::get(path).body(Body::empty()).unwrap())
            .await
    }

    /// As [`Self::watch`], with a request as it is.
    pub(crate) async fn stream(&self, request: Request<Body>) -> Events {
        let what = request.uri().to_string();
        let (status, events) = self.try_stream(request).await.unwrap();
        assert_eq!(status, 200, "{what}");
        events
    }

    /// As [`Self::stream`], whatever the answer's status is, if there is an answer.
    pub(crate) async fn try_stream(
        &self,
        request: Request<Body>,
    ) -> kube::Result<(StatusCode, Events)> {
        let response = self.0.send(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let events = Events {
            headers,
            body: BodyStream::new(response.into_body()),
            rest: Vec::new(),
        };
        Ok((status, events))
    }
}

impl Answer {
    /// The answer's body, of a call that has to succeed.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.status.is_success(), "{}: {:#}", self.status, self.body);
        self.body
    }

    /// Asserts code and reason of a Status.
    #[track_caller]
    pub(crate) fn expect(&self, code: u16, reason: &str) {
        assert_eq!(
            (
                self.status.as_u16(),
                &self.body["reason"],
                &self.body["kind"]
            ),
            (code, &json!(reason), &json!("Status")),
            "{:#}",
            self.body
        );
        assert_eq!(self.body["code"], code, "{:#}", self.body);
    }

    /// The seconds of `Retry-After`, which have to be those of the Status as well.
    #[track_caller]
    pub(crate) fn retry_after(&self) -> Option<u64> {
        let header = self.headers.get("retry-after");
        let header = header.map(|value| value.to_str().unwrap().parse().unwrap());
        assert_eq!(
            header,
            self.body["details"]["retryAfterSeconds"].as_u64(),
            "{:#}",
            self.body
        );
        header
    }

    /// The reasons of the causes.
    pub(crate) fn causes(&self) -> Vec<&str> {
        let causes = self.body["details"]["causes"].as_array();
        let reasons = causes.into_iter().flatten();
        reasons
            .filter_map(|cause| cause["reason"].as_str())
            .collect()
    }
}

impl Events {
    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        self.try_next().await.expect("the stream ends in order")
    }

    /// The next event; `None` at the end of the stream, an error where it breaks off.
    pub(crate) async fn try_next(&mut self) -> kube::Result<Option<Value>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line).unwrap()));
            }
            let Some(frame) = self.body.next().await.transpose()? else {
                return Ok(None);
            };
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }

    /// The next event, or a panic when none comes within `within`.
    pub(crate) async fn next_within(&mut self, within: Duration) -> Value {
        let next = tokio::time::timeout(within, self.next()).await;
        next.expect("an event comes in time")
            .expect("the watch goes on")
    }
}
