//! Certificates and protocols.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use sandbox_apiserver::serving::CertificateAuthority;
use serde_json::Value;

use super::registration::{api_services, is_available, registration};
use crate::{
    api_service::SERVER_NAME,
    auth::certificate_of,
    chart,
    conformance::{
        client::SOON,
        credentials::{certificate, expired, service_account},
        subject::Subject,
        witness::Witness,
    },
    stage::{API, eventually},
    tls_client,
    users::ADMIN,
};

/// Whether a client that trusts `ca` takes the certificate for that of a server of this name. Its common name is not looked at.
fn is_for(name: &str, certificate: &str, ca: &str) -> bool {
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(der(ca)).unwrap();
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let verified = verifier.build().unwrap().verify_server_cert(
        &der(certificate),
        &[],
        &name,
        &[],
        UnixTime::now(),
    );
    verified.is_ok()
}

fn decoded(base64: &Value) -> String {
    use base64::Engine as _;
    let text = base64.as_str().unwrap_or_default();
    String::from_utf8(base64::prelude::BASE64_STANDARD.decode(text).unwrap()).unwrap()
}

/// The certificate that a server shows.
async fn served(address: SocketAddr, ca: &str) -> CertificateDer<'static> {
    let tls = tls_client::config(ca, None, &["h2"]);
    let stream = tls_client::connect(address, tls).await.unwrap();
    let (_, session) = stream.get_ref();
    session.peer_certificates().unwrap()[0].clone()
}

fn pem(der: &CertificateDer<'_>) -> String {
    use base64::Engine as _;
    let body = base64::prelude::BASE64_STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
}

/// kube-apiserver proves the name with every request that it passes on, and so with its own health check.
pub(super) async fn c_001(subject: &Subject) {
    for version in ["v1beta1", "v1alpha1"] {
        let registered = registration(subject, version).await;
        is_available(&registered);
        let service = &registered["spec"]["service"];
        let name = |field: &str| service[field].as_str().unwrap_or_default().to_owned();
        let name = format!("{}.{}.svc", name("name"), name("namespace"));
        assert_eq!(name, SERVER_NAME);
        assert_eq!(decoded(&registered["spec"]["caBundle"]), subject.ca());
        assert_ne!(registered["spec"]["insecureSkipTLSVerify"], true);
        let served = served(subject.address(), &subject.ca()).await;
        let served = pem(&served);
        assert!(is_for(&name, &served, &subject.ca()));
        assert!(!is_for(
            "another.sandbox-system.svc",
            &served,
            &subject.ca()
        ));
    }
    // A certificate that is brought is what the chart's registrations trust; else the server writes its own CA there.
    let brought = format!("--set-string=tls.caBundle={}", subject.ca());
    for namespace in ["sandbox-system", "elsewhere"] {
        let own = ["--namespace", namespace];
        let bring = [&own[..], &["--set=tls.existingSecret=own", &brought]].concat();
        for (flags, ca) in [(&own[..], None), (&bring, Some(subject.ca()))] {
            let objects = chart::documents(&chart::helm_template(flags));
            for api_service in api_services(&objects) {
                let spec = &api_service["spec"];
                assert_eq!(spec["service"]["namespace"], namespace);
                let found = spec.get("caBundle").map(decoded);
                assert_eq!(found, ca);
                assert_ne!(spec["insecureSkipTLSVerify"], true);
            }
        }
    }
}

pub(super) async fn c_002(subject: &Subject) {
    let admin = certificate_of(subject.control_plane, ADMIN);
    for (offered, taken) in [
        (&["h2", "http/1.1"][..], "h2"),
        (&["http/1.1"], "http/1.1"),
        (&["h2"], "h2"),
    ] {
        let tls = tls_client::config(&subject.ca(), Some(&admin), offered);
        let stream = tls_client::connect(subject.address(), tls).await.unwrap();
        let (_, session) = stream.get_ref();
        assert_eq!(
            session.alpn_protocol(),
            Some(taken.as_bytes()),
            "{offered:?}"
        );
        let request = tls_client::get(API);
        let answer = match taken {
            "h2" => tls_client::http2(stream).await.send_request(request).await,
            _ => tls_client::http1(stream).await.send_request(request).await,
        };
        let text = tls_client::text(answer.unwrap()).await;
        let resources: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(resources["kind"], "APIResourceList", "{offered:?}");
    }
}

