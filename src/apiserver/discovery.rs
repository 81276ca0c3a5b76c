//! Discovery: which groups, versions, resources and verbs there are, in the forms that clients of all ages ask for.
//!
//! Source: the types of `apidiscovery.k8s.io/v2` and `metav1.APIGroup`, `metav1.APIResourceList`.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    Body, Definition, Status,
    body::response,
    negotiate::{accepted_discovery, takes_json},
    route::{SCALE, STATUS},
};

/// Versions of the aggregated document, in the order they are preferred.
const AGGREGATED: [(&str, &str); 2] = [
    (
        "v2",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    ),
    (
        "v2beta1",
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
    ),
];

/// Of a subresource that is a part of the object.
const PART_VERBS: [&str; 3] = ["get", "patch", "update"];

/// All discovery documents, ready to be sent.
#[derive(Debug)]
pub(super) struct Discovery {
    /// `/apis` for clients that know nothing newer.
    groups: Bytes,
    /// `/apis` in each of [`AGGREGATED`], with its entity tag.
    aggregated: Vec<(Bytes, String)>,
    /// `/apis/G` and `/apis/G/V`.
    by_path: BTreeMap<String, Bytes>,
}

impl Discovery {
    pub(super) fn new(definitions: &[&Definition]) -> Self {
        let mut by_group: BTreeMap<&str, Vec<&Definition>> = BTreeMap::new();
        for definition in definitions {
            by_group
                .entry(definition.group)
                .or_default()
                .push(definition);
        }
        let groups: Vec<_> = by_group
            .iter()
            .map(|(group, of)| api_group(group, of))
            .collect();
        let list = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups});
        let mut by_path = BTreeMap::new();
        for (group, of) in &by_group {
            let mut own = api_group(group, of);
            own["kind"] = "APIGroup".into();
            own["apiVersion"] = "v1".into();
            by_path.insert(format!("/apis/{group}"), bytes(&own));
            for version in versions(of) {
                by_path.insert(
                    format!("/apis/{group}/{version}"),
                    bytes(&resource_list(group, version, of)),
                );
            }
        }
        let aggregated = AGGREGATED.map(|(version, _)| {
            let document = bytes(&aggregated(version, &by_group));
            let tag = entity_tag(&document);
            (document, tag)
        });
        Self {
            groups: bytes(&list),
            aggregated: aggregated.into(),
            by_path,
        }
    }

    /// The answer for a discovery path; `None` when it is none.
    pub(super) fn answer(
        &self,
        path: &str,
        headers: &HeaderMap,
    ) -> Option<Result<Response<Body>, Status>> {
        if path == "/apis" {
            return Some(self.root(headers));
        }
        let document = self.by_path.get(path)?.clone();
        Some(
            takes_json(headers)
                .map(|()| response(StatusCode::OK, "application/json", Body::whole(document))),
        )
    }

    fn root(&self, headers: &HeaderMap) -> Result<Response<Body>, Status> {
        let wanted = accepted_discovery(headers, &AGGREGATED.map(|(version, _)| version));
        let Some(index) = wanted.ok_or_else(|| Status::not_acceptable(&["application/json"]))?
        else {
            let mut plain = response(
                StatusCode::OK,
                "application/json",
                Body::whole(self.groups.clone()),
            );
            plain
                .headers_mut()
                .insert(header::VARY, HeaderValue::from_static("Accept"));
            return Ok(plain);
        };
        let (document, tag) = &self.aggregated[index];
        Ok(tagged(document, tag, AGGREGATED[index].1, headers))
    }
}

/// A document under an entity tag: 304 without a body for a client that has it.
pub(super) fn tagged(
    document: &Bytes,
    tag: &str,
    content_type: &'static str,
    headers: &HeaderMap,
) -> Response<Body> {
    let quoted = format!("\"{tag}\"");
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let matches = known.flat_map(|value| value.split(',')).any(|value| {
        let value = value.trim();
        value == "*" || value.strip_prefix("W/").unwrap_or(value) == quoted
    });
    let mut answer = match matches {
        true => response(StatusCode::NOT_MODIFIED, content_type, Body::empty()),
        false => response(StatusCode::OK, content_type, Body::whole(document.clone())),
    };
    let fields = answer.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&quoted) {
        fields.insert(header::ETAG, tag);
    }
    fields.insert(header::VARY, HeaderValue::from_static("Accept"));
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    answer
}

fn entity_tag(document: &[u8]) -> String {
    Sha256::digest(document)
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect()
}

