//! What a resource is to the machinery: its description, its store, how it is written down, and its write hooks.

use std::{borrow::Cow, sync::Arc};

use http::StatusCode;
use serde_json::Value;

use super::{Context, Status};
use crate::{
    admission::{Counted, QuotaReservation},
    meta::{ResourceVersion, UnixTime},
    schema::{self, Schema, TypeSchema, Verb},
    store::{Key, Store, Stored},
};

/// The preferred version's place in [`Definition::versions`]. Hooks get objects in it, whatever version a client speaks.
pub(super) const PREFERRED: usize = 0;

/// How a resource is described in discovery, in OpenAPI and to users. The only source of all three.
#[derive(Debug)]
pub struct Definition {
    /// API group.
    pub group: &'static str,
    /// Kind of one object; lists are `<kind>List`.
    pub kind: &'static str,
    /// Name in paths.
    pub plural: &'static str,
    /// Name of one.
    pub singular: &'static str,
    /// Abbreviations for kubectl.
    pub short_names: &'static [&'static str],
    /// Groups of resources it belongs to, such as `all`.
    pub categories: &'static [&'static str],
    /// Whether objects belong to a namespace.
    pub namespaced: bool,
    /// Verbs that work, in alphabetical order.
    pub verbs: &'static [&'static str],
    /// Served versions, the preferred one first.
    pub versions: Vec<Version>,
    /// Whether `status` is a subresource. The status is the resource's own to say: reads of it show the object, writes to it
    /// check and change nothing.
    pub status: bool,
    /// Named questions and actions, in the preferred version.
    pub subresources: Vec<Subresource>,
    /// Field selector paths beside `metadata.name` and `metadata.namespace`.
    pub selectable_fields: &'static [&'static str],
}

/// One version of a resource.
#[derive(Debug)]
pub struct Version {
    /// `v1beta1`.
    pub name: &'static str,
    /// What objects look like.
    pub object: ObjectType,
    /// The same, for checking bodies.
    pub schema: Arc<Schema>,
    /// Columns of its tables behind the first, which is the name.
    pub columns: &'static [Column],
    /// Whether `scale` is a subresource: `spec.replicas`, `status.replicas` and `status.selector` as an `autoscaling/v1` Scale.
    pub scale: bool,
    /// Warning that every request to this version is answered with.
    pub deprecation: Option<&'static str>,
}

/// A kind and what its objects look like, for documents.
#[derive(Clone, Debug)]
pub struct ObjectType {
    /// The kind.
    pub kind: &'static str,
    /// Its type.
    pub documented: Arc<TypeSchema>,
}

impl ObjectType {
    /// The type of a kind.
    pub fn new(kind: &'static str, documented: TypeSchema) -> Self {
        Self {
            kind,
            documented: Arc::new(documented),
        }
    }

    /// The type as bodies are checked by it.
    ///
    /// # Errors
    /// When it refers to what is not part of it.
    pub fn compile(&self) -> schema::Result<Arc<Schema>> {
        self.documented.compile().map(Arc::new)
    }
}

/// A column of a table.
#[derive(Debug)]
pub struct Column {
    /// Heading.
    pub name: &'static str,
    /// JSON type of the cells: `string`, `integer`, `number`, `boolean` or `date`.
    pub kind: &'static str,
    /// What it shows.
    pub description: &'static str,
    /// 0: always shown; above: only with `-o wide`.
    pub priority: u8,
}

/// Whether a resource's store holds all there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// It does.
    Whole,
    /// It may lack something, with what is to be told about it: lists carry it as a Warning, and an object that is not there
    /// is not said to be absent.
    Without(String),
    /// It is being filled for the first time, with the reason: it is not served yet.
    NotYet(&'static str),
}

/// A named question about an object, or an action on it.
#[derive(Debug)]
pub struct Subresource {
    /// Name in the path.
    pub name: &'static str,
    /// How it is invoked.
    pub call: Call,
    /// The answer.
    pub response: ObjectType,
    /// Whether it makes new objects, which a namespace that is being deleted refuses.
    pub creates: bool,
}

/// How a subresource is invoked.
#[derive(Debug)]
pub enum Call {
    /// By GET: it changes nothing.
    Get,
    /// By POST, with options in the body.
    Create {
        /// The options.
        options: ObjectType,
        /// The same, for checking bodies.
        schema: Arc<Schema>,
    },
}

impl Subresource {
    /// The verb that it is invoked by.
    pub(super) fn verb(&self) -> Verb {
        match self.call {
            Call::Get => Verb::Get,
            Call::Create { .. } => Verb::Create,
        }
    }

