//! GET of one object.

use http::{Response, StatusCode};

use super::request::{VerbRequest, reach};
use crate::{
    apiserver::{
        Body, Resource, Status, body::json_response, form::Form, negotiate::Offer, options::Version,
    },
    meta::UnixTime,
};

pub(super) async fn get<R: Resource>(
    resource: &R,
    request: &VerbRequest,
) -> Result<Response<Body>, Status> {
    let negotiated = request.negotiate(Offer::Object)?;
    if let Version::At(version) = Version::parse(&request.query)? {
        reach(resource.store(), version).await?;
    }
    let (namespace, name) = (&request.target.namespace, &request.target.name);
    let found = resource.store().get(namespace, name);
    let object = found.ok_or_else(|| Status::not_found(resource.definition(), name))?;
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
