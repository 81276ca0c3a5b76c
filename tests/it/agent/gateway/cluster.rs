//! Just enough of kube-apiserver for a gateway: reviews, one warm pool, and SandboxClaims with their versions.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use sandbox_apiserver::serving::{Connection, ServeOptions, Transport, run};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::{CancellationToken, DropGuard};

const NAMESPACED: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/team/";

pub(super) struct Cluster {
    url: String,
    state: Arc<State>,
    /// Requests so far.
    pub(super) asked: Arc<AtomicU64>,
    _running: DropGuard,
}

#[derive(Default)]
struct State {
    claims: Mutex<BTreeMap<String, Value>>,
    version: AtomicU64,
    down: AtomicBool,
    unreviewed: AtomicBool,
    listed: AtomicBool,
    /// Requests whose paths have this wait until it is another.
    held: watch::Sender<Option<&'static str>>,
    waiting: AtomicU64,
}

impl Cluster {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (state, asked) = (Arc::<State>::default(), Arc::<AtomicU64>::default());
        let shutdown = CancellationToken::new();
        let (of_app, count) = (state.clone(), asked.clone());
        let app = move |_: Arc<Connection>, request: Request<Incoming>| {
            count.fetch_add(1, Ordering::SeqCst);
            answer(of_app.clone(), request)
        };
        let options = ServeOptions::default();
        let end = shutdown.clone();
        tokio::spawn(run(listener, Transport::Plain, app, options, end));
        Self {
            url,
            state,
            asked,
            _running: shutdown.drop_guard(),
        }
    }

    pub(super) fn client(&self) -> kube::Client {
        let mut config = kube::Config::new(self.url.parse().unwrap());
        config.default_retry = false;
        kube::Client::try_from(config).unwrap()
    }

    /// Whether writes of claims fail from now on.
    pub(super) fn set_down(&self, down: bool) {
        self.state.down.store(down, Ordering::SeqCst);
    }

    /// Whether reviews of tokens fail from now on.
    pub(super) fn set_unreviewed(&self, unreviewed: bool) {
        self.state.unreviewed.store(unreviewed, Ordering::SeqCst);
    }

    /// Requests whose paths have this get no answer until the next call.
    pub(super) fn hold(&self, held: Option<&'static str>) {
        self.state.held.send_replace(held);
    }

    /// How many requests wait.
    pub(super) fn waiting(&self) -> u64 {
        self.state.waiting.load(Ordering::SeqCst)
    }

    pub(super) fn claim(&self, name: &str) -> Option<Value> {
        self.state.claims.lock().unwrap().get(name).cloned()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.state.claims.lock().unwrap().keys().cloned().collect()
    }

    pub(super) fn is_being_deleted(&self, name: &str) -> bool {
        let claim = self.claim(name).unwrap();
        claim["metadata"]["deletionTimestamp"].is_string()
    }

    pub(super) fn has_listed(&self) -> bool {
        self.state.listed.load(Ordering::SeqCst)
    }

    /// A claim that somebody else made.
    pub(super) fn make(&self, name: &str, status: Value) {
        let claim = json!({"metadata": {"name": name, "namespace": "team"},
            "spec": {"warmPoolRef": {"name": "pool"}}, "status": status});
        self.state.put(name, claim);
    }

    pub(super) fn forget(&self, name: &str) {
        self.state.claims.lock().unwrap().remove(name);
    }
}

impl State {
    /// Stores an object, and gives it as stored.
    fn put(&self, name: &str, mut object: Value) -> Value {
        let version = self.version.fetch_add(1, Ordering::SeqCst) + 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object["metadata"]["uid"] = format!("uid-of-{name}").into();
        let mut claims = self.claims.lock().unwrap();
        claims.insert(name.to_owned(), object.clone());
        object
    }

