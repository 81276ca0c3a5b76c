//! Who owns which fields of an object: `metadata.managedFields`, server-side apply, and what other writes own.
//!
//! The rules are those of Kubernetes 1.37 for custom resources, objects are JSON values, and what merges how is asked of
//! the [`Schema`](crate::schema::Schema). A write is handed to the [`Endpoint`] where it arrived. No crate offers this:
//! Kubernetes' own library is Go only.
//!
//! Invariants: the room never reads a clock and never waits; what it reports is bounded by what a client sent.

mod apply;
mod change;
mod check;
mod conflict;
mod element;
mod endpoint;
mod error;
mod field_set;
mod fields;
mod fields_v1;
mod go;
mod last_applied;
mod managed_fields;
mod merge;
mod order;
mod place;
mod remove;
#[cfg(test)]
mod tests;

pub use apply::keep_times;
pub use check::Faults;
pub use conflict::{Conflict, Conflicts};
pub use element::{Element, InvalidElement};
pub use endpoint::{Endpoint, Version};
pub use error::{Error, Result};
pub use field_set::FieldSet;
pub use fields_v1::InvalidFields;
pub use managed_fields::{
    Entry, InvalidEntry, MAX_UPDATE_MANAGERS, ManagedFields, Manager, Operation,
};
