//! Integration tests.

mod serving;
mod tls_client;
mod crds;
