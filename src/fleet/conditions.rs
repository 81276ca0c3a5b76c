//! What the conditions of a Sandbox say, in upstream's words.

use super::{Phase, Sandbox};

/// A condition, without its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Type: `Ready`, `Suspended`, `Finished`, `NameTaken`.
    pub kind: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, for people.
    pub message: &'static str,
}

impl Sandbox {
    /// The Ready condition.
    pub fn ready(&self) -> Condition {
        let (status, reason, message) = match self.phase {
            Phase::Expired => ("False", "SandboxExpired", "the lease is over"),
            _ if self.gone => ("False", "DependenciesNotReady", "the VM is released"),
            _ if self.node_lost => ("Unknown", "NodeLost", "the node has not been heard of"),
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

    /// The Finished condition of one whose VM died.
    pub fn finished(&self) -> Option<Condition> {
        (self.phase == Phase::Failed).then_some(Condition {
            kind: "Finished",
            status: "True",
            reason: "PodFailed",
            message: "the VM died",
        })
    }

    /// All conditions that hold anything, Ready first.
    pub fn conditions(&self) -> impl Iterator<Item = Condition> {
        let suspended = self.phase.is_suspended().then_some(Condition {
            kind: "Suspended",
            status: "True",
            reason: "PodTerminated",
            message: "the VM is stopped, its memory is kept",
        });
        let name_taken = self.name_taken.then_some(Condition {
            kind: "NameTaken",
            status: "True",
            reason: "NameConflict",
            message: "another sandbox has the name that this one was claimed under",
        });
        [Some(self.ready()), suspended, self.finished(), name_taken]
            .into_iter()
            .flatten()
    }
}
