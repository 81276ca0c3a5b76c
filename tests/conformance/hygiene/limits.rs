//! How much a client may ask for, and for how long.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::Request;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::client::conn::http2::SendRequest;
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};

use crate::{
    auth::certificate_of,
    caller::Answer,
    conformance::{
        client::MERGE,
        relay::{Relay, Reply},
        server::Server,
        subject::Subject,
    },
    stage::{self, eventually},
    tls_client,
    users::ADMIN,
};

const BODY_LIMIT: usize = 3 << 20;
/// A custom resource has shorter names, so that a body for it gets shorter.
const OVER: usize = 1 << 10;
const CHUNK: usize = 64 << 10;
const SOON: Duration = Duration::from_secs(20);
/// The writes that a server takes at once, and its reads.
const WRITES: usize = 200;
const READS: usize = 400;
/// Streams that are opened on one connection, of the 250 that it may have.
const STREAMS: usize = 240;

pub(super) async fn c_203(subject: &Subject) {
    for (n, name) in ["proxied", "direct"].into_iter().enumerate() {
        // A server that refuses a body ends the connection, on which the next request would be lost: each has its own.
        let client = || subject.both_ways()[n].clone();
        let path = format!("{}?fieldValidation=Ignore", subject.collection());
        // The filler is a field that nobody knows, so that it is dropped where it is taken.
        let of_size = |size: usize| {
            let mut object = subject.mk(name);
            object["filler"] = json!("");
            let filler = "x".repeat(size - object.to_string().len());
            object["filler"] = filler.into();
            object.to_string()
        };
        let whole = client()
            .send("POST", &path, &[], &of_size(BODY_LIMIT))
            .await;
        assert_eq!(whole.status, 201, "{:#}", whole.body);
        let over = of_size(BODY_LIMIT + OVER);
        for (method, path) in [("POST", path), ("PUT", subject.item(name))] {
            too_large(&client().send(method, &path, &[], &over).await);
        }
        let merge = [("content-type", MERGE)];
        let path = subject.item(name);
        too_large(&client().send("PATCH", &path, &merge, &over).await);
        too_large(&client().send("DELETE", &path, &[], &over).await);
        client().get(&path).await.ok();
    }
    nobody_is_told_how_long_it_gets(subject).await;
}

#[track_caller]
fn too_large(answer: &Answer) {
    answer.expect(413, "RequestEntityTooLarge");
    let message = "Request entity too large: limit is 3145728";
    assert_eq!(answer.body["message"], message);
}

/// A body in chunks, without a Content-Length.
async fn nobody_is_told_how_long_it_gets(subject: &Subject) {
    let admin = certificate_of(subject.control_plane, ADMIN);
    let path = subject.translated(&subject.item("proxied"));
    let all = subject.translated(&subject.collection());
    for (address, ca) in subject.endpoints() {
        for (method, path, media_type) in [
            ("POST", &all, "application/json"),
            ("PUT", &path, "application/json"),
            ("PATCH", &path, MERGE),
            ("DELETE", &path, "application/json"),
        ] {
            let tls = tls_client::config(&ca, Some(&admin), &["http/1.1"]);
            let stream = tls_client::connect(address, tls).await.unwrap();
            let mut sender = tls_client::http1(stream).await;
            let chunks = (BODY_LIMIT + OVER).div_ceil(CHUNK);
            let chunk = || Ok(Frame::data(Bytes::from_static(&[b' '; CHUNK])));
            let body = StreamBody::new(stream::iter((0..chunks).map(move |_| chunk())));
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header("host", "localhost")
                .header("content-type", media_type)
                .body(tls_client::Body::new(body))
                .unwrap();
            let answer = sender.send_request(request).await.unwrap();
            let code = answer.status().as_u16();
            let status: Value = serde_json::from_str(&tls_client::text(answer).await).unwrap();
            let found = (code, &status["reason"]);
            let expected = json!("RequestEntityTooLarge");
            assert_eq!(found, (413, &expected), "{method} {path}: {status:#}");
        }
    }
}

