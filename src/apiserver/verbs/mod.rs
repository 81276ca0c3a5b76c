//! What a verb does, a file each. Authentication, authorization and routing are done when one is called.

mod action_owner;
mod apply;
mod create;
mod delete;
mod deletecollection;
mod dispatch;
mod faults;
mod get;
mod list;
mod owners;
mod patch;
mod preconditions;
mod request;
mod reserved;
mod scale;
mod subresource;
mod update;
mod watch;

pub(super) use dispatch::{Endpoint, Served};
pub(super) use request::VerbRequest;
