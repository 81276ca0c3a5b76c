//! Commands and files of sandboxes, as the SDKs of agent-sandbox ask for them.

mod guests;
mod hostile;

use std::time::Duration;

use bytes::Bytes;
use sandbox_apiserver::{api::Token, sim, store::Limits};
use serde_json::{Value, json};

use crate::harness::{ADMIN, Answer, Client, Cluster, SANDBOXES, item, mk_node, until};

const ROUTER: &str = "/sandbox-router";
const BOUNDARY: &str = "--------------------------974767299852498929531610575";

/// The calls of one sandbox.
struct Sandbox<'a> {
    client: &'a Client,
    name: &'a str,
}

impl Cluster {
    fn sandbox<'a>(&'a self, name: &'a str) -> Sandbox<'a> {
        let client = &self.client;
        Sandbox { client, name }
    }

    /// The value of a series with this text at its start.
    fn series(&self, start: &str) -> f64 {
        let text = self.door.metrics.encode();
        let line = text.lines().find_map(|line| line.strip_prefix(start));
        line.map_or(0.0, |value| value.trim().parse().unwrap())
    }

    fn open_calls(&self) -> f64 {
        self.door.counted("sandbox_apiserver_dataplane_open_calls")
    }
}

impl Sandbox<'_> {
    async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let mut all = vec![("x-sandbox-id", self.name), ("x-sandbox-port", "8888")];
        all.extend(headers);
        let path = format!("{ROUTER}/{path}");
        self.client.request(method, &path, &all, body).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], "").await
    }

    async fn execute(&self, command: &str) -> Value {
        let ran = self.ask(&json!({ "command": command })).await;
        assert_eq!(ran.code(), 200, "{}", ran.text());
        ran.json()
    }

    async fn ask(&self, request: &Value) -> Answer {
        self.call("POST", "execute", &[], request.to_string()).await
    }

    async fn upload(&self, name: &str, bytes: &[u8]) -> Answer {
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        let headers = [("content-type", kind.as_str())];
        self.call("POST", "upload", &headers, form("file", name, bytes))
            .await
    }
}

/// The body that the SDKs make of a file.
fn form(field: &str, name: &str, bytes: &[u8]) -> Vec<u8> {
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"{name}\"\r\n\r\n"
    );
    let end = format!("\r\n--{BOUNDARY}--\r\n");
    [head.as_bytes(), bytes, end.as_bytes()].concat()
}

/// Bytes that no compression and no text would leave as they are.
fn mk_bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let next = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (*state >> 24) as u8
    };
    (0..length).map(|_| next(&mut state)).collect()
}

async fn mk_cluster(name: &str) -> Cluster {
    let cluster = Cluster::start(mk_node(4)).await;
    cluster.create(name).await;
    cluster
}

#[tokio::test]
async fn a_command_is_run_and_its_end_told() {
    let cluster = mk_cluster("box").await;
    let sandbox = cluster.sandbox("box");
    let ran = sandbox.execute("echo out; echo err >&2; exit 3").await;
    let expected =
        json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 3, "timed_out": false});
    assert_eq!(ran, expected);
    assert_eq!(sandbox.execute("pwd").await["stdout"], "/\n");
    assert_eq!(
        cluster
            .series("sandbox_apiserver_dataplane_calls_total{action=\"execute\",result=\"done\"}"),
        2.0
    );
    assert_eq!(cluster.open_calls(), 0.0);
}

#[tokio::test]
async fn a_command_ends_at_its_own_limit_or_with_its_request() {
    let cluster = mk_cluster("box").await;
    let sandbox = cluster.sandbox("box");
    let limited = json!({"command": "echo a; sleep 60", "timeout_seconds": 0.2});
    let ran = sandbox.ask(&limited).await;
    assert_eq!(ran.code(), 200, "{}", ran.text());
    let expected = json!({
        "stdout": "", "stderr": "Command timed out after 0.2 seconds",
        "exit_code": 124, "timed_out": true,
    });
    assert_eq!(ran.json(), expected);

    let slow = json!({"command": "sleep 60", "timeout_seconds": 30}).to_string();
    let soon = [("x-sandbox-timeout", "0.2")];
    let ran = sandbox.call("POST", "execute", &soon, slow).await;
    ran.refusal(504, "Timeout");

    for bad in [
        json!({}),
        json!({"command": 1}),
        json!({"command": "pwd", "timeout_seconds": 0}),
        json!({"command": "pwd", "timeout_seconds": -1.5}),
    ] {
        sandbox.ask(&bad).await.refusal(400, "BadRequest");
    }
    let long = json!({ "command": "x".repeat(600 << 10) });
    let refused = sandbox.ask(&long).await;
    refused.refusal(413, "RequestEntityTooLarge");
}

