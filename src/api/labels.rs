//! Keys of labels, annotations, finalizers and conditions: ours and the upstream ones that clients read.

/// Prefix of every key that belongs to the server; a client's value in one is dropped.
pub const PREFIX: &str = "sandbox.cocoonstack.io/";

/// Label: the node that holds the sandbox.
pub const NODE: &str = "sandbox.cocoonstack.io/node";
/// Label: the daemon's phase.
pub const PHASE: &str = "sandbox.cocoonstack.io/phase";
/// Label: the claim id. Left out over 63 characters, as every label.
pub const CLAIM: &str = "sandbox.cocoonstack.io/claim";

/// Label of a snapshot: the sandbox that it is of. Left out over 63 characters.
pub const SANDBOX: &str = "sandbox.cocoonstack.io/sandbox";

/// Annotation: the claim id.
pub const CLAIM_ID: &str = "sandbox.cocoonstack.io/claim-id";
/// Annotation: where the sandbox is reached.
pub const ADDRESS: &str = "sandbox.cocoonstack.io/address";
/// Annotation: end of the granted lease, RFC 3339.
pub const DEADLINE: &str = "sandbox.cocoonstack.io/deadline";
/// Annotation: the checkpoint that the sandbox was started from, by its daemon's id: `status.id` of the SandboxSnapshot.
pub const FROM_CHECKPOINT: &str = "sandbox.cocoonstack.io/from-checkpoint";
/// Annotation: the sandbox's own credential. Only in the answer to a create, a fork and a `token` request.
pub const TOKEN: &str = "sandbox.cocoonstack.io/token";

/// Finalizer: a node has not confirmed yet that it released what the object stands for. On a Sandbox the server shows it and
/// nobody else sets it or takes it away; on a SandboxClaim the claim controller does.
pub const RELEASE: &str = "sandbox.cocoonstack.io/release";

/// Annotation a client sets: pool template, instead of the first container's image.
pub const TEMPLATE: &str = "sandbox.cocoonstack.io/template";
/// Annotation a client sets: network lane, `none` or `egress`.
pub const NET: &str = "sandbox.cocoonstack.io/net";
/// Annotation a client sets: size class, instead of the one that the first container's resources give.
pub const SIZE: &str = "sandbox.cocoonstack.io/size";
/// Annotation a client sets: lease in seconds when `spec.shutdownTime` is unset.
pub const TTL_SECONDS: &str = "sandbox.cocoonstack.io/ttl-seconds";
/// Annotation a client sets: the snapshot to start from.
pub const SNAPSHOT: &str = "sandbox.cocoonstack.io/snapshot";

/// Key in a daemon's claim metadata: the claim reference, for claims that the daemon takes without one.
pub const CLAIM_REF: &str = "sandbox.cocoonstack.io/claim-ref";

/// Key in a daemon's claim metadata: a word of its own for each create, which tells its claims from others of the name.
pub const ATTEMPT: &str = "sandbox.cocoonstack.io/attempt";
/// Key in a daemon's claim metadata: which node that the create asked this one was, from 1.
pub const ATTEMPT_NODE: &str = "sandbox.cocoonstack.io/attempt-node";
/// Key in a daemon's claim metadata: the SandboxWarmPool that the node's claim gateway took it from. Forks inherit it.
pub const WARM_POOL: &str = "sandbox.cocoonstack.io/warm-pool";
/// Key in a daemon's claim metadata: the claim reference under which the gateway handed it over. A fork inherits it too, and has
/// another reference: it is the gateway's claim only where both are the same.
pub const HANDED_OVER: &str = "sandbox.cocoonstack.io/handed-over-as";

/// The keys with [`PREFIX`] that are a client's to set.
pub const CLIENT_KEYS: [&str; 5] = [TEMPLATE, NET, SIZE, TTL_SECONDS, SNAPSHOT];

/// Upstream's label that `status.selector` selects on: FNV-1a of the sandbox's name, eight hex digits.
pub const NAME_HASH: &str = "agents.x-k8s.io/sandbox-name-hash";

/// Whether a key under [`PREFIX`] is the server's own, so that a client's value must be dropped.
pub fn is_reserved(key: &str) -> bool {
    key.starts_with(PREFIX) && !CLIENT_KEYS.contains(&key)
}
