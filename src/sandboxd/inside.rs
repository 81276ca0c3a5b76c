//! Into a sandbox: commands, and the way to the agent of its guest.
//!
//! Each call has a connection of its own, beside those that are kept: it may take minutes, and must not take the place that a
//! claim or a release needs. It ends with its connection, on the node and in the guest.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::{
    Error, Guest, Node, Result,
    answer::{Answer, ORDINARY, OUTPUT},
    client::{body, sandbox_path},
    token::bearer,
};
use crate::api::{ClaimId, Token};

const PROTOCOL: HeaderValue = HeaderValue::from_static("silkd");

/// Body of `POST /v1/sandboxes/{id}/exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExecRequest {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Where it runs.
    pub cwd: String,
    /// When it is killed, in seconds; 0 for never.
    pub timeout_seconds: u64,
}

/// What a command said, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ExecReply {
    /// 0 for success; -1 when it was killed.
    pub exit_code: i64,
    /// Its output, U+FFFD in place of what is no UTF-8.
    #[serde(default)]
    pub stdout: String,
    /// What it complained of.
    #[serde(default)]
    pub stderr: String,
}

impl Node<'_> {
    /// Runs a command to its end. Never repeated: without an answer it may have run. The deadline of the node is for all of it.
    ///
    /// # Errors
    /// A [`Error::ServerError`] of 504 when the command took too long, 502 when the guest cannot be reached, 503 when the node has no
    /// room for its output; a [`Error::BadRequest`] of 413 when that is over 8 MiB, of 400 when the command cannot be started.
    ///
    /// Source: `POST /v1/sandboxes/{id}/exec`, which takes the sandbox's own token and no other.
    pub async fn exec(
        &self,
        id: &ClaimId,
        token: &Token,
        request: &ExecRequest,
    ) -> Result<ExecReply> {
        let path = sandbox_path(id, "/exec");
        let request = self.of_sandbox(Method::POST, &path, Some(body(request)), token)?;
        let mut sent = false;
        let exchange = async {
            let (response, _connection) = self.ask_apart(request, &mut sent).await?;
            Answer::read(response, OUTPUT, &self.client.inner.outputs).await
        };
        let answer = timeout_at(Instant::now() + self.within, exchange).await;
        self.in_time(answer, sent)?.json().await
    }

    /// A connection to the guest's agent. Wakes a sandbox that is paused.
    ///
    /// Source: `GET /v1/sandboxes/{id}/agent`.
    pub async fn guest(&self, id: &ClaimId, token: &Token) -> Result<Guest> {
        let mut request = self.of_sandbox(Method::GET, &sandbox_path(id, "/agent"), None, token)?;
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, PROTOCOL);
        let mut sent = false;
        let exchange = async {
            let (response, _connection) = self.ask_apart(request, &mut sent).await?;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                let upgraded = hyper::upgrade::on(response).await;
                return upgraded.map(Guest::new).map_err(Error::Interrupted);
            }
            let answer = Answer::read(response, ORDINARY, &self.client.inner.outputs).await?;
            Err(answer.unexpected())
        };
        let answer = timeout_at(Instant::now() + self.within, exchange).await;
        self.in_time(answer, sent)
    }

    /// A request under a sandbox's own token.
    fn of_sandbox(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        token: &Token,
    ) -> Result<Request<Full<Bytes>>> {
        // What is asked of a guest changes it, whatever the method.
        self.client.check_fence()?;
        let token = bearer(token.expose()).map_err(|reason| Error::NoToken { reason })?;
        Ok(self.request(method, path, body, Some(token)))
    }

    /// The head of the answer, with the connection that it comes over. `sent` becomes true before anything is sent.
    async fn ask_apart(
        &self,
        request: Request<Full<Bytes>>,
        sent: &mut bool,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>)> {
        let connections = &self.client.inner.connections;
        let mut connection = connections
            .connect(self.address)
            .await
            .map_err(Error::Unreachable)?;
        *sent = true;
        let response = connection.send_request(request).await;
        Ok((response.map_err(Error::Interrupted)?, connection))
    }
}
