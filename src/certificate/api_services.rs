//! The APIServices by which kube-apiserver finds this server, and the CAs by which it verifies it.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher::watch_object},
};
use serde_json::{Value, json};

use super::{
    Error, Options, Result,
    bundle::Bundle,
    secret::{DEADLINE, FIELD_MANAGER, TRIES, is_conflict},
};
use crate::controller::within;

/// Least time between two looks.
pub(super) const LEAST: Duration = Duration::from_secs(1);
/// Writes in a row that are made without more than that between them: an upgrade, or a new CA, takes one or two.
const PATIENCE: u32 = 5;
/// To about a minute.
const DOUBLINGS: u32 = 6;

/// This server's APIServices.
pub(super) struct ApiServices {
    api: Api<APIService>,
    names: Vec<String>,
    namespace: String,
    service: String,
    /// What was last logged of those that are left alone.
    said: BTreeMap<String, &'static str>,
    /// How many publications in a row had to write.
    rewrites: u32,
}

/// What is to be done about one.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// It has the bundle.
    Right,
    /// The fields that are to be applied.
    Apply(Value),
    /// It is not this server's business, for this reason.
    LeftAlone(&'static str),
}

impl ApiServices {
    pub(super) fn new(client: Client, options: &Options) -> Self {
        Self {
            api: Api::all(client),
            names: options.api_services.clone(),
            namespace: options.namespace.clone(),
            service: options.service.clone(),
            said: BTreeMap::new(),
            rewrites: 0,
        }
    }

