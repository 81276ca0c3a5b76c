//! Integration tests.

// Helpers outside of `#[test]` functions are tests too; clippy's own exemption ends at those.
#![allow(clippy::unwrap_used)]

#[macro_use]
mod promises;

mod agent;
mod apply;
mod audit;
mod auth;
mod clocks;
mod crds;
mod create;
mod dataplane;
mod delete;
mod deletecollection;
mod discovery;
mod errors;
mod fake_cluster;
mod fuzz;
mod gateway_client;
mod goaway;
mod golden;
mod growth;
mod harness;
mod hostile;
mod inventory;
mod layers;
mod lifecycle;
mod list;
mod manifests;
mod mutants;
mod negotiation;
mod openapi;
mod patch;
mod robustness;
mod scale;
mod sequencer;
mod serving;
mod snapshots;
mod socket_client;
mod subresource;
mod table;
mod tls_client;
mod update;
mod versions;
mod watch;
mod watch_times;
mod websocket;
mod widgets;
