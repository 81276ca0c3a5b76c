//! Which certificate `serve` shows: that of files, or its own.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use clap::Args;
use tokio::sync::oneshot;

use super::server::Process;
use crate::{
    api::GROUP,
    certificate::{CertificateMetrics, Keeper, Options},
    resources::sandbox_definition,
    sequencer::Tenure,
    serving::{CertificateFiles, ServingMetrics, TlsMaterial},
    telemetry::{Metrics, Tasks},
};

/// Time between two looks at the certificate files.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(5);
/// Bounds of a duration: certificates count whole seconds, and their years have four digits.
const DURATIONS: [Duration; 2] = [
    Duration::from_secs(1),
    Duration::from_secs(100 * 365 * 86_400),
];

#[derive(Debug, Args)]
pub(super) struct TlsArgs {
    /// Serving certificate and its intermediates, PEM. Read again when it changes. Unset: the server makes its own CA and
    /// certificate, renews both, and keeps the caBundle of its APIServices right.
    #[arg(long, requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Key of the serving certificate, PEM.
    #[arg(long, requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// The Service that kube-apiserver reaches this server at, in the namespace of the Lease. Its own certificate is for it.
    #[arg(long, default_value = "sandbox-apiserver")]
    tls_service: String,
    /// The Secret of its own CA and key, in the namespace of the Lease; the ConfigMap of the same name holds what clients trust.
    #[arg(long, default_value = "sandbox-apiserver-ca")]
    tls_secret: String,
    /// Further DNS names and addresses of its own certificate, for clients that come directly.
    #[arg(long, value_delimiter = ',')]
    tls_names: Vec<String>,
    /// Life of its own certificate, which is renewed at two thirds of it.
    #[arg(long, default_value = "168h", value_parser = duration)]
    tls_certificate_duration: Duration,
    /// Life of its own CA, which is replaced at two thirds of it and trusted until its end.
    #[arg(long, default_value = "8760h", value_parser = duration)]
    tls_ca_duration: Duration,
}

/// The certificate, before anybody looks after it.
pub(super) enum Certificate {
    Files(CertificateFiles, Arc<TlsMaterial>),
    Own(Box<Keeper>),
}

impl Certificate {
    /// Loads the files, or prepares to make one of its own.
    pub(super) async fn new(
        args: &TlsArgs,
        namespace: String,
        client: kube::Client,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        if let (Some(certificate), Some(private_key)) =
            (&args.tls_cert_file, &args.tls_private_key_file)
        {
            let files = CertificateFiles {
                certificate: certificate.clone(),
                private_key: private_key.clone(),
            };
            let loaded = TlsMaterial::load(&files).await;
            let material = loaded.context("loading the serving certificate")?;
            return Ok(Self::Files(files, Arc::new(material)));
        }
        let definition = sandbox_definition().context("describing the resources")?;
        let versions = definition.versions.iter();
        let options = Options {
            namespace,
            service: args.tls_service.clone(),
            secret: args.tls_secret.clone(),
            names: args.tls_names.clone(),
            api_services: versions
                .map(|version| format!("{}.{GROUP}", version.name))
                .collect(),
            certificate_duration: args.tls_certificate_duration,
            ca_duration: args.tls_ca_duration,
        };
        let keeper = Keeper::new(client, options, CertificateMetrics::register(metrics));
        let keeper = keeper.context("preparing the serving certificate")?;
        Ok(Self::Own(Box::new(keeper)))
    }

    pub(super) fn material(&self) -> Arc<TlsMaterial> {
        match self {
            Self::Files(_, material) => material.clone(),
            Self::Own(keeper) => keeper.material(),
        }
    }

    /// Looks after it from now on. Whoever gets the Lease says so by the sender: it is the one who may write.
    pub(super) fn keep(
        self,
        process: &Process,
        metrics: ServingMetrics,
        tasks: &mut Tasks,
    ) -> oneshot::Sender<Tenure> {
        let (elected_tx, elected_rx) = oneshot::channel();
        match self {
            Self::Files(files, material) => {
                let follow = material.follow(files, CERTIFICATE_PERIOD, metrics);
                tasks.spawn("serving certificate", follow);
            }
            Self::Own(keeper) => {
                let check = process.readiness.check("certificate");
                let asked = process.asked.clone();
                tasks.spawn("serving certificate", async move {
                    // Who is about to end writes nothing any more: what it found wrong may be what its successor is to be
                    // verified by.
                    asked
                        .run_until_cancelled(keeper.run(check, elected_rx))
                        .await;
                });
            }
        }
        elected_tx
    }
}

/// A duration as Go and Kubernetes write it, such as `168h` or `1h30m`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration = text.parse().map_err(|error| format!("{error}"))?;
    let [least, most] = DURATIONS;
    match Duration::try_from(parsed) {
        Ok(duration) if (least..=most).contains(&duration) => Ok(duration),
        _ => Err("it must be from a second to a hundred years".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_kubernetes() {
        let hours = |n: u64| Duration::from_secs(n * 3_600);
        assert_eq!(duration("168h"), Ok(hours(168)));
        assert_eq!(duration("1h30m"), Ok(hours(1) + hours(1) / 2));
        for bad in ["", "168", "0s", "-1h", "1000ms0", "9999999h", "500ms"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
