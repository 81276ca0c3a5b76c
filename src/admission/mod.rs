//! What every create must pass beside its own validation: that its namespace exists and is not going away.
//!
//! kube-apiserver runs no admission for requests that it passes on. Without this check an object could be made in a namespace
//! that is being deleted, and the deletion would never end.

mod error;
mod known;
mod namespaces;

pub use error::Denied;
pub use namespaces::Namespaces;
