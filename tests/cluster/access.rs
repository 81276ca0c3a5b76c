//! Who may do what, at the server's own port and through kube-apiserver.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use kube::client::Body;
use sandbox_apiserver::serving::PemPair;
use serde_json::json;

use crate::{
    caller::{Answer, Caller},
    pki::Authority,
    stage::{self, SharedStage, TEMPLATE, collection, eventually, sandbox},
};

const SOON: Duration = Duration::from_secs(20);

/// A namespace in which the subject may read sandboxes, and nothing else.
async fn readable_by(stage: &SharedStage, subject: &str) -> String {
    namespace_for(stage, subject, "get,list,watch").await
}

/// A namespace in which the subject may do these things to sandboxes, and nothing else.
async fn namespace_for(stage: &SharedStage, subject: &str, verbs: &str) -> String {
    let namespace = stage.namespace("access").await;
    allow(
        stage,
        subject,
        verbs,
        "sandboxes.agents.x-k8s.io",
        &namespace,
    )
    .await;
    namespace
}

/// Lets the subject read the namespace's sandboxes, with what subresource of theirs can be read.
pub(crate) async fn readable_in(stage: &SharedStage, subject: &str, namespace: &str) {
    let sandboxes = "sandboxes.agents.x-k8s.io,sandboxes.agents.x-k8s.io/status";
    allow(stage, subject, "get,list,watch", sandboxes, namespace).await;
}

async fn allow(stage: &SharedStage, subject: &str, verbs: &str, resources: &str, namespace: &str) {
    let kubectl = stage.control_plane.kubectl();
    let here = format!("--namespace={namespace}");
    let (verbs, resources) = (format!("--verb={verbs}"), format!("--resource={resources}"));
    let role = ["create", "role", "some", &verbs, &resources, &here];
    kubectl.stdout(&role).await;
    let binding = [
        "create",
        "rolebinding",
        "some",
        "--role=some",
        subject,
        &here,
    ];
    kubectl.stdout(&binding).await;
}

