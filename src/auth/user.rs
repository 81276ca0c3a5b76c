//! Who somebody is, once that is known.

use std::{collections::BTreeMap, sync::Arc};

/// The name of who has shown no credential.
pub(super) const ANONYMOUS: &str = "system:anonymous";

/// The group of everybody who has shown one.
pub(super) const AUTHENTICATED: &str = "system:authenticated";

/// The group of everybody who has shown none.
pub(super) const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The group that may do everything, without asking anybody.
pub(super) const MASTERS: &str = "system:masters";

/// A user as Kubernetes knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// The name, which authorization goes by.
    pub name: String,
    /// Tells two users of one name apart, over time.
    pub uid: Option<String>,
    /// The groups, in the order they were given.
    pub groups: Vec<String>,
    /// What else the authenticator knows, such as a token's node.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// By which way an identity came, which decides how strictly it is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Through kube-apiserver, which has authorized this very request, with its name, before it passed it on.
    Proxied,
    /// Straight from the client.
    Direct,
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who calls.
    pub user: Arc<UserInfo>,
    /// By which way.
    pub origin: Origin,
}

impl UserInfo {
    /// A user with nothing but a name and groups.
    pub fn new(name: &str, groups: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..Self::default()
        }
    }

    /// Who has shown no credential.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, &[UNAUTHENTICATED])
    }

    /// Whether this is [`Self::anonymous`], by its name.
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// Whether the user is in `group`.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|of_user| of_user == group)
    }

    /// Adds the group of everybody who has shown a credential. The aggregator's own requests come without any group.
    pub(super) fn mark_authenticated(&mut self) {
        if !self.is_anonymous() && !self.is_in(AUTHENTICATED) && !self.is_in(UNAUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
    }
}
