//! `execute`: a command, run by a shell in the sandbox.

use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};

use super::{
    answer,
    error::{is_timeout, of_gateway},
    path::DIRECTORY,
    router::Visit,
};
use crate::{
    apiserver::{Body, RequestBody, Status},
    sandboxd::{ExecReply, ExecRequest},
};

/// Longest request. A daemon takes 1 MiB, of which the command is most.
const MAX_REQUEST: usize = 512 << 10;
/// What a shell says of a command that took too long.
const TIMED_OUT: i64 = 124;

/// What a client asks for.
#[derive(Deserialize)]
struct Request {
    command: String,
    #[serde(default)]
    timeout_seconds: Option<f64>,
}

/// What it is told.
#[derive(Serialize)]
struct Answer {
    stdout: String,
    stderr: String,
    exit_code: i64,
    timed_out: bool,
}

/// Runs the command. An exit code other than 0 is an answer as any other.
pub(super) async fn execute(
    visit: &Visit<'_>,
    body: RequestBody,
) -> Result<Response<Body>, Status> {
    let request = read(body).await?;
    let own = request.limit()?;
    let entry = visit.entry().await?;
    let left = visit.left();
    // A command that may take longer than its client waits is ended with the request.
    let own = own.filter(|own| *own <= left);
    let within = own.unwrap_or(left);
    let exec = ExecRequest {
        argv: ["/bin/sh", "-c", &request.command]
            .map(str::to_owned)
            .into(),
        cwd: DIRECTORY.to_owned(),
        timeout_seconds: within.as_secs_f64().ceil() as u64,
    };
    let gateway = visit.gateway();
    let answer = match gateway.exec(visit.sandbox(), &entry, &exec, within).await {
        Ok(reply) => Answer::from(reply),
        Err(error) => match own.filter(|_| is_timeout(&error)) {
            Some(own) => Answer::timed_out(own),
            None => return Err(of_gateway(visit.key(), &error)),
        },
    };
    let about = answer.stdout.len() + answer.stderr.len();
    answer::json(visit, answer, about).await
}

impl Request {
    /// How long the command may take, if it says so.
    fn limit(&self) -> Result<Option<Duration>, Status> {
        let Some(seconds) = self.timeout_seconds else {
            return Ok(None);
        };
        let limit = Duration::try_from_secs_f64(seconds).ok();
        let limit = limit.filter(|limit| !limit.is_zero());
        let refused = || Status::bad_request("timeout_seconds is no time");
        limit.map(Some).ok_or_else(refused)
    }
}

impl From<ExecReply> for Answer {
    fn from(reply: ExecReply) -> Self {
        Self {
            stdout: reply.stdout,
            stderr: reply.stderr,
            exit_code: reply.exit_code,
            timed_out: false,
        }
    }
}

impl Answer {
    fn timed_out(after: Duration) -> Self {
        Self {
            stdout: String::new(),
            stderr: format!("Command timed out after {} seconds", after.as_secs_f64()),
            exit_code: TIMED_OUT,
            timed_out: true,
        }
    }
}

async fn read(mut body: RequestBody) -> Result<Request, Status> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Status::bad_request("the body broke off"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if whole.len() + data.len() > MAX_REQUEST {
            return Err(Status::too_large(MAX_REQUEST));
        }
        whole.extend_from_slice(&data);
    }
    serde_json::from_slice(&whole)
        .map_err(|error| Status::bad_request(format!("the body is no command: {error}")))
}