async fn with_headers(
    caller: &Caller,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Answer {
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = match method {
        "POST" => Body::from(sandbox("sneaked", TEMPLATE).to_string().into_bytes()),
        _ => Body::empty(),
    };
    caller.send(request.body(body).unwrap()).await
}

#[tokio::test]
async fn a_reader_reads_and_is_told_what_it_may_not() {
    let stage = stage::shared().await;
    let namespace = readable_by(&stage, "--user=rita").await;
    let path = collection(&namespace);
    let rita = stage.direct_as("rita");
    eventually(SOON, "the role is in force", async || {
        rita.get(&path).await.status == 200
    })
    .await;
    let refused = rita.post(&path, &sandbox("mine", TEMPLATE)).await;
    refused.expect(403, "Forbidden");
    assert_eq!(
        refused.body["message"],
        format!(
            r#"sandboxes.agents.x-k8s.io is forbidden: User "rita" cannot create resource "sandboxes" in API group "agents.x-k8s.io" in the namespace "{namespace}""#
        )
    );
    assert_eq!(refused.body["details"]["kind"], "sandboxes");
    let created = stage.create(&namespace, "theirs").await;
    let one = format!("{path}/theirs");
    for (method, path) in [
        ("DELETE", one.clone()),
        ("DELETE", path.clone()),
        ("POST", format!("{one}/pause")),
        ("POST", format!("{one}/fork")),
        ("PATCH", one.clone()),
        ("GET", format!("{}/sandboxes", stage::API)),
        ("GET", "/metrics".to_owned()),
    ] {
        let refused = rita.call(method, &path, None).await;
        assert_eq!(refused.status, 403, "{method} {path}: {:#}", refused.body);
    }
    let proxied = Caller::new(stage.control_plane.config_as("rita"));
    for reader in [&rita, &proxied] {
        let shown = reader.get(&one).await.ok();
        assert_eq!(shown["metadata"]["uid"], created["metadata"]["uid"]);
    }
    proxied
        .post(&path, &sandbox("mine", TEMPLATE))
        .await
        .expect(403, "Forbidden");
    assert_eq!(stage.nodes.held(&namespace).await.len(), 1);
}

/// An apply of what is not there is a create, which kube-apiserver does not ask about: it passes on a patch.
#[tokio::test]
async fn who_may_patch_may_not_create_by_applying() {
    let stage = stage::shared().await;
    let namespace = namespace_for(&stage, "--user=petra", "get,patch").await;
    let direct = stage.direct_as("petra");
    let absent = stage::item(&namespace, "absent");
    eventually(SOON, "the role is in force", async || {
        direct.get(&absent).await.status == 404
    })
    .await;
    let apply = async |caller: &Caller, name: &str| {
        let path = format!("{}?fieldManager=petra", stage::item(&namespace, name));
        let request = http::Request::patch(path)
            .header("content-type", "application/apply-patch+yaml")
            .body(Body::from(sandbox(name, TEMPLATE).to_string().into_bytes()));
        caller.send(request.unwrap()).await
    };
    stage.create(&namespace, "theirs").await;
    let proxied = Caller::new(stage.control_plane.config_as("petra"));
    for caller in [&direct, &proxied] {
        let refused = apply(caller, "absent").await;
        refused.expect(403, "Forbidden");
        let message = refused.body["message"].as_str().unwrap_or_default();
        assert!(message.contains("cannot create resource"), "{message}");
        apply(caller, "theirs").await.ok();
    }
    assert_eq!(stage.nodes.held(&namespace).await.len(), 1);
}

// Adyen/kubectl-rexec#171
#[tokio::test]
async fn who_shows_no_credential_or_a_false_one_gets_nothing() {
    let stage = stage::shared().await;
    let path = format!("{}/sandboxes", stage::API);
    let mut nobody = stage.direct_config(stage.control_plane.config_as("nobody"));
    nobody.auth_info = kube::config::AuthInfo::default();
    let anonymous = Caller::new(nobody.clone());
    let refused = anonymous.get(&path).await;
    refused.expect(403, "Forbidden");
    let message = refused.body["message"].as_str().unwrap_or_default();
    assert!(
        message.contains(r#"User "system:anonymous" cannot list"#),
        "{message}"
    );
    anonymous.get("/readyz").await.ok();

    let spoofed = [
        ("x-remote-user", "root"),
        ("x-remote-group", "system:masters"),
    ];
    for (caller, who) in [
        (&anonymous, "system:anonymous"),
        (&stage.direct_as("mallory"), "mallory"),
    ] {
        let refused = with_headers(caller, "GET", &path, &spoofed).await;
        refused.expect(403, "Forbidden");
        let message = refused.body["message"].as_str().unwrap_or_default();
        assert!(message.contains(&format!("User {who:?}")), "{message}");
    }
    let garbage = [("authorization", "Bearer not-a-token")];
    let refused = with_headers(&anonymous, "GET", &path, &garbage).await;
    refused.expect(401, "Unauthorized");

    let stranger = Authority::new("somebody-elses-ca").unwrap();
    let stranger = stranger
        .client("front-proxy-client", Some("system:masters"))
        .unwrap();
    let pair = PemPair {
        certificate: stranger.certificate_pem,
        private_key: stranger.key_pem,
    };
    let tls = crate::tls_client::config(&stage.ca(), Some(&pair), &["h2"]);
    let stream = crate::tls_client::connect(([127, 0, 0, 1], stage.port).into(), tls);
    let mut sender = crate::tls_client::http2(stream.await.unwrap()).await;
    let mut request = crate::tls_client::get(&path);
    request
        .headers_mut()
        .insert("x-remote-user", "root".parse().unwrap());
    assert_eq!(sender.send_request(request).await.unwrap().status(), 401);
}

#[tokio::test]
async fn a_service_account_is_known_by_its_token() {
    let stage = stage::shared().await;
    let namespace = stage.namespace("robots").await;
    let kubectl = stage.control_plane.kubectl();
    let here = format!("--namespace={namespace}");
    kubectl
        .stdout(&["create", "serviceaccount", "robot", &here])
        .await;
    let subject = format!("--serviceaccount={namespace}:robot");
    let readable = readable_by(&stage, &subject).await;
    let token = stage
        .control_plane
        .service_account_token(&namespace, "robot")
        .await;
    let mut config = stage.direct_config(stage.control_plane.config_as("nobody"));
    config.auth_info = serde_json::from_value(json!({"token": token})).unwrap();
    let robot = Caller::new(config);
    eventually(SOON, "the role is in force", async || {
        robot.get(&collection(&readable)).await.status == 200
    })
    .await;
    let refused = robot.get(&collection("default")).await;
    refused.expect(403, "Forbidden");
    let message = refused.body["message"].as_str().unwrap_or_default();
    let name = format!("system:serviceaccount:{namespace}:robot");
    assert!(message.contains(&name), "{message}");
    assert!(
        !stage.serve.log().contains(&token),
        "the token is in the log"
    );
}

#[tokio::test]
async fn only_who_may_impersonate_acts_as_another() {
    let stage = stage::shared().await;
    let namespace = readable_by(&stage, "--user=ruth").await;
    let path = collection(&namespace);
    let as_ruth = [
        ("impersonate-user", "ruth"),
        ("impersonate-group", "system:authenticated"),
    ];
    let direct = stage.direct();
    eventually(SOON, "the role is in force", async || {
        with_headers(&direct, "GET", &path, &as_ruth).await.status == 200
    })
    .await;
    let refused = with_headers(&direct, "POST", &path, &as_ruth).await;
    refused.expect(403, "Forbidden");
    let message = refused.body["message"].as_str().unwrap_or_default();
    assert!(
        message.contains(r#"User "ruth" cannot create"#),
        "{message}"
    );

    let ruth = stage.direct_as("ruth");
    let as_admin = [
        ("impersonate-user", "admin"),
        ("impersonate-group", "system:masters"),
    ];
    let refused = with_headers(&ruth, "GET", &path, &as_admin).await;
    refused.expect(403, "Forbidden");
    let message = refused.body["message"].as_str().unwrap_or_default();
    assert!(
        message.contains(r#"User "ruth" cannot impersonate"#),
        "{message}"
    );
    assert_eq!(stage.nodes.held(&namespace).await, []);
}
