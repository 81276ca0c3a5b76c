//! The ceiling of watches: a server that holds streams open, sends the same bytes on all of them whenever it is asked to, and
//! knows nothing of versions, selectors and users.

use std::{convert::Infallible, fs, future, path::Path, time::Instant};

use bytes::Bytes;
use futures::Stream;
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::sync::watch;

use crate::{
    bare::{self, Bare, Body},
    cluster::Name,
    endpoint::Endpoint,
    tls_client,
    watchers::{Change, Spread, Watchers},
};

/// The file with the bytes.
const EVENT: &str = "event";
/// Where the streams are. Any other path makes it send.
const STREAM: &str = "/stream";

/// Such a server, running, and those who listen to it.
pub(crate) struct FanOut {
    watchers: Watchers,
    /// What the bytes say.
    name: Name,
    server: Bare,
}

/// One round: what was asked when, answered when, and heard by whom when.
pub(crate) struct Round {
    pub(crate) begun: Instant,
    pub(crate) answered: Instant,
    pub(crate) arrivals: Vec<Instant>,
}

impl FanOut {
    /// `event` says that `name` was added.
    pub(crate) async fn start(event: &[u8], name: Name, spread: Spread) -> anyhow::Result<Self> {
        let server = Bare::start("fan-out", &["localhost"], [(EVENT, event)]).await?;
        let config = tls_client::config(&server.ca, None, &["h2"]);
        let endpoint = Endpoint::new(server.port, config);
        let watchers = Watchers::open(&endpoint, STREAM, spread).await?;
        Ok(Self {
            watchers,
            name,
            server,
        })
    }

    pub(crate) async fn round(&self) -> anyhow::Result<Round> {
        let begun = Instant::now();
        self.server.client.get("/send").await?;
        let answered = Instant::now();
        let arrivals = self.watchers.arrivals(Change::Added, &self.name).await?;
        Ok(Round {
            begun,
            answered,
            arrivals,
        })
    }
}

/// Is the server.
pub(crate) fn serve(directory: &Path) -> anyhow::Result<()> {
    let event = Bytes::from(fs::read(directory.join(EVENT))?);
    let (sent_tx, _) = watch::channel(());
    bare::serve(directory, async || {
        Ok(bare::task(move |request| {
            future::ready(answer(&event, &sent_tx, request.uri().path()))
        }))
    })
}

/// Whoever asks for it to be sent is answered with it, as a claim is with the object.
fn answer(event: &Bytes, sent_tx: &watch::Sender<()>, path: &str) -> Response<Body> {
    Response::new(if path == STREAM {
        StreamBody::new(stream(event.clone(), sent_tx.subscribe())).boxed_unsync()
    } else {
        sent_tx.send_replace(());
        Full::new(event.clone()).boxed_unsync()
    })
}

fn stream(
    event: Bytes,
    sent_rx: watch::Receiver<()>,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    futures::stream::unfold((event, sent_rx), |(event, mut sent_rx)| async move {
        sent_rx.changed().await.ok()?;
        Some((Ok(Frame::data(event.clone())), (event, sent_rx)))
    })
}
