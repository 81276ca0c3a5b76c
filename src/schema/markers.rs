//! What the OpenAPI documents of Kubernetes say of its own types and their Rust bindings leave out or change: how fields
//! merge, which exclude each other, which are required.
//!
//! Read from the documents of Kubernetes 1.37, for every type that a PodSpec, a PersistentVolumeClaimSpec, a
//! NetworkPolicy rule, ObjectMeta, ListMeta, Condition, Status, DeleteOptions or a Scale reaches.

use serde_json::{Map, Value, json};

use Merge::{Atomic, AtomicMap, Keyed, Merged, MergedSet, Replaced, Set};

/// How two writers' values of one list or map come together.
#[derive(Clone, Copy)]
enum Merge {
    /// The list is one value.
    Atomic,
    /// A list of unique scalars.
    Set,
    /// The same, which a strategic patch merges, too.
    MergedSet,
    /// A list of objects, each known by these fields.
    Keyed(&'static [&'static str]),
    /// The same, which a strategic patch merges by the first of them.
    Merged(&'static [&'static str]),
    /// The same, and a strategic patch replaces an item's fields.
    Replaced(&'static [&'static str]),
    /// The map or object is one value.
    AtomicMap,
}

impl Merge {
    fn write(self, schema: &mut Map<String, Value>) {
        let mut set = |key: &str, value: Value| {
            schema.insert(format!("x-kubernetes-{key}"), value);
        };
        match self {
            AtomicMap => set("map-type", json!("atomic")),
            Atomic => set("list-type", json!("atomic")),
            Set | MergedSet => set("list-type", json!("set")),
            Keyed(keys) | Merged(keys) | Replaced(keys) => {
                set("list-type", json!("map"));
                set("list-map-keys", json!(keys));
            }
        }
        match self {
            MergedSet => set("patch-strategy", json!("merge")),
            Merged(keys) => {
                set("patch-strategy", json!("merge"));
                set("patch-merge-key", json!(keys[0]));
            }
            Replaced(keys) => {
                set("patch-strategy", json!("merge,retainKeys"));
                set("patch-merge-key", json!(keys[0]));
            }
            Atomic | Set | Keyed(_) | AtomicMap => {}
        }
    }
}

/// Makes the definition of the type `name` say what Kubernetes' own says.
pub(super) fn mark(name: &str, definition: &mut Value) {
    let fields = MERGES
        .iter()
        .find(|(of, _)| *of == name)
        .map_or(&[][..], |(_, fields)| fields);
    for (field, merge) in fields {
        let schema = match *field {
            "" => definition.as_object_mut(),
            field => definition
                .pointer_mut(&format!("/properties/{field}"))
                .and_then(Value::as_object_mut),
        };
        if let Some(schema) = schema {
            merge.write(schema);
        }
    }
    let Some(definition) = definition.as_object_mut() else {
        return;
    };
    if let Some(unions) = unions(name) {
        definition.insert("x-kubernetes-unions".to_owned(), unions);
    }
    match REQUIRED.iter().find(|(of, _)| *of == name) {
        Some((_, [])) => drop(definition.remove("required")),
        Some((_, fields)) => drop(definition.insert("required".to_owned(), json!(fields))),
        None => {}
    }
}

/// Which fields of a type exclude each other.
fn unions(name: &str) -> Option<Value> {
    match name {
        "io.k8s.api.core.v1.AppArmorProfile" | "io.k8s.api.core.v1.SeccompProfile" => {
            Some(json!([{
                "discriminator": "type",
                "fields-to-discriminateBy": { "localhostProfile": "LocalhostProfile" },
            }]))
        }
        "io.k8s.api.core.v1.PodSchedulingGroup" => Some(json!([{
            "fields-to-discriminateBy": { "podGroupName": "PodGroupName" },
        }])),
        _ => None,
    }
}