    /// The kind that discovery names: what is sent, or what is answered where nothing is sent.
    pub(super) fn kind(&self) -> &'static str {
        match &self.call {
            Call::Get => self.response.kind,
            Call::Create { options, .. } => options.kind,
        }
    }
}

/// A namespaced or cluster-scoped collection that the machinery serves.
///
/// Everything that is the same for all resources is done by the machinery before a hook is called: authentication,
/// authorization, decoding, defaults, schema and metadata validation, the namespace's life and its quotas, preconditions, dry
/// run; but for the quotas of what a subresource makes, see [`Context::admit`]. A hook is called once and may be dropped at any
/// await when the client leaves: what must be finished has to run on its own.
pub trait Resource: Send + Sync + 'static {
    /// What is stored.
    type Object: crate::store::Value;

    /// The description.
    fn definition(&self) -> &Definition;

    /// The objects.
    fn store(&self) -> &Store<Self::Object>;

    /// Whether [`Resource::store`] holds all there is.
    fn completeness(&self) -> Completeness {
        Completeness::Whole
    }

    /// Appends the object as JSON in a version of the API, an index into [`Definition::versions`], as of `at`: the
    /// `resourceVersion` to show.
    fn encode(&self, object: &Self::Object, at: ResourceVersion, version: usize, out: &mut Vec<u8>);

    /// Appends the object's `metadata` as JSON.
    fn encode_metadata(&self, object: &Self::Object, at: ResourceVersion, out: &mut Vec<u8>);

    /// Appends the cells behind the name as JSON values, each with a comma in front.
    fn encode_cells(&self, object: &Self::Object, version: usize, now: UnixTime, out: &mut Vec<u8>);

    /// Turns an object of one version into one of another, both indices into [`Definition::versions`]. Any part of it may be
    /// absent.
    fn convert(&self, object: &mut Value, from: usize, to: usize);

    /// The value of a label.
    fn label<'a>(&self, object: &'a Self::Object, key: &str) -> Option<Cow<'a, str>>;

    /// The value of one of [`Definition::selectable_fields`].
    fn field<'a>(&self, object: &'a Self::Object, path: &str) -> Option<Cow<'a, str>>;

    /// `metadata.uid`.
    fn uid(&self, object: &Self::Object) -> String;

    /// Whether `metadata.deletionTimestamp` is set.
    fn is_deleted(&self, object: &Self::Object) -> bool;

    /// Validates what the schema cannot say. Called before anything is spent, also for a dry run.
    ///
    /// # Errors
    /// What the client gets.
    fn validate_create(&self, create: &Create) -> Result<(), Status>;

    /// The object that a dry run of `create` answers with, in the preferred version.
    fn preview(&self, create: &Create) -> Value;

    /// Makes the object. It must be in the store before this returns.
    fn create(
        &self,
        context: &Context,
        create: Create,
    ) -> impl Future<Output = Result<Created<Self::Object>, Status>> + Send;

    /// Whether a label or an annotation of that key, or a finalizer of that name, is the server's to set, so that a client's is
    /// dropped.
    fn is_reserved(&self, key: &str) -> bool;

    /// Validates what the schema cannot say of a change. Called before anything is spent, also for a dry run.
    ///
    /// # Errors
    /// What the client gets.
    fn validate_update(&self, update: &Update<Self::Object>) -> Result<(), Status>;

    /// Changes the object. It must be in the store before this returns.
    fn update(
        &self,
        context: &Context,
        update: Update<Self::Object>,
    ) -> impl Future<Output = Result<Arc<Stored<Self::Object>>, NotUpdated>> + Send;

    /// Deletes the object, whose preconditions hold.
    ///
    /// # Errors
    /// [`NotUpdated::Overtaken`] only of an exact deletion; nothing is done then.
    fn delete(
        &self,
        context: &Context,
        object: Arc<Stored<Self::Object>>,
        deletion: Deletion,
    ) -> impl Future<Output = Result<Deleted<Self::Object>, NotUpdated>> + Send;

    /// Carries out a subresource, an index into [`Definition::subresources`].
    fn invoke(
        &self,
        context: &Context,
        invoke: Invoke<Self::Object>,
    ) -> impl Future<Output = Result<Invoked<Self::Object>, Status>> + Send;
}

/// An object to make, decoded, with defaults, valid by its schema.
#[derive(Clone, Debug)]
pub struct Create {
    /// Namespace and name.
    pub key: Key,
    /// The object, in the preferred version.
    pub object: Value,
    /// The right to make it, to be kept until it is in the store or will never be.
    pub quota: QuotaReservation,
}

