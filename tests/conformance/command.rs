//! kubectl's commands: what they print, and what they ask the server for.

use serde_json::Value;

use super::subject::Subject;
use crate::{kubectl::Kubectl, twin};

/// What came of a command, as if it was about sandboxes.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) succeeded: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// kubectl in the check's namespace.
pub(super) struct Commands<'a> {
    subject: &'a Subject,
    kubectl: Kubectl,
}

impl<'a> Commands<'a> {
    pub(super) fn new(subject: &'a Subject) -> Self {
        Self {
            subject,
            kubectl: subject.kubectl(),
        }
    }

    /// With an editor that `kubectl edit` starts: a program and its arguments, to which the file is added.
    pub(super) fn with_editor(mut self, editor: &str) -> Self {
        self.kubectl = self.kubectl.with_editor(editor);
        self
    }

    pub(super) async fn run(&self, args: &[&str], input: &Value) -> Ran {
        let mut all = vec!["--namespace".to_owned(), self.subject.namespace.clone()];
        all.extend(args.iter().map(|arg| self.subject.said(arg)));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let input = self.subject.said(&input.to_string());
        let output = self.kubectl.run_with_input(&all, &input).await;
        let shown = |bytes: &[u8]| twin::of_twin(&String::from_utf8_lossy(bytes));
        Ran {
            succeeded: output.status.success(),
            stdout: shown(&output.stdout),
            stderr: shown(&output.stderr),
        }
    }

    /// What a command prints that has to succeed.
    #[track_caller]
    pub(super) fn ok(&self, args: &[&str], input: &Value) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            let ran = self.run(args, input).await;
            assert!(ran.succeeded, "{caller}: {args:?}: {ran:#?}");
            ran.stdout
        }
    }

    /// The requests for sandboxes that a successful command makes.
    pub(super) async fn requests(&self, args: &[&str], input: &Value) -> Vec<Request> {
        let mut all = args.to_vec();
        all.push("-v=8");
        let ran = self.run(&all, input).await;
        assert!(ran.succeeded, "{args:?}: {ran:#?}");
        requests(&ran.stderr)
    }
}

/// A request, as kubectl's log tells of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) verb: String,
    /// What follows the collection's path: `/name?query`.
    pub(super) target: String,
    pub(super) content_type: String,
    pub(super) body: Value,
}

impl Request {
    /// The verb and the target without its query.
    pub(super) fn line(&self) -> String {
        let path = self.target.split('?').next().unwrap_or_default();
        format!("{} {path}", self.verb)
    }

    /// Whether the query has the pair.
    pub(super) fn says(&self, pair: &str) -> bool {
        let query = self.target.split_once('?').unwrap_or_default().1;
        query.split('&').any(|said| said == pair)
    }
}

/// The lines of some requests.
pub(super) fn lines(requests: &[Request]) -> Vec<String> {
    requests.iter().map(Request::line).collect()
}

/// The requests for sandboxes in a log. A request's body comes before it, on a line of its own if it ends with one; its headers
/// come after it.
pub(super) fn requests(log: &str) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    let (mut body, mut is_open) = (Value::Null, false);
    let mut log = log.lines();
    while let Some(line) = log.next() {
        if let Some((_, text)) = line.split_once(r#""Request Body" body="#) {
            let text = match text {
                "<" => log.next().unwrap_or_default().trim().to_owned(),
                text => serde_json::from_str(text).unwrap_or_default(),
            };
            body = serde_json::from_str(&text).unwrap_or_default();
        } else if let Some((_, request)) = line.split_once(r#""Request" verb=""#) {
            let (verb, rest) = request.split_once('"').unwrap_or_default();
            let target = rest.split("/sandboxes").nth(1);
            is_open = target.is_some();
            if let Some(target) = target {
                requests.push(Request {
                    verb: verb.to_owned(),
                    target: target.split('"').next().unwrap_or_default().to_owned(),
                    content_type: String::new(),
                    body: std::mem::take(&mut body),
                });
            }
        } else if let (true, Some((_, value))) = (is_open, line.split_once("Content-Type: "))
            && let Some(request) = requests.last_mut()
        {
            request.content_type = value.to_owned();
            is_open = false;
        } else if line == " >" {
            is_open = false;
        }
    }
    requests
}
