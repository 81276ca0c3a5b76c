//! The way of a request to its verb.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::{Response, StatusCode};

use super::{
    create, delete, deletecollection, get, list, patch, request::VerbRequest, scale, subresource,
    update, watch,
};
use crate::{
    apiserver::{Body, Completeness, Definition, Resource, Status},
    schema::Verb,
};

/// When to ask again for what is not known yet. Nothing was done.
const RETRY_SECONDS: u32 = 1;

/// A resource whose types are forgotten, as the router keeps it.
pub(in crate::apiserver) trait Endpoint: Send + Sync {
    fn definition(&self) -> &Definition;
    fn serve<'a>(
        &'a self,
        request: &'a VerbRequest,
    ) -> BoxFuture<'a, Result<Response<Body>, Status>>;
}

/// A resource that is served.
pub(in crate::apiserver) struct Served<R>(pub(in crate::apiserver) Arc<R>);

impl<R: Resource> Endpoint for Served<R> {
    fn definition(&self) -> &Definition {
        self.0.definition()
    }

    fn serve<'a>(
        &'a self,
        request: &'a VerbRequest,
    ) -> BoxFuture<'a, Result<Response<Body>, Status>> {
        Box::pin(self.answer(request))
    }
}

impl<R: Resource> Served<R> {
    /// The answer, which says nothing of what is not known.
    async fn answer(&self, request: &VerbRequest) -> Result<Response<Body>, Status> {
        let target = &request.target;
        let of_all = target.name.is_empty();
        // What is never served is refused as such, whatever is known.
        if of_all && self.0.definition().supports(target.verb.as_str()) {
            match (self.0.completeness(), target.verb) {
                (Completeness::Whole, _) => {}
                (Completeness::NotYet(reason), _) => {
                    return Err(Status::unavailable(reason).retry_after(RETRY_SECONDS));
                }
                // Who hears that everything was deleted takes what is left for somebody else's.
                (Completeness::Without(missing), Verb::DeleteCollection) => {
                    return Err(Status::unavailable(missing).retry_after(RETRY_SECONDS));
                }
                (Completeness::Without(missing), _) => request.context.warn(missing),
            }
        }
        match self.dispatch(request).await {
            Err(absent)
                if !of_all
                    && target.subresource.is_empty()
                    && absent.code() == StatusCode::NOT_FOUND =>
            {
                let reason = match self.0.completeness() {
                    Completeness::Whole => return Err(absent),
                    Completeness::Without(missing) => missing,
                    Completeness::NotYet(reason) => reason.to_owned(),
                };
                let unknown = Status::unavailable(reason).of(self.0.definition(), &target.name);
                Err(unknown.retry_after(RETRY_SECONDS))
            }
            answer => answer,
        }
    }

    async fn dispatch(&self, request: &VerbRequest) -> Result<Response<Body>, Status> {
        let definition = self.0.definition();
        let target = &request.target;
        let not_allowed = || Err(Status::method_not_allowed(definition, target.verb.as_str()));
        if target.is_of_status() && definition.status {
            return match target.verb {
                Verb::Get => get::get(self.0.as_ref(), request).await,
                Verb::Update => update::update(&self.0, request).await,
                Verb::Patch => patch::patch(&self.0, request).await,
                _ => not_allowed(),
            };
        }
        if target.is_of_scale() && definition.versions[request.version].scale {
            return match target.verb {
                Verb::Get => scale::get(self.0.as_ref(), request).await,
                Verb::Update => scale::update(&self.0, request).await,
                Verb::Patch => scale::patch(&self.0, request).await,
                _ => not_allowed(),
            };
        }
        if !target.subresource.is_empty() {
            let known = definition.action(request.version, &target.subresource);
            let subresource = known.ok_or_else(Status::resource_not_found)?;
            return match target.verb == definition.subresources[subresource].verb() {
                true => subresource::invoke(&self.0, request, subresource).await,
                false => not_allowed(),
            };
        }
        if !definition.supports(target.verb.as_str()) || !target.is_addressed() {
            return not_allowed();
        }
        match target.verb {
            Verb::Get => get::get(self.0.as_ref(), request).await,
            Verb::List => list::list(&self.0, request).await,
            Verb::Watch => watch::watch(&self.0, request),
            Verb::Create => create::create(&self.0, request).await,
            Verb::Delete => delete::delete(&self.0, request).await,
            Verb::DeleteCollection => deletecollection::delete_collection(&self.0, request).await,
            Verb::Update => update::update(&self.0, request).await,
            Verb::Patch => patch::patch(&self.0, request).await,
        }
    }
}
