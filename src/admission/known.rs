//! The namespaces that a watch has told of.

use std::collections::HashMap;

use kube::{Resource, runtime::watcher::Event};

/// Where a namespace is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Active,
    Terminating,
}

/// Every namespace and its phase: a name and a byte each, instead of the objects.
#[derive(Debug, Default)]
pub(super) struct Known {
    phases: Phases,
    /// The list under way, which replaces the phases when it is complete: what it does not name is gone.
    listing: Option<Phases>,
}

type Phases = HashMap<Box<str>, Phase, foldhash::fast::RandomState>;

impl Known {
    pub(super) fn phase(&self, namespace: &str) -> Option<Phase> {
        self.phases.get(namespace).copied()
    }

    /// Takes an event in. Returns whether it completed a list.
    pub(super) fn apply<N: Resource>(&mut self, event: Event<N>) -> bool {
        match event {
            Event::Init => self.listing = Some(Phases::default()),
            Event::InitApply(namespace) => {
                put(self.listing.get_or_insert_default(), &namespace);
            }
            Event::InitDone => {
                self.phases = self.listing.take().unwrap_or_default();
                return true;
            }
            Event::Apply(namespace) => put(&mut self.phases, &namespace),
            Event::Delete(namespace) => {
                if let Some(name) = &namespace.meta().name {
                    self.phases.remove(name.as_str());
                }
            }
        }
        false
    }
}

/// kube-apiserver sets a deletion time and the phase `Terminating` in one write.
fn put(phases: &mut Phases, namespace: &impl Resource) {
    let meta = namespace.meta();
    let phase = match meta.deletion_timestamp {
        None => Phase::Active,
        Some(_) => Phase::Terminating,
    };
    if let Some(name) = &meta.name {
        phases.insert(name.as_str().into(), phase);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{
        api::core::v1::Namespace,
        apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    };

    fn mk_namespace(name: &str, terminating: bool) -> Namespace {
        let time = Time(jiff::Timestamp::UNIX_EPOCH);
        Namespace {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                deletion_timestamp: terminating.then_some(time),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        }
    }

    #[test]
    fn a_namespace_is_followed_through_its_life() {
        let mut known = Known::default();
        known.apply(Event::Apply(mk_namespace("a", false)));
        assert_eq!(known.phase("a"), Some(Phase::Active));
        known.apply(Event::Apply(mk_namespace("a", true)));
        assert_eq!(known.phase("a"), Some(Phase::Terminating));
        known.apply(Event::Delete(mk_namespace("a", true)));
        assert_eq!(known.phase("a"), None);
    }

    #[test]
    fn what_a_new_list_does_not_name_is_gone_and_until_then_stays() {
        let mut known = Known::default();
        known.apply(Event::Apply(mk_namespace("old", false)));
        assert!(!known.apply(Event::Init::<Namespace>));
        assert!(!known.apply(Event::InitApply(mk_namespace("new", false))));
        assert_eq!(
            (known.phase("old"), known.phase("new")),
            (Some(Phase::Active), None)
        );
        assert!(known.apply(Event::InitDone::<Namespace>));
        assert_eq!(
            (known.phase("old"), known.phase("new")),
            (None, Some(Phase::Active))
        );
    }
}
