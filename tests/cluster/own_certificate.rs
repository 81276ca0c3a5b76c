//! The server's own CA and certificate: made, renewed and published without anybody's help, and without anybody noticing.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

mod hindered;
mod load;

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use sandbox_apiserver::{
    certificate::{CertificateMetrics, Keeper, Options},
    sequencer::Sequencer,
    serving::{CertificateAuthority, ServeOptions, Transport, run},
    telemetry::{Readiness, Tasks},
};
use serde_json::json;
use tokio::{net::TcpListener, sync::oneshot};
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{
    api_service::{NAMESPACE, SERVER_NAME},
    caller::Caller,
    components::free_port,
    control_plane,
    lone_server::{API_SERVICE_NAME, CA, LoneServer, SOON},
    stage::{eventually, pointed_at},
    users::ADMIN,
};
use load::{Load, issuer, n_certificates, served};

/// A certificate that is short-lived enough for its pause to be five seconds.
const BRIEF: &str = "--set=tls.certificateDuration=1m";

/// Well before the server looks without being told.
const AT_ONCE: Duration = Duration::from_secs(15);

fn secret() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/secrets/{CA}")
}

#[tokio::test]
async fn an_installation_is_available_and_nobody_has_made_a_certificate_by_hand() {
    let server = LoneServer::started(&[]).await;
    let bundle = server.bundle().await;
    let sandboxes = ["get", "sandboxes", "--all-namespaces"];
    server.control_plane.kubectl().stdout(&sandboxes).await;
    assert_eq!(n_certificates(&bundle), 1);
    eventually(SOON, "it is kept and published", async || {
        server.has_published(&bundle).await
    })
    .await;
    let key = server.kept("secrets", "tls.key").await;
    let kept = server.admin().get(&secret()).await.ok();
    assert_eq!(kept["type"], "kubernetes.io/tls");

    // Who comes directly trusts what the ConfigMap says, and finds a certificate of a week of a CA of a year.
    let admin = server.control_plane.config_as(ADMIN);
    let direct = Caller::new(pointed_at(admin, &bundle, server.port));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap().as_secs_f64();
    for (what, days) in [("serving", 7.0), ("ca", 365.0)] {
        let name = format!("certificate_{what}_expiration_timestamp_seconds");
        let left = direct.metric(&name).await - now;
        assert!((left - days * 86_400.0).abs() < 600.0, "{what}: {left} s");
    }
    assert_eq!(direct.metric("certificate_failures_total").await, 0.0);
    let certificate = served(&bundle, server.port).await.unwrap();
    let (_, parsed) = X509Certificate::from_der(&certificate).unwrap();
    let begins = f64::from(u32::try_from(parsed.validity().not_before.timestamp()).unwrap());
    assert!(begins < now - 3_000.0, "clocks may be behind");

    // An upgrade leaves the bundle to the server.
    server.apply().await;
    assert_eq!(server.bundle().await, bundle);
    let line = key.lines().nth(1).unwrap();
    assert!(line.len() > 40 && !server.log().contains(line));
}

#[tokio::test]
async fn certificates_and_cas_are_renewed_and_no_request_fails() {
    let flags = ["--set=tls.certificateDuration=20s,tls.caDuration=50s"];
    let server = LoneServer::started(&flags).await;
    let first = server.bundle().await;
    let load = Load::start(&server);
    eventually(SOON, "the successor is published beside it", async || {
        let bundle = server.bundle().await;
        n_certificates(&bundle) == 2 && bundle.ends_with(&first)
    })
    .await;
    let newest = CertificateDer::from_pem_slice(server.bundle().await.as_bytes()).unwrap();
    eventually(SOON, "the successor issues", async || {
        // By who copied the first CA, and looks no further.
        let served = served(&first, server.port).await.unwrap();
        issuer(&served) == issuer(&newest)
    })
    .await;
    eventually(SOON * 2, "the CA is gone when it has ended", async || {
        !server.bundle().await.contains(&first)
    })
    .await;
    // The Secret has the CA that issues in its first place, and so has what is published.
    eventually(SOON * 2, "a third one issues", async || {
        let n_made = server.log().matches("made a CA").count();
        let bundle = server.bundle().await;
        let newest = CertificateDer::from_pem_slice(bundle.as_bytes()).unwrap();
        let served = served(&bundle, server.port).await.unwrap();
        n_made >= 3 && issuer(&served) == issuer(&newest)
    })
    .await;
    let seen = load.finish().await;
    let issuers: BTreeSet<_> = seen.issuers.iter().collect();
    assert!(issuers.len() >= 3, "{issuers:?}");
    assert_eq!(issuers.len(), seen.issuers.len(), "none comes back");
    assert!(
        seen.certificates.len() > issuers.len(),
        "each issues more than one"
    );
    let log = server.log();
    assert!(
        !log.contains("WARN sandbox_apiserver::certificate"),
        "{log}"
    );
}

