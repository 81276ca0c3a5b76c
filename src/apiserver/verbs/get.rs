//! GET of one object.

use std::sync::Arc;

use http::{Response, StatusCode};

use super::request::{VerbRequest, reach};
use crate::{
    apiserver::{
        Body, Resource, Status, body::json_response, form::Form, negotiate::Offer, options::Version,
    },
    meta::UnixTime,
    store::Stored,
};

/// The object in the path, as new as the client wants it.
///
/// # Errors
/// 404; 504 when the wanted version does not come.
pub(super) async fn find<R: Resource>(
    resource: &R,
    request: &VerbRequest,
) -> Result<Arc<Stored<R::Object>>, Status> {
    if let Version::At(version) = Version::parse(&request.query)? {
        reach(resource.store(), version).await?;
    }
    let (namespace, name) = (&request.target.namespace, &request.target.name);
    let found = resource.store().get(namespace, name);
    found.ok_or_else(|| Status::not_found(resource.definition(), name))
}

pub(super) async fn get<R: Resource>(
    resource: &R,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let negotiated = request.negotiate(Offer::Object)?;
    let object = find(resource, request).await?;
    let form = Form {
        shape: negotiated.shape,
        version: request.version,
    };
    let mut out = Vec::with_capacity(2_048);
    form.object(
        resource,
        &object.value,
        object.version,
        UnixTime::now(),
        &mut out,
    );
    Ok(json_response(StatusCode::OK, negotiated.media_type, out))
}
