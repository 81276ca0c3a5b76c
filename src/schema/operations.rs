//! Paths and operations of resources, in the form that both kinds of OpenAPI document are written from.

use serde_json::Value;

use super::{
    ObjectDoc, PatchType, ResourceDoc, SubresourceDoc, SubresourceOperation, Verb,
    parameters::{self, Parameter},
};

pub(super) const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
pub(super) const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

/// A path and what is served there.
pub(super) struct PathItem {
    pub(super) path: String,
    /// Parts of the path that vary, with what they name.
    pub(super) variables: Vec<(&'static str, String)>,
    pub(super) operations: Vec<Operation>,
}

/// A method on a path.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) description: String,
    /// The verb as `x-kubernetes-action` has it.
    pub(super) action: &'static str,
    pub(super) group_version_kind: Value,
    pub(super) tag: String,
    pub(super) query: Vec<Parameter>,
    pub(super) body: Option<Body>,
    /// Status code, its meaning, and the type of the answer.
    pub(super) responses: Vec<(u16, &'static str, String)>,
    /// Whether the answer may be a stream of events.
    pub(super) streams: bool,
}

/// What is sent.
pub(super) struct Body {
    pub(super) media_types: Vec<&'static str>,
    pub(super) definition: String,
    pub(super) required: bool,
}

/// Name of the type of a list of the resource's objects.
pub(super) fn list_name(resource: &ResourceDoc) -> String {
    resource.object.definition_name() + "List"
}

/// Every path of `resource`.
pub(super) fn path_items(resource: &ResourceDoc) -> Vec<PathItem> {
    let base = base_path(&resource.object);
    let plural = &resource.plural;
    let mut variables = Vec::new();
    let mut items = Vec::new();
    let collection_path = if resource.namespaced {
        variables.push(("namespace", "Namespace of the objects.".to_owned()));
        items.push(PathItem {
            path: format!("{base}/{plural}"),
            variables: Vec::new(),
            operations: all_namespaces(resource),
        });
        format!("{base}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("{base}/{plural}")
    };
    let object_path = format!("{collection_path}/{{name}}");
    items.push(PathItem {
        path: collection_path,
        variables: variables.clone(),
        operations: collection(resource),
    });
    variables.push(("name", format!("Name of the {}.", resource.object.kind)));
    items.extend(resource.subresources.iter().map(|subresource| PathItem {
        path: format!("{object_path}/{}", subresource.name),
        variables: variables.clone(),
        operations: below(resource, subresource),
    }));
    items.push(PathItem {
        path: object_path,
        variables,
        operations: single(resource),
    });
    items.retain(|item| !item.operations.is_empty());
    items
}

/// Path of a group and version.
fn base_path(object: &ObjectDoc) -> String {
    match object.group.as_str() {
        "" => format!("/api/{}", object.version),
        group => format!("/apis/{group}/{}", object.version),
    }
}

impl ResourceDoc {
    fn serves(&self, verb: Verb) -> bool {
        self.verbs.contains(&verb)
    }

    /// Verb, group and version, scope, kind and what is below it, in camelCase: `createExampleOrgV1NamespacedThing`.
    fn operation_id(&self, verb: &str, suffix: &str) -> String {
        let scope = if self.namespaced { "Namespaced" } else { "" };
        self.id(verb, scope, suffix)
    }

    fn id(&self, verb: &str, scope: &str, suffix: &str) -> String {
        let ObjectDoc { version, kind, .. } = &self.object;
        let (group, version) = (camel(group_or_core(&self.object)), camel(version));
        format!("{verb}{group}{version}{scope}{kind}{suffix}")
    }

    fn operation(
        &self,
        method: &'static str,
        action: &'static str,
        id: String,
        answer: String,
    ) -> Operation {
        let ObjectDoc { version, kind, .. } = &self.object;
        let tag = camel_lower(group_or_core(&self.object));
        Operation {
            method,
            id,
            description: format!("{action} {kind}"),
            action,
            group_version_kind: self.object.group_version_kind(),
            tag: format!("{tag}_{version}"),
            query: Vec::new(),
            body: None,
            responses: vec![(200, "OK", answer)],
            streams: false,
        }
    }
}

fn all_namespaces(resource: &ResourceDoc) -> Vec<Operation> {
    let id = resource.id("list", "", "ForAllNamespaces");
    let served = resource.serves(Verb::List);
    served.then(|| list(resource, id)).into_iter().collect()
}

fn collection(resource: &ResourceDoc) -> Vec<Operation> {
    let mut operations = Vec::new();
    if resource.serves(Verb::List) {
        operations.push(list(resource, resource.operation_id("list", "")));
    }
    if resource.serves(Verb::Create) {
        let name = resource.object.definition_name();
        let sent = Some(name.clone());
        operations.extend(on_object(resource, Verb::Create, "", sent, name));
    }
    if resource.serves(Verb::DeleteCollection) {
        let id = resource.operation_id("deleteCollection", "");
        let mut operation = resource.operation("delete", "deletecollection", id, STATUS.to_owned());
        operation.query = [parameters::DELETE, parameters::LIST].concat();
        operation.body = Some(Body::any(DELETE_OPTIONS.to_owned(), false));
        operations.push(operation);
    }
    operations
}

fn list(resource: &ResourceDoc, id: String) -> Operation {
    let mut operation = resource.operation("get", "list", id, list_name(resource));
    operation.query = parameters::LIST.to_vec();
    if resource.serves(Verb::Watch) {
        operation.query.extend(parameters::WATCH_TOO);
        operation.streams = true;
    }
    operation
}

fn single(resource: &ResourceDoc) -> Vec<Operation> {
    let name = resource.object.definition_name();
    let verbs = resource
        .verbs
        .iter()
        .filter(|verb| matches!(verb, Verb::Get | Verb::Update | Verb::Patch | Verb::Delete));
    verbs
        .filter_map(|&verb| {
            let answer = if verb == Verb::Delete {
                STATUS.to_owned()
            } else {
                name.clone()
            };
            on_object(resource, verb, "", Some(name.clone()), answer)
        })
        .collect()
}

fn below(resource: &ResourceDoc, subresource: &SubresourceDoc) -> Vec<Operation> {
    let suffix = camel(&subresource.name);
    let describe = |each: &SubresourceOperation| {
        let (request, response) = (each.request.as_ref(), &each.response);
        let sent = request.map(ObjectDoc::definition_name);
        let answer = response.definition_name();
        let mut operation = on_object(resource, each.verb, &suffix, sent, answer)?;
        let (action, kind) = (operation.action, &resource.object.kind);
        operation.description = format!("{action} {} of {kind}", subresource.name);
        // The kind of what is sent; an action without a body is known by its answer.
        operation.group_version_kind = request.unwrap_or(response).group_version_kind();
        Some(operation)
    };
    subresource.operations.iter().filter_map(describe).collect()
}

/// `verb` with one object or with what is below it; none when no form of a patch is served.
fn on_object(
    resource: &ResourceDoc,
    verb: Verb,
    suffix: &str,
    sent: Option<String>,
    answer: String,
) -> Option<Operation> {
    let (method, action, word, query) = match verb {
        Verb::Get => ("get", "get", "read", &[][..]),
        Verb::Create => ("post", "post", "create", parameters::WRITE),
        Verb::Update => ("put", "put", "replace", parameters::WRITE),
        Verb::Patch if resource.patch_types.is_empty() => return None,
        Verb::Patch => ("patch", "patch", "patch", parameters::PATCH),
        Verb::Delete => ("delete", "delete", "delete", parameters::DELETE),
        Verb::List | Verb::Watch | Verb::DeleteCollection => return None,
    };
    let id = resource.operation_id(word, suffix);
    let mut operation = resource.operation(method, action, id, answer.clone());
    operation.query = query.to_vec();
    operation.body = match verb {
        Verb::Patch => Some(Body::patch(&resource.patch_types)),
        Verb::Delete => Some(Body::any(DELETE_OPTIONS.to_owned(), false)),
        Verb::Get => None,
        // An action below an object may come without its options.
        _ => {
            sent.map(|definition| Body::any(definition, suffix.is_empty() || verb == Verb::Update))
        }
    };
    match verb {
        Verb::Update | Verb::Patch => operation.responses.push((201, "Created", answer)),
        Verb::Delete => operation.responses.push((202, "Accepted", answer)),
        Verb::Create => operation
            .responses
            .extend([(201, "Created", answer.clone()), (202, "Accepted", answer)]),
        _ => {}
    }
    Some(operation)
}

impl Body {
    fn any(definition: String, required: bool) -> Self {
        Self {
            media_types: vec!["*/*"],
            definition,
            required,
        }
    }

    fn patch(types: &[PatchType]) -> Self {
        let media_types = types.iter().map(|kind| kind.media_type()).collect();
        Self {
            media_types,
            definition: PATCH.to_owned(),
            required: true,
        }
    }
}

fn group_or_core(object: &ObjectDoc) -> &str {
    match object.group.as_str() {
        "" => "core",
        group => group,
    }
}

/// `agents.x-k8s.io` as `AgentsXK8sIo`.
fn camel(name: &str) -> String {
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric());
    parts
        .flat_map(|part| {
            let mut letters = part.chars();
            letters
                .next()
                .map(|first| first.to_ascii_uppercase())
                .into_iter()
                .chain(letters)
        })
        .collect()
}

fn camel_lower(name: &str) -> String {
    let mut name = camel(name);
    if let Some(first) = name.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    name
}
