//! Who asks all the time, and what he is shown.

// clippy's own exemption for tests ends at their helpers.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, net::SocketAddr};

use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{
    api_service::SERVER_NAME,
    caller::Caller,
    lone_server::{self, LoneServer},
    stage::API,
    tls_client,
};

/// The certificate that a new connection to the name of the Service is shown, by who trusts `bundle`.
pub(super) async fn served(bundle: &str, port: u16) -> std::io::Result<CertificateDer<'static>> {
    let tls = tls_client::config(bundle, None, &["h2"]);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let stream = tls_client::connect_to(SERVER_NAME, address, tls).await?;
    Ok(stream.get_ref().1.peer_certificates().unwrap()[0].clone())
}

pub(super) fn issuer(certificate: &CertificateDer<'_>) -> String {
    let (_, parsed) = X509Certificate::from_der(certificate).unwrap();
    parsed.issuer().to_string()
}

pub(super) fn n_certificates(pem: &str) -> usize {
    CertificateDer::pem_slice_iter(pem.as_bytes()).count()
}

/// Somebody who asks all the time: through kube-apiserver, and directly with a connection of its own each time, trusting what
/// the APIService says at that moment.
pub(super) struct Load {
    stop: CancellationToken,
    asking: JoinHandle<Seen>,
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    n_requests: usize,
    failures: Vec<String>,
    /// In the order in which they came.
    pub(super) issuers: Vec<String>,
    pub(super) certificates: BTreeSet<Vec<u8>>,
}

impl Load {
    pub(super) fn start(server: &LoneServer) -> Self {
        let stop = CancellationToken::new();
        let (admin, port, until) = (server.admin(), server.port, stop.clone());
        let asking = tokio::spawn(async move {
            let mut seen = Seen::default();
            while !until.is_cancelled() {
                seen.look(&admin, port).await;
            }
            seen
        });
        Self { stop, asking }
    }

    /// Ends it.
    ///
    /// # Panics
    /// When anything failed.
    pub(super) async fn finish(self) -> Seen {
        self.stop.cancel();
        let seen = self.asking.await.unwrap();
        eprintln!(
            "{} requests, issuers {:?}, {} certificates",
            seen.n_requests,
            seen.issuers,
            seen.certificates.len()
        );
        assert_eq!(seen.failures, [] as [&str; 0], "of {}", seen.n_requests);
        assert!(seen.n_requests > 20, "it asked");
        seen
    }
}

impl Seen {
    async fn look(&mut self, admin: &Caller, port: u16) {
        self.n_requests += 1;
        match admin.try_get(&format!("{API}/sandboxes")).await {
            Some(answer) if answer.status == 200 => {}
            other => self.failures.push(format!("kube-apiserver: {other:?}")),
        }
        let bundle = lone_server::bundle(admin).await;
        match served(&bundle, port).await {
            Ok(certificate) => {
                let issuer = issuer(&certificate);
                if self.issuers.last() != Some(&issuer) {
                    self.issuers.push(issuer);
                }
                self.certificates.insert(certificate.to_vec());
            }
            Err(error) => self.failures.push(format!("directly: {error}")),
        }
    }
}
