//! A map ordered as lists are: by namespace, then by name, looked up without building a key.

use std::{collections::BTreeMap, ops::Bound};

use compact_str::CompactString;

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace; empty for a cluster-scoped object.
    pub namespace: CompactString,
    /// The name.
    pub name: CompactString,
}

impl Key {
    /// The key of `name` in `namespace`.
    pub fn new(namespace: impl Into<CompactString>, name: impl Into<CompactString>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// Which objects a list or a watch is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Those of all namespaces.
    All,
    /// Those of one namespace.
    Namespace(CompactString),
    /// One object.
    Object(Key),
}

impl Scope {
    /// Whether the object of that namespace and name is inside.
    pub fn contains(&self, namespace: &str, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(only) => only == namespace,
            Self::Object(key) => key.namespace == namespace && key.name == name,
        }
    }

    /// The namespace that everything inside shares, if there is one.
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Namespace(namespace) => Some(namespace),
            Self::Object(key) => Some(&key.namespace),
        }
    }
}

/// The map. A namespace without entries is not kept.
#[derive(Debug)]
pub(super) struct Ordered<T> {
    namespaces: BTreeMap<CompactString, BTreeMap<CompactString, T>>,
    len: usize,
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self {
            namespaces: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<T> Ordered<T> {
    pub(super) fn len_in(&self, scope: &Scope) -> usize {
        match scope {
            Scope::All => self.len,
            Scope::Namespace(namespace) => self.namespaces.get(namespace).map_or(0, BTreeMap::len),
            Scope::Object(key) => usize::from(self.get(&key.namespace, &key.name).is_some()),
        }
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&T> {
        self.namespaces.get(namespace)?.get(name)
    }

    pub(super) fn entry_or_default(&mut self, namespace: &str, name: &str) -> &mut T
    where
        T: Default,
    {
        let names = self.namespaces.entry(namespace.into()).or_default();
        names.entry(name.into()).or_insert_with(|| {
            self.len += 1;
            T::default()
        })
    }

    pub(super) fn insert(&mut self, namespace: &str, name: &str, value: T) -> Option<T> {
        let names = match self.namespaces.get_mut(namespace) {
            Some(names) => names,
            None => self.namespaces.entry(namespace.into()).or_default(),
        };
        if let Some(slot) = names.get_mut(name) {
            return Some(std::mem::replace(slot, value));
        }
        names.insert(name.into(), value);
        self.len += 1;
        None
    }

    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> Option<T> {
        let names = self.namespaces.get_mut(namespace)?;
        let value = names.remove(name)?;
        self.len -= 1;
        if names.is_empty() {
            self.namespaces.remove(namespace);
        }
        Some(value)
    }

    /// The entries of `scope` behind `after`, in order.
    pub(super) fn range<'a>(
        &'a self,
        scope: &'a Scope,
        after: Option<&'a Key>,
    ) -> Box<dyn Iterator<Item = (&'a str, &'a str, &'a T)> + 'a> {
        match scope {
            Scope::Object(key) => {
                let wanted = after.is_none_or(|after| key > after);
                let found = self.get(&key.namespace, &key.name).filter(|_| wanted);
                Box::new(
                    found
                        .map(|value| (key.namespace.as_str(), key.name.as_str(), value))
                        .into_iter(),
                )
            }
            Scope::Namespace(namespace) => {
                let from = after.map_or(Bound::Unbounded, |after| {
                    match after.namespace.cmp(namespace) {
                        std::cmp::Ordering::Less => Bound::Unbounded,
                        // A key of a later namespace has everything of this one before it; no name sorts behind this one.
                        std::cmp::Ordering::Greater => Bound::Excluded("\u{10ffff}"),
                        std::cmp::Ordering::Equal => Bound::Excluded(after.name.as_str()),
                    }
                });
                Box::new(self.names(namespace, from))
            }
            Scope::All => {
                let Some(after) = after else {
                    return Box::new(
                        self.namespaces
                            .iter()
                            .flat_map(|(namespace, names)| entries(namespace, names)),
                    );
                };
                let rest = self
                    .namespaces
                    .range::<str, _>((Bound::Excluded(after.namespace.as_str()), Bound::Unbounded));
                let rest = rest.flat_map(|(namespace, names)| entries(namespace, names));
                Box::new(
                    self.names(&after.namespace, Bound::Excluded(&after.name))
                        .chain(rest),
                )
            }
        }
    }

    fn names<'a>(
        &'a self,
        namespace: &str,
        from: Bound<&'a str>,
    ) -> impl Iterator<Item = (&'a str, &'a str, &'a T)> + 'a {
        let found = self.namespaces.get_key_value(namespace);
        found.into_iter().flat_map(move |(namespace, names)| {
            let range = names.range::<str, _>((from, Bound::Unbounded));
            range.map(move |(name, value)| (namespace.as_str(), name.as_str(), value))
        })
    }
}

fn entries<'a, T>(
    namespace: &'a CompactString,
    names: &'a BTreeMap<CompactString, T>,
) -> impl Iterator<Item = (&'a str, &'a str, &'a T)> + 'a {
    names
        .iter()
        .map(move |(name, value)| (namespace.as_str(), name.as_str(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(scope: &Scope, after: Option<(&str, &str)>) -> String {
        let mut map = Ordered::default();
        for (namespace, name) in [("b", "x"), ("a", "y"), ("a", "x"), ("c", "z"), ("a-b", "q")] {
            assert!(map.insert(namespace, name, ()).is_none());
        }
        let after = after.map(|(namespace, name)| Key::new(namespace, name));
        let found: Vec<_> = map
            .range(scope, after.as_ref())
            .map(|(ns, name, ())| format!("{ns}/{name}"))
            .collect();
        found.join(" ")
    }

    #[test]
    fn entries_come_by_namespace_then_name() {
        assert_eq!(names(&Scope::All, None), "a/x a/y a-b/q b/x c/z");
        assert_eq!(names(&Scope::All, Some(("a", "x"))), "a/y a-b/q b/x c/z");
        assert_eq!(names(&Scope::All, Some(("a", "zz"))), "a-b/q b/x c/z");
        assert_eq!(names(&Scope::All, Some(("aa", ""))), "b/x c/z");
        assert_eq!(names(&Scope::All, Some(("c", "z"))), "");
    }

    #[test]
    fn a_namespace_never_shows_another_ones_names() {
        let a = Scope::Namespace("a".into());
        assert_eq!(names(&a, None), "a/x a/y");
        assert_eq!(names(&a, Some(("a", "x"))), "a/y");
        assert_eq!(names(&a, Some(("b", "a"))), "");
        assert_eq!(names(&a, Some(("A", "z"))), "a/x a/y");
        assert_eq!(names(&Scope::Namespace("none".into()), None), "");
        assert_eq!(names(&Scope::Object(Key::new("a", "y")), None), "a/y");
        assert_eq!(
            names(&Scope::Object(Key::new("a", "y")), Some(("a", "y"))),
            ""
        );
    }

    #[test]
    fn empty_namespaces_are_not_kept() {
        let mut map = Ordered::default();
        map.insert("a", "x", 1);
        assert_eq!(map.insert("a", "x", 2), Some(1));
        assert_eq!(map.len, 1);
        assert_eq!(map.remove("a", "x"), Some(2));
        assert_eq!((map.len, map.namespaces.len()), (0, 0));
    }
}
