//! Sets of paths.

use std::{cmp::Ordering, fmt};

use super::element::Element;

/// A set of paths into an object: what one manager owns.
///
/// A tree: each node is a step that is in the set, has such steps below it, or both. Nodes are sorted, so that two sets
/// come together in one pass. A path does not contain those below it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    nodes: Vec<Node>,
}

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) element: Element,
    /// Whether the path that ends here is in the set.
    pub(super) owned: bool,
    pub(super) below: FieldSet,
}

impl FieldSet {
    /// Whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether the path is in the set. The empty path never is.
    pub fn contains(&self, path: &[Element]) -> bool {
        match path {
            [] => false,
            [last] => self.get(last).is_some_and(|node| node.owned),
            [first, rest @ ..] => self
                .get(first)
                .is_some_and(|node| node.below.contains(rest)),
        }
    }

    /// Adds the path; the empty one is no path.
    pub fn insert(&mut self, path: &[Element]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let mut below = Self::default();
        below.insert(rest);
        self.push(first.clone(), rest.is_empty(), below);
    }

    /// Adds what is in `other`.
    pub fn unite(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
            return;
        }
        // One pass: adding each at its place would take the square of it for sets that a client made long.
        let own = std::mem::take(&mut self.nodes);
        self.nodes.reserve(own.len() + other.nodes.len());
        let mut others = other.nodes.into_iter().peekable();
        for node in own {
            while let Some(other) = others.next_if(|other| other.element <= node.element) {
                self.push(other.element, other.owned, other.below);
            }
            self.push(node.element, node.owned, node.below);
        }
        self.nodes.extend(others);
    }

    /// Takes out what is in `other`.
    pub fn subtract(&mut self, other: &Self) {
        let mut others = other.nodes.iter().peekable();
        self.nodes.retain_mut(|node| {
            while others
                .next_if(|other| other.element < node.element)
                .is_some()
            {}
            if let Some(other) = others.next_if(|other| other.element == node.element) {
                node.owned &= !other.owned;
                node.below.subtract(&other.below);
            }
            node.owned || !node.below.is_empty()
        });
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut both, mut others) = (Self::default(), other.nodes.iter().peekable());
        for node in &self.nodes {
            while others
                .next_if(|other| other.element < node.element)
                .is_some()
            {}
            if let Some(other) = others.next_if(|other| other.element == node.element) {
                let below = node.below.intersection(&other.below);
                both.add(node.owned && other.owned, below, || node.element.clone());
            }
        }
        both
    }

    /// Whether all that is in the set is in `other`, too.
    pub fn is_within(&self, other: &Self) -> bool {
        self.nodes.iter().all(|node| {
            other.get(&node.element).is_some_and(|other| {
                (!node.owned || other.owned) && node.below.is_within(&other.below)
            })
        })
    }

    /// The paths below which there are no others in the set.
    #[must_use]
    pub fn leaves(&self) -> Self {
        let mut leaves = Self::default();
        for node in &self.nodes {
            leaves.push(
                node.element.clone(),
                node.below.is_empty(),
                node.below.leaves(),
            );
        }
        leaves
    }

    /// All paths, as Kubernetes lists them: at each level first those that end there.
    pub fn paths(&self) -> Vec<Vec<Element>> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, prefix: &mut Vec<Element>, paths: &mut Vec<Vec<Element>>) {
        for node in self.nodes.iter().filter(|node| node.owned) {
            let mut path = prefix.clone();
            path.push(node.element.clone());
            paths.push(path);
        }
        for node in self.nodes.iter().filter(|node| !node.below.is_empty()) {
            prefix.push(node.element.clone());
            node.below.collect(prefix, paths);
            prefix.pop();
        }
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The step, if the set has it.
    pub(super) fn get(&self, element: &Element) -> Option<&Node> {
        let index = self
            .nodes
            .binary_search_by(|node| node.element.cmp(element));
        index.ok().map(|index| &self.nodes[index])
    }

    /// The set of these steps, in any order. Of equal ones all is in the set that is in one.
    pub(super) fn from_nodes(mut nodes: Vec<Node>) -> Self {
        nodes.sort_by(|left, right| left.element.cmp(&right.element));
        let mut set = Self::default();
        for node in nodes {
            set.push(node.element, node.owned, node.below);
        }
        set
    }

    /// Adds a step and what is below it. Cheap in the order of the elements; else the steps behind it have to move.
    pub(super) fn push(&mut self, element: Element, owned: bool, below: Self) {
        if !owned && below.is_empty() {
            return;
        }
        let end = self.nodes.len();
        let at = match self.nodes.last().map(|last| last.element.cmp(&element)) {
            None | Some(Ordering::Less) => Err(end),
            Some(_) => self
                .nodes
                .binary_search_by(|node| node.element.cmp(&element)),
        };
        match at {
            Err(index) => self.nodes.insert(
                index,
                Node {
                    element,
                    owned,
                    below,
                },
            ),
            Ok(index) => {
                self.nodes[index].owned |= owned;
                self.nodes[index].below.unite(below);
            }
        }
    }

    /// As [`Self::push`]; the step is named only if there is something to add.
    pub(super) fn add(&mut self, owned: bool, below: Self, element: impl FnOnce() -> Element) {
        if owned || !below.is_empty() {
            self.push(element(), owned, below);
        }
    }

    /// Changes each step; those that end up empty are dropped.
    pub(super) fn edit(&mut self, mut edit: impl FnMut(&mut Node)) {
        self.nodes.retain_mut(|node| {
            edit(node);
            node.owned || !node.below.is_empty()
        });
    }
}

/// One path a line, as conflicts show them.
impl fmt::Debug for FieldSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for path in self.paths() {
            for element in path {
                write!(f, "{element}")?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}
