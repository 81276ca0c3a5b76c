//! A client that controls its handshake: which CA it trusts, which certificate it shows, which protocol it offers.

// clippy's own exemption for tests ends at their helpers. Two test binaries use this file, neither all of it.
#![allow(clippy::unwrap_used, dead_code)]

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, combinators::BoxBody};
use hyper::{body::Incoming, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use sandbox_apiserver::serving::PemPair;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

pub(crate) type Body = BoxBody<Bytes, std::convert::Infallible>;

/// The rustls configuration of a client that trusts the CAs in `ca` and shows `certificate`.
pub(crate) fn config(ca: &str, certificate: Option<&PemPair>, alpn: &[&str]) -> ClientConfig {
    config_of(rustls::DEFAULT_VERSIONS, ca, certificate, alpn)
}

/// As [`config`], for these versions of TLS.
pub(crate) fn config_of(
    versions: &[&'static SupportedProtocolVersion],
    ca: &str,
    certificate: Option<&PemPair>,
    alpn: &[&str],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(ca.unwrap()).unwrap();
    }
    assert!(!roots.is_empty(), "{ca:?} has no CA");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let (chain, key) = parsed(pair);
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

/// The chain and the key of a pair.
pub(crate) fn parsed(pair: &PemPair) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    (
        CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
            .map(Result::unwrap)
            .collect(),
        PrivateKeyDer::from_pem_slice(pair.private_key.as_bytes()).unwrap(),
    )
}

/// A TLS connection to `localhost` at `address`.
pub(crate) async fn connect(
    address: SocketAddr,
    config: ClientConfig,
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_to("localhost", address, config).await
}

/// A TLS connection to `name` at `address`.
pub(crate) async fn connect_to(
    name: &'static str,
    address: SocketAddr,
    config: ClientConfig,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from(name).unwrap(), stream)
        .await
}

/// An HTTP/2 client on a TLS connection.
pub(crate) async fn http2(stream: TlsStream<TcpStream>) -> conn::http2::SendRequest<Body> {
    let (sender, connection) = conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

/// An HTTP/1.1 client on a TLS connection.
pub(crate) async fn http1(stream: TlsStream<TcpStream>) -> conn::http1::SendRequest<Body> {
    let (sender, connection) = conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    sender
}

/// A GET with an empty body.
pub(crate) fn get(path: &str) -> Request<Body> {
    Request::get(format!("https://localhost{path}"))
        .body(empty())
        .unwrap()
}

/// An empty body.
pub(crate) fn empty() -> Body {
    http_body_util::Empty::new().boxed()
}

/// A whole answer as text.
pub(crate) async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}
