//! How Sandboxes are described to clients.

use schemars::JsonSchema;

use super::versions::ApiVersion;
use crate::{
    api::{
        GROUP, SandboxForkOptions, SandboxPauseOptions, SandboxPromoteOptions, SandboxPromotion,
        SandboxResumeOptions, SandboxSnapshotOptions, SandboxSnapshotSpec, SandboxSnapshotStatus,
        SandboxSpec, SandboxStats, SandboxStatus, SandboxToken, SandboxTokenOptions, v1alpha1,
    },
    apiserver::{Call, Column, Definition, ObjectType, Subresource, Version},
    schema::{self, TypeSchema},
};

/// The Kubernetes version whose API rules are followed: major and minor.
pub const KUBERNETES_VERSION: (u32, u32) = (1, 37);

const SANDBOX: &str =
    "Sandbox is an agent's machine: a microVM that a node kept warm and handed over.";
const SNAPSHOT: &str = "SandboxSnapshot is a checkpoint of a sandbox on its node.";

/// Upstream's own words.
const DEPRECATION: &str =
    "agents.x-k8s.io/v1alpha1 Sandbox is deprecated; use agents.x-k8s.io/v1beta1 Sandbox instead";

/// Subresources by their place in the definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Pause,
    Resume,
    Fork,
    Snapshot,
    Promote,
    Token,
    Stats,
}

/// The actions in the definition's order.
pub(super) const ACTIONS: [Action; 7] = [
    Action::Pause,
    Action::Resume,
    Action::Fork,
    Action::Snapshot,
    Action::Promote,
    Action::Token,
    Action::Stats,
];

/// Kind of a snapshot.
pub(super) const SNAPSHOT_NAME: &str = "SandboxSnapshot";
/// Name of snapshots in paths.
pub(super) const SNAPSHOT_PLURAL: &str = "sandboxsnapshots";

/// Wide columns that sandboxes and their snapshots share.
const TEMPLATE: Column = Column {
    name: "Template",
    kind: "string",
    description: "What the sandbox was made from.",
    priority: 1,
};
const SIZE: Column = Column {
    name: "Size",
    kind: "string",
    description: "Size class of the sandbox.",
    priority: 1,
};
const NET: Column = Column {
    name: "Net",
    kind: "string",
    description: "Network lane of the sandbox.",
    priority: 1,
};

/// Columns of snapshots.
const SNAPSHOT_COLUMNS: [Column; 7] = [
    Column {
        name: "Sandbox",
        kind: "string",
        description: "The sandbox that the snapshot is of.",
        priority: 0,
    },
    Column {
        name: "Node",
        kind: "string",
        description: "The node that holds the snapshot.",
        priority: 0,
    },
    Column {
        name: "Age",
        kind: "date",
        description: "Time since the snapshot was taken.",
        priority: 0,
    },
    TEMPLATE,
    SIZE,
    NET,
    Column {
        name: "ID",
        kind: "string",
        description: "The node daemon's id of the snapshot.",
        priority: 1,
    },
];

/// Columns as upstream's CRD prints them; the wide ones are ours.
const COLUMNS: [Column; 11] = [
    Column {
        name: "Ready",
        kind: "string",
        description: "Whether the sandbox can be used.",
        priority: 0,
    },
    Column {
        name: "Reason",
        kind: "string",
        description: "Why the sandbox is ready or not.",
        priority: 0,
    },
    Column {
        name: "Age",
        kind: "date",
        description: "Time since the sandbox was claimed.",
        priority: 0,
    },
    Column {
        name: "Node",
        kind: "string",
        description: "The node that holds the sandbox.",
        priority: 1,
    },
    TEMPLATE,
    SIZE,
    NET,
    Column {
        name: "CPU",
        kind: "string",
        description: "Number of CPUs that the sandbox has.",
        priority: 1,
    },
    Column {
        name: "Memory",
        kind: "string",
        description: "Memory that the sandbox uses, as its node's agent measured it within the last minute or so, and memory that it has.",
        priority: 1,
    },
    Column {
        name: "Expires",
        kind: "string",
        description: "Time until the lease ends.",
        priority: 1,
    },
    Column {
        name: "ID",
        kind: "string",
        description: "The node daemon's id of the sandbox.",
        priority: 1,
    },
];