    /// Something each time one of them may have changed. Does not end.
    pub(super) fn changes(&self) -> BoxStream<'static, ()> {
        let watches = self.names.iter().map(|name| {
            let named = name.clone();
            let seen = watch_object(self.api.clone(), name).default_backoff();
            seen.filter_map(move |seen| {
                if let Err(error) = &seen {
                    tracing::warn!(
                        api_service = named,
                        error = error as &dyn std::error::Error,
                        "watching"
                    );
                }
                std::future::ready(seen.ok().map(drop))
            })
            .boxed()
        });
        futures::stream::select_all(watches)
            .chain(futures::stream::pending())
            .boxed()
    }

    /// Makes kube-apiserver verify this server by `bundle`. An APIService that is absent has nobody who could be misled; it is
    /// seen when it comes.
    ///
    /// # Errors
    /// The first; the others have had their try.
    pub(super) async fn publish(&mut self, bundle: &Bundle) -> Result<()> {
        let (mut outcome, mut wrote) = (Ok(()), false);
        for name in self.names.clone() {
            match self.publish_one(&name, bundle).await {
                Ok(written) => wrote |= written,
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        self.rewrites = match wrote {
            true => self.rewrites.saturating_add(1),
            false => 0,
        };
        outcome
    }

    /// Least time until the next publication.
    pub(super) fn pause(&self) -> Duration {
        pause(self.rewrites)
    }

    /// Whether it had to be written.
    async fn publish_one(&mut self, name: &str, bundle: &Bundle) -> Result<bool> {
        // A kube-apiserver that has just heard of one writes its status: that is no failure, only another version.
        for _ in 1..TRIES {
            match self.attempt(name, bundle).await {
                Err(Error::Call { source, .. }) if is_conflict(&source) => {}
                outcome => return outcome,
            }
        }
        self.attempt(name, bundle).await
    }

    async fn attempt(&mut self, name: &str, bundle: &Bundle) -> Result<bool> {
        let read = within(DEADLINE, self.api.get_opt(name)).await;
        let found = read.map_err(Error::calling(format!("reading the APIService {name}")))?;
        let verdict = match &found {
            Some(found) => self.judge(found, bundle),
            None => Verdict::LeftAlone("it is absent"),
        };
        match verdict {
            Verdict::Right => {
                self.said.remove(name);
            }
            Verdict::LeftAlone(reason) => {
                if self.said.insert(name.to_owned(), reason) != Some(reason) {
                    tracing::warn!(api_service = name, reason, "not writing the caBundle");
                }
            }
            Verdict::Apply(fields) => {
                let patch = Patch::Apply(fields);
                let params = PatchParams::apply(FIELD_MANAGER).force();
                let written = self.api.patch(name, &params, &patch);
                let what = format!("writing the caBundle of the APIService {name}");
                within(DEADLINE, written)
                    .await
                    .map_err(Error::calling(what))?;
                self.said.remove(name);
                tracing::info!(api_service = name, "caBundle written");
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn judge(&self, found: &APIService, bundle: &Bundle) -> Verdict {
        let spec = found.spec.clone().unwrap_or_default();
        let service = spec.service.unwrap_or_default();
        if (service.namespace.as_ref(), service.name.as_ref())
            != (Some(&self.namespace), Some(&self.service))
        {
            return Verdict::LeftAlone("it leads to another Service");
        }
        // Both together are invalid, and somebody chose this.
        if spec.insecure_skip_tls_verify == Some(true) {
            return Verdict::LeftAlone("it has insecureSkipTLSVerify");
        }
        let pem = bundle.to_pem();
        if spec
            .ca_bundle
            .is_some_and(|known| known.0 == pem.as_bytes())
        {
            return Verdict::Right;
        }
        Verdict::Apply(json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            // The version makes it the object that was judged.
            "metadata": {"name": found.metadata.name, "resourceVersion": found.metadata.resource_version},
            "spec": {"caBundle": BASE64_STANDARD.encode(pem)},
        }))
    }
}

/// Bounds a quarrel with somebody who writes the same field: after a few writes in a row each next one waits twice as long.
fn pause(rewrites: u32) -> Duration {
    let doublings = rewrites.saturating_sub(PATIENCE).min(DOUBLINGS);
    LEAST * 2_u32.pow(doublings)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use k8s_openapi::{
        ByteString,
        kube_aggregator::pkg::apis::apiregistration::v1::{APIServiceSpec, ServiceReference},
    };
    use kube::api::ObjectMeta;

    use super::*;
    use crate::certificate::authority::Authority;

    fn mk_bundle() -> Bundle {
        Bundle::of(&Authority::new(SystemTime::now(), Duration::from_secs(60)).unwrap())
    }

    /// What is done about an APIService of the server with this change.
    fn judge(bundle: &Bundle, change: impl FnOnce(&mut APIServiceSpec)) -> Verdict {
        let services = ApiServices {
            api: Api::all(
                Client::try_from(kube::Config::new("http://localhost".parse().unwrap())).unwrap(),
            ),
            names: Vec::new(),
            namespace: "ns".to_owned(),
            service: "server".to_owned(),
            said: BTreeMap::new(),
            rewrites: 0,
        };
        let mut spec = APIServiceSpec {
            service: Some(ServiceReference {
                namespace: Some("ns".to_owned()),
                name: Some("server".to_owned()),
                port: None,
            }),
            ..APIServiceSpec::default()
        };
        change(&mut spec);
        let metadata = ObjectMeta {
            name: Some("v1.x".to_owned()),
            resource_version: Some("7".to_owned()),
            ..ObjectMeta::default()
        };
        let found = APIService {
            metadata,
            spec: Some(spec),
            status: None,
        };
        services.judge(&found, bundle)
    }

    #[tokio::test]
    async fn a_missing_or_another_bundle_is_replaced_and_the_right_one_left() {
        let bundle = mk_bundle();
        let other = mk_bundle().to_pem();
        for known in [None, Some(String::new()), Some(other)] {
            let verdict = judge(&bundle, |spec| {
                spec.ca_bundle = known.map(|pem| ByteString(pem.into()))
            });
            let Verdict::Apply(patch) = verdict else {
                panic!("{verdict:?}");
            };
            assert_eq!(
                patch["spec"],
                json!({"caBundle": BASE64_STANDARD.encode(bundle.to_pem())})
            );
            assert_eq!(
                patch["metadata"],
                json!({"name": "v1.x", "resourceVersion": "7"})
            );
        }
        let right = ByteString(bundle.to_pem().into());
        assert_eq!(
            judge(&bundle, |spec| spec.ca_bundle = Some(right)),
            Verdict::Right
        );
    }

    #[test]
    fn who_writes_the_same_field_again_and_again_is_answered_ever_less_often() {
        let seconds = [0, 1, 5, 6, 7, 11, 12, u32::MAX].map(|rewrites| pause(rewrites).as_secs());
        assert_eq!(seconds, [1, 1, 1, 2, 4, 64, 64, 64]);
    }

    #[tokio::test]
    async fn what_leads_elsewhere_or_is_not_to_be_verified_is_left_alone() {
        let bundle = mk_bundle();
        let elsewhere = |change: fn(&mut APIServiceSpec)| judge(&bundle, change);
        for verdict in [
            elsewhere(|spec| spec.service = None),
            elsewhere(|spec| spec.service.as_mut().unwrap().name = Some("other".to_owned())),
            elsewhere(|spec| spec.service.as_mut().unwrap().namespace = Some("other".to_owned())),
            elsewhere(|spec| spec.insecure_skip_tls_verify = Some(true)),
        ] {
            assert!(matches!(verdict, Verdict::LeftAlone(_)), "{verdict:?}");
        }
    }
}
