//! Clients that show other credentials than the users of the control plane have.

use std::{
    net::SocketAddr,
    ops::Range,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use sandbox_apiserver::serving::{CertificateAuthority, PemPair};
use serde_json::json;

use super::{client::Client, server::Server, subject::Subject};

const DAY: Duration = Duration::from_secs(86_400);

/// Where a server is, and the CA of its certificate, PEM.
pub(super) struct Door {
    pub(super) address: SocketAddr,
    pub(super) ca: String,
}

impl Door {
    /// The server's own port.
    pub(super) fn of(subject: &Subject) -> Self {
        Self {
            address: subject.address(),
            ca: subject.ca(),
        }
    }

    pub(super) fn of_server(server: &Server) -> Self {
        Self {
            address: server.address,
            ca: server.ca.clone(),
        }
    }

    /// Who shows no credential.
    pub(super) fn nobody(&self) -> Client {
        self.client(&kube::config::AuthInfo::default())
    }

    /// Who shows this certificate.
    pub(super) fn with_certificate(&self, pair: &PemPair) -> Client {
        let encoded = |pem: &str| BASE64_STANDARD.encode(pem);
        let auth_info = json!({
            "client-certificate-data": encoded(&pair.certificate),
            "client-key-data": encoded(&pair.private_key),
        });
        self.client(&serde_json::from_value(auth_info).unwrap())
    }

    /// Who shows this token.
    pub(super) fn with_token(&self, token: &str) -> Client {
        let auth_info = serde_json::from_value(json!({"token": token}));
        self.client(&auth_info.unwrap())
    }

    fn client(&self, auth_info: &kube::config::AuthInfo) -> Client {
        let url = format!("https://localhost:{}", self.address.port());
        let mut config = kube::Config::new(url.parse().unwrap());
        let ca = CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap();
        config.root_cert = Some(vec![ca.to_vec()]);
        config.auth_info = auth_info.clone();
        Client::new(config, false)
    }
}

/// A client certificate that is valid today.
pub(super) fn certificate(ca: &CertificateAuthority, name: &str, group: Option<&str>) -> PemPair {
    ca.client_certificate(name, group, days(-1, 1)).unwrap()
}

/// A client certificate whose time is over.
pub(super) fn expired(ca: &CertificateAuthority, name: &str) -> PemPair {
    ca.client_certificate(name, None, days(-2, -1)).unwrap()
}

fn days(from: i32, to: i32) -> Range<SystemTime> {
    let day = |n: i32| match n < 0 {
        true => SystemTime::now() - DAY * n.unsigned_abs(),
        false => SystemTime::now() + DAY * n.unsigned_abs(),
    };
    day(from)..day(to)
}

/// A new service account of the check's namespace: its user name, and a token of it.
pub(super) async fn service_account(subject: &Subject, name: &str) -> (String, String) {
    let (namespace, control_plane) = (&subject.namespace, subject.control_plane);
    let create = ["create", "serviceaccount", name, "--namespace", namespace];
    control_plane.kubectl().stdout(&create).await;
    let token = control_plane.service_account_token(namespace, name).await;
    (format!("system:serviceaccount:{namespace}:{name}"), token)
}
