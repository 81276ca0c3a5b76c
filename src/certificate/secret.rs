//! The Secret that keeps the CA, at kube-apiserver.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, api::PostParams};

use super::{Error, Options, Result};
use crate::controller::{CallError, within};

/// How long kube-apiserver may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// Times that an object may change between being read and being written.
pub(super) const TRIES: usize = 5;

/// Owner of what this room writes.
pub(super) const FIELD_MANAGER: &str = "sandbox-apiserver-certificate";

/// The one Secret.
pub(super) struct Store {
    api: Api<Secret>,
    name: String,
    path: String,
}

impl Store {
    pub(super) fn new(client: Client, options: &Options) -> Self {
        Self {
            api: Api::namespaced(client, &options.namespace),
            name: options.secret.clone(),
            path: options.secret_path(),
        }
    }

    pub(super) async fn read(&self) -> Result<Option<Secret>> {
        let read = within(DEADLINE, self.api.get_opt(&self.name)).await;
        read.map_err(Error::calling(format!("reading the Secret {}", self.path)))
    }

    /// Writes the Secret in the place of the one whose version it has, or as the first. `false` when somebody was faster.
    pub(super) async fn write(&self, secret: &Secret) -> Result<bool> {
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let written = match secret.metadata.resource_version {
            Some(_) => within(DEADLINE, self.api.replace(&self.name, &params, secret)).await,
            None => within(DEADLINE, self.api.create(&params, secret)).await,
        };
        match written {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(Error::calling(format!("writing the Secret {}", self.path))(
                error,
            )),
        }
    }
}

/// Whether somebody was faster. Not a 404 as well: that of a create says that there is no namespace.
pub(super) fn is_conflict(error: &CallError) -> bool {
    matches!(error, CallError::Refused(error) if matches!(&**error, kube::Error::Api(status) if status.code == 409))
}
