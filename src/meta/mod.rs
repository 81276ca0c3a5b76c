//! The vocabulary of the Kubernetes API that every other room speaks: resource versions, selectors, names, times.
//!
//! Pure values: no I/O, no clock, no knowledge of any resource. It lies below both `store` and `apiserver`, which would
//! otherwise each need the other's types.

mod name;
mod quantity;
mod selector;
mod time;
mod version;

pub use name::{
    MAX_GENERATED_BASE, fnv1a, generate_name, is_dns1123_label, is_dns1123_subdomain,
    validate_dns1123_label, validate_dns1123_subdomain, validate_label_value,
    validate_qualified_name,
};
pub use quantity::{InvalidQuantity, Quantity};
pub use selector::{
    FieldOp, FieldRequirement, FieldSelector, LabelOp, LabelRequirement, LabelSelector,
    SelectorError,
};
pub use time::{UnixTime, human_duration};
pub use version::{InvalidResourceVersion, ResourceVersion};
