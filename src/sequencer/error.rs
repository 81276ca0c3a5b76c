//! Why this process may not write.

use std::{io, path::PathBuf};

/// Why this process did not become the writer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process is asked to end while it waits for its turn.
    #[error("asked to end while waiting for the lease")]
    Cancelled,
    /// The stored epoch is no number. To begin anew would give versions out twice.
    #[error("the stored epoch {0:?} is not a number")]
    UnreadableEpoch(String),
    /// There is no epoch left: it has 31 bits, enough until 2093.
    #[error("there is no epoch after {0}")]
    Exhausted(u32),
    /// Another process uses the directory.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// The epoch's file cannot be read or written.
    #[error("cannot keep the epoch in {path}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The result of becoming the writer.
pub type Result<T, E = Error> = std::result::Result<T, E>;
