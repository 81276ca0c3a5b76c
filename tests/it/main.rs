//! Integration tests.

// Helpers outside of `#[test]` functions are tests too; clippy's own exemption ends at those.
#![allow(clippy::unwrap_used)]

mod agent;
mod auth;
mod crds;
mod fake_cluster;
mod inventory;
mod sequencer;
mod serving;
mod tls_client;
