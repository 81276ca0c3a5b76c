//! The way to kube-apiserver.

use std::path::Path;

use anyhow::Context as _;
use kube::{
    Client, Config, Error,
    config::{KubeConfigOptions, Kubeconfig},
};

/// The configuration for kube-apiserver: a file's, or the pod's.
pub(super) async fn kube_config(file: Option<&Path>) -> anyhow::Result<Config> {
    match file {
        None => Config::incluster()
            .context("reading the pod's ServiceAccount; outside a cluster give --kubeconfig"),
        Some(file) => {
            let kubeconfig = Kubeconfig::read_from(file)
                .with_context(|| format!("reading {}", file.display()))?;
            let config =
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
            config.with_context(|| format!("using {}", file.display()))
        }
    }
}

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
