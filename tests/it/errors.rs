//! Refusals: every one a Status that clients can act on.

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use sandbox_apiserver::{
    apiserver::{Status, StatusCause},
    resources::sandbox_definition,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    golden,
    harness::{
        ADMIN, ALICE, Answer, Client, Cluster, SANDBOXES, item, mk_request, mk_sandbox, until,
    },
    tls_client::{self, config},
    widgets::{WIDGETS, Workshop},
};

const LIMIT: usize = 3 << 20;

#[test]
fn each_refusal_is_as_reviewed() {
    let definition = sandbox_definition().unwrap();
    let cause = StatusCause {
        field: "spec.x".to_owned(),
        ..StatusCause::new("FieldValueInvalid", "Invalid value: \"<y>\": no")
    };
    let rows = [
        Status::bad_request("no"),
        Status::unauthorized(),
        Status::forbidden("no"),
        Status::not_found(&definition, "a"),
        Status::other_not_found("namespaces", "ns"),
        Status::resource_not_found(),
        Status::method_not_allowed(&definition, "patch"),
        Status::not_acceptable(&["application/json", "application/yaml"]),
        Status::already_exists(&definition, "a"),
        Status::being_deleted(&definition, "a"),
        Status::conflict(&definition, "a", "no"),
        Status::expired("too old"),
        Status::too_large(LIMIT),
        Status::unsupported_media_type(&["application/json"]),
        Status::invalid("agents.x-k8s.io", "Sandbox", "a", vec![cause]),
        Status::too_many_requests("later", 1),
        Status::internal("no"),
        Status::unavailable("no"),
        Status::timeout("late"),
    ];
    let shown: Vec<Value> = rows.iter().map(Status::to_json).collect();
    golden::check("status.json", &json!(shown));
}

#[tokio::test]
async fn a_missing_object_is_named() {
    let cluster = Cluster::of(0).await;
    let status = cluster.client.get(item("x")).await.refusal(404, "NotFound");
    assert_eq!(
        status["message"],
        "sandboxes.agents.x-k8s.io \"x\" not found"
    );
    assert_eq!(
        status["details"],
        json!({"name": "x", "group": "agents.x-k8s.io", "kind": "sandboxes"})
    );
}

