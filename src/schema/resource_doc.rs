//! What an API document says of a resource.

use std::sync::Arc;

use serde_json::Value;

use super::{Result, TypeSchema};

/// An object type under its name in the cluster.
#[derive(Clone, Debug)]
pub struct ObjectDoc {
    /// API group; empty for the core group.
    pub group: String,
    /// Version in the group.
    pub version: String,
    /// Kind, in CamelCase.
    pub kind: String,
    /// What such an object looks like.
    pub schema: Arc<TypeSchema>,
}

/// A resource: its objects and what can be done with them.
#[derive(Clone, Debug)]
pub struct ResourceDoc {
    /// The resource's objects; their group and version are the resource's.
    pub object: ObjectDoc,
    /// Name in paths.
    pub plural: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// What is served. `Watch` beside `List` adds the parameters of a watch.
    pub verbs: Vec<Verb>,
    /// Forms of a patch that are served, also by subresources; none: no PATCH is described.
    pub patch_types: Vec<PatchType>,
    /// What is served below an object.
    pub subresources: Vec<SubresourceDoc>,
}

/// A subresource: `status`, or an action on an object.
#[derive(Clone, Debug)]
pub struct SubresourceDoc {
    /// Last part of the path.
    pub name: String,
    /// What is served.
    pub operations: Vec<SubresourceOperation>,
}

/// One verb of a subresource.
#[derive(Clone, Debug)]
pub struct SubresourceOperation {
    /// `Get`, `Create`, `Update`, `Patch` or `Delete`.
    pub verb: Verb,
    /// What is sent; for a patch always a patch.
    pub request: Option<ObjectDoc>,
    /// What is answered.
    pub response: ObjectDoc,
}

/// A verb of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// One object.
    Get,
    /// All objects.
    List,
    /// All changes.
    Watch,
    /// A new object.
    Create,
    /// An object as a whole.
    Update,
    /// Parts of an object.
    Patch,
    /// One object less.
    Delete,
    /// Many objects less.
    DeleteCollection,
}

/// A form of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Server-side apply.
    Apply,
}

impl Verb {
    /// The verb as discovery and authorization write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    /// Whether it may change something.
    pub fn is_write(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

impl PatchType {
    /// The media type of such a patch.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

impl SubresourceDoc {
    /// A subresource that reads and writes a part of the object itself.
    pub fn part_of(object: &ObjectDoc, name: &str, verbs: &[Verb]) -> Self {
        let operation = |&verb: &Verb| SubresourceOperation {
            verb,
            request: (verb != Verb::Get).then(|| object.clone()),
            response: object.clone(),
        };
        Self {
            name: name.to_owned(),
            operations: verbs.iter().map(operation).collect(),
        }
    }
}

impl ObjectDoc {
    /// The type of a list of such objects.
    ///
    /// # Errors
    /// As [`TypeSchema::list`].
    pub fn list(&self) -> Result<Self> {
        let description = format!("A list of {} objects.", self.kind);
        let schema = TypeSchema::list(&self.definition_name(), &description)?;
        Ok(Self {
            kind: format!("{}List", self.kind),
            schema: Arc::new(schema),
            ..self.clone()
        })
    }

    /// Name under which documents define the type: `io.example.v1.Thing` for the group `example.io`; a type of
    /// Kubernetes keeps its own.
    pub fn definition_name(&self) -> String {
        if let Some(name) = self.schema.root().get("$ref").and_then(Value::as_str) {
            return name.to_owned();
        }
        let mut parts: Vec<&str> = self.group.rsplit('.').collect();
        parts.extend([self.version.as_str(), self.kind.as_str()]);
        parts.join(".")
    }

    /// Group, version and kind as the documents' extension writes them.
    pub(super) fn group_version_kind(&self) -> Value {
        serde_json::json!({ "group": self.group, "version": self.version, "kind": self.kind })
    }
}
