//! The way to kube-apiserver.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use kube::{
    Client, Config, Error,
    config::{KubeConfigOptions, Kubeconfig},
};

/// After how long a silence a connection to kube-apiserver is given up: longer than a watch lasts, whose end is heard of.
///
/// kube sets no limit by itself. A list whose answer never comes would then be waited for without end, and with it, at the start,
/// the server's readiness.
const SILENCE: Duration = Duration::from_secs(300);

/// The configuration for kube-apiserver: a file's, or the pod's.
pub(super) async fn kube_config(file: Option<&Path>) -> anyhow::Result<Config> {
    let mut config = match file {
        None => Config::incluster()
            .context("reading the pod's ServiceAccount; outside a cluster give --kubeconfig")?,
        Some(file) => {
            let kubeconfig = Kubeconfig::read_from(file)
                .with_context(|| format!("reading {}", file.display()))?;
            let config =
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
            config.with_context(|| format!("using {}", file.display()))?
        }
    };
    config.read_timeout = Some(SILENCE);
    // Else the time that a kept connection was idle would count.
    config.reset_reader_on_write = true;
    Ok(config)
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
