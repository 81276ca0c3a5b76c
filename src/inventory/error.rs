//! Why an inventory, or an address in it, was not taken.

use crate::api::{InvalidAddress, NodeAddress};

/// Result of this room's checks.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an inventory, or an address in it, was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no JSON object that can be read.
    #[error("inventory is not readable as JSON")]
    NotJson(#[source] serde_json::Error),
    /// The address is no text of a length that an address has.
    #[error("node address is no text, or too long")]
    NoAddress,
    /// The text is no address that a token may be sent to.
    #[error(transparent)]
    InvalidAddress(#[from] InvalidAddress),
    /// It is an address, but neither in the configured networks nor one of its Node object's.
    #[error("node address {0} is neither in the configured networks nor one of the Node's own")]
    ForeignAddress(NodeAddress),
}
