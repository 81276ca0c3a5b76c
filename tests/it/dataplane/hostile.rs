//! Bodies that do not end, clients that go, nodes that are silent.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use sandbox_apiserver::sim;
use serde_json::json;
use tokio::time::timeout;

use super::{BOUNDARY, ROUTER, form, mk_bytes, mk_cluster};
use crate::{
    harness::{ADMIN, Answer, Cluster, SOON, mk_request, until},
    tls_client::Body,
};

const MANY: usize = 16;

fn mk_body(pieces: impl futures::Stream<Item = Bytes> + Send + Sync + 'static) -> Body {
    let frames = pieces.map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
    BodyExt::boxed(StreamBody::new(frames))
}

/// The answer to an upload of this body.
async fn upload(cluster: &Cluster, headers: &[(&str, &str)], body: Body) -> Answer {
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let mut all = vec![("x-sandbox-id", "box"), ("content-type", kind.as_str())];
    all.extend(headers);
    let request = mk_request(ADMIN, "POST", &format!("{ROUTER}/upload"), &all, body);
    // A refusal may come while the body is on its way; the connection is the call's own.
    let client = cluster.door.client(ADMIN).await;
    Answer::of(client.send(request).await).await
}

async fn silenced(cluster: &Cluster, path: &str) {
    let fault = sim::Fault {
        kind: sim::FaultKind::Hang,
        method: None,
        path: path.to_owned(),
        times: None,
    };
    assert!(cluster.nodes.nodes()[0].inject(fault).await);
}

#[tokio::test]
async fn a_body_that_is_no_form_is_refused() {
    let cluster = mk_cluster("box").await;
    let whole = |bytes: Vec<u8>| mk_body(stream::iter([Bytes::from(bytes)]));
    let file = form("file", "a", b"x");
    let cut = file[..file.len() - BOUNDARY.len() - 6].to_vec();
    for (what, headers, body) in [
        ("nothing", vec![], Vec::new()),
        ("another field", vec![], form("other", "a", b"x")),
        ("no end", vec![], cut),
        (
            "another kind",
            vec![("content-type", "text/plain")],
            file.clone(),
        ),
        (
            "no boundary",
            vec![("content-type", "multipart/form-data")],
            file,
        ),
    ] {
        let sandbox = cluster.sandbox("box");
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        let answer = match headers.first() {
            None => upload(&cluster, &[], whole(body)).await,
            Some(&header) => sandbox.call("POST", "upload", &[header], body).await,
        };
        assert_eq!(answer.code(), 400, "{what} ({kind}): {}", answer.text());
    }
    let exists = cluster.sandbox("box").get("exists/a").await;
    assert_eq!(exists.json()["exists"], false);
}

#[tokio::test]
async fn a_body_without_an_end_is_given_up() {
    let cluster = mk_cluster("box").await;
    let piece = Bytes::from(vec![b'a'; 16 << 10]);
    let refused = upload(&cluster, &[], mk_body(stream::repeat(piece))).await;
    refused.refusal(400, "BadRequest");
    let length = [("content-length", "300000000")];
    let refused = upload(&cluster, &length, mk_body(stream::pending())).await;
    refused.refusal(413, "RequestEntityTooLarge");
    until("the calls are over", || cluster.open_calls() == 0.0).await;
}

#[tokio::test]
async fn a_file_is_written_though_its_body_does_not_end() {
    let cluster = mk_cluster("box").await;
    let file = form("file", "a", b"x");
    let all_but_the_end = Bytes::from(file[..file.len() - 4].to_vec());
    let next = Bytes::from_static(b"\r\nContent-Disposition: form-data; name=\"b\"\r\n\r\n");
    let body = stream::iter([all_but_the_end, next]).chain(stream::pending());
    let written = timeout(SOON, upload(&cluster, &[], mk_body(body))).await;
    assert_eq!(written.expect("an answer").code(), 200);
    let read = cluster.sandbox("box").get("download/a").await;
    assert_eq!(read.text(), "x");
}

#[tokio::test]
async fn an_upload_whose_client_goes_leaves_what_was_there() {
    let cluster = mk_cluster("box").await;
    cluster.sandbox("box").upload("a", b"before").await;
    let before = cluster.nodes.nodes()[0].log().len();
    let head = form("file", "a", &mk_bytes(100_000));
    let head = Bytes::from(head[..90_000].to_vec());
    let body = mk_body(stream::iter([head]).chain(stream::pending()));
    {
        let going = upload(&cluster, &[], body).fuse();
        let mut going = std::pin::pin!(going);
        let writes = until("the guest is written to", || {
            let log = cluster.nodes.nodes()[0].log();
            log[before..]
                .iter()
                .any(|request| request.path.ends_with("/agent"))
                && cluster.open_calls() == 1.0
        });
        tokio::select! {
            answer = &mut going => panic!("{}", answer.text()),
            () = writes => {}
        }
    }
    until("the call is over", || cluster.open_calls() == 0.0).await;
    let left = "sandbox_apiserver_dataplane_calls_total{action=\"upload\",result=\"left\"}";
    until("it is counted", || cluster.series(left) == 1.0).await;
    let read = cluster.sandbox("box").get("download/a").await;
    assert_eq!(read.text(), "before");
}