pub(super) async fn c_003(subject: &Subject) {
    let (_, token) = service_account(subject, "robot").await;
    let stranger = CertificateAuthority::new("stranger").unwrap();
    let unknown = certificate(&stranger, "eve", None);
    let late = expired(&stranger, "eve");
    let of_server = stranger.server_certificate(&["eve"]).unwrap();
    let bearer = format!("Bearer {token}");
    for (what, shown) in [
        ("none", None),
        ("of an unknown CA", Some(&unknown)),
        ("expired", Some(&late)),
        ("for servers", Some(&of_server)),
    ] {
        for versions in [&[&rustls::version::TLS13][..], &[&rustls::version::TLS12]] {
            let tls = tls_client::config_of(versions, &subject.ca(), shown, &["http/1.1"]);
            let status = async |token: Option<&str>| {
                let stream = tls_client::connect(subject.address(), tls.clone()).await;
                let mut request = tls_client::get("/version");
                let token =
                    token.map(|token| (http::header::AUTHORIZATION, token.parse().unwrap()));
                request.headers_mut().extend(token);
                let mut sender = tls_client::http1(stream.expect(what)).await;
                sender
                    .send_request(request)
                    .await
                    .unwrap()
                    .status()
                    .as_u16()
            };
            assert_eq!(status(Some(&bearer)).await, 200, "{what}, and a token");
            // Anybody may read the version, but for whoever shows a bad credential.
            let alone = if shown.is_some() { 401 } else { 200 };
            assert_eq!(status(None).await, alone, "{what}");
        }
    }
}

pub(super) async fn c_004(subject: &Subject) {
    let witness = Witness::start(subject).await;
    let newcomer = CertificateAuthority::new("client").unwrap();
    let nora = certificate(&newcomer, "nora", None);
    let nora = witness.door.with_certificate(&nora);
    assert_eq!(witness.who(&nora, &[]).await, None);
    let both = format!(
        "{}{}",
        witness.client_ca.certificate(),
        newcomer.certificate()
    );
    let mut data = witness.trust();
    data["client-ca-file"] = both.into();
    witness
        .trust_until(subject, &data, &nora, (&[], "nora"))
        .await;
    assert_eq!(witness.name(&witness.user("jane"), &[]).await, "jane");
    // So does a new CA of the front proxy, beside the old one.
    let next = CertificateAuthority::new("proxy").unwrap();
    let proxy = witness
        .door
        .with_certificate(&certificate(&next, "front-proxy-client", None));
    let ann = [("x-remote-user", "ann")];
    assert_eq!(witness.who(&proxy, &ann).await, None);
    let both = format!("{}{}", witness.proxy_ca.certificate(), next.certificate());
    data["requestheader-client-ca-file"] = both.into();
    witness
        .trust_until(subject, &data, &proxy, (&ann, "ann"))
        .await;
    let before = witness.door.with_certificate(&witness.proxy());
    assert_eq!(witness.name(&before, &ann).await, "ann");
    drop(witness);

    let mut server = subject.server(&[]);
    server.ready().await;
    let before = served(server.address, &server.ca).await;
    let admin = server.client();
    let mut watch = admin
        .watch(&format!("{}?watch=1", subject.collection()))
        .await;
    let running = server.running();
    let renewed = running
        .authority
        .serving(&[SERVER_NAME, "localhost"])
        .unwrap();
    let files = [
        ("tls.crt", &renewed.certificate_pem),
        ("tls.key", &renewed.key_pem),
    ];
    for (file, content) in files {
        std::fs::write(running.directory.path().join(file), content).unwrap();
    }
    let renewed = CertificateDer::from_pem_slice(renewed.certificate_pem.as_bytes()).unwrap();
    assert_ne!(before, renewed);
    eventually(SOON, "the new certificate is shown", async || {
        served(server.address, &server.ca).await == renewed
    })
    .await;
    // Who was there before stays.
    assert!(watch.is_silent(Duration::from_millis(100)).await);
    assert!(server.running().process.exited().unwrap().is_none());
}
