//! A renewed serving certificate that nobody served.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustls_pki_types::{CertificateDer, pem::PemObject as _};

use crate::{
    pki::Certificate,
    stage::{Stage, StageOptions, collection, eventually, item},
    tls_client,
};

/// What an operator may wait for.
const SERVED_WITHIN: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(10);

/// Puts a pair where the server looks, as the kubelet does: `tls.crt` is a link to `..data/tls.crt`, and `..data` a link to a
/// directory that is never written to again. What changes is `..data`, at once.
fn mount(dir: &Path, generation: &str, pair: &Certificate) {
    let own = dir.join(generation);
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("tls.crt"), &pair.certificate_pem).unwrap();
    std::fs::write(own.join("tls.key"), &pair.key_pem).unwrap();
    swap(dir, generation, "..data");
    for file in ["tls.crt", "tls.key"] {
        swap(dir, &format!("..data/{file}"), file);
    }
}

fn swap(dir: &Path, target: &str, link: &str) {
    if std::fs::read_link(dir.join(link)).is_ok_and(|now| now == Path::new(target)) {
        return;
    }
    let new = dir.join("..new");
    symlink(target, &new).unwrap();
    std::fs::rename(new, dir.join(link)).unwrap();
}

/// The certificate that a new connection is shown.
async fn served(stage: &Stage) -> CertificateDer<'static> {
    let tls = tls_client::config(&stage.ca(), None, &["h2"]);
    let stream = tls_client::connect(([127, 0, 0, 1], stage.port).into(), tls);
    let stream = stream.await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone()
}

async fn until_served(stage: &Stage, pair: &Certificate) {
    let wanted = CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap();
    eventually(SERVED_WITHIN, "the new certificate is served", async || {
        served(stage).await == wanted
    })
    .await;
}

async fn failures(stage: &Stage) -> f64 {
    let name = "certificate_reload_failures_total";
    stage.direct().metric(name).await
}

// kubernetes/kubernetes#66448, projectcalico/calico#9419
#[tokio::test]
async fn a_renewed_certificate_is_served_and_no_watch_and_no_request_notices() {
    let stage = Stage::start(StageOptions::default()).await;
    let namespace = stage.namespace("renewed").await;
    let (admin, all) = (stage.admin(), collection(&namespace));
    let mut events = [
        admin.watch(&format!("{all}?watch=1")).await,
        stage.direct().watch(&format!("{all}?watch=1")).await,
    ];
    let renewed = AtomicBool::new(false);
    let load = async {
        let mut n_requests = 0;
        while !renewed.load(Ordering::Relaxed) {
            // A connection of its own, and one that is kept.
            stage.direct().get(&all).await.ok();
            admin.get(&all).await.ok();
            n_requests += 2;
        }
        n_requests
    };
    let renewal = async {
        let (first, second, third) = (
            stage.certificate(),
            stage.certificate(),
            stage.certificate(),
        );
        let dir = stage.directory();
        mount(dir, "..1", &first);
        until_served(&stage, &first).await;
        mount(dir, "..2", &second);
        until_served(&stage, &second).await;
        assert_eq!(failures(&stage).await, 0.0);

        let mismatched = Certificate {
            certificate_pem: third.certificate_pem.clone(),
            key_pem: stage.certificate().key_pem,
        };
        mount(dir, "..3", &mismatched);
        eventually(SERVED_WITHIN, "the pair is counted", async || {
            failures(&stage).await == 1.0
        })
        .await;
        until_served(&stage, &second).await;
        assert!(
            stage
                .serve
                .log()
                .contains("serving certificate cannot be used")
        );
        mount(dir, "..4", &third);
        until_served(&stage, &third).await;
        renewed.store(true, Ordering::Relaxed);
    };
    let (n_requests, ()) = tokio::join!(load, renewal);
    eprintln!("{n_requests} requests went through while the certificate changed");
    stage.create(&namespace, "after").await;
    for events in &mut events {
        let event = events.next_within(SOON).await;
        assert_eq!(event["object"]["metadata"]["name"], "after");
    }
    admin.delete(&item(&namespace, "after")).await.ok();
    let available = [
        "wait",
        "--for=condition=Available",
        "--timeout=30s",
        "apiservice/v1beta1.agents.x-k8s.io",
    ];
    stage.control_plane.kubectl().stdout(&available).await;
}
