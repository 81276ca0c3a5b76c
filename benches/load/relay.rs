//! The ceiling of a gateway: it hands each body on to a daemon and the answer back, and knows nothing of either.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use sandbox_apiserver::api::NodeAddress;
use tokio::sync::Mutex;

use crate::{
    bare::{self, Bare},
    direct::{Claim, Daemon},
    tls_client,
};

/// The file with the daemon's address.
const DAEMON: &str = "daemon";

/// A relay, running, and a connection to it.
pub(crate) struct Relay {
    client: Daemon,
    _bare: Bare,
}

impl Relay {
    pub(crate) async fn start(daemon: &str) -> anyhow::Result<Self> {
        let files = [(DAEMON, daemon.as_bytes())];
        let bare = Bare::start("relay", &["localhost"], files).await?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, bare.port));
        let config = tls_client::config(&bare.ca, None, &["http/1.1"]);
        let stream = tls_client::connect(address, config).await?;
        stream.get_ref().0.set_nodelay(true)?;
        Ok(Self {
            client: Daemon::over(stream, "localhost".to_owned()).await?,
            _bare: bare,
        })
    }

    pub(crate) async fn claim(&mut self) -> anyhow::Result<Claim> {
        self.client.claim().await
    }
}

/// Is the relay. One connection to the daemon, as the agent has for one claim at a time.
pub(crate) fn serve(directory: &Path) -> anyhow::Result<()> {
    let address: NodeAddress = fs::read_to_string(directory.join(DAEMON))?.parse()?;
    bare::serve(directory, async || {
        let daemon = Arc::new(Mutex::new(Daemon::connect(&address).await?));
        Ok(bare::task(move |request| relayed(daemon.clone(), request)))
    })
}

async fn relayed(daemon: Arc<Mutex<Daemon>>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let relayed = async {
        let body = body.collect().await?.to_bytes();
        daemon.lock().await.post(head.uri.path(), body).await
    };
    let (status, body) = match relayed.await {
        Ok(body) => (StatusCode::CREATED, body),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string().into()),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
}
