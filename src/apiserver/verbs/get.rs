//! GET of one object.

use http::{Response, StatusCode};

use super::request::{VerbRequest, reach};
use crate::{
    apiserver::{
        Body, Resource, Status,
        body::{response, serialize},
        form::Form,
        negotiate::{MediaType, Offer},
        options::Version,
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

/// JSON bytes as the answer, in the negotiated serialization.
pub(super) fn json_response(
    code: StatusCode,
    media_type: MediaType,
    json: Vec<u8>,
) -> Response<Body> {
    let bytes = match media_type {
        MediaType::Json => json,
        MediaType::Yaml => {
            let value = serde_json::from_slice(&json).expect("the machinery writes valid JSON");
            serialize(media_type, &value)
        }
    };
    response(code, media_type.as_str(), Body::whole(bytes))
}