/// The limits of 60 s and 34 s themselves are not waited for: a node cannot keep the server so long, which waits 30 s at most.
pub(super) async fn c_204(subject: &Subject) {
    let (node, nodes) = (subject.own_node(), subject.nodes());
    let [proxied, direct] = subject.both_ways();
    for (n, client, name) in [(1, proxied, "proxied"), (2, direct, "direct")] {
        let late = json!({"late": {"millis": 3_000}});
        nodes.fail_once(node.index, late, "/v1/claim").await;
        let (object, began) = (stage::sandbox(name, &node.template), Instant::now());
        let path = format!("{}?timeout=1s", subject.collection());
        match client.try_post(&path, &object).await {
            // kube-apiserver keeps the same time, and its own Status has no kind.
            Some(answer) => {
                let found = (answer.status.as_u16(), &answer.body["reason"]);
                assert_eq!(found, (504, &json!("Timeout")), "{:#}", answer.body);
            }
            // It may also end the stream at the very moment.
            None => assert_eq!(name, "proxied"),
        }
        let took = began.elapsed();
        assert!(took < Duration::from_millis(2_900), "{took:?}");
        // Nobody was given a credential, so the VM goes back; until then the object is there to be seen.
        eventually(SOON, "what the node granted is released", async || {
            let calls = nodes.requests(node.index, "POST").await;
            let claims = calls.iter().filter(|(path, _)| path == "/v1/claim");
            let held = nodes.held_by(node.index, &subject.namespace).await;
            let shown = client.get(&subject.item(name)).await;
            claims.count() == n && held.is_empty() && shown.status == 404
        })
        .await;
    }
    let soon = format!("{}?timeout=soon", subject.collection());
    let answer = subject.direct().get(&soon).await;
    answer.expect(400, "BadRequest");
}

pub(super) async fn c_205(subject: &Subject) {
    let user = format!("flood-{}", subject.namespace);
    may_create_and_read(subject, &user).await;
    let relay = Relay::start(subject).await;
    let mut server = subject.server_through(&relay, &["--authorization-ask-every-name"]);
    server.ready().await;
    let dry = format!("{}?dryRun=All", subject.collection());
    let (client, object) = (server.client_as(&user), subject.mk("a"));
    eventually(SOON, "the role is in force", async || {
        client.post(&dry, &object).await.status != 403
    })
    .await;
    let flood = Flood {
        subject,
        server: &server,
        user: &user,
    };
    let watch = format!("{}?watch=true&timeoutSeconds=1", subject.collection());

    let held = flood.writes(WRITES + 1).await;
    flood.all_but_one_are_held(&held, WRITES).await;
    refused(&client.post(&dry, &object).await);
    // Reads have places of their own, streams need none, and masters are never refused.
    client.get(&subject.collection()).await.ok();
    let mut events = client.watch(&watch).await;
    server.client().post(&dry, &object).await.ok();
    assert!(events.ends(SOON).await);
    assert_eq!(held.answers(), [429], "one is too many, and only one");
    held.let_one_go();
    eventually(SOON, "there is place again", async || {
        client.post(&dry, &object).await.status == 201
    })
    .await;
    drop(held);

    // Nobody says whether they may read: they are in flight until the server has waited long enough.
    relay.rule(|question| match question.is_access_review() {
        true if question.body["spec"]["resourceAttributes"]["verb"] == "get" => Reply::Silence,
        _ => Reply::Passed,
    });
    flood.nothing_is_left().await;
    let held = flood.reads(READS + 1).await;
    flood.all_but_one_are_held(&held, READS).await;
    refused(&client.get(&subject.item("late")).await);
    client.post(&dry, &object).await.ok();
    client.watch(&watch).await;
    let absent = server.client().get(&subject.item("absent")).await;
    absent.expect(404, "NotFound");
    assert_eq!(held.answers(), [429], "one is too many, and only one");
    relay.rule(|_| Reply::Passed);
    drop(held);
    eventually(SOON, "there is place again", async || {
        client.get(&subject.item("absent")).await.status == 404
    })
    .await;
}

fn refused(answer: &Answer) {
    answer.expect(429, "TooManyRequests");
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(answer.retry_after(), Some(1));
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
}

async fn may_create_and_read(subject: &Subject, user: &str) {
    let kubectl = subject.control_plane.kubectl();
    let here = format!("--namespace={}", subject.namespace);
    let (verbs, user) = ("--verb=create,get,list,watch", format!("--user={user}"));
    let resource = "--resource=sandboxes.agents.x-k8s.io";
    kubectl
        .stdout(&["create", "role", "some", verbs, resource, &here])
        .await;
    let binding = ["create", "rolebinding", "some", "--role=some", &user, &here];
    kubectl.stdout(&binding).await;
}

