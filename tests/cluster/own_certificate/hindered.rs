//! What the server does about its certificate when something is in its way: rights that are missing, a Secret that is not its
//! own any more, its own end.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use sandbox_apiserver::serving::CertificateAuthority;
use serde_json::json;

use super::{
    AT_ONCE, BRIEF,
    load::{n_certificates, served},
    secret,
};
use crate::{
    api_service::NAMESPACE,
    caller::Caller,
    lone_server::{API_SERVICE_NAME, CA, LoneServer, SOON},
    stage::{eventually, pointed_at},
    users::ADMIN,
};

fn direct(server: &LoneServer, bundle: &str) -> Caller {
    let admin = server.control_plane.config_as(ADMIN);
    Caller::new(pointed_at(admin, bundle, server.port))
}

#[tokio::test]
async fn a_server_that_kube_apiserver_cannot_verify_is_not_ready() {
    let mut server = LoneServer::new(&[]).await;
    server
        .forbid("clusterrole", "apiservices", API_SERVICE_NAME)
        .await;
    server.start_serve();
    server.says("reading the APIService").await;
    let bundle = server.kept("secrets", "ca.crt").await;
    let direct = direct(&server, &bundle);
    eventually(SOON, "it is ready but for that", async || {
        let answer = direct.try_get("/readyz?exclude=certificate").await;
        answer.is_some_and(|answer| answer.status == 200)
    })
    .await;
    assert_eq!(direct.get("/readyz").await.status, 500);
    let check = direct.get("/readyz/certificate").await;
    let why = check.body.as_str().unwrap();
    assert!(why.contains("do not have the CA"), "{why}");
    server.apply().await;
    server.is_available().await;
}

#[tokio::test]
async fn without_its_secret_a_ca_bundle_that_is_taken_away_comes_back_all_the_same() {
    let server = LoneServer::started(&[BRIEF]).await;
    let bundle = server.bundle().await;
    let here = format!("--namespace={NAMESPACE}");
    let not_its_own = [
        "label",
        "secret",
        CA,
        &here,
        "app.kubernetes.io/managed-by-",
    ];
    let kubectl = server.control_plane.kubectl();
    kubectl.stdout(&not_its_own).await;
    server.patch_api_services(json!({"caBundle": null})).await;
    eventually(AT_ONCE, "it is as it was", async || {
        server.bundle().await == bundle
    })
    .await;
    server.is_available().await;
    server.says("was not made by this server").await;
}

#[tokio::test]
async fn a_config_map_that_cannot_be_written_holds_up_no_new_ca() {
    let server = LoneServer::started(&[BRIEF]).await;
    let before = server.bundle().await;
    server.forbid("role", "configmaps", CA).await;
    server.admin().delete(&secret()).await.ok();
    eventually(SOON * 2, "the successor serves", async || {
        let bundle = server.bundle().await;
        n_certificates(&bundle) == 1
            && bundle != before
            && served(&bundle, server.port).await.is_ok()
    })
    .await;
    server.says("the ConfigMap").await;
    assert_eq!(server.kept("configmaps", "ca.crt").await, before);
    server.apply().await;
    eventually(SOON * 2, "the ConfigMap follows", async || {
        server.kept("configmaps", "ca.crt").await == server.bundle().await
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_about_to_end_leaves_the_ca_bundle_to_its_successor() {
    let mut server = LoneServer::new(&[]).await;
    // Long enough for it to see the change, if it looked.
    server.start_serve_with(&["--shutdown-delay-seconds=8"]);
    server.is_available().await;
    let direct = direct(&server, &server.bundle().await);
    server.terminate_serve();
    eventually(SOON, "readiness ends", async || {
        let answer = direct.try_get("/readyz").await;
        answer.is_some_and(|answer| answer.status == 500)
    })
    .await;
    let stranger = CertificateAuthority::new("stranger").unwrap();
    let encoded = BASE64_STANDARD.encode(stranger.certificate());
    server
        .patch_api_services(json!({"caBundle": encoded}))
        .await;
    assert!(
        direct.try_get("/livez").await.is_some(),
        "it is there to see it"
    );
    eventually(SOON, "it has ended", async || {
        direct.try_get("/livez").await.is_none()
    })
    .await;
    assert_eq!(server.bundle().await, stranger.certificate());
}
