//! What every create must pass beside its own validation: that its namespace exists and is not going away, and that the quotas of
//! the namespace leave room for it.
//!
//! kube-apiserver runs no admission for requests that it passes on. Without the first check an object could be made in a namespace
//! that is being deleted, and the deletion would never end; without the second a quota would count and not limit.

mod error;
mod known;
mod limits;
mod namespaces;
mod quotas;
#[cfg(test)]
mod tests;
mod under_way;

pub use error::{Denied, Exceeded};
pub use namespaces::Namespaces;
pub use quotas::{Counted, Quotas, Wanted};
pub use under_way::QuotaReservation;