type Sender = SendRequest<tls_client::Body>;

/// Somebody who asks a lot at once, of a server that nobody else asks.
struct Flood<'a> {
    subject: &'a Subject,
    server: &'a Server,
    user: &'a str,
}

/// Requests that are under way until they are let go, or this is dropped.
#[derive(Default)]
struct Held {
    tasks: JoinSet<()>,
    handles: Vec<AbortHandle>,
    /// The codes of the answers that came.
    answers: Arc<Mutex<Vec<u16>>>,
}

impl Flood<'_> {
    /// An HTTP/2 connection of the user.
    async fn connect(&self) -> Sender {
        let pair = certificate_of(self.subject.control_plane, self.user);
        let tls = tls_client::config(&self.server.ca, Some(&pair), &["h2"]);
        let stream = tls_client::connect(self.server.address, tls).await;
        tls_client::http2(stream.unwrap()).await
    }

    /// Writes whose bodies never come to their ends.
    async fn writes(&self, count: usize) -> Held {
        let path = self.subject.collection();
        self.hold(count, |_| {
            let begun = stream::once(async { Ok(Frame::data(Bytes::from_static(b"{"))) });
            let body = StreamBody::new(begun.chain(stream::pending()));
            Request::post(format!("https://localhost{path}"))
                .header("content-type", "application/json")
                .body(tls_client::Body::new(body))
                .unwrap()
        })
        .await
    }

    /// Each is for another name, about which kube-apiserver has to be asked.
    async fn reads(&self, count: usize) -> Held {
        let path = |n| self.subject.item(&format!("absent-{n}"));
        self.hold(count, |n| tls_client::get(&path(n))).await
    }

    async fn hold(
        &self,
        count: usize,
        request: impl Fn(usize) -> Request<tls_client::Body>,
    ) -> Held {
        let mut held = Held::default();
        let mut sender = None;
        for n in 0..count {
            if n.is_multiple_of(STREAMS) {
                sender = None;
            }
            let sender = match &mut sender {
                Some(sender) => sender,
                none => none.insert(self.connect().await),
            };
            sender.ready().await.unwrap();
            let (answer, answers) = (sender.send_request(request(n)), held.answers.clone());
            held.handles.push(held.tasks.spawn(async move {
                let code = answer.await.map_or(0, |answer| answer.status().as_u16());
                answers.lock().unwrap().push(code);
            }));
        }
        held
    }

    /// Waits until `places` requests are under way, and the one more is refused.
    async fn all_but_one_are_held(&self, held: &Held, places: usize) {
        eventually(
            SOON,
            "all places are taken and one is refused",
            async || self.in_flight().await == places && held.answers() == [429],
        )
        .await;
    }

    async fn nothing_is_left(&self) {
        eventually(SOON, "nothing is under way", async || {
            self.in_flight().await == 0
        })
        .await;
    }

    /// Requests that are under way beside this question.
    async fn in_flight(&self) -> usize {
        let metrics = self.server.client().get("/metrics").await;
        let text = String::from_utf8_lossy(&metrics.bytes).into_owned();
        let mut samples = text.lines().filter_map(|line| line.split_once(' '));
        let sample = samples.find(|(series, _)| series.ends_with("requests_in_flight"));
        let (_, count) = sample.unwrap_or_else(|| panic!("it is not counted: {text}"));
        count.parse::<usize>().unwrap() - 1
    }
}

impl Held {
    fn answers(&self) -> Vec<u16> {
        self.answers.lock().unwrap().clone()
    }

    fn let_one_go(&self) {
        let mut handles = self.handles.iter();
        let held = handles.find(|handle| !handle.is_finished());
        held.expect("one is under way").abort();
    }
}

/// Fairness between users is not built: whoever floods the server is refused, and who comes at the same time with it.
pub(super) async fn c_206(subject: &Subject) {
    subject.create("a").await;
    for (path, code) in [("a", 200), ("absent", 404)] {
        let answer = subject.direct().get(&subject.item(path)).await;
        assert_eq!(answer.status, code);
        assert!(
            answer.headers.contains_key("audit-id"),
            "{:?}",
            answer.headers
        );
        let mut names = answer.headers.keys();
        let claims = names.find(|name| name.as_str().starts_with("x-kubernetes-pf-"));
        assert_eq!(claims, None);
    }
}