/// Type, then field (empty: the type itself) and how it merges.
type Row = (&'static str, &'static [(&'static str, Merge)]);

#[rustfmt::skip]
static MERGES: &[Row] = &[
    ("io.k8s.api.core.v1.Capabilities", &[("add", Atomic), ("drop", Atomic)]),
    ("io.k8s.api.core.v1.CephFSVolumeSource", &[("monitors", Atomic)]),
    ("io.k8s.api.core.v1.ConfigMapKeySelector", &[("", AtomicMap)]),
    ("io.k8s.api.core.v1.ConfigMapProjection", &[("items", Atomic)]),
    ("io.k8s.api.core.v1.ConfigMapVolumeSource", &[("items", Atomic)]),
    ("io.k8s.api.core.v1.Container", &[
        ("args", Atomic), ("command", Atomic), ("env", Merged(&["name"])), ("envFrom", Atomic),
        ("ports", Merged(&["containerPort", "protocol"])), ("resizePolicy", Atomic), ("restartPolicyRules", Atomic),
        ("volumeDevices", Merged(&["devicePath"])), ("volumeMounts", Merged(&["mountPath"])),
    ]),
    ("io.k8s.api.core.v1.ContainerRestartRuleOnExitCodes", &[("values", Set)]),
    ("io.k8s.api.core.v1.DownwardAPIProjection", &[("items", Atomic)]),
    ("io.k8s.api.core.v1.DownwardAPIVolumeSource", &[("items", Atomic)]),
    ("io.k8s.api.core.v1.EphemeralContainer", &[
        ("args", Atomic), ("command", Atomic), ("env", Merged(&["name"])), ("envFrom", Atomic),
        ("ports", Merged(&["containerPort", "protocol"])), ("resizePolicy", Atomic), ("restartPolicyRules", Atomic),
        ("volumeDevices", Merged(&["devicePath"])), ("volumeMounts", Merged(&["mountPath"])),
    ]),
    ("io.k8s.api.core.v1.EvictionResponder", &[("", AtomicMap)]),
    ("io.k8s.api.core.v1.ExecAction", &[("command", Atomic)]),
    ("io.k8s.api.core.v1.FCVolumeSource", &[("targetWWNs", Atomic), ("wwids", Atomic)]),
    ("io.k8s.api.core.v1.FileKeySelector", &[("", AtomicMap)]),
    ("io.k8s.api.core.v1.HTTPGetAction", &[("httpHeaders", Atomic)]),
    ("io.k8s.api.core.v1.HostAlias", &[("hostnames", Atomic)]),
    ("io.k8s.api.core.v1.ISCSIVolumeSource", &[("portals", Atomic)]),
    ("io.k8s.api.core.v1.LocalObjectReference", &[("", AtomicMap)]),
    ("io.k8s.api.core.v1.NodeAffinity", &[("preferredDuringSchedulingIgnoredDuringExecution", Atomic)]),
    ("io.k8s.api.core.v1.NodeSelector", &[("", AtomicMap), ("nodeSelectorTerms", Atomic)]),
    ("io.k8s.api.core.v1.NodeSelectorRequirement", &[("values", Atomic)]),
    ("io.k8s.api.core.v1.NodeSelectorTerm", &[("", AtomicMap), ("matchExpressions", Atomic), ("matchFields", Atomic)]),
    ("io.k8s.api.core.v1.ObjectFieldSelector", &[("", AtomicMap)]),
    ("io.k8s.api.core.v1.PersistentVolumeClaimSpec", &[("accessModes", Atomic)]),
    ("io.k8s.api.core.v1.PodAffinity", &[
        ("preferredDuringSchedulingIgnoredDuringExecution", Atomic),
        ("requiredDuringSchedulingIgnoredDuringExecution", Atomic),
    ]),
    ("io.k8s.api.core.v1.PodAffinityTerm", &[
        ("matchLabelKeys", Atomic), ("mismatchLabelKeys", Atomic), ("namespaces", Atomic),
    ]),
    ("io.k8s.api.core.v1.PodAntiAffinity", &[
        ("preferredDuringSchedulingIgnoredDuringExecution", Atomic),
        ("requiredDuringSchedulingIgnoredDuringExecution", Atomic),
    ]),
    ("io.k8s.api.core.v1.PodDNSConfig", &[("nameservers", Atomic), ("options", Atomic), ("searches", Atomic)]),
    ("io.k8s.api.core.v1.PodSecurityContext", &[("supplementalGroups", Atomic), ("sysctls", Atomic)]),
    ("io.k8s.api.core.v1.PodSpec", &[
        ("containers", Merged(&["name"])), ("ephemeralContainers", Merged(&["name"])),
        ("evictionResponders", Merged(&["name"])), ("hostAliases", Merged(&["ip"])),
        ("imagePullSecrets", Merged(&["name"])), ("initContainers", Merged(&["name"])), ("nodeSelector", AtomicMap),
        ("readinessGates", Atomic), ("resourceClaims", Replaced(&["name"])), ("schedulingGates", Merged(&["name"])),
        ("tolerations", Atomic), ("topologySpreadConstraints", Merged(&["topologyKey", "whenUnsatisfiable"])),
        ("volumes", Replaced(&["name"])),
    ]),
    ("io.k8s.api.core.v1.ProjectedVolumeSource", &[("sources", Atomic)]),
    ("io.k8s.api.core.v1.RBDVolumeSource", &[("monitors", Atomic)]),
    ("io.k8s.api.core.v1.ResourceFieldSelector", &[("", AtomicMap)]),
    ("io.k8s.api.core.v1.ResourceRequirements", &[("claims", Keyed(&["name"]))]),
    ("io.k8s.api.core.v1.SecretKeySelector", &[("", AtomicMap)]),
    ("io.k8s.api.core.v1.SecretProjection", &[("items", Atomic)]),
    ("io.k8s.api.core.v1.SecretVolumeSource", &[("items", Atomic)]),
    ("io.k8s.api.core.v1.TopologySpreadConstraint", &[("matchLabelKeys", Atomic)]),
    ("io.k8s.api.core.v1.TypedLocalObjectReference", &[("", AtomicMap)]),
    ("io.k8s.api.core.v1.VolumeMount", &[("bindMountOptions", Set)]),
    ("io.k8s.api.networking.v1.IPBlock", &[("except", Atomic)]),
    ("io.k8s.api.networking.v1.NetworkPolicyEgressRule", &[("ports", Atomic), ("to", Atomic)]),
    ("io.k8s.api.networking.v1.NetworkPolicyIngressRule", &[("from", Atomic), ("ports", Atomic)]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions", &[("dryRun", Atomic)]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", &[("", AtomicMap), ("matchExpressions", Atomic)]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelectorRequirement", &[("values", Atomic)]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", &[
        ("finalizers", MergedSet), ("managedFields", Atomic), ("ownerReferences", Merged(&["uid"])),
    ]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference", &[("", AtomicMap)]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.StatusDetails", &[("causes", Atomic)]),
];

/// Required fields of the types of which the bindings sort them or require a name that may be left out: documents of two
/// servers merge only when they say the same in the same order.
#[rustfmt::skip]
static REQUIRED: &[(&str, &[&str])] = &[
    ("io.k8s.api.autoscaling.v1.Scale", &[]),
    ("io.k8s.api.core.v1.ConfigMapEnvSource", &[]),
    ("io.k8s.api.core.v1.ConfigMapKeySelector", &["key"]),
    ("io.k8s.api.core.v1.ConfigMapProjection", &[]),
    ("io.k8s.api.core.v1.ConfigMapVolumeSource", &[]),
    ("io.k8s.api.core.v1.FileKeySelector", &["volumeName", "path", "key"]),
    ("io.k8s.api.core.v1.ISCSIVolumeSource", &["targetPortal", "iqn", "lun"]),
    ("io.k8s.api.core.v1.LocalObjectReference", &[]),
    ("io.k8s.api.core.v1.NFSVolumeSource", &["server", "path"]),
    ("io.k8s.api.core.v1.PodCertificateProjection", &["signerName", "keyType"]),
    ("io.k8s.api.core.v1.PreferredSchedulingTerm", &["weight", "preference"]),
    ("io.k8s.api.core.v1.RBDVolumeSource", &["monitors", "image"]),
    ("io.k8s.api.core.v1.ScaleIOVolumeSource", &["gateway", "system", "secretRef"]),
    ("io.k8s.api.core.v1.SecretEnvSource", &[]),
    ("io.k8s.api.core.v1.SecretKeySelector", &["key"]),
    ("io.k8s.api.core.v1.SecretProjection", &[]),
    ("io.k8s.api.core.v1.VolumeDevice", &["name", "devicePath"]),
    ("io.k8s.api.core.v1.VolumeMount", &["name", "mountPath"]),
    ("io.k8s.api.core.v1.WeightedPodAffinityTerm", &["weight", "podAffinityTerm"]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.Condition", &["type", "status", "lastTransitionTime", "reason", "message"]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.Status", &[]),
];