#[tokio::test]
async fn a_file_goes_in_and_comes_out_as_it_was() {
    let cluster = mk_cluster("box").await;
    let sandbox = cluster.sandbox("box");
    let bytes = mk_bytes(3 << 20);
    let written = sandbox.upload("work/a b\u{fc}.bin", &bytes).await;
    assert_eq!(written.code(), 200, "{}", written.text());
    let path = "work%2Fa%20b%C3%BC.bin";
    let gzip = [("accept-encoding", "gzip")];
    let read = sandbox
        .call("GET", &format!("download/{path}"), &gzip, "")
        .await;
    assert_eq!(read.code(), 200);
    assert_eq!(read.header("content-type"), "application/octet-stream");
    assert_eq!(read.header("content-encoding"), "");
    assert!(read.body == bytes, "{} bytes", read.body.len());

    let exists = async |path: &str| sandbox.get(&format!("exists/{path}")).await.json();
    assert_eq!(exists(path).await, json!({"exists": true}));
    assert_eq!(exists("work").await, json!({"exists": true}));
    assert_eq!(exists("work%2Fother").await, json!({"exists": false}));

    sandbox.execute("echo other > work/z; mkdir work/sub").await;
    let mut listed = sandbox.get("list/work").await.json();
    for entry in listed.as_array_mut().unwrap() {
        let entry = entry.as_object_mut().unwrap();
        let time = entry.remove("mod_time").unwrap().as_i64().unwrap();
        let age = jiff::Timestamp::now().as_second() - time;
        assert!(
            entry["type"] == "directory" || (0..600).contains(&age),
            "{age}"
        );
    }
    let expected = json!([
        {"name": "a b\u{fc}.bin", "size": 3 << 20, "type": "file"},
        {"name": "sub", "size": 0, "type": "directory"},
        {"name": "z", "size": 6, "type": "file"},
    ]);
    assert_eq!(listed, expected);
    let root = sandbox.get("list/").await.json();
    assert_eq!(root[0]["name"], "tmp");

    sandbox.upload("work/a b\u{fc}.bin", b"").await;
    let read = sandbox.get(&format!("download/{path}")).await;
    assert_eq!((read.code(), read.text().as_str()), (200, ""));
    let total = |direction: &str| {
        cluster.series(&format!(
            "sandbox_apiserver_dataplane_transferred_bytes_total{{direction=\"{direction}\"}}"
        ))
    };
    assert_eq!((total("in"), total("out")), (3145728.0, 3145728.0));
}

#[tokio::test]
async fn what_is_not_there_or_not_a_file_is_told_apart() {
    let cluster = mk_cluster("box").await;
    let sandbox = cluster.sandbox("box");
    sandbox.execute("echo a > a").await;
    sandbox.get("download/b").await.refusal(404, "NotFound");
    sandbox.get("list/b").await.refusal(404, "NotFound");
    sandbox.get("download/tmp").await.refusal(400, "BadRequest");
    sandbox.get("list/a").await.refusal(400, "BadRequest");
    let below_a_file = sandbox.upload("a/b", b"x").await;
    below_a_file.refusal(400, "BadRequest");
}

#[tokio::test]
async fn copies_have_the_files_of_what_they_are_copies_of() {
    let cluster = mk_cluster("box").await;
    let sandbox = cluster.sandbox("box");
    sandbox.execute("echo before > a").await;
    let snapshot = format!("{SANDBOXES}/box/snapshot");
    let taken = cluster
        .client
        .post(snapshot, &json!({"name": "snap"}))
        .await;
    assert_eq!(taken.code(), 201, "{}", taken.text());
    let fork = format!("{SANDBOXES}/box/fork");
    let forked = cluster.client.post(fork, &json!({"count": 1})).await;
    sandbox.execute("echo after > a").await;
    let child = forked.json()["items"][0]["metadata"]["name"].clone();
    let child = cluster
        .sandbox(child.as_str().unwrap())
        .execute("cat a")
        .await;
    assert_eq!(child["stdout"], "before\n");

    let mut again = crate::harness::mk_sandbox("again");
    again["metadata"]["annotations"] = json!({"sandbox.cocoonstack.io/snapshot": "snap"});
    let started = cluster.client.post(SANDBOXES, &again).await;
    assert_eq!(started.code(), 201, "{}", started.text());
    let read = cluster.sandbox("again").execute("cat a").await;
    assert_eq!(read["stdout"], "before\n");
}