fn bytes(document: &Value) -> Bytes {
    document.to_string().into()
}

/// The versions of a group, the preferred one first, as its first resource orders them.
fn versions<'a>(definitions: &[&'a Definition]) -> Vec<&'a str> {
    let mut versions: Vec<&str> = Vec::new();
    for version in definitions
        .iter()
        .flat_map(|definition| &definition.versions)
    {
        if !versions.contains(&version.name) {
            versions.push(version.name);
        }
    }
    versions
}

fn api_group(group: &str, definitions: &[&Definition]) -> Value {
    let versions: Vec<_> = versions(definitions)
        .into_iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    json!({"name": group, "preferredVersion": versions[0], "versions": versions})
}

fn resource_list(group: &str, version: &str, definitions: &[&Definition]) -> Value {
    let resources: Vec<_> = served(definitions, version)
        .flat_map(|(definition, version)| {
            let parts = parts(definition, version).into_iter().map(|part| {
                let mut listed = json!({
                    "name": format!("{}/{}", definition.plural, part.name),
                    "singularName": "",
                    "namespaced": definition.namespaced,
                    "kind": part.kind,
                    "verbs": part.verbs,
                });
                if let Some((group, version)) = part.of {
                    listed["group"] = group.into();
                    listed["version"] = version.into();
                }
                listed
            });
            std::iter::once(json!({
                "name": definition.plural,
                "singularName": definition.singular,
                "namespaced": definition.namespaced,
                "kind": definition.kind,
                "verbs": definition.verbs,
                "shortNames": definition.short_names,
                "categories": definition.categories,
            }))
            .chain(parts)
        })
        .collect();
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{group}/{version}"),
        "resources": resources,
    })
}

fn aggregated(document_version: &str, groups: &BTreeMap<&str, Vec<&Definition>>) -> Value {
    let items: Vec<_> = groups
        .iter()
        .map(|(group, definitions)| {
            let versions: Vec<_> = versions(definitions)
                .into_iter()
                .map(|version| {
                    let resources: Vec<_> = served(definitions, version)
                        .map(|(definition, version)| discovered(definition, version))
                        .collect();
                    json!({"version": version, "freshness": "Current", "resources": resources})
                })
                .collect();
            json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{document_version}"),
        "metadata": {},
        "items": items,
    })
}

fn discovered(definition: &Definition, version: usize) -> Value {
    let (group, name) = (definition.group, definition.versions[version].name);
    let kind = |kind: &str| json!({"group": group, "version": name, "kind": kind});
    let parts = parts(definition, version).into_iter().map(|part| {
        let kind = match part.of {
            None => kind(part.kind),
            Some((group, version)) => {
                json!({"group": group, "version": version, "kind": part.kind})
            }
        };
        json!({"subresource": part.name, "responseKind": kind, "verbs": part.verbs})
    });
    let subresources: Vec<_> = parts.collect();
    json!({
        "resource": definition.plural,
        "responseKind": kind(definition.kind),
        "scope": if definition.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": definition.singular,
        "verbs": definition.verbs,
        "shortNames": definition.short_names,
        "categories": definition.categories,
        "subresources": subresources,
    })
}

/// A subresource as both documents tell of it.
struct Part<'a> {
    name: &'a str,
    /// Group and version of its kind, when they are not the resource's own.
    of: Option<(&'a str, &'a str)>,
    kind: &'a str,
    verbs: Vec<&'static str>,
}

fn parts(definition: &Definition, version: usize) -> Vec<Part<'_>> {
    let status = definition.status.then_some(Part {
        name: STATUS,
        of: None,
        kind: definition.kind,
        verbs: PART_VERBS.into(),
    });
    let scale = definition.versions[version].scale.then_some(Part {
        name: SCALE,
        of: Some(("autoscaling", "v1")),
        kind: "Scale",
        verbs: PART_VERBS.into(),
    });
    let actions = definition.actions(version).iter().map(|action| Part {
        name: action.name,
        of: None,
        kind: action.kind(),
        verbs: vec![action.verb().as_str()],
    });
    status.into_iter().chain(scale).chain(actions).collect()
}

/// Those that are served in a version, with its place among their versions.
fn served<'a>(
    definitions: &'a [&Definition],
    version: &'a str,
) -> impl Iterator<Item = (&'a Definition, usize)> {
    definitions.iter().filter_map(move |definition| {
        let mut versions = definition.versions.iter();
        let place = versions.position(|known| known.name == version)?;
        Some((*definition, place))
    })
}
