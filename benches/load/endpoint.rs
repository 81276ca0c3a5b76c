//! A server as somebody finds it who has a runtime of their own, with windows that no watch waits for.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::Context as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::Client;

/// The windows of Go's client, and so of kube-apiserver and client-go: a connection's is as good as none, and a stream's is
/// thousands of events. hyper's own would let the watches on one connection wait for each other.
const CONNECTION_WINDOW: u32 = 1 << 30;
const STREAM_WINDOW: u32 = 4 << 20;

/// Where a server listens, and who its clients are.
#[derive(Clone)]
pub(crate) struct Endpoint {
    port: u16,
    config: ClientConfig,
}

impl Endpoint {
    pub(crate) fn new(port: u16, config: ClientConfig) -> Self {
        Self { port, config }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        let address = self.address();
        let stream = TcpStream::connect(address).await;
        self.connect_over(stream.with_context(|| format!("connecting to {address}"))?)
            .await
    }

    /// The same over a socket that is there already.
    pub(crate) async fn connect_over(&self, stream: TcpStream) -> anyhow::Result<Client> {
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost")?;
        let connector = TlsConnector::from(Arc::new(self.config.clone()));
        let stream = connector.connect(name, stream).await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_stream_window_size(STREAM_WINDOW)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(connection);
        Ok(Client::new(sender))
    }
}
