//! The ConfigMap from which clients that come directly take whom to trust.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    Error, Options, Result,
    bundle::Bundle,
    kept::{BUNDLE, MANAGED_BY},
    secret::{DEADLINE, FIELD_MANAGER},
};
use crate::controller::within;

/// The one ConfigMap. Apart from the Secret, so that nobody needs to read the key for the sake of the certificate.
pub(super) struct Notice {
    api: Api<ConfigMap>,
    name: String,
    path: String,
}

impl Notice {
    pub(super) fn new(client: Client, options: &Options) -> Self {
        Self {
            api: Api::namespaced(client, &options.namespace),
            name: options.secret.clone(),
            path: options.secret_path(),
        }
    }

    /// Makes the ConfigMap say `bundle`, if it does not.
    pub(super) async fn publish(&self, bundle: &Bundle) -> Result<()> {
        let pem = bundle.to_pem();
        let read = within(DEADLINE, self.api.get_opt(&self.name)).await;
        let found = read.map_err(Error::calling(format!(
            "reading the ConfigMap {}",
            self.path
        )))?;
        let data = found.as_ref().and_then(|found| found.data.as_ref());
        if data.and_then(|data| data.get(BUNDLE)) == Some(&pem) {
            return Ok(());
        }
        let (label, value) = MANAGED_BY;
        let patch = Patch::Apply(json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name, "labels": {label: value}},
            "data": {BUNDLE: pem},
        }));
        let params = PatchParams::apply(FIELD_MANAGER).force();
        within(DEADLINE, self.api.patch(&self.name, &params, &patch))
            .await
            .map_err(Error::calling(format!(
                "writing the ConfigMap {}",
                self.path
            )))?;
        Ok(())
    }
}
