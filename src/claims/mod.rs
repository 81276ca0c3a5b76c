//! The claim controller: SandboxClaim objects, bound to sandboxes out of warm pools.
//!
//! One controller in the server that holds the Lease. Decisions that bind this room:
//!
//! - What a claim needs next is told by one pure function of the claim, its pool, its template and the sandbox of its name
//!   (`state`); the controller does it and asks again. Every answer of kube-apiserver replaces the copy that a watch told of,
//!   and on the word of such a copy no VM is taken, and none released because the claim has another.
//! - A node's gateway may hand over a VM for the same claim. The condition Bound says which one the claim has; whoever writes it
//!   first wins, as every write carries the version that was read. A VM that was claimed here and lost is released, unless the
//!   claim's status told of it: then it stays until the claim goes.
//! - The sandbox has the claim's name, and the name is the link until the claim is bound: a sandbox that any node reports under it,
//!   handed over on the node itself, is bound and none is claimed. One that was made by somebody else's object is never taken
//!   (`AdoptionConflict`). From then on the VM is the link, under any name: whoever inherits the name was handed over to somebody,
//!   and neither is taken for the claim's nor ends with it.
//! - A finalizer, and not the garbage collector, releases the sandbox of a deleted claim. Owner references of sandboxes live no
//!   longer than this process until nodes keep them, and a claim deleted while no controller ran would leave a VM that nobody
//!   could tell from one that is wanted. With the finalizer the claim itself says so until its node has confirmed. The owner
//!   reference is set nevertheless, for those who look at it.
//! - The finalizer is written before the VM is taken: no crash leaves a VM that only its lease ends. Name, addresses and
//!   conditions are one write.
//! - A claim without an end lives until it is deleted, so its lease is renewed for as long.

mod controller;
mod error;
mod metrics;
mod order;
mod reconcile;
mod state;
mod status;
#[cfg(test)]
mod tests;
mod validate;

pub use controller::Controller;
pub use error::{Error, Result};
pub use metrics::ClaimMetrics;
