//! What the quotas that a watch has told of allow.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::ResourceQuota;
use kube::runtime::watcher::Event;

use super::{Counted, Exceeded};
use crate::meta::Quantity;

/// What a quota names an object count by, in front of its resource.
const COUNT: &str = "count/";

/// How many objects of a resource a quota allows in its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    /// `sandboxes.agents.x-k8s.io`.
    resource: Box<str>,
    n_allowed: u64,
    /// The same as the quota says it.
    said: Box<str>,
}

/// The limits of every quota that counts objects, by namespace and by the quota's name: where several refuse, the same one is
/// named each time.
#[derive(Debug, Default)]
pub(super) struct Limits {
    by_namespace: ByNamespace,
    /// The list under way, which replaces what is known when it is complete: what it does not name is gone.
    listing: Option<ByNamespace>,
}

type ByNamespace = HashMap<Box<str>, BTreeMap<Box<str>, Vec<Limit>>, foldhash::fast::RandomState>;

impl Limits {
    /// Whether anything in the namespace limits how many objects of the resource there are.
    pub(super) fn concern(&self, namespace: &str, counted: Counted<'_>) -> bool {
        self.of(namespace, counted).next().is_some()
    }

    /// Whether `n_wanted` more are allowed beside the `n_used` that there are.
    pub(super) fn check(
        &self,
        namespace: &str,
        counted: Counted<'_>,
        n_used: u64,
        n_wanted: u64,
    ) -> Result<(), Exceeded> {
        let n_total = n_used.saturating_add(n_wanted);
        let exceeded = self
            .of(namespace, counted)
            .find(|(_, limit)| n_total > limit.n_allowed);
        match exceeded {
            None => Ok(()),
            Some((quota, limit)) => Err(Exceeded {
                quota: quota.to_owned(),
                resource: format!("{COUNT}{}", limit.resource),
                n_wanted,
                n_used,
                allowed: limit.said.to_string(),
            }),
        }
    }

    fn of<'a>(
        &'a self,
        namespace: &str,
        counted: Counted<'a>,
    ) -> impl Iterator<Item = (&'a str, &'a Limit)> {
        let quotas = self.by_namespace.get(namespace).into_iter().flatten();
        let limits =
            quotas.flat_map(|(quota, limits)| limits.iter().map(|limit| (&**quota, limit)));
        limits.filter(move |(_, limit)| counted.is(&limit.resource))
    }

    /// Takes an event in. Returns whether it completed a list.
    pub(super) fn apply(&mut self, event: Event<ResourceQuota>) -> bool {
        match event {
            Event::Init => self.listing = Some(ByNamespace::default()),
            Event::InitApply(quota) => put(self.listing.get_or_insert_default(), &quota),
            Event::InitDone => {
                self.by_namespace = self.listing.take().unwrap_or_default();
                return true;
            }
            Event::Apply(quota) => put(&mut self.by_namespace, &quota),
            Event::Delete(quota) => remove(&mut self.by_namespace, &quota),
        }
        false
    }
}

fn put(known: &mut ByNamespace, quota: &ResourceQuota) {
    let limits = limits_of(quota);
    if limits.is_empty() {
        return remove(known, quota);
    }
    let (namespace, name) = place(quota);
    let quotas = known.entry(namespace.into()).or_default();
    quotas.insert(name.into(), limits);
}

fn remove(known: &mut ByNamespace, quota: &ResourceQuota) {
    let (namespace, name) = place(quota);
    if let Some(quotas) = known.get_mut(namespace) {
        quotas.remove(name);
        if quotas.is_empty() {
            known.remove(namespace);
        }
    }
}