/// The description of `sandboxes.agents.x-k8s.io`.
///
/// # Errors
/// When a type has no form as a schema, which only a change of the types can bring about.
pub fn sandbox_definition() -> schema::Result<Definition> {
    let spec_and_status = TypeSchema::spec_and_status::<SandboxSpec, SandboxStatus>(SANDBOX)?;
    let sandbox = ObjectType::new("Sandbox", spec_and_status);
    let item = "io.x-k8s.agents.v1beta1.Sandbox";
    let list = ObjectType::new(
        "SandboxList",
        TypeSchema::list(item, "SandboxList is a list of sandboxes.")?,
    );
    let snapshot = snapshot_type()?;
    let promotion = ObjectType::new(
        "SandboxPromotion",
        TypeSchema::object::<SandboxPromotion>()?,
    );
    let token = ObjectType::new("SandboxToken", TypeSchema::object::<SandboxToken>()?);
    let subresources = vec![
        subresource::<SandboxPauseOptions>("pause", "SandboxPauseOptions", &sandbox)?,
        subresource::<SandboxResumeOptions>("resume", "SandboxResumeOptions", &sandbox)?,
        Subresource {
            creates: true,
            ..subresource::<SandboxForkOptions>("fork", "SandboxForkOptions", &list)?
        },
        Subresource {
            creates: true,
            ..subresource::<SandboxSnapshotOptions>(
                "snapshot",
                "SandboxSnapshotOptions",
                &snapshot,
            )?
        },
        subresource::<SandboxPromoteOptions>("promote", "SandboxPromoteOptions", &promotion)?,
        subresource::<SandboxTokenOptions>("token", "SandboxTokenOptions", &token)?,
        Subresource {
            name: "stats",
            call: Call::Get,
            response: ObjectType::new("SandboxStats", TypeSchema::object::<SandboxStats>()?),
            creates: false,
        },
    ];
    let versions = ApiVersion::ALL.into_iter().map(|served| {
        let object = match served {
            ApiVersion::V1beta1 => sandbox.clone(),
            ApiVersion::V1alpha1 => ObjectType::new(
                "Sandbox",
                TypeSchema::spec_and_status::<v1alpha1::SandboxSpec, v1alpha1::SandboxStatus>(
                    SANDBOX,
                )?,
            ),
        };
        Ok(Version {
            name: served.name(),
            schema: object.compile()?,
            object,
            columns: &COLUMNS,
            scale: served == ApiVersion::V1alpha1,
            deprecation: (served == ApiVersion::V1alpha1).then_some(DEPRECATION),
        })
    });
    let versions = versions.collect::<schema::Result<_>>()?;
    Ok(Definition {
        group: GROUP,
        kind: "Sandbox",
        plural: "sandboxes",
        singular: "sandbox",
        short_names: &["sandbox"],
        categories: &[],
        namespaced: true,
        verbs: &[
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ],
        versions,
        status: true,
        subresources,
        selectable_fields: &["status.nodeName"],
    })
}

/// The description of `sandboxsnapshots.agents.x-k8s.io`.
///
/// # Errors
/// As [`sandbox_definition`].
pub fn snapshot_definition() -> schema::Result<Definition> {
    let object = snapshot_type()?;
    Ok(Definition {
        group: GROUP,
        kind: SNAPSHOT_NAME,
        plural: SNAPSHOT_PLURAL,
        singular: "sandboxsnapshot",
        short_names: &["sandboxsnap"],
        categories: &[],
        namespaced: true,
        verbs: &[
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "watch",
        ],
        versions: vec![Version {
            name: ApiVersion::V1beta1.name(),
            schema: object.compile()?,
            object,
            columns: &SNAPSHOT_COLUMNS,
            scale: false,
            deprecation: None,
        }],
        status: false,
        subresources: Vec::new(),
        selectable_fields: &["spec.sandboxName", "status.node"],
    })
}

fn snapshot_type() -> schema::Result<ObjectType> {
    let documented =
        TypeSchema::spec_and_status::<SandboxSnapshotSpec, SandboxSnapshotStatus>(SNAPSHOT)?;
    Ok(ObjectType::new(SNAPSHOT_NAME, documented))
}

fn subresource<T: JsonSchema>(
    name: &'static str,
    kind: &'static str,
    response: &ObjectType,
) -> schema::Result<Subresource> {
    let options = ObjectType::new(kind, TypeSchema::object::<T>()?);
    let schema = options.compile()?;
    Ok(Subresource {
        name,
        call: Call::Create { options, schema },
        response: response.clone(),
        creates: false,
    })
}
