//! What the sources tell.

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use kube::Api;
use tokio::sync::mpsc;

use super::{ClusterNode, Publication, watch};
use crate::api::NodeName;

/// What a source of objects tells: first a list, then each change. A source that starts over lists again.
#[derive(Clone, Debug)]
pub enum Update<T> {
    /// An object that was there when the list was made.
    Listed(T),
    /// The list is complete; what it did not hold was told as deleted.
    ListEnds,
    /// An object was made or changed while the source looked on.
    Applied(T),
    /// The object of this node is gone.
    Deleted(NodeName),
    /// One object could not be read, and nobody knows whose.
    Undecodable(String),
    /// The source cannot be read at the moment; what it told holds until it can.
    Interrupted(String),
}

/// Where inventories and Nodes come from.
pub enum Source {
    /// The watches of a cluster.
    Cluster(kube::Client),
    /// This process. A closed channel tells nothing more.
    InProcess {
        /// The inventories.
        inventories: mpsc::Receiver<Update<Publication>>,
        /// The Nodes. If the channel is closed there are none.
        nodes: mpsc::Receiver<Update<ClusterNode>>,
    },
}

/// A source's two streams; neither ends.
pub(super) struct Streams {
    pub(super) inventories: BoxStream<'static, Update<Publication>>,
    pub(super) nodes: BoxStream<'static, Update<ClusterNode>>,
}

impl Source {
    pub(super) fn into_streams(self) -> Streams {
        match self {
            Self::Cluster(client) => Streams {
                inventories: watch::updates(Api::all(client.clone())),
                nodes: watch::updates(Api::all(client)),
            },
            Self::InProcess { inventories, nodes } => Streams {
                inventories: received(inventories).chain(stream::pending()).boxed(),
                nodes: received(nodes)
                    .chain(stream::iter([Update::ListEnds]))
                    .chain(stream::pending())
                    .boxed(),
            },
        }
    }
}

fn received<T: Send + 'static>(rx: mpsc::Receiver<T>) -> impl futures::Stream<Item = T> + Send {
    stream::unfold(rx, async |mut rx| {
        rx.recv().await.map(|update| (update, rx))
    })
}