fn place(quota: &ResourceQuota) -> (&str, &str) {
    let metadata = &quota.metadata;
    (
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// The object counts that a quota limits. None of one with scopes: no scope is defined for objects that are only counted, so
/// such a quota matches none of them.
fn limits_of(quota: &ResourceQuota) -> Vec<Limit> {
    let Some(spec) = &quota.spec else {
        return Vec::new();
    };
    let scopes = spec.scopes.iter().flatten().count();
    let selected = spec.scope_selector.iter();
    let selected = selected.flat_map(|selector| selector.match_expressions.iter().flatten());
    if scopes + selected.count() > 0 {
        return Vec::new();
    }
    let hard = spec.hard.iter().flatten();
    let limits = hard.filter_map(|(name, said)| {
        let n_allowed = said.0.parse::<Quantity>().ok()?.multiples_of(1);
        Some(Limit {
            resource: name.strip_prefix(COUNT)?.into(),
            n_allowed,
            said: said.0.as_str().into(),
        })
    });
    limits.collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, json};

    const SANDBOXES: Counted<'_> = Counted {
        group: "agents.x-k8s.io",
        plural: "sandboxes",
    };

    pub(in crate::admission) fn mk_quota(name: &str, spec: Value) -> ResourceQuota {
        serde_json::from_value(json!({
            "metadata": {"namespace": "team", "name": name}, "spec": spec,
        }))
        .unwrap()
    }

    fn mk_limit(name: &str, hard: &str) -> ResourceQuota {
        mk_quota(
            name,
            json!({"hard": {"count/sandboxes.agents.x-k8s.io": hard, "pods": "0"}}),
        )
    }

    fn known(quotas: impl IntoIterator<Item = ResourceQuota>) -> Limits {
        let mut limits = Limits::default();
        for quota in quotas {
            limits.apply(Event::Apply(quota));
        }
        limits
    }

    #[test]
    fn a_quota_allows_what_it_says_and_no_more() {
        let limits = known([mk_limit("few", "2")]);
        assert!(limits.check("team", SANDBOXES, 1, 1).is_ok());
        let exceeded = limits.check("team", SANDBOXES, 1, 2).unwrap_err();
        assert_eq!(
            exceeded.to_string(),
            "exceeded quota: few, requested: count/sandboxes.agents.x-k8s.io=2, \
             used: count/sandboxes.agents.x-k8s.io=1, limited: count/sandboxes.agents.x-k8s.io=2"
        );
        assert!(limits.check("other", SANDBOXES, 9, 1).is_ok());
    }

    #[test]
    fn of_several_quotas_the_first_that_refuses_is_named() {
        let limits = known([mk_limit("c", "1"), mk_limit("b", "0"), mk_limit("a", "5")]);
        let exceeded = limits.check("team", SANDBOXES, 1, 1).unwrap_err();
        assert_eq!((exceeded.quota.as_str(), exceeded.n_used), ("b", 1));
    }

    #[test]
    fn only_counts_of_the_resource_itself_concern_it() {
        let others = json!({"hard": {
            "count/sandboxes": "0", "count/sandboxes.example.com": "0", "sandboxes.agents.x-k8s.io": "0",
            "count/sandboxsnapshots.agents.x-k8s.io": "0",
        }});
        let limits = known([mk_quota("others", others)]);
        assert!(!limits.concern("team", SANDBOXES));
        let snapshots = Counted {
            plural: "sandboxsnapshots",
            ..SANDBOXES
        };
        assert!(limits.concern("team", snapshots));
        let core = Counted {
            group: "",
            ..SANDBOXES
        };
        assert!(limits.concern("team", core));
    }

    #[test]
    fn a_quota_with_scopes_matches_no_object_that_is_only_counted() {
        let hard = json!({"count/sandboxes.agents.x-k8s.io": "0"});
        let selector =
            json!({"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]});
        for spec in [
            json!({"hard": hard, "scopes": ["NotTerminating"]}),
            json!({"hard": hard, "scopeSelector": selector}),
        ] {
            assert!(!known([mk_quota("scoped", spec)]).concern("team", SANDBOXES));
        }
        let empty = json!({"hard": hard, "scopes": [], "scopeSelector": {}});
        assert!(known([mk_quota("plain", empty)]).concern("team", SANDBOXES));
    }

    #[test]
    fn a_quota_is_followed_through_its_life() {
        let mut limits = known([mk_limit("q", "1")]);
        limits.apply(Event::Apply(mk_limit("q", "2k")));
        assert!(limits.check("team", SANDBOXES, 1_999, 1).is_ok());
        let exceeded = limits.check("team", SANDBOXES, 2_000, 1).unwrap_err();
        assert!(exceeded.to_string().contains("=2k"), "{exceeded}");
        limits.apply(Event::Apply(mk_quota("q", json!({"hard": {"pods": "1"}}))));
        assert!(!limits.concern("team", SANDBOXES) && limits.by_namespace.is_empty());
        limits.apply(Event::Apply(mk_limit("q", "0")));
        limits.apply(Event::Delete(mk_limit("q", "0")));
        assert!(!limits.concern("team", SANDBOXES) && limits.by_namespace.is_empty());
    }

    #[test]
    fn what_a_new_list_does_not_name_is_gone_and_until_then_stays() {
        let mut limits = known([mk_limit("old", "0")]);
        assert!(!limits.apply(Event::Init));
        assert!(limits.concern("team", SANDBOXES));
        assert!(limits.apply(Event::InitDone));
        assert!(!limits.concern("team", SANDBOXES));
    }
}
