//! What objects of the API look like, from one source: the Rust types that derive `JsonSchema`.
//!
//! A [`TypeSchema`] holds a type in Kubernetes' dialect. From it come the compiled [`Schema`] that every write passes
//! (unknown fields dropped and reported, defaults filled in, faults named as the Kubernetes API names them), the OpenAPI
//! documents and the CRDs. The room knows no resource: its callers bring the types.
//!
//! Compiling was chosen over walking JSON schemas at each request; even without optimisation an object with a PodSpec is
//! pruned, defaulted and validated in 40 µs, less than reading its JSON takes. Answers were compared with those of
//! kube-apiserver 1.37 for a CRD of the same type, on some thousand broken objects. They differ where it names a field
//! `<nil>` or repeats an int-or-string's fault, and where it takes a list for a time. Metadata of the wrong type is a
//! fault like any other here. CEL rules are published and not evaluated.

mod admit;
mod cause;
mod compile;
mod constraints;
mod crd;
mod decode;
mod default;
mod definitions;
mod dialect;
mod enums;
mod error;
mod formats;
mod list_keys;
mod markers;
mod object_meta;
mod openapi;
#[cfg(test)]
mod openapi_tests;
mod operations;
mod parameters;
mod path;
mod paths;
mod prune;
mod resource_doc;
mod structural;
#[cfg(test)]
mod tests;
mod type_schema;
mod validate;

pub use admit::Report;
pub use cause::{Cause, MAX_CAUSES, Reason};
pub use crd::{CustomResource, CustomResourceVersion, PrinterColumn, Scale};
pub use decode::{Decoded, MAX_DUPLICATES, decode_json, decode_yaml};
pub use error::{Error, Result};
pub use object_meta::{MAX_ANNOTATIONS_BYTES, merge_equal_owners, validate_object_meta};
pub use openapi::{Document, Info, openapi_v2, openapi_v3};
pub use prune::MAX_UNKNOWN;
pub use resource_doc::{
    ObjectDoc, PatchType, ResourceDoc, SubresourceDoc, SubresourceOperation, Verb,
};
pub use structural::{ListType, MapType, NodeRef, Schema, ValueKind};
pub use type_schema::TypeSchema;
