//! How much a client may ask for, and for how long.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::Request;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::client::conn::http2::SendRequest;
use sandbox_apiserver::serving::PemPair;
use serde_json::json;

use crate::{
    conformance::{server::Server, subject::Subject},
    stage::{self, eventually},
    tls_client,
};

const BODY_LIMIT: usize = 3 << 20;
/// A custom resource has shorter names, so that a body for it gets shorter.
const OVER: usize = 1 << 10;
const SOON: Duration = Duration::from_secs(20);
/// More than the writes that a server takes at once, and than its reads.
const WRITES: usize = 210;
const READS: usize = 1_200;
/// Streams that are opened on one connection, of the 250 that it may have.
const STREAMS: usize = 240;

pub(super) async fn c_203(subject: &Subject) {
    for (client, name) in subject.both_ways().into_iter().zip(["proxied", "direct"]) {
        let path = format!("{}?fieldValidation=Ignore", subject.collection());
        // The filler is a field that nobody knows, so that it is dropped where it is taken.
        let of_size = |size: usize| {
            let mut object = subject.mk(name);
            object["filler"] = json!("");
            let filler = "x".repeat(size - object.to_string().len());
            object["filler"] = filler.into();
            object.to_string()
        };
        let whole = client.send("POST", &path, &[], &of_size(BODY_LIMIT)).await;
        assert_eq!(whole.status, 201, "{:#}", whole.body);
        for (method, path) in [("POST", path), ("PUT", subject.item(name))] {
            let over = client
                .send(method, &path, &[], &of_size(BODY_LIMIT + OVER))
                .await;
            over.expect(413, "RequestEntityTooLarge");
            let message = "Request entity too large: limit is 3145728";
            assert_eq!(over.body["message"], message);
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
        let answer = client.post(&path, &object).await;
        // kube-apiserver keeps the same time, and its own Status has no kind.
        let found = (answer.status.as_u16(), &answer.body["reason"]);
        assert_eq!(found, (504, &json!("Timeout")), "{:#}", answer.body);
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
    let mut server = subject.server(&["--authorization-ask-every-name"]);
    server.ready().await;
    let dry = format!("{}?dryRun=All", subject.collection());
    let (client, object) = (server.client_as(&user), subject.mk("a"));
    eventually(SOON, "the role is in force", async || {
        client.post(&dry, &object).await.status != 403
    })
    .await;

    let flood = hanging_writes(subject, &server, &user).await;
    let refused = loop {
        let answer = client.post(&dry, &object).await;
        if answer.status != 201 {
            break answer;
        }
    };
    refused.expect(429, "TooManyRequests");
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(refused.retry_after(), Some(1));
    // Reads have places of their own, streams need none, and masters are never refused.
    client.get(&subject.collection()).await.ok();
    let watch = format!("{}?watch=true&timeoutSeconds=1", subject.collection());
    let mut watch = client.watch(&watch).await;
    server.client().post(&dry, &object).await.ok();
    assert!(watch.ends(SOON).await);
    drop(flood);
    eventually(SOON, "there is place again", async || {
        client.post(&dry, &object).await.status == 201
    })
    .await;
    many_reads(subject, &server, &user).await;
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

/// An HTTP/2 connection of the user.
async fn connect(subject: &Subject, server: &Server, user: &str) -> Sender {
    let auth = subject.control_plane.config_as(user).auth_info;
    let read = |path: Option<String>| std::fs::read_to_string(path.unwrap()).unwrap();
    let pair = PemPair {
        certificate: read(auth.client_certificate),
        private_key: read(auth.client_key),
    };
    let tls = tls_client::config(&server.ca, Some(&pair), &["h2"]);
    let stream = tls_client::connect(server.address, tls).await;
    tls_client::http2(stream.unwrap()).await
}

/// Writes whose bodies never come to their ends. They go with what is returned.
async fn hanging_writes(subject: &Subject, server: &Server, user: &str) -> Vec<impl Sized + use<>> {
    let mut sender = connect(subject, server, user).await;
    let mut hanging = Vec::new();
    for _ in 0..WRITES {
        let begun = stream::once(async { Ok(Frame::data(Bytes::from_static(b"{"))) });
        let body = StreamBody::new(begun.chain(stream::pending()));
        let request = Request::post(format!("https://localhost{}", subject.collection()))
            .header("content-type", "application/json")
            .body(tls_client::Body::new(body));
        sender.ready().await.unwrap();
        hanging.push(tokio::spawn(sender.send_request(request.unwrap())));
    }
    let guards = hanging
        .into_iter()
        .map(|task| AbortOnDrop(task.abort_handle()));
    guards.collect()
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Each is for another name, about which kube-apiserver has to be asked: they are in flight so long.
async fn many_reads(subject: &Subject, server: &Server, user: &str) {
    let mut reads = Vec::new();
    for connection in 0..READS / STREAMS {
        let mut sender = connect(subject, server, user).await;
        for n in 0..STREAMS {
            let path = subject.item(&format!("absent-{connection}-{n}"));
            sender.ready().await.unwrap();
            reads.push(sender.send_request(tls_client::get(&path)));
        }
    }
    let answers = futures::future::join_all(reads).await;
    let mut codes: Vec<u16> = Vec::new();
    for answer in answers {
        let answer = answer.unwrap();
        codes.push(answer.status().as_u16());
        if answer.status() == 429 {
            assert_eq!(answer.headers()["retry-after"], "1");
        }
    }
    let n = |code: u16| codes.iter().filter(|known| **known == code).count();
    assert_eq!(n(404) + n(429), codes.len(), "{codes:?}");
    assert!(
        n(404) >= 400 && n(429) > 0,
        "{} found out, {} refused",
        n(404),
        n(429)
    );
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