    fn claim(&self, method: &Method, path: &str, body: Value) -> (StatusCode, Value) {
        if *method != Method::GET && self.down.load(Ordering::SeqCst) {
            return failure(500, "InternalError");
        }
        let (name, subresource) = path.split_once('/').unwrap_or((path, ""));
        let known = self.claims.lock().unwrap().get(name).cloned();
        match (method.as_str(), known, subresource) {
            ("GET", ..) if name.is_empty() => {
                self.listed.store(true, Ordering::SeqCst);
                failure(500, "InternalError")
            }
            ("POST", ..) => {
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                assert_eq!(body["kind"], "SandboxClaim");
                if name.starts_with("refused") {
                    return failure(403, "Forbidden");
                }
                if self.claims.lock().unwrap().contains_key(&name) {
                    return failure(409, "AlreadyExists");
                }
                (StatusCode::CREATED, self.put(&name, body))
            }
            (_, None, _) => failure(404, "NotFound"),
            ("GET", Some(claim), _) => (StatusCode::OK, claim),
            ("PATCH", Some(mut claim), "status") => {
                if body["metadata"]["resourceVersion"] != claim["metadata"]["resourceVersion"] {
                    return failure(409, "Conflict");
                }
                claim["status"] = body["status"].clone();
                (StatusCode::OK, self.put(name, claim))
            }
            ("DELETE", Some(mut claim), _) => {
                assert_eq!(body["preconditions"]["uid"], claim["metadata"]["uid"]);
                claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                (StatusCode::OK, self.put(name, claim))
            }
            (method, ..) => panic!("{method} {path}"),
        }
    }
}

/// The users of a few tokens.
fn review(token: &str) -> Value {
    let name = match token {
        "team" | "other" => format!("system:serviceaccount:{token}:robot"),
        "ann" => "ann".to_owned(),
        _ => return json!({"authenticated": false}),
    };
    json!({"authenticated": true, "user": {"username": name}})
}

fn failure(code: u16, reason: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code});
    (StatusCode::from_u16(code).unwrap(), status)
}

/// The robot of the namespace `team` may claim there and nowhere else, and that of `other` in its own.
async fn answer(state: Arc<State>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut object: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = parts.uri.path();
    let is_held = |held: &Option<&str>| held.is_some_and(|held| path.contains(held));
    if is_held(&state.held.borrow()) {
        let mut held = state.held.subscribe();
        state.waiting.fetch_add(1, Ordering::SeqCst);
        let _ = held.wait_for(|held| !is_held(held)).await;
        state.waiting.fetch_sub(1, Ordering::SeqCst);
    }
    let (status, object) = if path.ends_with("/tokenreviews") {
        match state.unreviewed.load(Ordering::SeqCst) {
            true => failure(500, "InternalError"),
            false => {
                object["status"] = review(object["spec"]["token"].as_str().unwrap());
                (StatusCode::CREATED, object)
            }
        }
    } else if path.ends_with("/subjectaccessreviews") {
        let spec = &object["spec"];
        let asked = &spec["resourceAttributes"];
        let namespace = asked["namespace"].as_str().unwrap();
        let robot = format!("system:serviceaccount:{namespace}:robot");
        let allowed = spec["user"] == robot
            && asked["resource"] == "sandboxclaims"
            && asked["group"] == "extensions.agents.x-k8s.io"
            && (asked["verb"] == "create" || asked["verb"] == "delete");
        object["status"] = json!({"allowed": allowed});
        (StatusCode::CREATED, object)
    } else {
        match path.strip_prefix(NAMESPACED).unwrap_or_default() {
            "sandboxwarmpools/pool" => {
                let spec = json!({"sandboxTemplateRef": {"name": "template"}});
                (
                    StatusCode::OK,
                    json!({"metadata": {"name": "pool"}, "spec": spec}),
                )
            }
            "sandboxtemplates/template" => {
                let pod = json!({"spec": {"containers": [{"name": "c", "image": "python:3.12"}]}});
                (
                    StatusCode::OK,
                    json!({"metadata": {}, "spec": {"podTemplate": pod}}),
                )
            }
            path => match path.strip_prefix("sandboxclaims") {
                Some(claim) => state.claim(&parts.method, claim.trim_start_matches('/'), object),
                None => failure(404, "NotFound"),
            },
        }
    };
    let mut response = Response::new(Full::new(object.to_string().into()));
    *response.status_mut() = status;
    response
}
