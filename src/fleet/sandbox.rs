//! One sandbox, as compact as the index needs it.

use std::{
    net::{IpAddr, SocketAddrV4},
    sync::Arc,
};

use compact_str::CompactString;
use uuid::Uuid;

use super::{Attempt, Usage};
use crate::{
    api::{ClaimId, NodeAddress, NodeName, PoolKey, ShutdownPolicy, UserPart},
    meta::UnixTime,
    store::Value,
};

/// What a node says of a claim's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The VM runs.
    Running,
    /// The memory is kept on the node, the VM is stopped.
    Paused,
    /// The memory is kept in the checkpoint store, the VM is gone.
    Archived,
    /// The VM died.
    Failed,
    /// The lease is over.
    Expired,
    /// A word this server does not know.
    Unknown,
}

impl Phase {
    /// The phase a publication means. `Hibernated` is the daemon's word for paused; no word at all means running.
    pub fn parse(word: &str) -> Self {
        match word {
            "Running" | "running" | "" => Self::Running,
            "Paused" | "paused" | "Hibernated" | "hibernated" => Self::Paused,
            "Archived" | "archived" => Self::Archived,
            "Failed" | "failed" => Self::Failed,
            "Expired" | "expired" => Self::Expired,
            _ => Self::Unknown,
        }
    }

    /// The word shown to users.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Paused => "Paused",
            Self::Archived => "Archived",
            Self::Failed => "Failed",
            Self::Expired => "Expired",
            Self::Unknown => "Unknown",
        }
    }

    /// Whether `spec.operatingMode` reads Suspended.
    pub fn is_suspended(self) -> bool {
        matches!(self, Self::Paused | Self::Archived)
    }
}

/// One sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Namespace of the object.
    pub namespace: CompactString,
    /// Name of the object.
    pub name: CompactString,
    /// The daemon's id.
    pub claim: ClaimId,
    /// The node that holds it.
    pub node: NodeName,
    /// Where it is reached, as the node says; empty when the node says nothing.
    pub address: CompactString,
    /// Where its node's daemon is reached, for a sandbox of which nobody says an address. One of a node's sandboxes shares it with
    /// the others.
    pub daemon: Option<Arc<NodeAddress>>,
    /// What it was made from; `None` when the publisher does not say.
    pub pool: Option<Arc<PoolKey>>,
    /// The checkpoint it was started from.
    pub from_checkpoint: Option<Box<str>>,
    /// UUIDv5 of node and claim id.
    pub uid: Uuid,
    /// Which of its create's claims it is; `None` when nobody says.
    pub attempt: Option<Attempt>,
    /// When it was claimed.
    pub created: UnixTime,
    /// When phase or reachability changed last.
    pub changed: UnixTime,
    /// End of the granted lease.
    pub deadline: Option<UnixTime>,
    /// When its deletion was asked for, if it is still there.
    pub deleted_at: Option<UnixTime>,
    /// What the machine does.
    pub phase: Phase,
    /// Whether the VM is no more and only the object is left.
    pub gone: bool,
    /// Whether the node has not been heard of for too long.
    pub node_lost: bool,
    /// Whether the name it was claimed under belongs to another sandbox.
    pub name_taken: bool,
    /// What the user sent; `None` for a claim that was not made through this API, or before this server's start.
    pub user: Option<Arc<UserPart>>,
    /// What it uses, which is part of no version.
    pub usage: Usage,
}

impl Sandbox {
    /// Whether time and silence change nothing any more.
    pub(super) fn is_over(&self) -> bool {
        self.gone || self.phase == Phase::Expired
    }

    /// Where programs in it are reached: at its own address, else at the daemon of its node, as `host:port` or, behind TLS, as an
    /// origin.
    pub fn reached_at(&self) -> Option<CompactString> {
        if !self.address.is_empty() {
            return Some(self.address.clone());
        }
        let daemon = self.daemon.as_deref()?;
        Some(match daemon.is_tls() {
            true => daemon.origin().into(),
            false => daemon.authority().into(),
        })
    }

    /// Where it is reached: the host of its address, else of its node's daemon, if that is an IP.
    pub fn pod_ip(&self) -> Option<IpAddr> {
        let address = self.address.as_str();
        // Nearly all are read by this, in a fraction of the time. Whether nodes may name the address is asked where they do.
        if let Ok(own) = address.parse::<SocketAddrV4>() {
            return Some((*own.ip()).into());
        }
        let own = address.parse::<NodeAddress>().ok().and_then(|a| a.ip());
        own.or_else(|| address.parse().ok())
            .or_else(|| self.daemon.as_ref()?.ip())
    }

    /// Whether there is a VM that its user may count on. One whose lease is over lives on for as long as its node likes.
    pub fn has_vm(&self) -> bool {
        !self.gone && !self.phase.is_suspended() && self.phase != Phase::Expired
    }

    /// Whether no reader can tell the two apart, although they may differ in what this server keeps for itself.
    pub(super) fn reads_as(&self, other: &Self) -> bool {
        let kept = |one: &Self| (one.gone, one.daemon.clone(), one.attempt);
        if kept(self) == kept(other) {
            return self == other;
        }
        let shown = |one: &Self| {
            let release = (one.has_vm(), one.awaits_release());
            (one.reached_at(), one.pod_ip(), release)
        };
        let same = Self {
            gone: self.gone,
            daemon: self.daemon.clone(),
            attempt: self.attempt,
            ..other.clone()
        };
        *self == same && self.conditions().eq(other.conditions()) && shown(self) == shown(other)
    }

    /// Whether the object outlives its lease, to tell that it expired.
    pub fn is_retained(&self) -> bool {
        self.user.as_ref().is_some_and(|user| {
            !user.spec.is_empty() && user.shutdown_policy == ShutdownPolicy::Retain
        })
    }

    /// The sandbox after one more change of its spec: a user wants it to run or not to.
    pub fn turned(&self) -> Self {
        let count = |user: &Arc<UserPart>| UserPart {
            generation: user.generation.max(1) + 1,
            ..UserPart::clone(user)
        };
        Self {
            user: self.user.as_ref().map(|user| Arc::new(count(user))),
            ..self.clone()
        }
    }

    /// Whether the node is to release it and has not confirmed that.
    pub fn awaits_release(&self) -> bool {
        self.deleted_at.is_some() && !self.gone
    }

    /// Whether a finalizer of a user keeps the object although its VM may be gone.
    pub fn has_finalizers(&self) -> bool {
        self.user
            .as_ref()
            .is_some_and(|user| !user.finalizers.is_empty())
    }
}

impl Value for Sandbox {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn weight(&self) -> usize {
        // A user part is counted with each version although versions share it: the bound may be early, never late.
        size_of::<Self>() + self.user.as_ref().map_or(0, |user| weight(user))
    }
}

fn weight(user: &UserPart) -> usize {
    let labels = user
        .labels
        .iter()
        .map(|(key, value)| key.len() + value.len() + 2 * size_of::<CompactString>());
    let annotations = user
        .annotations
        .iter()
        .map(|(key, value)| key.len() + value.len() + size_of::<CompactString>());
    let finalizers = user
        .finalizers
        .iter()
        .map(|finalizer| finalizer.len() + size_of::<CompactString>());
    size_of::<UserPart>()
        + user.generate_name.len()
        + user.spec.len()
        + user.managed_fields.len()
        + user.owner_references.len()
        + labels.chain(annotations).chain(finalizers).sum::<usize>()
}
