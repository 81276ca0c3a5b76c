//! What discovery and OpenAPI documents say, in one form, so that they can be compared.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{api_service::GROUP, caller::Answer};

/// A kind with its group and version, and verbs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Resource {
    kind: [String; 3],
    verbs: BTreeSet<String>,
}

/// Resources by name, subresources as `sandboxes/status`.
pub(super) type Resources = BTreeMap<String, Resource>;

/// A resource of an `APIResourceList`.
#[track_caller]
pub(super) fn resource<'a>(list: &'a Value, name: &str) -> &'a Value {
    let resources = list["resources"].as_array().expect("a list of resources");
    let found = resources.iter().find(|resource| resource["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {list:#}"))
}

/// The texts of a list, which may be absent.
#[track_caller]
pub(super) fn texts(list: &Value) -> BTreeSet<&str> {
    if list.is_null() {
        return BTreeSet::new();
    }
    let texts = list.as_array().expect("a list").iter();
    texts.map(|text| text.as_str().expect("a text")).collect()
}

/// The entity tag of an answer, quoted and strong.
#[track_caller]
pub(super) fn entity_tag(answer: &Answer) -> String {
    let tag = answer.headers["etag"].to_str().unwrap();
    let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    assert!(inner.is_some_and(|inner| !inner.is_empty()), "{tag}");
    tag.to_owned()
}

/// What an `APIResourceList` says.
pub(super) fn of_list(list: &Value) -> Resources {
    let (group, version) = list["groupVersion"]
        .as_str()
        .and_then(|text| text.split_once('/'))
        .expect("a group and a version");
    let resources = list["resources"].as_array().unwrap().iter();
    resources
        .map(|resource| {
            let or = |field: &str, own: &str| resource[field].as_str().unwrap_or(own).to_owned();
            let kind = [or("group", group), or("version", version), or("kind", "")];
            (or("name", ""), Resource::new(kind, &resource["verbs"]))
        })
        .collect()
}

/// What a version of the aggregated document says.
pub(super) fn of_aggregated(version: &Value) -> Resources {
    let mut found = Resources::new();
    for resource in version["resources"].as_array().unwrap() {
        let name = resource["resource"].as_str().unwrap();
        let kind = kind_of(&resource["responseKind"]);
        found.insert(name.to_owned(), Resource::new(kind, &resource["verbs"]));
        for part in resource["subresources"].as_array().into_iter().flatten() {
            let name = format!("{name}/{}", part["subresource"].as_str().unwrap());
            let kind = kind_of(&part["responseKind"]);
            found.insert(name, Resource::new(kind, &part["verbs"]));
        }
    }
    found
}

/// What an OpenAPI document, of either version, says of the resources below `/apis/G/V`. It has no watches of its own.
pub(super) fn of_openapi(document: &Value, api: &str) -> Resources {
    let mut found = Resources::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(name) = resource_of(path, api) else {
            continue;
        };
        for operation in item.as_object().unwrap().values() {
            let action = operation["x-kubernetes-action"].as_str();
            let verb = match action {
                None | Some("watch" | "watchlist") => continue,
                Some("post") => "create",
                Some("put") => "update",
                Some(verb) => verb,
            };
            let resource = found.entry(name.clone()).or_default();
            resource.kind = kind_of(&operation["x-kubernetes-group-version-kind"]);
            resource.verbs.insert(verb.to_owned());
        }
    }
    found
}

/// The same without the verb that OpenAPI does not name.
pub(super) fn without_watch(mut resources: Resources) -> Resources {
    for resource in resources.values_mut() {
        resource.verbs.remove("watch");
    }
    resources
}

/// The resource that a path template is about.
fn resource_of(path: &str, api: &str) -> Option<String> {
    let rest = path.strip_prefix(api)?.strip_prefix('/')?;
    let rest = rest.strip_prefix("namespaces/{namespace}/").unwrap_or(rest);
    let mut parts = rest.split('/');
    let plural = parts
        .next()
        .filter(|part| *part != "watch" && !part.is_empty())?;
    Some(match parts.nth(1) {
        None => plural.to_owned(),
        Some(part) => format!("{plural}/{part}"),
    })
}

fn kind_of(value: &Value) -> [String; 3] {
    ["group", "version", "kind"].map(|field| value[field].as_str().unwrap_or_default().to_owned())
}

impl Resource {
    fn new(kind: [String; 3], verbs: &Value) -> Self {
        let verbs = texts(verbs).into_iter().map(str::to_owned).collect();
        Self { kind, verbs }
    }
}

/// Path of the OpenAPI document of a version.
pub(super) fn openapi_path(version: &str) -> String {
    format!("/openapi/v3/apis/{GROUP}/{version}")
}
