//! Whom to trust: the ConfigMap in which kube-apiserver publishes its CAs and its front proxy's headers, followed live.
//!
//! Source: ConfigMap `kube-system/extension-apiserver-authentication`, "Configure the aggregation layer".

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};

use crate::telemetry::{Check, Tasks};

use super::{AuthMetrics, Error, Result, certificate::CaBundle, request_header::RequestHeader};

const NAMESPACE: &str = "kube-system";

/// The reader's Role allows this one name and nothing wider.
const SELECTOR: &str = "metadata.name=extension-apiserver-authentication";

/// Time for the first read.
const DEADLINE: Duration = Duration::from_secs(10);

/// What to do when the ConfigMap cannot be read at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnreadable {
    /// Do not start.
    Refuse,
    /// Start, trust no certificate, and go on trying.
    Tolerate,
}

/// Whose certificates are trusted, at any moment.
#[derive(Debug)]
pub struct ClientTrust {
    current: ArcSwap<Trust>,
    metrics: AuthMetrics,
}

/// Whose certificates are trusted at one moment.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// Who vouches for client certificates; `None` when nobody does.
    pub(super) client_ca: Option<CaBundle>,
    /// Who vouches for identity headers; `None` when nobody does.
    pub(super) request_header: Option<RequestHeader>,
    /// Rises with every change.
    pub(super) generation: u64,
    data: BTreeMap<String, String>,
}

impl ClientTrust {
    /// Trusts what `data`, of the ConfigMap's form, says.
    pub fn fixed(data: &BTreeMap<String, String>, metrics: AuthMetrics) -> Arc<Self> {
        let trust = Arc::new(Self {
            current: ArcSwap::default(),
            metrics,
        });
        trust.update(data);
        trust
    }

    /// Trusts what the ConfigMap says, and follows its changes in a task of `tasks`. When it is deleted later the last content
    /// stays in force. `check` passes once it has been read.
    ///
    /// # Errors
    /// With [`WhenUnreadable::Refuse`]: [`Error::ConfigMap`], [`Error::NoConfigMap`] and [`Error::ConfigMapTimedOut`].
    pub async fn follow(
        client: Client,
        when_unreadable: WhenUnreadable,
        tasks: &mut Tasks,
        check: Check,
        metrics: AuthMetrics,
    ) -> Result<Arc<Self>> {
        let api = Api::namespaced(client, NAMESPACE);
        let trust = Self::fixed(&BTreeMap::new(), metrics);
        match read(&api).await {
            Ok(config_map) => trust.adopt(config_map, &check),
            Err(error) if when_unreadable == WhenUnreadable::Refuse => return Err(error),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "trusting no certificate for now"
                );
            }
        }
        tasks.spawn("authentication-config-map", trust.clone().watch(api, check));
        Ok(trust)
    }

    /// Puts `data` in force. A value that cannot be read is logged and counted, and trusts nobody.
    pub fn update(&self, data: &BTreeMap<String, String>) {
        let before = self.current.load();
        if before.generation > 0 && before.data == *data {
            return;
        }
        let (trust, problems) = Trust::parse(data, before.generation + 1);
        for problem in problems {
            self.metrics.config_map_problems.inc();
            tracing::error!(problem, "authentication ConfigMap");
        }
        self.current.store(Arc::new(trust));
    }

    pub(super) fn current(&self) -> Arc<Trust> {
        self.current.load_full()
    }

    fn adopt(&self, config_map: ConfigMap, check: &Check) {
        self.update(&config_map.data.unwrap_or_default());
        check.pass();
    }

    async fn watch(self: Arc<Self>, api: Api<ConfigMap>, check: Check) {
        let config = watcher::Config::default().fields(SELECTOR);
        let mut events = pin!(watcher(api, config).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(config_map) | watcher::Event::InitApply(config_map)) => {
                    self.adopt(config_map, &check);
                }
                Ok(watcher::Event::Delete(_)) => {
                    tracing::warn!(
                        "authentication ConfigMap deleted: its last content stays in force"
                    );
                }
                Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "authentication ConfigMap"
                    );
                }
            }
        }
    }
}

impl Trust {
    /// What `data` says, and what in it cannot be read.
    pub(super) fn parse(data: &BTreeMap<String, String>, generation: u64) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let client_ca = bundle(data, "client-ca-file", &mut problems);
        let request_header =
            bundle(data, "requestheader-client-ca-file", &mut problems).and_then(|ca| {
                match RequestHeader::parse(ca, data) {
                    Ok(request_header) => Some(request_header),
                    Err(key) => {
                        problems.push(format!("{key} cannot be read: trusting no front proxy"));
                        None
                    }
                }
            });
        let trust = Self {
            client_ca,
            request_header,
            generation,
            data: data.clone(),
        };
        (trust, problems)
    }
}

/// The CAs under `key`, if there is one.
fn bundle(
    data: &BTreeMap<String, String>,
    key: &str,
    problems: &mut Vec<String>,
) -> Option<CaBundle> {
    let (bundle, n_unusable) = CaBundle::parse(data.get(key)?);
    if n_unusable > 0 {
        problems.push(format!("{key}: {n_unusable} certificates cannot be used"));
    }
    (!bundle.is_empty()).then_some(bundle)
}

async fn read(api: &Api<ConfigMap>) -> Result<ConfigMap> {
    let params = ListParams::default().fields(SELECTOR);
    let list = tokio::time::timeout(DEADLINE, api.list(&params))
        .await
        .map_err(|_| Error::ConfigMapTimedOut { after: DEADLINE })?
        .map_err(|error| Error::ConfigMap(Arc::new(error)))?;
    list.items.into_iter().next().ok_or(Error::NoConfigMap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::CertificateAuthority;

    fn mk_data(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn empty_and_broken_values_trust_nobody() {
        let ca = CertificateAuthority::new("ca").unwrap();
        let pem = ca.certificate();
        let broken = pem.replace("MII", "AAA");
        for data in [
            mk_data(&[]),
            mk_data(&[("client-ca-file", ""), ("requestheader-client-ca-file", "")]),
            mk_data(&[
                ("client-ca-file", "nonsense"),
                ("requestheader-client-ca-file", &broken),
            ]),
            mk_data(&[("requestheader-client-ca-file", pem)]),
            mk_data(&[
                ("requestheader-client-ca-file", pem),
                ("requestheader-allowed-names", "x"),
            ]),
        ] {
            let (trust, _) = Trust::parse(&data, 1);
            assert!(
                trust.client_ca.is_none() && trust.request_header.is_none(),
                "{data:?}"
            );
        }
    }

    #[test]
    fn one_bad_certificate_does_not_hide_the_others() {
        let ca = CertificateAuthority::new("ca").unwrap();
        let pem = format!(
            "{}{}",
            ca.certificate().replace("MII", "AAA"),
            ca.certificate()
        );
        let (trust, problems) = Trust::parse(&mk_data(&[("client-ca-file", &pem)]), 1);
        assert!(trust.client_ca.is_some());
        assert_eq!(problems.len(), 1);
    }

    #[test]
    fn only_a_change_begins_a_new_generation() {
        let trust = ClientTrust::fixed(&mk_data(&[]), AuthMetrics::default());
        let first = trust.current().generation;
        trust.update(&mk_data(&[]));
        assert_eq!(trust.current().generation, first);
        trust.update(&mk_data(&[("client-ca-file", "x")]));
        assert_eq!(trust.current().generation, first + 1);
    }
}
