//! Commands and files of sandboxes behind a real kube-apiserver, which knows the callers and their rights: the unmodified Python SDK,
//! and a client in Go that sends what the Go SDK sends.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{path::PathBuf, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::Request;
use kube::client::Body;
use sandbox_apiserver::serving::PemPair;
use serde_json::json;
use tokio::process::Command;

use crate::{
    caller::Caller,
    stage::{Stage, StageOptions, eventually},
    users::ADMIN,
    warm_pools::{driven, fill},
};

const SOON: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(180);

/// A namespace with somebody who may edit and somebody who may view, as tokens of ServiceAccounts.
struct People {
    namespace: String,
    editor: String,
    viewer: String,
    ca: PathBuf,
}

impl People {
    async fn of(stage: &Stage) -> Self {
        let namespace = stage.namespace("dataplane").await;
        let kubectl = stage.control_plane.kubectl();
        let mut tokens = Vec::new();
        for role in ["edit", "view"] {
            let here = format!("--namespace={namespace}");
            kubectl
                .stdout(&["create", "serviceaccount", role, &here])
                .await;
            let (role_flag, account) = (
                format!("--clusterrole={role}"),
                format!("--serviceaccount={namespace}:{role}"),
            );
            let bind = ["create", "rolebinding", role, &role_flag, &account, &here];
            kubectl.stdout(&bind).await;
            let plane = stage.control_plane;
            tokens.push(plane.service_account_token(&namespace, role).await);
        }
        let ca = stage.directory().join("ca-of-serve.crt");
        std::fs::write(&ca, stage.ca()).unwrap();
        let [editor, viewer] = tokens.try_into().unwrap();
        Self {
            namespace,
            editor,
            viewer,
            ca,
        }
    }
}

fn api_url(stage: &Stage) -> String {
    format!("https://localhost:{}/sandbox-router", stage.port)
}

/// The answer to a question about a file of a sandbox, at the server's own port.
async fn exists(caller: &Caller, namespace: &str, name: &str, headers: &[(&str, &str)]) -> u16 {
    let mut request = Request::get("/sandbox-router/exists/tmp")
        .header("x-sandbox-id", name)
        .header("x-sandbox-namespace", namespace);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = caller.send(request.body(Body::empty()).unwrap()).await;
    answer.status.as_u16()
}

/// Who speaks for others at the server's own port, as kube-apiserver does.
fn front_proxy(stage: &Stage) -> Caller {
    let PemPair {
        certificate,
        private_key,
    } = stage.control_plane.front_proxy();
    let auth_info = json!({
        "client-certificate-data": BASE64_STANDARD.encode(certificate),
        "client-key-data": BASE64_STANDARD.encode(private_key),
    });
    let mut config = stage.direct_config(stage.control_plane.config_as(ADMIN));
    config.auth_info = serde_json::from_value(auth_info).unwrap();
    Caller::new(config)
}

async fn succeeds(program: &mut Command) -> String {
    let output = program.kill_on_drop(true).output();
    let output = tokio::time::timeout(PATIENCE, output).await;
    let output = output.expect("the program ends").unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{complaints}");
    printed
}

#[tokio::test]
async fn the_python_sdk_runs_commands_and_moves_files() {
    let python = std::env::var("PYTHON_SDK")
        .expect("PYTHON_SDK is not set: run the tests with `hack/test`, which installs the SDK");
    let stage = driven(2).await;
    let people = People::of(&stage).await;
    fill(&stage, &people.namespace, 4).await;
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/cluster/python_data_plane.py"
    );
    let kubeconfig = stage.control_plane.kubeconfig_as(ADMIN);
    let mut command = Command::new(python);
    command
        .args([script, &people.namespace, "pool", &api_url(&stage)])
        .arg(&people.ca)
        .env("CERTIFICATE", kubeconfig.with_file_name("admin.crt"))
        .env("KEY", kubeconfig.with_file_name("admin.key"))
        .env("KUBECONFIG", &kubeconfig)
        .env("TOKEN", &people.editor)
        .env("READER_TOKEN", &people.viewer);
    let printed = succeeds(&mut command).await;
    for check in ["commands", "files", "callers", "suspended", "deleted"] {
        assert!(printed.contains(&format!("ok {check}\n")), "{printed}");
    }
    assert_eq!(stage.nodes.held(&people.namespace).await, []);
    let log = stage.serve.log();
    assert!(log.contains("execute"), "commands are in the audit log");
    for secret in ["hello", "text.txt", &people.editor] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[tokio::test]
async fn a_client_in_go_runs_commands_and_moves_files() {
    let program = std::env::var("GO_CLIENT")
        .expect("GO_CLIENT is not set: run the tests with `hack/test`, which builds it");
    let stage = Stage::start(StageOptions::default()).await;
    let people = People::of(&stage).await;
    stage.create(&people.namespace, "box").await;
    let mut command = Command::new(program);
    command
        .args(["data-plane", &people.namespace, "box", &api_url(&stage)])
        .arg(&people.ca)
        .env("TOKEN", &people.editor);
    let printed = succeeds(&mut command).await;
    for check in [
        "run", "write", "stream", "read", "list", "exists", "refusals",
    ] {
        assert!(printed.contains(&format!("ok {check}\n")), "{printed}");
    }
}

#[tokio::test]
async fn the_right_to_exec_may_be_for_one_sandbox() {
    let stage = Stage::start(StageOptions::default()).await;
    let people = People::of(&stage).await;
    for name in ["mine", "theirs"] {
        stage.create(&people.namespace, name).await;
    }
    let kubectl = stage.control_plane.kubectl();
    let here = format!("--namespace={}", people.namespace);
    let role = [
        "create",
        "role",
        "mine",
        "--verb=create",
        "--resource=sandboxes.agents.x-k8s.io/exec",
        "--resource-name=mine",
        &here,
    ];
    kubectl.stdout(&role).await;
    let bind = [
        "create",
        "rolebinding",
        "mine",
        "--role=mine",
        "--user=mina",
        &here,
    ];
    kubectl.stdout(&bind).await;
    let ask = async |user: &str, name: &str| {
        exists(&stage.direct_as(user), &people.namespace, name, &[]).await
    };
    eventually(SOON, "the role is in force", async || {
        ask("mina", "mine").await == 200
    })
    .await;
    assert_eq!(ask("mina", "theirs").await, 403);
    assert_eq!(ask("mina", "none").await, 403);
    assert_eq!(ask("nina", "mine").await, 403);
    assert_eq!(ask(ADMIN, "none").await, 404);

    // Who speaks for others has not asked whether they may: kube-apiserver has no way to here.
    let proxy = front_proxy(&stage);
    for (user, expected) in [
        ("mina", 200),
        ("nina", 403),
        ("system:kube-aggregator", 403),
    ] {
        let headers = [("x-remote-user", user)];
        let answer = exists(&proxy, &people.namespace, "mine", &headers).await;
        assert_eq!(answer, expected, "{user}");
    }
}