#[tokio::test]
async fn a_suspended_sandbox_is_not_woken() {
    let cluster = mk_cluster("box").await;
    let sandbox = cluster.sandbox("box");
    let pause = json!({"spec": {"operatingMode": "Suspended"}});
    assert_eq!(cluster.client.merge(item("box"), &pause).await.code(), 200);
    let refused = sandbox.ask(&json!({"command": "pwd"})).await;
    let status = refused.refusal(409, "Conflict");
    let text = status["message"].as_str().unwrap();
    assert!(
        text.ends_with("the sandbox is suspended: resume it first"),
        "{text}"
    );
    sandbox.upload("a", b"x").await.refusal(409, "Conflict");
    for path in ["download/a", "list/a", "exists/a"] {
        sandbox.get(path).await.refusal(409, "Conflict");
    }
    let node = &cluster.nodes.nodes()[0];
    assert_eq!(node.counters().wakes, 0);
    let resume = json!({"spec": {"operatingMode": "Running"}});
    assert_eq!(cluster.client.merge(item("box"), &resume).await.code(), 200);
    assert_eq!(sandbox.execute("pwd").await["exit_code"], 0);

    // The daemon put it to sleep by itself, and nobody has told the server yet.
    let id = node.claims_of("default/box")[0].clone();
    let daemon = cluster.daemons.node(node.address(), Duration::from_secs(5));
    daemon.hibernate(&id).await.unwrap();
    let refused = sandbox.ask(&json!({"command": "pwd"})).await;
    refused.refusal(409, "Conflict");
    assert_eq!(node.counters().wakes, 1);
}

#[tokio::test]
async fn a_sandbox_is_not_woken_while_it_is_put_to_sleep() {
    let mut options = mk_node(2);
    options.latency.snapshot = Duration::from_secs(1);
    let cluster = Cluster::start(options).await;
    cluster.create("box").await;
    let node = &cluster.nodes.nodes()[0];
    let pause = json!({"spec": {"operatingMode": "Suspended"}});
    let pausing = cluster.client.merge(item("box"), &pause);
    let meanwhile = async {
        until("the node is asked", || {
            node.log()
                .iter()
                .any(|request| request.path.ends_with("/hibernate"))
        })
        .await;
        cluster.sandbox("box").ask(&json!({"command": "pwd"})).await
    };
    let (paused, refused) = tokio::join!(pausing, meanwhile);
    assert_eq!(paused.code(), 200);
    let status = refused.refusal(409, "Conflict");
    let text = status["message"].as_str().unwrap();
    assert!(text.ends_with("a pause is under way"), "{text}");
    assert_eq!(node.counters().wakes, 0);
}

#[tokio::test]
async fn a_pause_that_begins_while_the_node_is_asked_keeps_a_call_out() {
    let mut options = mk_node(2);
    options.latency.snapshot = Duration::from_secs(4);
    let cluster = Cluster::start(options).await;
    cluster.create("box").await;
    let node = &cluster.nodes.nodes()[0];
    let late = sim::Fault {
        kind: sim::FaultKind::Late { millis: 1_000 },
        method: Some("GET".to_owned()),
        path: "/v1/sandboxes/*".to_owned(),
        times: None,
    };
    assert!(node.inject(late).await);
    let before = node.log().len();
    let asked = || {
        node.log()[before..]
            .iter()
            .any(|request| request.method == "GET" && request.path.starts_with("/v1/sandboxes/"))
    };
    let sandbox = cluster.sandbox("box");
    let command = json!({"command": "pwd"});
    let called = sandbox.ask(&command);
    let paused = async {
        until("the node is asked", asked).await;
        let pause = json!({"spec": {"operatingMode": "Suspended"}});
        cluster.client.merge(item("box"), &pause).await
    };
    let (refused, paused) = tokio::join!(called, paused);
    let status = refused.refusal(409, "Conflict");
    let text = status["message"].as_str().unwrap();
    assert!(text.ends_with("a pause is under way"), "{text}");
    assert_eq!(paused.code(), 200);
    assert_eq!(node.counters().wakes, 0);
}

