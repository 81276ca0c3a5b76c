//! Why the ledger could not be read or written.

use crate::api::NodeName;

/// Result of a call to kube-apiserver.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the ledger could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// kube-apiserver did not say which inventories have a record.
    #[error("the inventories cannot be listed")]
    Unlisted(#[source] kube::Error),
    /// kube-apiserver did not give the inventory of a node.
    #[error("the record of node {node} cannot be read")]
    Unread {
        /// The node.
        node: NodeName,
        /// What it said.
        #[source]
        source: kube::Error,
    },
    /// kube-apiserver did not take a record.
    #[error("the record of node {node} cannot be written")]
    Unwritten {
        /// The node.
        node: NodeName,
        /// What it said.
        #[source]
        source: kube::Error,
    },
    /// kube-apiserver did not answer in time.
    #[error("kube-apiserver did not answer in time")]
    Silent(#[from] tokio::time::error::Elapsed),
}
