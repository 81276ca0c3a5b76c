//! The OpenAPI documents of everything that is served, made once, of the same definitions as discovery.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use k8s_openapi::api::autoscaling::v1::Scale;
use serde_json::{Map, json};

use super::{
    Body, Call, Definition, ObjectType, ProductInfo, Status,
    body::response,
    discovery::tagged,
    negotiate::takes_json,
    query::Query,
    route::{SCALE, STATUS},
};
use crate::schema::{
    self, Document, Info, ObjectDoc, PatchType, ResourceDoc, SubresourceDoc, SubresourceOperation,
    TypeSchema, Verb, openapi_v2, openapi_v3,
};

/// How long a document under its own hash may be kept: it never changes.
const FOREVER: &str = "public, immutable, max-age=31536000";
/// A year from now in the form of `Expires`, for clients that read nothing else: any date far enough ahead does.
const FAR_FUTURE: &str = "Thu, 31 Dec 2037 23:55:55 GMT";

/// All documents.
#[derive(Debug)]
pub(super) struct OpenApi {
    v2: Document,
    /// `/openapi/v3`.
    index: Bytes,
    /// By `apis/G/V`.
    v3: BTreeMap<String, Document>,
}

impl OpenApi {
    /// Makes the documents.
    ///
    /// # Errors
    /// When a type has no form in OpenAPI.
    pub(super) fn new(product: &ProductInfo, definitions: &[&Definition]) -> schema::Result<Self> {
        let info = Info {
            title: product.name,
            version: product.version,
        };
        let mut by_version: BTreeMap<String, Vec<ResourceDoc>> = BTreeMap::new();
        for definition in definitions {
            for (index, version) in definition.versions.iter().enumerate() {
                let path = format!("apis/{}/{}", definition.group, version.name);
                by_version
                    .entry(path)
                    .or_default()
                    .push(document(definition, index)?);
            }
        }
        let all: Vec<_> = by_version.values().flatten().cloned().collect();
        let v2 = openapi_v2(info, &all)?;
        let mut v3 = BTreeMap::new();
        for (path, resources) in &by_version {
            v3.insert(path.clone(), openapi_v3(info, resources)?);
        }
        let paths: Map<_, _> = v3
            .iter()
            .map(|(path, document)| {
                let url = format!("/openapi/v3/{path}?hash={}", document.hash);
                (path.clone(), json!({"serverRelativeURL": url}))
            })
            .collect();
        let index = json!({"paths": paths}).to_string().into();
        Ok(Self { v2, index, v3 })
    }

    /// The answer for a path below `/openapi`; `None` when it is none.
    pub(super) fn answer(
        &self,
        path: &str,
        query: &Query,
        headers: &HeaderMap,
    ) -> Option<Result<Response<Body>, Status>> {
        match path {
            "/openapi/v2" => Some(
                takes_json(headers)
                    .map(|()| tagged(&self.v2.body, &self.v2.hash, "application/json", headers)),
            ),
            "/openapi/v3" => Some(Ok(response(
                StatusCode::OK,
                "application/json",
                Body::whole(self.index.clone()),
            ))),
            _ => {
                let document = self.v3.get(path.strip_prefix("/openapi/v3/")?)?;
                Some(takes_json(headers).map(|()| versioned(document, query, headers)))
            }
        }
    }
}

/// A document that its hash names for ever; any other hash gets the present one, which is not redirected to, since the
/// aggregator passes no redirect on.
fn versioned(document: &Document, query: &Query, headers: &HeaderMap) -> Response<Body> {
    let mut answer = tagged(&document.body, &document.hash, "application/json", headers);
    if query.get("hash") == Some(&*document.hash) {
        let fields = answer.headers_mut();
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static(FOREVER));
        fields.insert(header::EXPIRES, HeaderValue::from_static(FAR_FUTURE));
    }
    answer
}

fn document(definition: &Definition, version: usize) -> schema::Result<ResourceDoc> {
    let object_doc = |object: &ObjectType| ObjectDoc {
        group: definition.group.to_owned(),
        version: definition.versions[version].name.to_owned(),
        kind: object.kind.to_owned(),
        schema: object.documented.clone(),
    };
    let object = object_doc(&definition.versions[version].object);
    let verbs = [Verb::Get, Verb::Update, Verb::Patch];
    let status = definition
        .status
        .then(|| SubresourceDoc::part_of(&object, STATUS, &verbs));
    let scale = match definition.versions[version].scale {
        true => Some(SubresourceDoc::part_of(&scale()?, SCALE, &verbs)),
        false => None,
    };
    let actions = definition
        .actions(version)
        .iter()
        .map(|subresource| SubresourceDoc {
            name: subresource.name.to_owned(),
            operations: vec![SubresourceOperation {
                verb: subresource.verb(),
                request: match &subresource.call {
                    Call::Get => None,
                    Call::Create { options, .. } => Some(object_doc(options)),
                },
                response: object_doc(&subresource.response),
            }],
        });
    Ok(ResourceDoc {
        subresources: status.into_iter().chain(scale).chain(actions).collect(),
        object,
        plural: definition.plural.to_owned(),
        namespaced: definition.namespaced,
        verbs: VERBS
            .into_iter()
            .filter(|verb| definition.supports(verb.as_str()))
            .collect(),
        patch_types: match definition.supports("patch") {
            true => vec![PatchType::Json, PatchType::Merge, PatchType::Apply],
            false => Vec::new(),
        },
    })
}

/// The kind that every resource's scale is.
fn scale() -> schema::Result<ObjectDoc> {
    Ok(ObjectDoc {
        group: "autoscaling".to_owned(),
        version: "v1".to_owned(),
        kind: "Scale".to_owned(),
        schema: Arc::new(TypeSchema::of::<Scale>()?),
    })
}

const VERBS: [Verb; 8] = [
    Verb::Get,
    Verb::List,
    Verb::Watch,
    Verb::Create,
    Verb::Update,
    Verb::Patch,
    Verb::Delete,
    Verb::DeleteCollection,
];