/// An object that was made.
#[derive(Debug)]
pub struct Created<O> {
    /// The object as stored.
    pub object: Arc<Stored<O>>,
    /// Annotations that only this answer shows.
    pub once: Vec<(String, String)>,
}

/// A change of an object, valid by its schema.
#[derive(Debug)]
pub struct Update<O> {
    /// The object that is changed.
    pub old: Arc<Stored<O>>,
    /// The same as JSON, in the preferred version.
    pub old_json: Value,
    /// What it becomes, with the generation counted.
    pub new_json: Value,
}

/// Why an object was not changed.
#[derive(Debug)]
pub enum NotUpdated {
    /// It is not the one any more that the change was made from: the change is to be made again.
    Overtaken,
    /// It was refused.
    Refused(Status),
}

impl From<Status> for NotUpdated {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

/// The finalizers that the garbage collector takes away.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// How an object is to be deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deletion {
    /// What becomes of its dependents.
    pub dependents: Dependents,
    /// Only at exactly the version that was checked. Otherwise whatever has become of the same object goes.
    pub exact: bool,
}

/// What becomes of the objects that name a deleted one as their owner. The garbage collector sees to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dependents {
    /// What was said before; else they go after it.
    #[default]
    Unsaid,
    /// They go after it.
    Background,
    /// They go before it: it stays until they are gone.
    Foreground,
    /// They stay, without an owner: it stays until that is done.
    Orphan,
}

impl Dependents {
    /// The finalizers of an object that had `known`, among them the one by which the garbage collector is told. The word of
    /// the last deletion counts, as in kube-apiserver.
    pub fn finalizers<T: AsRef<str> + Clone + From<&'static str>>(self, known: &[T]) -> Vec<T> {
        let chosen = match self {
            Self::Unsaid => return known.to_vec(),
            Self::Background => None,
            Self::Foreground => Some(FOREGROUND),
            Self::Orphan => Some(ORPHAN),
        };
        let is_left = |finalizer: &&T| {
            let finalizer = finalizer.as_ref();
            Some(finalizer) == chosen || !matches!(finalizer, FOREGROUND | ORPHAN)
        };
        let mut finalizers: Vec<T> = known.iter().filter(is_left).cloned().collect();
        let is_chosen = |finalizer: &T| Some(finalizer.as_ref()) == chosen;
        if let Some(chosen) = chosen
            && !finalizers.iter().any(is_chosen)
        {
            finalizers.push(chosen.into());
        }
        finalizers
    }
}

/// An object whose deletion was accepted.
#[derive(Debug)]
pub enum Deleted<O> {
    /// It is gone; its last state.
    Gone(Arc<Stored<O>>),
    /// It is still there, with a deletion timestamp.
    Pending(Arc<Stored<O>>),
}

/// A subresource to carry out on an object that is there.
#[derive(Debug)]
pub struct Invoke<O> {
    /// Which, an index into [`Definition::subresources`].
    pub subresource: usize,
    /// The object.
    pub object: Arc<Stored<O>>,
    /// The decoded options; an empty object when the body was empty.
    pub options: Value,
    /// Whether to answer as if, and do nothing.
    pub dry_run: bool,
    /// Version of the request, an index into [`Definition::versions`].
    pub version: usize,
}

/// The answer of a subresource.
#[derive(Debug)]
pub enum Invoked<O> {
    /// The object, as it is now.
    Object(Arc<Stored<O>>),
    /// A JSON object of the subresource's response kind.
    Json(StatusCode, Value),
}

impl Definition {
    /// `sandboxes.agents.x-k8s.io`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// The resource, as quotas count it.
    pub fn counted(&self) -> Counted<'static> {
        Counted {
            group: self.group,
            plural: self.plural,
        }
    }

    /// `agents.x-k8s.io/v1beta1`.
    pub fn api_version(&self, version: usize) -> String {
        format!("{}/{}", self.group, self.versions[version].name)
    }

    /// The named questions and actions that a version has.
    pub(super) fn actions(&self, version: usize) -> &[Subresource] {
        match version {
            PREFERRED => &self.subresources,
            _ => &[],
        }
    }

    /// The place of one of them in [`Self::subresources`].
    pub(super) fn action(&self, version: usize, name: &str) -> Option<usize> {
        let mut actions = self.actions(version).iter();
        actions.position(|action| action.name == name)
    }

    /// Whether `verb` works.
    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }
}

/// JSON of a stored object, for answers that are built from it.
pub(super) fn object_json<R: Resource>(
    resource: &R,
    object: &Stored<R::Object>,
    version: usize,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(2_048);
    resource.encode(&object.value, object.version, version, &mut out);
    out
}
