//! Servers of hyper and rustls and nothing else, each a process of its own: what the machine gives a server that has nothing to
//! do but its one task. They speak the same TLS and the same HTTP/2 as the real ones.

use std::{
    convert::Infallible,
    fs,
    net::Ipv4Addr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::{Request, Response};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls::ServerConfig;
use sandbox_apiserver::serving::{PemPair, ServeOptions};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{
    client::Client,
    components::free_port,
    pki::Authority,
    process::{Directory, Process},
    tls_client,
    usage::Usage,
};

/// Names of files in the directory of such a server, beside those of its task.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const PORT: &str = "port";
const START_WITHIN: Duration = Duration::from_secs(10);

/// Such a server, running.
pub(crate) struct Bare {
    pub(crate) client: Client,
    pub(crate) usage: Usage,
    pub(crate) port: u16,
    /// The CA of its certificate, PEM.
    pub(crate) ca: String,
    // The process goes before its directory.
    _process: Process,
    _directory: Directory,
}

/// What it answers with: bytes that are there, or a stream.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What it does with a request.
pub(crate) type Task =
    Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

pub(crate) fn task<F, B>(answer: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static) -> Task
where
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    Arc::new(move |request| {
        let response = answer(request);
        let boxed = response.map(|response| response.map(|body| body.boxed_unsync()));
        boxed.boxed()
    })
}

impl Bare {
    /// Starts this binary as the server that its flag `--ROLE` makes of it, reached under these names, with these files.
    pub(crate) async fn start<'a>(
        role: &'static str,
        names: &[&str],
        files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> anyhow::Result<Self> {
        let directory = Directory::create(&format!("{role}-"))?;
        let path = directory.path();
        let port = free_port()?;
        let authority = Authority::new(role)?;
        let serving = authority.serving(names)?;
        fs::write(path.join(CERTIFICATE), serving.certificate_pem)?;
        fs::write(path.join(KEY), serving.key_pem)?;
        fs::write(path.join(PORT), port.to_string())?;
        for (name, bytes) in files {
            fs::write(path.join(name), bytes)?;
        }
        let binary = std::env::current_exe()?;
        let flag = format!("--{role}={}", path.display());
        let process = Process::start(role, &binary, [&flag], path)?;
        let config = tls_client::config(&authority.pem(), None, &["h2"]);
        let client = connect(port, &config).await;
        let client = client.with_context(|| process.log_tail(10))?;
        Ok(Self {
            client,
            usage: Usage::find(&binary, &flag)?,
            port,
            ca: authority.pem(),
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

/// Is such a server, until the process is killed. As many threads as the real one has.
pub(crate) fn serve(
    directory: &Path,
    task: impl AsyncFnOnce() -> anyhow::Result<Task>,
) -> anyhow::Result<()> {
    let read = |name: &str| fs::read_to_string(directory.join(name));
    let pair = PemPair {
        certificate: read(CERTIFICATE)?,
        private_key: read(KEY)?,
    };
    let port = read(PORT)?.parse()?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(async { accept(port, config(&pair)?, task().await?).await })
}

fn config(pair: &PemPair) -> anyhow::Result<ServerConfig> {
    let (chain, key) = tls_client::parsed(pair);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = ["h2", "http/1.1"].map(|it| it.as_bytes().to_vec()).to_vec();
    Ok(config)
}

async fn accept(port: u16, config: ServerConfig, task: Task) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (acceptor, task) = (acceptor.clone(), task.clone());
        tokio::spawn(async move {
            // The client is ours: it ends a connection only with the whole measurement.
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = service_fn(move |request| {
                let answer = task(request);
                async { Ok::<_, Infallible>(answer.await) }
            });
            // As many streams as the real one allows.
            let streams = ServeOptions::default().max_concurrent_streams;
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http2().max_concurrent_streams(streams);
            let served = builder.serve_connection(TokioIo::new(stream), service);
            let _ = served.await;
        });
    }
}
