//! Stands between a server and kube-apiserver: keeps what the server asks, and answers instead where it is told to.

use std::{
    convert::Infallible,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use super::subject::Subject;
use crate::{process::Directory, users::ADMIN};

/// Where kube-apiserver publishes whom to trust.
const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
pub(super) const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// A way to kube-apiserver, as the administrator. Dropped, it takes no more connections.
pub(super) struct Relay {
    state: Arc<State>,
    listener: JoinHandle<()>,
    directory: Directory,
}

/// What a server asked.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) method: String,
    /// With its query.
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

/// What becomes of a question.
pub(super) enum Reply {
    /// What kube-apiserver says.
    Passed,
    /// This code and body.
    Said(u16, Value),
    /// Nothing, ever.
    Silence,
}

type Rule = dyn Fn(&Question) -> Reply + Send + Sync;

struct State {
    client: kube::Client,
    /// Where the ConfigMap is read from instead of `kube-system`.
    namespace: String,
    has_own_trust: Mutex<bool>,
    asked: Mutex<Vec<Question>>,
    rule: Mutex<Arc<Rule>>,
}

impl Relay {
    /// Passes on everything.
    pub(super) async fn start(subject: &Subject) -> Self {
        let mut config = subject.control_plane.config_as(ADMIN);
        config.default_retry = false;
        // Watches are quiet for long.
        config.read_timeout = None;
        let state = Arc::new(State {
            client: kube::Client::try_from(config).unwrap(),
            namespace: subject.namespace.clone(),
            has_own_trust: Mutex::new(false),
            asked: Mutex::default(),
            rule: Mutex::new(Arc::new(|_: &Question| Reply::Passed)),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let directory = Directory::create("relay-").unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "relay", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "relay", "context": {"cluster": "relay", "user": "nobody"}}],
            "current-context": "relay",
        });
        std::fs::write(directory.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        Self {
            listener: tokio::spawn(accept(listener, state.clone())),
            state,
            directory,
        }
    }

    /// The configuration of a client that goes this way.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// Lets the server trust what `data` says, and not what kube-apiserver publishes. Again, for a change.
    pub(super) async fn trust(&self, subject: &Subject, data: &Value) {
        let config_map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP, "namespace": subject.namespace},
            "data": data,
        });
        let apply = ["apply", "--server-side", "--filename=-"];
        let kubectl = subject.control_plane.kubectl();
        kubectl
            .stdout_with_input(&apply, &config_map.to_string())
            .await;
        *lock(&self.state.has_own_trust) = true;
    }

    /// Lets `rule` say what becomes of every question from now on.
    pub(super) fn rule(&self, rule: impl Fn(&Question) -> Reply + Send + Sync + 'static) {
        *lock(&self.state.rule) = Arc::new(rule);
    }

    /// What was asked so far.
    pub(super) fn asked(&self) -> Vec<Question> {
        lock(&self.state.asked).clone()
    }

    /// The specs of the SubjectAccessReviews about `user` so far.
    pub(super) fn reviews_of(&self, user: &str) -> Vec<Value> {
        let reviews = self.asked().into_iter().filter(Question::is_access_review);
        let specs = reviews.map(|review| review.body["spec"].clone());
        specs.filter(|spec| spec["user"] == user).collect()
    }

    /// How often somebody asked whose `token` it is.
    pub(super) fn n_token_reviews(&self, token: &str) -> usize {
        let asked = self.asked().into_iter();
        asked
            .filter(|question| question.is_about_token(token))
            .count()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Question {
    pub(super) fn is_access_review(&self) -> bool {
        self.path
            .starts_with("/apis/authorization.k8s.io/v1/subjectaccessreviews")
    }

    pub(super) fn is_token_review(&self) -> bool {
        self.path
            .starts_with("/apis/authentication.k8s.io/v1/tokenreviews")
    }

    pub(super) fn is_about_token(&self, token: &str) -> bool {
        self.is_token_review() && self.body["spec"]["token"] == token
    }

    pub(super) fn is_about_user(&self, user: &str) -> bool {
        self.is_access_review() && self.body["spec"]["user"] == user
    }

    pub(super) fn is_about_trust(&self) -> bool {
        self.path.starts_with(CONFIG_MAPS)
    }

    /// The review, answered with this status.
    pub(super) fn with_status(&self, status: &Value) -> Reply {
        let mut review = self.body.clone();
        review["status"] = status.clone();
        Reply::Said(201, review)
    }
}

/// kube-apiserver's refusal with this code.
pub(super) fn failure(code: u16) -> Reply {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "on purpose"});
    Reply::Said(code, status)
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let state = state.clone();
        let service = service_fn(move |request| answer(state.clone(), request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, kube::Error>>;

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let question = Question {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        headers: head.headers.clone(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    lock(&state.asked).push(question.clone());
    let rule = lock(&state.rule).clone();
    match rule(&question) {
        Reply::Passed => {}
        Reply::Said(code, body) => return Ok(json_answer(code, &body)),
        Reply::Silence => std::future::pending().await,
    }
    let path = match *lock(&state.has_own_trust) {
        true => question.path.replace(
            "/kube-system/configmaps",
            &format!("/{}/configmaps", state.namespace),
        ),
        false => question.path,
    };
    let mut passed = Request::builder().method(head.method).uri(path);
    for name in [header::CONTENT_TYPE, header::ACCEPT] {
        passed = match head.headers.get(&name) {
            Some(value) => passed.header(name, value),
            None => passed,
        };
    }
    let sent = state
        .client
        .send(passed.body(Body::from(body.to_vec())).unwrap());
    let Ok(response) = sent.await else {
        return Ok(json_answer(502, &json!({})));
    };
    let mut answer = Response::new(());
    *answer.status_mut() = response.status();
    if let Some(value) = response.headers().get(header::CONTENT_TYPE) {
        answer
            .headers_mut()
            .insert(header::CONTENT_TYPE, value.clone());
    }
    Ok(answer.map(|()| response.into_body().boxed_unsync()))
}

fn json_answer(code: u16, body: &Value) -> Answer {
    let body = http_body_util::Full::from(body.to_string());
    let body = body.map_err(|never| match never {}).boxed_unsync();
    let answer = Response::builder().status(code);
    let answer = answer.header(header::CONTENT_TYPE, "application/json");
    answer.body(body).unwrap()
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}
