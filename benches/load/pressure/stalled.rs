//! Watches of clients that stop reading, and never answer a ping.

use std::{mem, net, time::Duration};

use hyper::body::Incoming;
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpSocket, TcpStream},
    runtime::{Builder, Runtime},
    task::JoinSet,
};

use crate::{client::Client, endpoint::Endpoint};

/// Bytes that the kernel takes in for such a client: so few that it has stalled long before the measurement is over.
const RECEIVE_BUFFER: u32 = 64 << 10;
/// A connection on which nothing comes for so long, once what was under way is taken, is still open.
const SILENCE: Duration = Duration::from_secs(1);
/// Bytes of one read.
const PIECE: usize = 64 << 10;

/// Open watches, each on a connection of its own, that nobody reads.
pub(super) struct Stalled {
    /// Nobody drives it any more, so that nothing is read from its sockets.
    runtime: Option<Runtime>,
    watches: Vec<Watch>,
    /// The same sockets, for a look at the end.
    sockets: Vec<net::TcpStream>,
}

/// Kept, because who drops a watch resets its stream.
struct Watch {
    _client: Client,
    _body: Incoming,
}

impl Stalled {
    pub(super) async fn open(
        endpoint: &Endpoint,
        path: &str,
        n_watches: usize,
    ) -> anyhow::Result<Self> {
        let (endpoint, path) = (endpoint.clone(), path.to_owned());
        // A runtime is not driven from within another.
        tokio::task::spawn_blocking(move || {
            let mut stalled = Self {
                runtime: None,
                watches: Vec::with_capacity(n_watches),
                sockets: Vec::with_capacity(n_watches),
            };
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let runtime = stalled.runtime.insert(runtime);
            for _ in 0..n_watches {
                let (watch, socket) = runtime.block_on(open(&endpoint, &path))?;
                stalled.watches.push(watch);
                stalled.sockets.push(socket);
            }
            Ok(stalled)
        })
        .await?
    }

    /// How many of them the server has ended by now.
    pub(super) async fn n_cut(mut self) -> anyhow::Result<usize> {
        let mut looks = JoinSet::new();
        for socket in mem::take(&mut self.sockets) {
            looks.spawn(is_cut(TcpStream::from_std(socket)?));
        }
        let cut = looks.join_all().await;
        Ok(cut.into_iter().filter(|cut| *cut).count())
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        // To wait for it is not allowed in an async function, and there is nothing to wait for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn open(endpoint: &Endpoint, path: &str) -> anyhow::Result<(Watch, net::TcpStream)> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    let stream = socket.connect(endpoint.address()).await?.into_std()?;
    let socket = stream.try_clone()?;
    let client = endpoint.connect_over(TcpStream::from_std(stream)?).await?;
    let body = client.stream(path).await?;
    let watch = Watch {
        _client: client,
        _body: body,
    };
    Ok((watch, socket))
}

/// Whether the connection ends behind what has come, which is taken here past its TLS.
async fn is_cut(mut socket: TcpStream) -> bool {
    let mut piece = vec![0; PIECE];
    loop {
        match tokio::time::timeout(SILENCE, socket.read(&mut piece)).await {
            Err(_) => return false,
            Ok(Ok(0) | Err(_)) => return true,
            Ok(Ok(_)) => {}
        }
    }
}
