//! An aggregated API server, generic over its resources and ignorant of what they are.
//!
//! A resource brings a [`Definition`], a [`Store`](crate::store::Store), a way to write its objects down and a few hooks;
//! the machinery makes of that what Kubernetes clients know: discovery, OpenAPI, content negotiation with tables, lists in
//! pages of one version, watches that resume, validation, dry run, preconditions, Status errors.
//!
//! A request passes, in this order: audit id, routing, authentication, impersonation, the limit of requests in flight,
//! authorization, the body, the verb. Discovery and OpenAPI are bytes made once at the start.
//!
//! What is no API but needs the same callers and rights is an [`Annex`], below a path of its own.

mod access;
mod annex;
mod audit;
mod body;
mod context;
mod discovery;
mod entrance;
mod error;
mod form;
mod goaway;
mod limits;
mod metrics;
mod negotiate;
mod openapi;
mod options;
mod page;
mod paths;
mod query;
mod resource;
mod route;
mod server;
mod transform;
mod verbs;
mod websocket;

pub use annex::{Annex, Matter, RequestBody};
pub use body::{Body, Interrupted};
pub use context::Context;
pub use entrance::Entrance;
pub use error::{Status, StatusCause};
pub use goaway::{GoawayChance, NoChance};
pub use metrics::ApiMetrics;
pub use resource::{
    Call, Column, Completeness, Create, Created, Definition, Deleted, Deletion, Dependents, Invoke,
    Invoked, NotUpdated, ObjectType, Resource, Subresource, Update, Version,
};
pub use server::{ApiServer, Builder, ProductInfo};
