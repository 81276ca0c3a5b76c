//! The ceiling: hyper and rustls and nothing else. It serves bytes that the real server encoded, over the same TLS and the
//! same HTTP/2, so that what is left between the two is the server's own.

use std::{
    collections::HashMap,
    convert::Infallible,
    fs,
    net::Ipv4Addr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use sandbox_apiserver::serving::PemPair;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{
    client::Client,
    components::free_port,
    pki::Authority,
    process::{Directory, Process},
    reads::Samples,
    tls_client,
    usage::Usage,
};

/// Names of files in the ceiling's directory; the answers are beside them, each under its path.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const PORT: &str = "port";
const START_WITHIN: Duration = Duration::from_secs(10);

type Answers = Arc<HashMap<String, Bytes>>;

/// The ceiling, running as a process of its own.
pub(crate) struct Ceiling {
    pub(crate) client: Client,
    pub(crate) usage: Usage,
    // The process goes before its directory.
    _process: Process,
    _directory: Directory,
}

impl Ceiling {
    /// Starts it with these answers.
    pub(crate) async fn start(samples: &Samples) -> anyhow::Result<Self> {
        let directory = Directory::create("ceiling-")?;
        let path = directory.path();
        let port = free_port()?;
        let authority = Authority::new("ceiling")?;
        let serving = authority.serving(&["localhost"])?;
        fs::write(path.join(CERTIFICATE), serving.certificate_pem)?;
        fs::write(path.join(KEY), serving.key_pem)?;
        fs::write(path.join(PORT), port.to_string())?;
        for (name, bytes) in samples.named() {
            fs::write(path.join(name), bytes)?;
        }
        let binary = std::env::current_exe()?;
        let flag = format!("--ceiling={}", path.display());
        let process = Process::start("ceiling", &binary, [&flag], path)?;
        let config = tls_client::config(&authority.pem(), None, &["h2"]);
        let client = connect(port, &config).await;
        let client = client.with_context(|| process.log_tail(10))?;
        Ok(Self {
            client,
            usage: Usage::find(&binary, &flag)?,
            _process: process,
            _directory: directory,
        })
    }
}

async fn connect(port: u16, config: &rustls::ClientConfig) -> anyhow::Result<Client> {
    let deadline = Instant::now() + START_WITHIN;
    loop {
        match Client::connect(port, config.clone()).await {
            Err(_) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            connected => return connected,
        }
    }
}

/// Is the ceiling, until the process is killed. As many threads as the server has.
pub(crate) fn serve(directory: &Path) -> anyhow::Result<()> {
    let read = |name: &str| fs::read_to_string(directory.join(name));
    let pair = PemPair {
        certificate: read(CERTIFICATE)?,
        private_key: read(KEY)?,
    };
    let port = read(PORT)?.parse()?;
    let answers: Answers = Arc::new(answers(directory)?);
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(accept(port, config(&pair)?, answers))
}

fn answers(directory: &Path) -> anyhow::Result<HashMap<String, Bytes>> {
    let mut answers = HashMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = format!("/{}", entry.file_name().to_string_lossy());
        answers.insert(path, fs::read(entry.path())?.into());
    }
    Ok(answers)
}

fn config(pair: &PemPair) -> anyhow::Result<ServerConfig> {
    let (chain, key) = tls_client::parsed(pair);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

async fn accept(port: u16, config: ServerConfig, answers: Answers) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (acceptor, answers) = (acceptor.clone(), answers.clone());
        tokio::spawn(async move {
            // The client is ours: it ends a connection only with the whole measurement.
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = service_fn(move |request: Request<Incoming>| {
                std::future::ready(Ok::<_, Infallible>(answer(&answers, request.uri().path())))
            });
            let http2 = http2::Builder::new(TokioExecutor::new());
            let _ = http2.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn answer(answers: &Answers, path: &str) -> Response<Full<Bytes>> {
    let found = answers.get(path).cloned();
    let mut response = Response::new(Full::new(found.clone().unwrap_or_default()));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    if found.is_none() {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}
