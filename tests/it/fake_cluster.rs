//! Just enough of kube-apiserver to list and watch NodeInventories, and no Nodes, with faults on request.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::broadcast, task::JoinHandle};

const INVENTORIES: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/nodeinventories";

/// A cluster with inventories. Dropped, it takes no more connections.
pub(crate) struct Cluster {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    listener: JoinHandle<()>,
}

/// How the cluster behaves.
pub(crate) struct Rules {
    /// Whether it knows `sendInitialEvents`.
    pub(crate) streams_lists: bool,
    /// Whether it answers 403 to everything.
    pub(crate) forbidden: bool,
    /// An object that its lists leave out although it is there.
    pub(crate) left_out: Option<String>,
    /// How many questions for one object it answers with 500.
    pub(crate) fails: usize,
    expired: bool,
}

struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    rules: Rules,
    /// Lines for the open watches; an empty one cuts them.
    lines: broadcast::Sender<String>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            objects: BTreeMap::new(),
            version: 1,
            rules: Rules {
                streams_lists: true,
                forbidden: false,
                left_out: None,
                fails: 0,
                expired: false,
            },
            lines: broadcast::channel(1_000).0,
        }));
        let listener = tokio::spawn(serve(listener, state.clone()));
        Self {
            address,
            state,
            listener,
        }
    }

    pub(crate) fn client(&self) -> kube::Client {
        let uri = format!("http://{}", self.address).parse().unwrap();
        kube::Client::try_from(kube::Config::new(uri)).unwrap()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.lock().rules);
    }

    pub(crate) fn apply(&self, name: &str, object: Value) {
        let mut state = self.lock();
        let object = state.stamped(object);
        state.objects.insert(name.to_owned(), object.clone());
        state.say(&line("MODIFIED", &object));
    }

    pub(crate) fn delete(&self, name: &str) {
        let mut state = self.lock();
        let object = state.objects.remove(name).unwrap();
        let object = state.stamped(object);
        state.say(&line("DELETED", &object));
    }

    /// How many questions are still to fail.
    pub(crate) fn fails(&self) -> usize {
        self.lock().rules.fails
    }

    /// As during a gap in the watch.
    pub(crate) fn delete_unseen(&self, name: &str) {
        self.lock().objects.remove(name).unwrap();
    }

    /// Says something to the open watches.
    pub(crate) fn say(&self, line: &str) {
        self.lock().say(line);
    }

    /// Ends the open watches.
    pub(crate) fn cut(&self) {
        self.lock().say("");
    }

    /// The next watch that is resumed learns that its version is too old.
    pub(crate) fn expire(&self) {
        self.change(|rules| rules.expired = true);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let state = state.clone();
        let service = service_fn(move |request| {
            let answer = state.lock().unwrap().answer(&request);
            async { Ok::<_, Infallible>(answer) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl State {
    fn answer(&mut self, request: &Request<Incoming>) -> Answer {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or(""));
        let is_inventories = path == INVENTORIES;
        if self.rules.forbidden {
            return status(403, "Forbidden");
        }
        if let Some(name) = path.strip_prefix(&format!("{INVENTORIES}/")) {
            if let Some(rest) = self.rules.fails.checked_sub(1) {
                self.rules.fails = rest;
                return status(500, "InternalError");
            }
            return match self.objects.get(name) {
                Some(object) => {
                    json_answer(&json!({"metadata": object["metadata"]}), StatusCode::OK)
                }
                None => status(404, "NotFound"),
            };
        }
        if !query.contains("watch=true") {
            return json_answer(&self.page(is_inventories, query), StatusCode::OK);
        }
        let initial = query.contains("sendInitialEvents=true");
        match initial {
            true if !self.rules.streams_lists => status(422, "Invalid"),
            false if is_inventories && std::mem::take(&mut self.rules.expired) => {
                let expired = json!({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"});
                lines(vec![line("ERROR", &expired)], None)
            }
            _ => {
                let first = if initial {
                    self.list_lines(is_inventories)
                } else {
                    Vec::new()
                };
                let rest = is_inventories.then(|| self.lines.subscribe());
                lines(first, Some(rest.unwrap_or_else(|| broadcast::channel(1).1)))
            }
        }
    }

    fn listed(&self, is_inventories: bool) -> impl Iterator<Item = &Value> {
        let left_out = self.rules.left_out.as_ref();
        let objects = self.objects.iter().filter(move |_| is_inventories);
        objects
            .filter(move |(name, _)| Some(*name) != left_out)
            .map(|(_, object)| object)
    }

    /// One object a page.
    fn page(&self, is_inventories: bool, query: &str) -> Value {
        let start = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("continue=")?.parse().ok());
        let start: usize = start.unwrap_or(0);
        let mut rest = self.listed(is_inventories).skip(start);
        let items: Vec<_> = rest.next().into_iter().collect();
        let more = rest.next().map(|_| (start + 1).to_string());
        json!({"metadata": {"resourceVersion": self.version.to_string(), "continue": more}, "items": items})
    }

    fn list_lines(&self, is_inventories: bool) -> Vec<String> {
        let added = self
            .listed(is_inventories)
            .map(|object| line("ADDED", object));
        let metadata = json!({"resourceVersion": self.version.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}});
        let end = json!({"kind": "NodeInventory", "apiVersion": "v1", "metadata": metadata});
        added.chain([line("BOOKMARK", &end)]).collect()
    }

    fn stamped(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        object
    }

    fn say(&self, line: &str) {
        // Nobody may be watching.
        let _ = self.lines.send(line.to_owned());
    }
}

fn line(kind: &str, object: &Value) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

/// An answer of lines: these, then whatever is said. Without more to come it ends.
fn lines(first: Vec<String>, more: Option<broadcast::Receiver<String>>) -> Answer {
    let more = stream::unfold(more, async |more| {
        let mut more = more?;
        let line = more.recv().await;
        match line {
            Ok(line) if line.is_empty() => None,
            Ok(line) => Some((line, Some(more))),
            // Nothing is ever said here.
            Err(_) => std::future::pending().await,
        }
    });
    let lines = stream::iter(first).chain(more);
    let frames = lines.map(|line| Ok(Frame::data(Bytes::from(line + "\n"))));
    Response::new(StreamBody::new(frames).boxed_unsync())
}

fn status(code: u16, reason: &str) -> Answer {
    let body = json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": reason});
    json_answer(&body, StatusCode::from_u16(code).unwrap())
}

fn json_answer(body: &Value, status: StatusCode) -> Answer {
    let body = http_body_util::Full::from(body.to_string());
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = status;
    answer
}
