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
    let ObjectDoc {
        group,
        version,
        kind,
        ..
    } = &resource.object;
    let root = match group.as_str() {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    let plural = &resource.plural;
    let scope = if resource.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    let mut namespace = Vec::new();
    if resource.namespaced {
        namespace.push(("namespace", "Namespace of the objects.".to_owned()));
    }
    let mut object = namespace.clone();
    object.push(("name", format!("Name of the {kind}.")));
    let mut items = vec![
        PathItem {
            path: format!("{root}{scope}/{plural}"),
            variables: namespace,
            operations: collection(resource),
        },
        PathItem {
            path: format!("{root}{scope}/{plural}/{{name}}"),
            variables: object.clone(),
            operations: single(resource),
        },
    ];
    if resource.namespaced && resource.verbs.contains(&Verb::List) {
        items.push(PathItem {
            path: format!("{root}/{plural}"),
            variables: Vec::new(),
            operations: vec![list(
                resource,
                &resource.operation_id("list", kind, "ForAllNamespaces", false),
            )],
        });
    }
    items.extend(resource.subresources.iter().map(|subresource| PathItem {
        path: format!("{root}{scope}/{plural}/{{name}}/{}", subresource.name),
        variables: object.clone(),
        operations: below(resource, subresource),
    }));
    items.retain(|item| !item.operations.is_empty());
    items
}

impl ResourceDoc {
    fn serves(&self, verb: Verb) -> bool {
        self.verbs.contains(&verb)
    }

    /// Verb, group and version, scope, and what it is about, in camelCase: `createExampleOrgV1NamespacedThing`.
    fn operation_id(&self, verb: &str, what: &str, suffix: &str, in_scope: bool) -> String {
        let group = if self.object.group.is_empty() {
            "core"
        } else {
            &self.object.group
        };
        let scope = if in_scope && self.namespaced {
            "Namespaced"
        } else {
            ""
        };
        let (group, version) = (camel(group), camel(&self.object.version));
        format!("{verb}{group}{version}{scope}{what}{suffix}")
    }

    fn operation(
        &self,
        method: &'static str,
        action: &'static str,
        id: String,
        answer: String,
    ) -> Operation {
        let ObjectDoc {
            group,
            version,
            kind,
            ..
        } = &self.object;
        let tag = if group.is_empty() { "core" } else { group };
        Operation {
            method,
            id,
            description: format!("{action} {kind}"),
            action,
            group_version_kind: self.object.group_version_kind(),
            tag: format!("{}_{version}", camel_lower(tag)),
            query: Vec::new(),
            body: None,
            responses: vec![(200, "OK", answer)],
            streams: false,
        }
    }
}

fn collection(resource: &ResourceDoc) -> Vec<Operation> {
    let kind = &resource.object.kind;
    let name = resource.object.definition_name();
    let mut operations = Vec::new();
    if resource.serves(Verb::List) {
        operations.push(list(
            resource,
            &resource.operation_id("list", kind, "", true),
        ));
    }
    if resource.serves(Verb::Create) {
        let id = resource.operation_id("create", kind, "", true);
        let mut operation = resource.operation("post", "post", id, name.clone());
        operation.query = parameters::WRITE.to_vec();
        operation.body = Some(Body::any(name.clone(), true));
        operation
            .responses
            .extend([(201, "Created", name.clone()), (202, "Accepted", name)]);
        operations.push(operation);
    }
    if resource.serves(Verb::DeleteCollection) {
        let id = resource.operation_id("deleteCollection", kind, "", true);
        let mut operation = resource.operation("delete", "deletecollection", id, STATUS.to_owned());
        operation.query = [parameters::DELETE, parameters::LIST].concat();
        operation.body = Some(Body::any(DELETE_OPTIONS.to_owned(), false));
        operations.push(operation);
    }
    operations
}

fn list(resource: &ResourceDoc, id: &str) -> Operation {
    let mut operation = resource.operation("get", "list", id.to_owned(), list_name(resource));
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
    let operations = subresource.operations.iter();
    operations
        .filter_map(
            |SubresourceOperation {
                 verb,
                 request,
                 response,
             }| {
                let suffix = camel(&subresource.name);
                let sent = request.as_ref().map(ObjectDoc::definition_name);
                let mut operation =
                    on_object(resource, *verb, &suffix, sent, response.definition_name())?;
                operation.description = format!(
                    "{} {} of {}",
                    operation.action, subresource.name, resource.object.kind
                );
                // The kind of what is sent; an action without a body is known by its answer.
                operation.group_version_kind =
                    request.as_ref().unwrap_or(response).group_version_kind();
                Some(operation)
            },
        )
        .collect()
}

/// `verb` on one object or on what is below it; none when no form of a patch is served.
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
    let id = resource.operation_id(word, &resource.object.kind, suffix, true);
    let mut operation = resource.operation(method, action, id, answer.clone());
    operation.query = query.to_vec();
    operation.body = match verb {
        Verb::Patch => Some(Body::patch(&resource.patch_types)),
        Verb::Delete => Some(Body::any(DELETE_OPTIONS.to_owned(), false)),
        Verb::Get => None,
        _ => sent.map(|definition| Body::any(definition, verb == Verb::Update)),
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
    let name = camel(name);
    name[..1].to_ascii_lowercase() + &name[1..]
}
