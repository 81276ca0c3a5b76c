//! Why a configuration is not applied.

use super::{check::Faults, conflict::Conflicts, managed_fields::InvalidEntry};

/// Result of this room.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a configuration is not applied. The texts are those of Kubernetes, which answers with the status in brackets.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is of another kind or version than the endpoint (400).
    #[error("invalid object type: {0}")]
    ObjectType(String),
    /// The configuration says who owns what (400).
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// A field that does not exist, has the wrong type or cannot be told from another (500, without a reason).
    #[error("failed to create typed patch object ({object}): {faults}")]
    Untyped {
        /// Name and kind of the object.
        object: String,
        /// What is wrong.
        faults: Faults,
    },
    /// The live object's owners cannot be read, so nobody's fields would be safe (500, without a reason).
    #[error("failed to decode managed fields: {0}")]
    Owners(#[from] InvalidEntry),
    /// Others own fields that the configuration would change (409, `Conflict`).
    #[error(transparent)]
    Conflicts(#[from] Conflicts),
}
