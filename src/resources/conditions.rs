//! What the conditions of a Sandbox say, in upstream's words.

use crate::fleet::{Phase, Sandbox};

/// A condition, without its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) kind: &'static str,
    pub(super) status: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: &'static str,
}

/// The Ready condition.
pub(super) fn ready(sandbox: &Sandbox) -> Condition {
    let (status, reason, message) = match sandbox.phase {
        Phase::Expired => ("False", "SandboxExpired", "the lease is over"),
        _ if sandbox.gone => ("False", "DependenciesNotReady", "the VM is released"),
        _ if sandbox.node_lost => ("Unknown", "NodeLost", "the node has not been heard of"),
        Phase::Running => ("True", "DependenciesReady", "the sandbox runs"),
        Phase::Paused => ("False", "SandboxSuspended", "the sandbox is paused"),
        Phase::Archived => ("False", "SandboxSuspended", "the sandbox is archived"),
        Phase::Failed => ("False", "PodFailed", "the VM died"),
        Phase::Unknown => (
            "Unknown",
            "PhaseUnknown",
            "the node reports a phase that this server does not know",
        ),
    };
    Condition {
        kind: "Ready",
        status,
        reason,
        message,
    }
}

/// All conditions that hold anything, Ready first.
pub(super) fn conditions(sandbox: &Sandbox) -> impl Iterator<Item = Condition> {
    let suspended = sandbox.phase.is_suspended().then_some(Condition {
        kind: "Suspended",
        status: "True",
        reason: "PodTerminated",
        message: "the VM is stopped, its memory is kept",
    });
    let finished = (sandbox.phase == Phase::Failed).then_some(Condition {
        kind: "Finished",
        status: "True",
        reason: "PodFailed",
        message: "the VM died",
    });
    let name_taken = sandbox.name_taken.then_some(Condition {
        kind: "NameTaken",
        status: "True",
        reason: "NameConflict",
        message: "another sandbox has the name that this one was claimed under",
    });
    [Some(ready(sandbox)), suspended, finished, name_taken]
        .into_iter()
        .flatten()
}