#[tokio::test]
async fn a_ca_whose_secret_is_deleted_or_spoilt_has_a_successor_and_no_request_fails() {
    let server = LoneServer::started(&[BRIEF]).await;
    let load = Load::start(&server);
    let admin = server.admin();
    let spoilt = json!({"data": {"tls.key": "bm8ga2V5"}});
    // Who deletes it wants to be rid of the CA. Of one that is spoilt the server still has the good one, which stays trusted.
    for (change, n_trusted) in [(None, 1), (Some(spoilt), 2)] {
        let before = server.bundle().await;
        match change {
            None => {
                admin.delete(&secret()).await.ok();
            }
            Some(patch) => {
                let (patch, here) = (patch.to_string(), format!("--namespace={NAMESPACE}"));
                let args = [
                    "patch",
                    "secret",
                    CA,
                    &here,
                    "--type=merge",
                    "--patch",
                    &patch,
                ];
                server.control_plane.kubectl().stdout(&args).await;
            }
        }
        // A look every half minute, and a pause of five seconds behind the publication.
        eventually(SOON * 2, "the successor serves", async || {
            let bundle = server.bundle().await;
            let newest = CertificateDer::from_pem_slice(bundle.as_bytes()).unwrap();
            let served = served(&bundle, server.port).await.unwrap();
            n_certificates(&bundle) == n_trusted
                && bundle != before
                && issuer(&served) == issuer(&newest)
                && server.has_published(&bundle).await
        })
        .await;
    }
    let seen = load.finish().await;
    assert_eq!(seen.issuers.len(), 3);
}

#[tokio::test]
async fn a_ca_bundle_that_is_taken_away_or_changed_comes_back() {
    let server = LoneServer::started(&[BRIEF]).await;
    let bundle = server.bundle().await;
    let stranger = CertificateAuthority::new("stranger").unwrap();
    let stranger = BASE64_STANDARD.encode(stranger.certificate());
    for spec in [json!({"caBundle": null}), json!({"caBundle": stranger})] {
        server.patch_api_services(spec).await;
        eventually(AT_ONCE, "it is as it was", async || {
            server.bundle().await == bundle
        })
        .await;
        server.is_available().await;
    }
    // Somebody's choice, with which no bundle is valid.
    let choice = json!({"insecureSkipTLSVerify": true, "caBundle": null});
    server.patch_api_services(choice).await;
    server.says("it has insecureSkipTLSVerify").await;
    assert_eq!(server.bundle().await, "");
    let back = json!({"insecureSkipTLSVerify": null});
    server.patch_api_services(back).await;
    eventually(AT_ONCE, "it is as it was", async || {
        server.bundle().await == bundle
    })
    .await;
    // An APIService that is deleted and made again, as by who reinstalls.
    let name = API_SERVICE_NAME;
    let delete = ["delete", "apiservice", name];
    server.control_plane.kubectl().stdout(&delete).await;
    server.apply().await;
    eventually(AT_ONCE, "the new one has it", async || {
        server.bundle().await == bundle
    })
    .await;
    server.is_available().await;
    assert!(!server.log().contains("ERROR"), "{}", server.log());
}

#[tokio::test]
async fn an_installation_that_brought_a_certificate_goes_over_to_the_servers_own() {
    let mut server = LoneServer::new(&[]).await;
    let by_hand = CertificateAuthority::new("by hand").unwrap();
    let pair = by_hand.server_certificate(&[SERVER_NAME]).unwrap();
    for (file, content) in [
        ("tls.crt", &pair.certificate),
        ("tls.key", &pair.private_key),
    ] {
        std::fs::write(server.directory().join(file), content).unwrap();
    }
    let encoded = BASE64_STANDARD.encode(by_hand.certificate());
    let spec = json!({"caBundle": encoded});
    server.patch_api_services(spec).await;
    let files = ["--tls-cert-file=tls.crt", "--tls-private-key-file=tls.key"];
    server.start_serve_with(&files);
    server.is_available().await;
    assert_eq!(server.bundle().await, by_hand.certificate());
    assert_eq!(server.admin().get(&secret()).await.status, 404);

    server.kill_serve();
    server.start_serve();
    eventually(SOON, "the server's own CA is trusted", async || {
        let bundle = server.bundle().await;
        bundle != by_hand.certificate() && served(&bundle, server.port).await.is_ok()
    })
    .await;
    server.is_available().await;
    assert_eq!(n_certificates(&server.bundle().await), 1);

    // And back: what the server wrote is the operator's again, and nobody but him changes it.
    server.kill_serve();
    let spec = json!({"caBundle": encoded});
    server.patch_api_services(spec).await;
    server.start_serve_with(&files);
    server.is_available().await;
    assert_eq!(server.bundle().await, by_hand.certificate());
}