#[tokio::test]
async fn a_command_ends_with_its_client() {
    let cluster = mk_cluster("box").await;
    {
        let client = cluster.door.client(ADMIN).await;
        let command = json!({"command": "sleep 100; echo late > late"}).to_string();
        let path = format!("{ROUTER}/execute");
        let headers = [("x-sandbox-id", "box")];
        let mut running = Box::pin(client.request("POST", &path, &headers, command));
        let node = &cluster.nodes.nodes()[0];
        let runs = until("it runs", || {
            node.log()
                .iter()
                .any(|request| request.path.ends_with("/exec"))
        });
        tokio::select! {
            answer = &mut running => panic!("{}", answer.text()),
            () = runs => {}
        }
    }
    until("the call is over", || cluster.open_calls() == 0.0).await;
    until("the node hears of it", || {
        let log = cluster.nodes.nodes()[0].log();
        let mut commands = log.iter().filter(|request| request.path.ends_with("/exec"));
        commands.all(|command| command.outcome == "hung up")
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_takes_so_many_calls_and_another_its_own() {
    let cluster = mk_cluster("box").await;
    cluster.create("other").await;
    let sandbox = cluster.sandbox("box");
    let slow = json!({"command": "sleep 100"});
    let mut running: futures::stream::FuturesUnordered<_> =
        (0..MANY).map(|_| sandbox.ask(&slow)).collect();
    let full = until("all run", || cluster.open_calls() == MANY as f64);
    tokio::select! {
        answer = running.next() => panic!("{answer:?}"),
        () = full => {}
    }
    let refused = sandbox.get("exists/a").await;
    refused.refusal(429, "TooManyRequests");
    assert_eq!(
        cluster.sandbox("other").execute("pwd").await["exit_code"],
        0
    );
    drop(running);
    until("they are over", || cluster.open_calls() == 0.0).await;
    assert_eq!(sandbox.get("exists/a").await.code(), 200);
}

#[tokio::test]
async fn a_node_that_is_silent_costs_no_more_than_the_time_that_was_given() {
    let cluster = mk_cluster("box").await;
    let sandbox = cluster.sandbox("box");
    let soon = [("x-sandbox-timeout", "0.3")];
    for path in [
        "/v1/sandboxes/*/agent",
        "/v1/sandboxes/*/exec",
        "/v1/sandboxes/*",
    ] {
        silenced(&cluster, path).await;
        let command = json!({"command": "pwd"}).to_string();
        let asked = match path.ends_with("exec") {
            true => sandbox.call("POST", "execute", &soon, command),
            false => sandbox.call("GET", "list/", &soon, String::new()),
        };
        let answer = timeout(SOON, asked).await.expect("an end");
        answer.refusal(504, "Timeout");
        cluster.nodes.nodes()[0].clear_faults().await;
    }
    // The node's silence is told before the client's time is over.
    silenced(&cluster, "/v1/sandboxes/*/agent").await;
    sandbox.get("list/").await.refusal(504, "Timeout");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_sent_everything() {
    // Several times what a client's connection takes in before anybody reads it: 2 MiB.
    const SIZE: usize = 12 << 20;
    let cluster = mk_cluster("box").await;
    cluster.sandbox("box").upload("a", &vec![7; SIZE]).await;
    let client = cluster.door.client(ADMIN).await;
    let path = format!("{ROUTER}/download/a");
    let answer = client
        .open("GET", &path, &[("x-sandbox-id", "box")], "")
        .await;
    let sent =
        || cluster.series("sandbox_apiserver_dataplane_transferred_bytes_total{direction=\"out\"}");
    until("it begins", || sent() > 0.0).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(sent() < (SIZE / 2) as f64, "{} bytes", sent());
    let answer = Answer::of(answer).await;
    assert_eq!(answer.body.len(), SIZE);
    assert_eq!(sent(), SIZE as f64);
    until("the call is over", || cluster.open_calls() == 0.0).await;
}

#[tokio::test]
async fn an_answer_that_nobody_takes_ends_with_its_call() {
    // As JSON six times as much, and more than a client's connection takes in before anybody reads it.
    const SIZE: usize = 2 << 20;
    let cluster = mk_cluster("box").await;
    cluster.sandbox("box").upload("a", &vec![7; SIZE]).await;
    cluster.sandbox("box").upload("b", &vec![7; 6 * SIZE]).await;
    let command = json!({"command": "cat a"}).to_string();
    for (method, path, body) in [("POST", "execute", &*command), ("GET", "download/b", "")] {
        let client = cluster.door.client(ADMIN).await;
        let path = format!("{ROUTER}/{path}");
        let headers = [("x-sandbox-id", "box"), ("x-sandbox-timeout", "5")];
        let answer = client.open(method, &path, &headers, body.to_owned()).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(cluster.open_calls(), 1.0, "{path}");
        until("the call is over", || cluster.open_calls() == 0.0).await;
        let whole = timeout(SOON, answer.into_body().collect()).await;
        assert!(
            whole.expect("an end").is_err(),
            "{path}: a part for a whole"
        );
    }
    let failed = ["execute", "download"].map(|action| {
        cluster.series(&format!(
            "sandbox_apiserver_dataplane_calls_total{{action=\"{action}\",result=\"failed\"}}"
        ))
    });
    assert_eq!(failed, [1.0, 1.0]);
}

#[tokio::test]
async fn a_long_answer_comes_whole() {
    const SIZE: usize = 3 << 20;
    let cluster = mk_cluster("box").await;
    let sandbox = cluster.sandbox("box");
    sandbox.upload("a", &vec![b'a'; SIZE]).await;
    let said = sandbox.execute("cat a").await;
    assert_eq!(said["stdout"].as_str().map(str::len), Some(SIZE));
    let done = "sandbox_apiserver_dataplane_calls_total{action=\"execute\",result=\"done\"}";
    assert_eq!(cluster.series(done), 1.0);
    assert_eq!(cluster.open_calls(), 0.0);
}

#[tokio::test]
async fn a_server_that_ends_takes_no_calls() {
    let cluster = mk_cluster("box").await;
    cluster.door.closing.cancel();
    let refused = cluster.sandbox("box").get("exists/a").await;
    refused.refusal(503, "ServiceUnavailable");
}
