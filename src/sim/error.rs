//! Why simulated nodes could not start or publish.

use std::io;

/// Result of this room.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why simulated nodes could not start or publish.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A port could not be had.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address asked for.
        address: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The options contradict themselves.
    #[error("invalid options: {0}")]
    InvalidOptions(&'static str),
    /// kube-apiserver did not take a `NodeInventory`.
    #[error("cannot publish the inventory of {node}")]
    Publish {
        /// The node.
        node: String,
        /// The cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// kube-apiserver did not answer in time.
    #[error("publishing the inventory of {node} got no answer in time")]
    PublishSilent {
        /// The node.
        node: String,
    },
}
