//! The client that writes.

use kube::{Client, Config, Error};

/// A client that sends every request once.
///
/// kube's default client repeats any request, a POST too, up to 15 times on 429, 503 and 504, although a 504 says nothing
/// about whether the write was done. Who writes decides himself whether his write may be repeated; use this client for every
/// create, update, patch and delete, and the default one for reads.
///
/// # Errors
/// When the configuration has no usable TLS or credentials.
pub fn write_client(mut config: Config) -> Result<Client, Error> {
    config.default_retry = false;
    Client::try_from(config)
}
