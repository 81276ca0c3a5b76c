//! Why the agent cannot start, or could not do something.

use std::{io, path::PathBuf, sync::Arc};

/// The result of a call into this room.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the agent cannot start, or could not do something.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The state directory, or a file in it, cannot be used.
    #[error("cannot use {path}")]
    State {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The agent's own certificate cannot be made or used.
    #[error("cannot make the agent's certificate")]
    Certificate(#[source] Arc<crate::serving::Error>),
    /// A claim id that no daemon gives.
    #[error("the claim id must be 1 to 128 letters, digits, '-' or '_'")]
    InvalidClaim,
    /// A user part that is too long.
    #[error("the object has {bytes} bytes, of which {limit} are stored at most")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A user part that is none.
    #[error("the object is no user part: {reason}")]
    Malformed {
        /// Where the decoder stopped.
        reason: String,
    },
    /// There is no room for another user part.
    #[error("the node keeps as many objects as it can")]
    Full,
    /// The agent is ending.
    #[error("the agent is ending")]
    Ending,
    /// kube-apiserver does not take the inventory.
    #[error("the inventory is not published")]
    Publish(#[source] Arc<kube::Error>),
    /// Nobody took the inventory in time.
    #[error("the inventory was not taken in time")]
    PublishSilent,
}

impl Error {
    pub(super) fn state(path: &std::path::Path, source: io::Error) -> Self {
        Self::State {
            path: path.to_owned(),
            source: Arc::new(source),
        }
    }
}
