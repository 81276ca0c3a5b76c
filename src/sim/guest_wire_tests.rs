//! What a simulated guest says, word for word: commands, and frames behind an upgrade.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

use super::{
    Generation,
    wire_tests::{Wire, raw},
};

const SOON: Duration = Duration::from_secs(20);

/// A connection to the agent of a sandbox.
struct Agent(BufReader<TcpStream>);

impl Agent {
    async fn open(wire: &Wire, id: &str, token: &str) -> Self {
        let mut stream = TcpStream::connect(wire.address()).await.unwrap();
        let request = format!(
            "GET /v1/sandboxes/{id}/agent HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: Upgrade\r\nupgrade: silkd\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut agent = Self(BufReader::new(stream));
        let mut head = Vec::new();
        while head.last().is_none_or(|line: &String| !line.is_empty()) {
            head.push(agent.line().await);
        }
        assert!(head[0].contains("101"), "{head:?}");
        assert!(head.contains(&"upgrade: silkd".to_owned()), "{head:?}");
        agent
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = timeout(SOON, self.0.read_line(&mut line)).await;
        read.expect("an answer").unwrap();
        line.trim_end().to_ascii_lowercase()
    }

    async fn say(&mut self, frame: Value) {
        let line = format!("{frame}\n");
        self.0.get_mut().write_all(line.as_bytes()).await.unwrap();
    }

    async fn says(&mut self, expected: Value) {
        let line = self.line().await;
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        assert_eq!(said, expected);
    }
}

#[tokio::test]
async fn commands_are_answered_as_by_a_daemon() {
    let wire = Wire::start(Generation::B, Some("root")).await;
    let (id, token) = wire.plant("d/a");
    let exec = format!("POST /v1/sandboxes/{id}/exec");
    for (body, status, answer) in [
        (
            r#"{"argv":["/bin/sh","-c","echo a; exit 2"]}"#,
            200,
            r#"{"exit_code":2,"stderr":"","stdout":"a\n"}"#,
        ),
        (
            r#"{"argv":["echo","a b"],"cwd":"/tmp"}"#,
            200,
            r#"{"exit_code":0,"stderr":"","stdout":"a b\n"}"#,
        ),
        (
            r#"{"argv":["sleep","60"],"timeout_seconds":1}"#,
            504,
            r#"{"error":"exec timed out"}"#,
        ),
        (
            r#"{"argv":["pwd"],"cwd":"/none"}"#,
            400,
            r#"{"error":"the guest cannot start the command there"}"#,
        ),
        (
            r#"{"argv":[]}"#,
            400,
            r#"{"error":"argv is required and timeout_seconds not negative"}"#,
        ),
    ] {
        wire.says(&exec, &token, body, status, answer).await;
    }
    let unknown = r#"{"error":"unknown sandbox"}"#;
    wire.says(&exec, "root", r#"{"argv":["ls"]}"#, 404, unknown)
        .await;
    let bearer = format!("authorization: Bearer {token}\r\n");
    let strict = raw(&wire.address(), &exec, &bearer, r#"{"argv":["ls"],"x":1}"#).await;
    assert!(strict.0 == 400 && strict.2.contains('x'), "{strict:?}");
}

#[tokio::test]
async fn an_upgrade_has_an_order_of_refusals() {
    let wire = Wire::start(Generation::C, Some("root")).await;
    let (id, token) = wire.plant("d/a");
    let agent = format!("GET /v1/sandboxes/{id}/agent");
    assert_eq!(raw(&wire.address(), &agent, "", "").await.0, 401);
    let bearer = format!("authorization: Bearer {token}\r\n");
    let (status, head, _) = raw(&wire.address(), &agent, &bearer, "").await;
    assert!(status == 426 && head.contains("upgrade: silkd"), "{head}");
    let root = "authorization: Bearer root\r\nupgrade: silkd\r\n";
    assert_eq!(raw(&wire.address(), &agent, root, "").await.0, 404);
    let node = &wire.fleet.nodes()[0];
    assert!(node.fail(&id.clone().into(), "died"));
    let upgrade = format!("{bearer}upgrade: SILKD\r\n");
    assert_eq!(raw(&wire.address(), &agent, &upgrade, "").await.0, 409);
    let port = format!("GET /v1/sandboxes/{id}/ports/80");
    let upgrade = format!("{bearer}upgrade: tcp\r\n");
    assert_eq!(raw(&wire.address(), &port, &upgrade, "").await.0, 409);
}

#[tokio::test]
async fn frames_are_answered_as_by_silkd() {
    let wire = Wire::start(Generation::B, Some("root")).await;
    let (id, token) = wire.plant("d/a");
    let mut agent = Agent::open(&wire, &id, &token).await;
    agent
        .say(json!({"v": 1, "op": "fs_write", "path": "/a", "mode": 420, "later": 1}))
        .await;
    agent
        .say(json!({"v": 1, "op": "data", "data": "AP8="}))
        .await;
    agent.say(json!({"v": 1, "op": "data", "data": ""})).await;
    agent.say(json!({"v": 1, "op": "data_end"})).await;
    agent.says(json!({"type": "done"})).await;
    agent
        .say(json!({"v": 1, "op": "fs_read", "path": "/a"}))
        .await;
    agent.says(json!({"type": "data", "data": "ap8="})).await;
    agent.says(json!({"type": "done"})).await;
    agent
        .say(json!({"v": 1, "op": "fs_mkdir", "path": "/b/c", "parents": true}))
        .await;
    agent.says(json!({"type": "done"})).await;
    agent
        .say(json!({"v": 1, "op": "fs_list", "path": "/"}))
        .await;
    let entries = json!([
        {"name": "a", "kind": "file", "size": 2},
        {"name": "b", "kind": "dir", "size": 0},
        {"name": "tmp", "kind": "dir", "size": 0},
    ]);
    agent
        .says(json!({"type": "entries", "entries": entries}))
        .await;
    agent.says(json!({"type": "done"})).await;
    agent
        .say(json!({"v": 1, "op": "fs_stat", "path": "/none"}))
        .await;
    let missing = "/none: no such file or directory";
    agent
        .says(json!({"type": "error", "kind": "not_found", "message": missing}))
        .await;
    agent.say(json!({"v": 1, "op": "pty_open"})).await;
    let unimplemented = "op: not simulated";
    agent
        .says(json!({"type": "error", "kind": "unimplemented", "message": unimplemented}))
        .await;
    agent.say(json!({"v": 2, "op": "info"})).await;
    let bad = "frame: not understood";
    agent
        .says(json!({"type": "error", "kind": "bad_request", "message": bad}))
        .await;
}

#[tokio::test]
async fn whoever_comes_in_wakes_the_sandbox_and_nobody_stays_in_one_that_is_gone() {
    let wire = Wire::start(Generation::B, Some("root")).await;
    let (id, token) = wire.plant("d/a");
    let node = &wire.fleet.nodes()[0];
    let hibernate = format!("POST /v1/sandboxes/{id}/hibernate");
    wire.says(&hibernate, &token, "", 204, "").await;
    let mut agent = Agent::open(&wire, &id, &token).await;
    assert_eq!(node.counters().wakes, 1);
    let release = format!("POST /v1/sandboxes/{id}/release");
    wire.says(&release, &token, "", 204, "").await;
    agent
        .say(json!({"v": 1, "op": "fs_stat", "path": "/"}))
        .await;
    let gone = "guest: unknown sandbox";
    agent
        .says(json!({"type": "error", "kind": "internal", "message": gone}))
        .await;
}
