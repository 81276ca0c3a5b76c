//! What is asked about a request before it is let in, and what a refused one is told.

use std::sync::Arc;

use super::{Matter, Status, options::Selectors, route::ResourceRequest};
use crate::{
    auth::{
        Attributes, Authorizer, Decision, Identity, ImpersonationError, Origin, ResourceAttributes,
        UserInfo,
    },
    schema::Verb,
};

/// A caller, and who knows what they may do.
#[derive(Debug)]
pub(super) struct Access {
    authorizer: Arc<Authorizer>,
    identity: Identity,
}

impl Access {
    pub(super) fn new(authorizer: Arc<Authorizer>, identity: Identity) -> Self {
        Self {
            authorizer,
            identity,
        }
    }

    pub(super) fn user(&self) -> &Arc<UserInfo> {
        &self.identity.user
    }

    /// # Errors
    /// 403 when the caller may not; 500 when nobody can tell.
    pub(super) async fn check(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        self.check_as(self.identity.origin, attributes).await
    }

    /// Whether the caller may create the object as well. Asked afresh even for a proxied request: kube-apiserver has asked
    /// about the patch alone.
    ///
    /// # Errors
    /// As of [`Self::check`].
    pub(super) async fn check_create(&self, target: &ResourceRequest) -> Result<(), Status> {
        let create = ResourceAttributes {
            verb: Verb::Create.as_str(),
            ..attributes(target, None)
        };
        self.check_as(Origin::Direct, &Attributes::Resource(create))
            .await
    }

    /// Whether the caller may have what an annex has. Asked as strictly of who speaks for others as of anybody: kube-apiserver, which
    /// asks before it passes a request on, has no way to an annex.
    ///
    /// # Errors
    /// As of [`Self::check`].
    pub(super) async fn check_annex(&self, matter: &Matter) -> Result<(), Status> {
        let attributes = Attributes::Resource(matter.attributes());
        self.check_as(Origin::Direct, &attributes).await
    }

    async fn check_as(&self, origin: Origin, attributes: &Attributes<'_>) -> Result<(), Status> {
        let user = &self.identity.user;
        match self.authorizer.authorize(user, attributes, origin).await {
            Ok(Decision::Allow) => Ok(()),
            Ok(Decision::Deny { reason }) => Err(denied(&user.name, attributes, reason.as_deref())),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot find out what the caller may do"
                );
                Err(Status::internal("cannot find out what the caller may do"))
            }
        }
    }
}

/// The request as authorization sees it. A list or watch of one object is asked about by that object's name.
pub(super) fn attributes<'a>(
    target: &'a ResourceRequest,
    selectors: Option<&'a Selectors>,
) -> ResourceAttributes<'a> {
    let reads = matches!(target.verb, Verb::List | Verb::Watch);
    let on_collection = reads || target.verb == Verb::DeleteCollection;
    let selectors = selectors.filter(|_| on_collection);
    let selected_name = selectors.filter(|_| reads).and_then(Selectors::name);
    ResourceAttributes {
        verb: target.verb.as_str(),
        group: &target.group,
        version: &target.version,
        resource: &target.resource,
        subresource: &target.subresource,
        namespace: &target.namespace,
        name: selected_name
            .filter(|_| target.name.is_empty())
            .unwrap_or(&target.name),
        label_selector: selectors
            .and_then(|selectors| selectors.labels.as_ref())
            .filter(|labels| !labels.is_empty()),
        field_selector: selectors
            .and_then(|selectors| selectors.fields.as_ref())
            .filter(|fields| !fields.is_empty()),
    }
}

/// 403, in the words that clients of Kubernetes know.
fn denied(user: &str, attributes: &Attributes<'_>, reason: Option<&str>) -> Status {
    let reason = reason
        .map(|reason| format!(": {reason}"))
        .unwrap_or_default();
    match attributes {
        Attributes::NonResource { verb, path } => Status::forbidden(format!(
            "forbidden: User {user:?} cannot {verb} path {path:?}{reason}"
        )),
        Attributes::Resource(resource) => {
            let ResourceAttributes {
                verb,
                group,
                resource,
                subresource,
                namespace,
                name,
                ..
            } = *resource;
            let within = match namespace {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace {namespace:?}"),
            };
            let what = if subresource.is_empty() {
                resource.to_owned()
            } else {
                format!("{resource}/{subresource}")
            };
            Status::forbidden_resource(
                group,
                resource,
                name,
                format!(
                    "User {user:?} cannot {verb} resource {what:?} in API group {group:?} {within}{reason}"
                ),
            )
        }
    }
}

/// The refusal of a caller who wants to be somebody else.
pub(super) fn impersonation_refused(error: ImpersonationError) -> Status {
    match &error {
        ImpersonationError::BadRequest(reason) => Status::bad_request(*reason),
        ImpersonationError::Forbidden {
            caller,
            wanted,
            reason,
        } => denied(
            &caller.name,
            &Attributes::Resource(wanted.attributes()),
            reason.as_deref(),
        ),
        ImpersonationError::Unknown(cause) => {
            tracing::warn!(
                error = cause as &dyn std::error::Error,
                "cannot find out whom the caller may impersonate"
            );
            Status::internal("cannot find out whom the caller may impersonate")
        }
    }
}
