//! SandboxClaims of VMs that were handed over: made if there are none, bound, and taken away again.

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::{
    Resource as _,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::{
    Api, Client, Resource as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, Request},
};
use serde_json::{Value, json};

use super::book::Owed;
use crate::{
    api::{BOUND, Binding, DELIVERED, SandboxClaim, labels},
    node::FIELD_MANAGER,
    sandboxd,
};

/// Looks at one claim in a row, before it is left for later: each but the first because somebody else was faster.
const MAX_LOOKS: usize = 5;

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// It was written.
    Written,
    /// It had been written, by an earlier life or by the claim controller, which had seen the sandbox.
    Known,
    /// The SandboxClaim is bound to another VM.
    Double,
    /// The VM is gone.
    Gone,
}

/// Why a record was not written. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("kube-apiserver refused")]
    Refused(#[from] kube::Error),
    #[error("the SandboxClaim is being deleted")]
    Ending,
    #[error("the SandboxClaim changes faster than it can be read")]
    Restless,
    #[error("the daemon does not say whether it still has the VM")]
    Unasked(#[from] sandboxd::Error),
}

/// The SandboxClaims of a cluster, read and written one at a time.
#[derive(Clone)]
pub(super) struct Records {
    client: Client,
}

impl Recorded {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Known => "known",
            Self::Double => "double",
            Self::Gone => "gone",
        }
    }
}

impl Records {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Sees to it that there is a SandboxClaim of the name, and that it is bound.
    ///
    /// What is late (an orphan, or what has failed before) was handed over nobody knows how long ago, and its claim may have been
    /// deleted since, and made anew. So the claim is read first and the daemon afterwards (`is_there`), before anything is written:
    /// a claim is gone only after its VM, so that a VM that is still there after its claim was not is the VM of no claim that was
    /// deleted; and a claim that changes after it was read is not bound.
    pub(super) async fn record<'a>(
        &self,
        owed: &Owed,
        is_late: bool,
        is_there: impl Fn() -> BoxFuture<'a, sandboxd::Result<bool>> + Send + Sync,
    ) -> Result<Recorded, Error> {
        let mut known = match is_late {
            true => self.get(owed).await?,
            false => None,
        };
        let mut written = false;
        for _ in 0..MAX_LOOKS {
            let Some(claim) = known else {
                // Also what was written just now may have been deleted since, and its VM released.
                if (is_late || written) && !is_there().await? {
                    return Ok(Recorded::Gone);
                }
                known = self.create(owed).await?;
                written |= known.is_some();
                if known.is_none() {
                    // Somebody made it.
                    known = self.get(owed).await?;
                }
                continue;
            };
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(Error::Ending);
            }
            match claim.binding(&owed.delivery) {
                Binding::This if written => return Ok(Recorded::Written),
                Binding::This => return Ok(Recorded::Known),
                Binding::Another => return Ok(Recorded::Double),
                // A server that says which sandbox a claim has, and not which VM that is, is an older one.
                Binding::Open if has_sandbox(&claim) => return Ok(Recorded::Known),
                Binding::Open if is_late && !written && !is_there().await? => {
                    return Ok(Recorded::Gone);
                }
                Binding::Open => {}
            }
            known = match self.bind(owed, &claim).await? {
                Some(bound) => {
                    written = true;
                    Some(bound)
                }
                None => self.get(owed).await?,
            };
        }
        Err(Error::Restless)
    }

    /// Deletes the SandboxClaim that was made for the VM. One that somebody else made is his.
    pub(super) async fn withdraw(&self, owed: &Owed) -> Result<(), Error> {
        let Some(claim) = self.get(owed).await? else {
            return Ok(());
        };
        let ours = claim.made_for().as_ref() == Some(&owed.delivery);
        if !ours || claim.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: claim.metadata.uid,
            resource_version: None,
        });
        match self.claims(owed).delete(&owed.key.name, &params).await {
            Ok(_) => Ok(()),
            Err(error) if is_stale(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn get(&self, owed: &Owed) -> Result<Option<SandboxClaim>, Error> {
        Ok(self.claims(owed).get_opt(&owed.key.name).await?)
    }

    /// `None` when there is one of the name.
    async fn create(&self, owed: &Owed) -> Result<Option<SandboxClaim>, Error> {
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let path = SandboxClaim::url_path(&(), Some(&owed.key.namespace));
        let body = made(owed).to_string().into_bytes();
        let request = Request::new(path)
            .create(&params, body)
            .map_err(kube::Error::BuildRequest)?;
        match self.client.request(request).await {
            Ok(claim) => Ok(Some(claim)),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the condition, if the claim is as it was read. `None` when it is not.
    async fn bind(&self, owed: &Owed, claim: &SandboxClaim) -> Result<Option<SandboxClaim>, Error> {
        let condition = Condition {
            type_: BOUND.to_owned(),
            status: "True".to_owned(),
            reason: DELIVERED.to_owned(),
            message: owed.delivery.message(),
            observed_generation: claim.metadata.generation,
            last_transition_time: Time(now()),
        };
        let patch = json!({
            "apiVersion": SandboxClaim::API_VERSION, "kind": SandboxClaim::KIND,
            "metadata": {
                "name": claim.metadata.name, "namespace": claim.metadata.namespace,
                "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
            },
            "status": {"conditions": [condition]},
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&patch);
        let claims = self.claims(owed);
        let bound = claims.patch_status(&owed.key.name, &params, &patch).await;
        match bound {
            Ok(bound) => Ok(Some(bound)),
            Err(error) if is_stale(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn claims(&self, owed: &Owed) -> Api<SandboxClaim> {
        Api::namespaced(self.client.clone(), &owed.key.namespace)
    }
}

/// The SandboxClaim of a VM. It says from the first moment which VM it is for, so that no other is taken for it, and has the claim
/// controller's finalizer, so that the VM goes with it whenever it is deleted.
fn made(owed: &Owed) -> Value {
    json!({
        "apiVersion": SandboxClaim::API_VERSION, "kind": SandboxClaim::KIND,
        "metadata": {
            "name": owed.key.name, "namespace": owed.key.namespace,
            "annotations": {
                labels::NODE: owed.delivery.node,
                labels::CLAIM_ID: owed.delivery.claim,
            },
            "finalizers": [labels::RELEASE],
        },
        "spec": {"warmPoolRef": {"name": owed.warm_pool}},
    })
}

fn has_sandbox(claim: &SandboxClaim) -> bool {
    let status = claim.status.as_ref();
    status.is_some_and(|status| status.sandbox.is_some())
}

/// Whole seconds, as times are kept.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Whether the claim has changed since it was read, or is gone.
fn is_stale(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}
