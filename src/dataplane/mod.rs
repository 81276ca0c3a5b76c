//! Commands and files of sandboxes, over the HTTP that the SDKs of agent-sandbox speak to their router.
//!
//! The SDKs know a router in the cluster and, behind it, a runtime in each sandbox. Here is neither: this server takes their
//! requests itself, finds the sandbox's node, and has the node's daemon run the command or the guest's agent move the file, with
//! the sandbox's own credential. Rules that bind this room:
//!
//! - Who may `create` `sandboxes/exec` of the sandbox may do all of it, as for Pods a copied file needs the right to exec. Until that
//!   is known nothing is looked up: a sandbox's existence is told to who may know it.
//! - A command is sent once, whatever becomes of its answer.
//! - A file is never whole in memory; who reads slowly is sent slowly, and who sends fast waits for the guest.
//! - Each call has an end: at its deadline, when its client goes, and soon after the server is asked to end. The guest's part ends
//!   with it, and what is not taken of its answer is dropped.
//! - A sandbox that is suspended is not woken, as the daemon would do: its object says that it does not run.
//!
//! Source: the Python package `k8s-agent-sandbox` 1.0.8, and the router and runtime that it was written for.

mod answer;
mod calls;
mod error;
mod execute;
mod files;
mod metrics;
mod path;
mod router;
mod seats;
mod target;
mod upload;

pub use metrics::DataPlaneMetrics;
pub use router::DataPlane;
