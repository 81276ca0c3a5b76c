//! Why a call routed to a node did not do what was asked.

use std::sync::Arc;

use crate::{
    admission::Exceeded,
    api::{NodeName, PoolKey, SandboxKey},
    sandboxd,
    snapshots::NameTooLong,
};

/// Result of a routed call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call routed to a node did not do what was asked. Clones share the cause.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The name is another sandbox's, or of a create that is under way or not settled.
    #[error("the name {key} is taken")]
    NameTaken {
        /// The name.
        key: SandboxKey,
        /// Whether its holder is being deleted.
        terminating: bool,
    },
    /// A quota of the namespace does not allow it. Nothing was done.
    #[error(transparent)]
    OverQuota(#[from] Exceeded),
    /// As many snapshots and promotions, or pauses and resumes, are under way on the node as it may have at once. Nothing was done.
    #[error("node {node} has too many calls of this kind under way")]
    Busy {
        /// The node.
        node: NodeName,
    },
    /// The name is another snapshot's, or one is being taken for it. Nothing was done.
    #[error("the name {name} is another snapshot's")]
    SnapshotNameTaken {
        /// The name.
        name: String,
    },
    /// The name of a snapshot has no room in a daemon's. Nothing was done.
    #[error("the name {0}")]
    SnapshotNameTooLong(#[from] NameTooLong),
    /// The snapshot that was to be started from is not there any more. Nothing was done.
    #[error("snapshot {name} is not on node {node} any more")]
    SnapshotGone {
        /// Its name.
        name: String,
        /// The node.
        node: NodeName,
    },
    /// No token for the daemons is configured. Nothing was done.
    #[error("the server has no sandboxd token: start it with --sandboxd-token-file")]
    NoToken(#[source] Arc<sandboxd::Error>),
    /// No node takes sandboxes. Nothing was done.
    #[error("no node is ready to take a sandbox")]
    NoNode,
    /// No node speaks of a pool with this template. Nothing was done.
    #[error("no node keeps sandboxes of template {template:?}")]
    UnknownTemplate {
        /// The template.
        template: String,
    },
    /// No node has a warm VM of the pool. Nothing was done.
    #[error("no warm sandbox of pool {pool} is left")]
    NoWarmCapacity {
        /// The pool.
        pool: PoolKey,
    },
    /// The node that holds the sandbox has no room for what was asked. Nothing was done.
    #[error("node {node} is at capacity")]
    AtCapacity {
        /// The node.
        node: NodeName,
        /// Its answer.
        #[source]
        source: Arc<sandboxd::Error>,
    },
    /// The state of the sandbox forbids what was asked. Nothing was done.
    #[error("{reason}")]
    Conflict {
        /// Why.
        reason: String,
    },
    /// The node does not know the sandbox any more.
    #[error("node {node} does not have sandbox {key}")]
    Gone {
        /// The node.
        node: NodeName,
        /// The sandbox.
        key: SandboxKey,
    },
    /// The node takes no part in this: its daemon lacks the route.
    #[error("the daemon of node {node} is too old for this")]
    TooOld {
        /// The node.
        node: NodeName,
    },
    /// The node has no API token, and gives nobody the credential of a sandbox. Nothing was done.
    #[error(
        "the daemon of node {node} has no API token, and gives no credential without: set api_token in its configuration"
    )]
    NoCredential {
        /// The node.
        node: NodeName,
    },
    /// No publication names a usable address of the node. Nothing was done.
    #[error("node {node} publishes no usable address")]
    NoAddress {
        /// The node.
        node: NodeName,
    },
    /// The node could not be reached. Nothing was done.
    #[error("node {node} is unreachable")]
    NodeDown {
        /// The node.
        node: NodeName,
        /// What happened.
        #[source]
        source: Arc<sandboxd::Error>,
    },
    /// The node refused the server's own token. Nothing was done.
    #[error("node {node} refused the server's token")]
    TokenRefused {
        /// The node.
        node: NodeName,
        /// Its answer.
        #[source]
        source: Arc<sandboxd::Error>,
    },
    /// The node refused the request for another reason. Nothing was done.
    #[error("node {node} refused the request")]
    Refused {
        /// The node.
        node: NodeName,
        /// Its answer.
        #[source]
        source: Arc<sandboxd::Error>,
    },
    /// The node may have done it or not; it is being found out.
    #[error("node {node} did not say whether it did what was asked")]
    OutcomeUnknown {
        /// The node.
        node: NodeName,
        /// What happened.
        #[source]
        source: Arc<sandboxd::Error>,
    },
    /// The server is ending.
    #[error("the server is ending")]
    Ending,
}

impl Error {
    /// The meaning of a daemon's refusal of a call about one sandbox.
    pub(super) fn of_call(node: &NodeName, key: &SandboxKey, error: sandboxd::Error) -> Self {
        let node = node.clone();
        let source = Arc::new(error);
        match &*source {
            sandboxd::Error::NoToken { .. } | sandboxd::Error::UnusableCa { .. } => {
                Self::NoToken(source)
            }
            sandboxd::Error::Fenced => Self::Ending,
            sandboxd::Error::Unreachable(_) => Self::NodeDown { node, source },
            sandboxd::Error::Unauthorized { .. } => Self::TokenRefused { node, source },
            sandboxd::Error::RouteMissing => Self::TooOld { node },
            sandboxd::Error::NotFound { .. } => Self::Gone {
                node,
                key: key.clone(),
            },
            sandboxd::Error::Conflict { text } => Self::Conflict {
                reason: format!("the node refused: {text}"),
            },
            sandboxd::Error::AtCapacity { .. } => Self::AtCapacity { node, source },
            sandboxd::Error::BadRequest { .. } | sandboxd::Error::Redirected { .. } => {
                Self::Refused { node, source }
            }
            sandboxd::Error::Silent { .. }
            | sandboxd::Error::Interrupted(_)
            | sandboxd::Error::ServerError { .. }
            | sandboxd::Error::Malformed { .. }
            | sandboxd::Error::TooLarge { .. } => match source.outcome_unknown() {
                true => Self::OutcomeUnknown { node, source },
                false => Self::NodeDown { node, source },
            },
        }
    }
}
