//! A routed request, as the verbs get it.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio_util::sync::CancellationToken;

use crate::{
    admission::Namespaces,
    apiserver::{
        ApiMetrics, Context, Definition, Status,
        access::Access,
        negotiate::{IncludeObject, Negotiated, Offer, Shape, negotiate},
        query::Query,
        route::ResourceRequest,
    },
    meta::{ResourceVersion, is_dns1123_label},
    schema::{Decoded, decode_json, decode_yaml},
    store::{Key, Scope, Store, Value},
};

/// How long a read waits for a version that is not there yet.
const FRESHNESS_WAIT: Duration = Duration::from_secs(3);

/// A request for a resource that is served, authorized, its body read.
#[derive(Debug)]
pub(in crate::apiserver) struct VerbRequest {
    pub(in crate::apiserver) target: ResourceRequest,
    pub(in crate::apiserver) query: Query,
    pub(in crate::apiserver) headers: HeaderMap,
    pub(in crate::apiserver) body: Bytes,
    pub(in crate::apiserver) context: Context,
    /// Index into the definition's versions.
    pub(in crate::apiserver) version: usize,
    /// For what a verb does beside what it is called.
    pub(in crate::apiserver) access: Access,
    pub(in crate::apiserver) namespaces: Namespaces,
    pub(in crate::apiserver) counters: ApiMetrics,
    /// Cancelled when streams are to end.
    pub(in crate::apiserver) shutdown: CancellationToken,
}

impl VerbRequest {
    /// The object in the path.
    pub(super) fn key(&self) -> Key {
        Key::new(self.target.namespace.as_str(), self.target.name.as_str())
    }

    /// The collection in the path, narrowed to what the field selector leaves of it.
    pub(super) fn scope(&self, fields: &crate::meta::FieldSelector) -> Scope {
        let within = match self.target.namespace.as_str() {
            "" => fields
                .required_value("metadata.namespace")
                .unwrap_or_default(),
            namespace => namespace,
        };
        match (within, fields.required_value("metadata.name")) {
            ("", _) => Scope::All,
            (namespace, Some(name)) => Scope::Object(Key::new(namespace, name)),
            (namespace, None) => Scope::Namespace(namespace.into()),
        }
    }

    /// The form of the answer, with a table's `includeObject` from the query.
    pub(super) fn negotiate(&self, offer: Offer) -> Result<Negotiated, Status> {
        let mut negotiated = negotiate(&self.headers, offer)?;
        if let Shape::Table { include, .. } = &mut negotiated.shape {
            *include = match self.query.get("includeObject") {
                None | Some("" | "Metadata") => IncludeObject::Metadata,
                Some("Object") => IncludeObject::Object,
                Some("None") => IncludeObject::None,
                Some(other) => {
                    let other: String = other.chars().take(64).collect();
                    return Err(Status::bad_request(format!(
                        "unrecognized includeObject value: {other:?}"
                    )));
                }
            };
        }
        Ok(negotiated)
    }

    /// The decoded body, with the duplicate fields in it.
    pub(super) fn decode(&self) -> Result<Decoded, Status> {
        use crate::apiserver::negotiate::{MediaType, body_type};
        let decoded = match body_type(&self.headers)? {
            MediaType::Json => decode_json(&self.body),
            MediaType::Yaml => decode_yaml(&self.body),
        };
        decoded.map_err(|error| {
            Status::bad_request(format!("the object provided is unrecognized: {error}"))
        })
    }

    /// Refuses a namespace that cannot exist, before anything is asked about it.
    pub(super) fn checked_namespace(&self, definition: &Definition) -> Result<&str, Status> {
        let namespace = self.target.namespace.as_str();
        match (definition.namespaced, namespace) {
            (true, "") => Err(Status::method_not_allowed(
                definition,
                self.target.verb.as_str(),
            )),
            (true, namespace) if !is_dns1123_label(namespace) => {
                Err(Status::other_not_found("namespaces", namespace))
            }
            _ => Ok(namespace),
        }
    }
}

/// Waits until the store has reached `wanted`.
///
/// # Errors
/// 504 when it does not within three seconds.
pub(super) async fn reach<V: Value>(
    store: &Store<V>,
    wanted: ResourceVersion,
) -> Result<(), Status> {
    let mut head_rx = store.subscribe();
    let reached =
        tokio::time::timeout(FRESHNESS_WAIT, head_rx.wait_for(|head| *head >= wanted)).await;
    match reached {
        Ok(Ok(_)) => Ok(()),
        _ => Err(too_large(wanted, store.head())),
    }
}

pub(super) fn too_large(wanted: ResourceVersion, current: ResourceVersion) -> Status {
    use crate::apiserver::StatusCause;
    Status::timeout(format!(
        "Timeout: Too large resource version: {wanted}, current: {current}"
    ))
    .cause(StatusCause::new(
        "ResourceVersionTooLarge",
        "Too large resource version",
    ))
    .retry_after(1)
}
