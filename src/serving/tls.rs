//! The certificate that is served, and how it changes while connections live.

use std::{path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::time::MissedTickBehavior;

use super::{Error, PemPair, Result, ServingMetrics, client_certificate::ProofOfKey};

/// How the bytes of a connection are carried.
#[derive(Clone, Debug)]
pub enum Transport {
    /// As they are: HTTP/1.1, or HTTP/2 from a client that knows.
    Plain,
    /// In TLS 1.2 or 1.3, with HTTP/2 or HTTP/1.1 as ALPN decides.
    Tls(Arc<TlsMaterial>),
}

/// Tries at reading a pair that is being swapped.
const READS: usize = 3;

/// The certificate chain and key that new handshakes are answered with.
#[derive(Debug)]
pub struct TlsMaterial {
    current: ArcSwap<CertifiedKey>,
}

/// Where the certificate chain and its key lie, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The server's certificate, followed by its intermediates.
    pub certificate: PathBuf,
    /// The private key: PKCS#8, PKCS#1 or SEC1.
    pub private_key: PathBuf,
}

impl TlsMaterial {
    /// A pair that is in memory.
    ///
    /// # Errors
    /// [`Error::Pem`] and [`Error::Pair`].
    pub fn from_pem(pair: &PemPair) -> Result<Self> {
        Ok(Self {
            current: ArcSwap::from_pointee(certified_key(pair)?),
        })
    }

    /// The pair in `files`.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Pem`] and [`Error::Pair`].
    pub async fn load(files: &CertificateFiles) -> Result<Self> {
        Self::from_pem(&files.read().await?)
    }

    /// Looks at `files` every `period` and serves a changed pair to the handshakes that follow; open connections keep theirs.
    /// A pair that cannot be read or used is logged and counted once, and the one before stays. Runs until it is dropped.
    ///
    /// The content is compared, not times or paths: the kubelet swaps a symlink two levels up.
    pub async fn follow(
        self: Arc<Self>,
        files: CertificateFiles,
        period: Duration,
        metrics: ServingMetrics,
    ) {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = None;
        loop {
            ticks.tick().await;
            let read = files.read().await.map_err(|error| format_chain(&error));
            if seen.as_ref() == Some(&read) {
                continue;
            }
            let outcome = match &read {
                Ok(pair) => self.replace(pair).map_err(|error| format_chain(&error)),
                Err(reason) => Err(reason.clone()),
            };
            match outcome {
                Ok(()) => {
                    tracing::info!(file = %files.certificate.display(), "serving certificate loaded");
                }
                Err(reason) => {
                    metrics.certificate_reload_failures.inc();
                    tracing::error!(file = %files.certificate.display(), reason, "serving certificate cannot be used: keeping the old one");
                }
            }
            seen = Some(read);
        }
    }

    /// Serves `pair` to the handshakes that follow; open connections keep theirs.
    ///
    /// # Errors
    /// [`Error::Pem`] and [`Error::Pair`]; then the pair before stays.
    pub fn replace(&self, pair: &PemPair) -> Result<()> {
        self.current.store(Arc::new(certified_key(pair)?));
        Ok(())
    }

    /// How to answer handshakes with this certificate. Offers `h2` before `http/1.1`.
    pub(super) fn server_config(self: Arc<Self>) -> ServerConfig {
        let provider = provider();
        let verifier = ProofOfKey::new(provider.signature_verification_algorithms);
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .expect("ring's cipher suites cover TLS 1.2 and 1.3")
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(self);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }
}

impl ResolvesServerCert for TlsMaterial {
    /// One certificate for every name: the aggregator verifies its own service name whatever address it dials.
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl CertificateFiles {
    /// Both files as they lie there together: a swap between the two reads would make a pair that nobody wrote, so the
    /// certificate is looked at again behind the key.
    async fn read(&self) -> Result<PemPair> {
        let read = async |path: &PathBuf| {
            tokio::fs::read_to_string(path)
                .await
                .map_err(|source| Error::Read {
                    path: path.clone(),
                    source,
                })
        };
        let mut certificate = read(&self.certificate).await?;
        for _ in 0..READS {
            let private_key = read(&self.private_key).await?;
            let again = read(&self.certificate).await?;
            if again == certificate {
                return Ok(PemPair {
                    certificate,
                    private_key,
                });
            }
            certificate = again;
        }
        Ok(PemPair {
            certificate,
            private_key: read(&self.private_key).await?,
        })
    }
}

/// The one source of cryptography in this process.
fn provider() -> CryptoProvider {
    ring::default_provider()
}

fn certified_key(pair: &PemPair) -> Result<CertifiedKey> {
    let in_certificate = |source| Error::Pem {
        what: "certificate",
        source,
    };
    let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(in_certificate)?;
    if chain.is_empty() {
        return Err(in_certificate(rustls::pki_types::pem::Error::NoItemsFound));
    }
    let key = PrivateKeyDer::from_pem_slice(pair.private_key.as_bytes()).map_err(|source| {
        Error::Pem {
            what: "private key",
            source,
        }
    })?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(Error::Pair)
}

/// An error and its causes on one line.
fn format_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::CertificateAuthority;

    fn mk_pair() -> PemPair {
        let ca = CertificateAuthority::new("test").unwrap();
        ca.server_certificate(&["localhost"]).unwrap()
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let mixed = PemPair {
            private_key: mk_pair().private_key,
            ..mk_pair()
        };
        assert!(matches!(TlsMaterial::from_pem(&mixed), Err(Error::Pair(_))));
        assert!(TlsMaterial::from_pem(&mk_pair()).is_ok());
    }

    #[test]
    fn a_file_without_certificate_is_refused() {
        let empty = PemPair {
            certificate: String::new(),
            ..mk_pair()
        };
        assert!(matches!(
            TlsMaterial::from_pem(&empty),
            Err(Error::Pem {
                what: "certificate",
                ..
            })
        ));
    }
}
