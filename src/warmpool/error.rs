//! Why the driver's own records could not be read or written.

use crate::controller::CallError;

/// Result of reading or writing a record.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// kube-apiserver did not do what was asked.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The record of what the driver wrote cannot be read; it has to be repaired or deleted.
    #[error("the ConfigMap {name} does not hold what the driver wrote there")]
    Unreadable {
        /// Namespace and name.
        name: String,
        /// Where reading stopped.
        #[source]
        source: serde_json::Error,
    },
}