#[tokio::test]
async fn somebody_elses_secret_is_left_alone_and_the_server_says_so() {
    let mut server = LoneServer::new(&[]).await;
    let kubectl = server.control_plane.kubectl();
    let here = format!("--namespace={NAMESPACE}");
    let create = [
        "create",
        "secret",
        "generic",
        CA,
        &here,
        "--from-literal=tls.key=dear",
    ];
    kubectl.stdout(&create).await;
    server.start_serve();
    server.says("was not made by this server").await;
    assert_eq!(server.kept("secrets", "tls.key").await, "dear");
    assert_eq!(server.bundle().await, "");
    server.admin().delete(&secret()).await.ok();
    server.is_available().await;
}

#[tokio::test]
async fn two_servers_at_once_have_one_ca_and_the_second_goes_on_with_it() {
    let mut server = LoneServer::new(&[]).await;
    server.start_serve();
    let port = free_port().unwrap();
    let second = server.start_second(port);
    // Which of them is the first is chance: the Service leads to one, and that is the one that is to be asked.
    eventually(SOON, "both serve by the one CA", async || {
        let bundle = server.bundle().await;
        n_certificates(&bundle) == 1
            && served(&bundle, server.port).await.is_ok()
            && served(&bundle, port).await.is_ok()
    })
    .await;
    let bundle = server.bundle().await;
    let is_leader = second.log().contains("made a CA");
    assert_ne!(
        is_leader,
        server.log().contains("made a CA"),
        "one of them made it"
    );
    drop(second);
    server.is_available().await;
    assert_eq!(server.bundle().await, bundle);
    let log = server.log();
    assert_eq!(
        log.contains("made a CA"),
        !is_leader,
        "none is made after a change of leaders"
    );
}

#[tokio::test]
async fn processes_that_all_take_themselves_for_the_leader_end_with_one_ca() {
    let control_plane = control_plane::shared();
    let namespace = control_plane.create_namespace("race").await;
    let shutdown = CancellationToken::new();
    let (mut tasks, readiness) = (Tasks::new(shutdown.clone()), Readiness::new());
    let _running = shutdown.clone().drop_guard();
    let mut servers = Vec::new();
    for n in 0..4 {
        let mut config = control_plane.config_as(ADMIN);
        config.default_retry = false;
        let options = Options {
            namespace: namespace.clone(),
            service: "server".to_owned(),
            secret: CA.to_owned(),
            names: vec![SERVER_NAME.to_owned()],
            api_services: Vec::new(),
            certificate_duration: SOON,
            ca_duration: SOON * 10,
        };
        let client = kube::Client::try_from(config).unwrap();
        let keeper = Keeper::new(client, options, CertificateMetrics::default()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let sequencer = Sequencer::in_directory(directory.path()).unwrap();
        let (elected_tx, elected_rx) = oneshot::channel();
        elected_tx.send(sequencer.tenure().clone()).unwrap();
        servers.push((listener.local_addr().unwrap().port(), directory, sequencer));
        let app = async |_, _| Response::new(Full::<Bytes>::default());
        let transport = Transport::Tls(keeper.material());
        let serve = run(
            listener,
            transport,
            app,
            ServeOptions::default(),
            shutdown.clone(),
        );
        tasks.spawn("server", serve);
        let check = readiness.check(format!("server {n}"));
        tasks.spawn("keeper", keeper.run(check, elected_rx));
    }
    eventually(SOON, "all have a certificate", async || {
        readiness.is_ready()
    })
    .await;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{CA}");
    let published = Caller::new(control_plane.config_as(ADMIN))
        .get(&path)
        .await
        .ok();
    let bundle = published["data"]["ca.crt"].as_str().unwrap();
    assert_eq!(n_certificates(bundle), 1);
    for (port, ..) in &servers {
        served(bundle, *port).await.expect("of the one CA");
    }
}