#[tokio::test]
async fn unknown_paths_and_resources_are_not_found() {
    let cluster = Cluster::of(0).await;
    for path in [
        "/",
        "/nowhere",
        "/api/v1/pods",
        "/apis/other.io",
        "/apis/agents.x-k8s.io/v9",
    ] {
        let answer = cluster.client.get(path).await;
        assert_eq!(
            (answer.code(), answer.text().trim()),
            (404, "404 page not found"),
            "{path}"
        );
        assert!(answer.header("content-type").starts_with("text/plain"));
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
    for path in [
        "/apis/agents.x-k8s.io/v1beta1/nothing",
        "/apis/agents.x-k8s.io/v9/namespaces/default/sandboxes",
        "/apis/other.io/v1/namespaces/default/sandboxes",
    ] {
        cluster.client.get(path).await.refusal(404, "NotFound");
    }
}

#[tokio::test]
async fn slashes_and_escapes_do_not_change_what_is_meant() {
    let cluster = Cluster::of(1).await;
    for path in [
        format!("{SANDBOXES}/"),
        SANDBOXES.replace("/sandboxes", "//sandboxes/"),
        SANDBOXES.replace("default", "de%66ault"),
    ] {
        assert_eq!(
            cluster.client.get(&path).await.names(),
            ["sb-000000"],
            "{path}"
        );
    }
    assert_eq!(cluster.client.get("/apis/").await.code(), 200);
    assert_eq!(cluster.client.get("/readyz/").await.code(), 200);
    let escaped = cluster.client.get(item("%ff")).await;
    escaped.refusal(400, "BadRequest");
}

#[tokio::test]
async fn methods_that_a_path_does_not_have_are_not_allowed() {
    let workshop = Workshop::open().await;
    for (method, path) in [
        ("PATCH", format!("{WIDGETS}/w")),
        ("DELETE", WIDGETS.to_owned()),
        ("PUT", WIDGETS.to_owned()),
        ("POST", format!("{WIDGETS}/w")),
        ("OPTIONS", WIDGETS.to_owned()),
        ("TRACE", WIDGETS.to_owned()),
        ("POST", "/apis".to_owned()),
        ("DELETE", "/version".to_owned()),
    ] {
        let refused = workshop.client.request(method, &path, &[], "").await;
        assert_eq!(refused.code(), 405, "{method} {path}: {}", refused.text());
        refused.refusal(405, "MethodNotAllowed");
    }
}

#[tokio::test]
async fn texts_carry_no_markup() {
    let cluster = Cluster::of(0).await;
    for path in [
        item("%3Cscript%3E"),
        format!("{SANDBOXES}?labelSelector=%3Cb%3E"),
    ] {
        let answer = cluster.client.get(&path).await;
        assert!(!answer.status.is_success());
        assert!(
            !answer.text().contains('<') && !answer.text().contains('>'),
            "{}",
            answer.text()
        );
    }
    let refused = cluster.client.post(SANDBOXES, &mk_sandbox("<b>")).await;
    refused.refusal(422, "Invalid");
    assert!(!refused.text().contains("<b>"), "{}", refused.text());
}

#[tokio::test]
async fn a_body_over_three_mebibytes_is_too_large() {
    let cluster = Cluster::of(0).await;
    let filler = |size: usize| {
        let mut sandbox = mk_sandbox("a");
        sandbox["x"] = "x".repeat(size).into();
        sandbox.to_string()
    };
    let whole = cluster
        .client
        .request("POST", SANDBOXES, &[], filler(LIMIT))
        .await;
    let status = whole.refusal(413, "RequestEntityTooLarge");
    assert_eq!(
        status["message"],
        "Request entity too large: limit is 3145728"
    );

    let chunk = Bytes::from(vec![b' '; 64 << 10]);
    let chunks = stream::iter((0..49).map(move |_| Ok(http_body::Frame::data(chunk.clone()))));
    let body = BodyExt::boxed(StreamBody::new(chunks));
    let response = cluster
        .client
        .send(mk_request(ADMIN, "POST", SANDBOXES, &[], body))
        .await;
    let chunked = Answer::of(response).await;
    chunked.refusal(413, "RequestEntityTooLarge");

    let just = filler(LIMIT - mk_sandbox("a").to_string().len() - 7);
    assert!(just.len() <= LIMIT);
    let fits = cluster.client.request("POST", SANDBOXES, &[], just).await;
    assert_eq!(fits.code(), 201, "{}", fits.text());
    assert!(
        cluster.client.get(item("a")).await.text().len() < 4_096,
        "pruned"
    );
}

#[tokio::test]
async fn a_body_that_is_not_as_long_as_it_says_does_nothing() {
    let cluster = Cluster::of(0).await;
    let head = |length: usize| {
        format!(
            "POST {SANDBOXES} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let body = mk_sandbox("a").to_string();
    // It promises more than it sends, and hangs up.
    let tls = config(cluster.door.ca.certificate(), None, &["http/1.1"]);
    let mut stream = tls_client::connect(cluster.door.address, tls.clone())
        .await
        .unwrap();
    stream
        .write_all(head(body.len() + 5).as_bytes())
        .await
        .unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    assert!(!answer.contains(" 201 "), "{answer}");
    // It says at once that it is too much.
    let mut stream = tls_client::connect(cluster.door.address, tls)
        .await
        .unwrap();
    stream.write_all(head(LIMIT + 1).as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    assert_eq!(
        cluster.client.get(SANDBOXES).await.json()["items"],
        json!([])
    );
    assert_eq!(cluster.writes_at_nodes(), 0);
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let workshop = Workshop::open().await;
    let panics = json!({"metadata": {"name": "panics"}, "spec": {}});
    let answer = workshop.client.post(WIDGETS, &panics).await;
    assert_eq!(answer.code(), 500);
    assert_eq!(answer.json()["reason"], "InternalError");
    let fine = json!({"metadata": {"name": "fine"}, "spec": {}});
    let answer = workshop.client.post(WIDGETS, &fine).await;
    assert_eq!(answer.code(), 201, "on the same connection");
}

#[tokio::test]
async fn a_flood_is_refused_but_for_masters_and_streams() {
    let workshop = Workshop::open().await;
    let clients = [
        workshop.door.client(ALICE).await,
        workshop.door.client(ALICE).await,
    ];
    let hanging = json!({"metadata": {"name": "hangs"}, "spec": {}}).to_string();
    let fine = json!({"metadata": {"name": "fine"}, "spec": {}});
    let post = |client: Client| {
        let body = hanging.clone();
        tokio::spawn(async move { client.request("POST", WIDGETS, &[], body).await.code() })
    };
    let flood: Vec<_> = (0..200)
        .map(|number| post(clients[number % 2].clone()))
        .collect();
    let mut refused = 0;
    while refused == 0 {
        let answer = workshop.door.client(ALICE).await.post(WIDGETS, &fine).await;
        if answer.code() == 429 {
            answer.refusal(429, "TooManyRequests");
            assert_eq!(answer.header("retry-after"), "1");
            refused += 1;
        } else {
            assert_eq!(
                workshop
                    .client
                    .delete(format!("{WIDGETS}/fine"), Value::Null)
                    .await
                    .code(),
                200
            );
        }
    }
    assert_eq!(
        clients[0].get(WIDGETS).await.code(),
        200,
        "reads have places of their own"
    );
    let master = workshop.client.post(WIDGETS, &fine).await;
    assert_eq!(master.code(), 201, "{}", master.text());
    let mut watch = clients[1].watch(format!("{WIDGETS}?watch=true")).await;
    assert_eq!(watch.next().await, "ADDED fine");
    flood.iter().for_each(tokio::task::JoinHandle::abort);
    drop(watch);
    let body = json!({"metadata": {"name": "after"}, "spec": {}});
    // Whoever leaves gives its place back.
    let mut code = 429;
    until("a place is free", || true).await;
    while code == 429 {
        code = clients[0].post(WIDGETS, &body).await.code();
    }
    assert_eq!(code, 201);
}

#[tokio::test]
async fn work_that_takes_too_long_is_a_timeout() {
    let workshop = Workshop::open().await;
    let hanging = json!({"metadata": {"name": "hangs"}, "spec": {}});
    let late = workshop
        .client
        .post(format!("{WIDGETS}?timeout=100ms"), &hanging)
        .await;
    late.refusal(504, "Timeout");
    let bad = workshop
        .client
        .post(format!("{WIDGETS}?timeout=soon"), &hanging)
        .await;
    bad.refusal(400, "BadRequest");
}

#[tokio::test]
async fn a_flood_of_parameters_is_refused() {
    let cluster = Cluster::of(0).await;
    let query = "a=1&".repeat(1_100);
    cluster
        .client
        .get(format!("{SANDBOXES}?{query}"))
        .await
        .refusal(400, "BadRequest");
    let requests = stream::iter(0..50).then(async |_| cluster.client.get(SANDBOXES).await.code());
    assert!(requests.all(async |code| code == 200).await);
}
