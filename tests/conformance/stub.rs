//! A server that answers `200 {}` to everything, over TLS as the product does and in plain text as nodes do.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use http::{Response, header};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use crate::{api_service::SERVER_NAME, pki::Authority, process::Directory, users::ADMIN};

/// The running stub, which lasts as long as the tests.
pub(super) struct Stub {
    pub(super) address: SocketAddr,
    /// Port without TLS.
    pub(super) plain_port: u16,
    pub(super) authority: Authority,
    directory: Directory,
}

/// The stub that all tests share. It has a thread of its own, since tests may block theirs.
pub(super) fn shared() -> &'static Stub {
    static STUB: LazyLock<Stub> = LazyLock::new(|| {
        let authority = Authority::new("stub").unwrap();
        let certificate = authority.serving(&[SERVER_NAME, "localhost", "127.0.0.1"]);
        let certificate = certificate.unwrap();
        let (addresses_tx, addresses) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let (tls, plain) = (listen().await, listen().await);
                let address = |listener: &TcpListener| listener.local_addr().unwrap();
                addresses_tx.send((address(&tls), address(&plain))).unwrap();
                tokio::join!(
                    accept(tls, Some(acceptor(&certificate))),
                    accept(plain, None)
                );
            });
        });
        let (address, plain) = addresses.recv().unwrap();
        let directory = Directory::create("stub-").unwrap();
        let kubeconfig = kubeconfig(address, directory.path(), &authority);
        std::fs::write(directory.path().join("kubeconfig"), kubeconfig).unwrap();
        Stub {
            address,
            plain_port: plain.port(),
            authority,
            directory,
        }
    });
    &STUB
}

impl Stub {
    /// The configuration of a client that knows no other server.
    pub(super) fn kubeconfig(&self) -> std::path::PathBuf {
        self.directory.path().join("kubeconfig")
    }
}

fn kubeconfig(address: SocketAddr, directory: &Path, authority: &Authority) -> String {
    let certificate = authority.client(ADMIN, None).unwrap();
    for (file, content) in [
        ("ca.crt", authority.pem()),
        ("client.crt", certificate.certificate_pem),
        ("client.key", certificate.key_pem),
    ] {
        std::fs::write(directory.join(file), content).unwrap();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "stub", "cluster": {
            "server": format!("https://localhost:{}", address.port()),
            "certificate-authority": "ca.crt",
        }}],
        "users": [{"name": ADMIN, "user": {"client-certificate": "client.crt", "client-key": "client.key"}}],
        "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": ADMIN}}],
        "current-context": "stub",
    })
    .to_string()
}

async fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

fn acceptor(certificate: &crate::pki::Certificate) -> TlsAcceptor {
    let chain = CertificateDer::from_pem_slice(certificate.certificate_pem.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(certificate.key_pem.as_bytes()).unwrap();
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            match acceptor {
                None => answer(stream).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer(stream).await;
                    }
                }
            }
        });
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let service = service_fn(async |_| {
        Response::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from_static(b"{}")))
    });
    // How a connection ends is the client's affair.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