#[tokio::test]
async fn a_node_without_a_token_lets_nobody_in_and_says_what_it_wants() {
    let mut options = mk_node(2);
    options.api_token = None;
    let nodes = sim::Fleet::start(options).await.unwrap();
    let token = Some(Token::from("node-token".to_owned()));
    let cluster = Cluster::over(nodes, token, Limits::default()).await;
    cluster.create("box").await;
    let refused = cluster.sandbox("box").ask(&json!({"command": "pwd"})).await;
    let token = format!("{}/token", item("box"));
    let told = cluster.client.post(token, &json!({})).await;
    for answer in [refused, told] {
        assert_eq!(answer.header("retry-after"), "");
        let status = answer.refusal(503, "ServiceUnavailable");
        let text = status["message"].as_str().unwrap();
        assert!(
            text.contains("set api_token in its configuration"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_sandbox_that_is_not_there_is_not_found() {
    let cluster = mk_cluster("box").await;
    let command = json!({"command": "pwd"});
    let unknown = cluster.sandbox("other").ask(&command).await;
    unknown.refusal(404, "NotFound");
    cluster.client.delete(item("box"), Value::Null).await;
    let deleted = cluster.sandbox("box").ask(&command).await;
    deleted.refusal(404, "NotFound");

    cluster.create("lost").await;
    let node = &cluster.nodes.nodes()[0];
    let id = node.claims_of("default/lost")[0].clone();
    assert!(node.lose(&id));
    let lost = cluster.sandbox("lost").ask(&command).await;
    lost.refusal(404, "NotFound");
}

#[tokio::test]
async fn only_who_is_known_is_let_in() {
    let cluster = mk_cluster("box").await;
    let request = |client: Client| async move {
        let headers = [("x-sandbox-id", "box")];
        let path = format!("{ROUTER}/exists/a");
        client.request("GET", &path, &headers, "").await
    };
    // Whom the authorizer would let do anything.
    let nobody = cluster.door.client("").await;
    request(nobody.clone()).await.refusal(401, "Unauthorized");
    let wrong = cluster.door.client("wrong").await;
    request(wrong).await.refusal(401, "Unauthorized");
    assert_eq!(request(cluster.door.client(ADMIN).await).await.code(), 200);
    let nobody = cluster.door.client("").await;
    let health = nobody.get(format!("{ROUTER}/healthz")).await;
    assert_eq!((health.code(), health.text().as_str()), (200, "ok"));
}

#[tokio::test]
async fn a_request_that_leads_nowhere_is_refused() {
    let cluster = mk_cluster("box").await;
    let get = async |path: &str, headers: &[(&str, &str)]| {
        let path = format!("{ROUTER}{path}");
        cluster.client.request("GET", &path, headers, "").await
    };
    let id = ("x-sandbox-id", "box");
    get("/exists/a", &[]).await.refusal(400, "BadRequest");
    for other in [
        ("x-sandbox-port", "80"),
        ("x-sandbox-namespace", "a/b"),
        ("x-sandbox-timeout", "never"),
    ] {
        get("/exists/a", &[id, other])
            .await
            .refusal(400, "BadRequest");
    }
    for path in [
        "/exists/..%2Fetc",
        "/download/a%00b",
        "/list/%FF",
        "/download/",
    ] {
        get(path, &[id]).await.refusal(400, "BadRequest");
    }
    get("/nowhere", &[id]).await.refusal(404, "NotFound");
    get("/execute", &[id])
        .await
        .refusal(405, "MethodNotAllowed");
    let sandbox = cluster.sandbox("box");
    for name in ["../a", "a/../../b", "", "/", "."] {
        sandbox.upload(name, b"x").await.refusal(400, "BadRequest");
    }
    // An address of the client's choice is not where the call goes.
    let elsewhere = [id, ("x-sandbox-pod-ip", "127.0.0.1:1")];
    assert_eq!(get("/exists/tmp", &elsewhere).await.json()["exists"], true);
    // Nor does a path that only begins alike lead there.
    let beside = cluster.client.get(format!("{ROUTER}s/healthz")).await;
    assert_eq!(beside.code(), 404);
}

#[tokio::test]
async fn a_node_that_fails_is_told_in_the_codes_of_a_router() {
    let cluster = mk_cluster("box").await;
    let sandbox = cluster.sandbox("box");
    let node = &cluster.nodes.nodes()[0];
    let command = json!({"command": "pwd"});
    let answers = |status| sim::FaultKind::Status {
        status,
        text: "why".to_owned(),
    };
    for (kind, code) in [
        (answers(400), 400),
        (answers(413), 413),
        (answers(409), 409),
        (answers(500), 502),
        (answers(502), 502),
        (answers(503), 503),
        (answers(504), 504),
        (sim::FaultKind::AnswerLost, 502),
        (sim::FaultKind::Cut, 502),
        (sim::FaultKind::WrongJson, 502),
        (sim::FaultKind::Oversized { bytes: 60 << 20 }, 502),
    ] {
        let fault = sim::Fault {
            kind: kind.clone(),
            method: None,
            path: "/v1/sandboxes/*/exec".to_owned(),
            times: None,
        };
        assert!(node.inject(fault).await);
        let sent = node.log().len();
        let refused = sandbox.ask(&command).await;
        assert_eq!(refused.code(), code, "{kind:?}: {}", refused.text());
        let log = node.log();
        let sent = log[sent..]
            .iter()
            .filter(|request| request.path.ends_with("/exec"));
        assert_eq!(sent.count(), 1, "{kind:?}");
        node.clear_faults().await;
    }
    node.stop().await;
    let down = sandbox.ask(&command).await;
    down.refusal(503, "ServiceUnavailable");
    sandbox
        .get("exists/a")
        .await
        .refusal(503, "ServiceUnavailable");
}
