//! Integration tests.

// Helpers outside of `#[test]` functions are tests too; clippy's own exemption ends at those.
#![allow(clippy::unwrap_used)]

mod auth;
mod crds;
mod create;
mod delete;
mod discovery;
mod fake_cluster;
mod golden;
mod harness;
mod inventory;
mod layers;
mod list;
mod negotiation;
mod openapi;
mod sequencer;
mod serving;
mod table;
mod tls_client;
mod watch;
mod widgets;
