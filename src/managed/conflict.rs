//! Fields that others own.

use std::fmt;

use super::{
    element::Element,
    go::Quoted,
    managed_fields::{Manager, Operation},
};

/// A field that a configuration would change and that another manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The owner.
    pub manager: Manager,
    /// The field.
    pub path: Vec<Element>,
}

/// All conflicts of a configuration; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl Conflict {
    /// The owner in words: `conflict with "m" using V`. The message of a Status cause `FieldManagerConflict`.
    pub fn message(&self) -> String {
        format!("conflict with {}", Owner(&self.manager))
    }

    /// The field as a Status cause names it: `.spec.list[name="a"].y`.
    pub fn field(&self) -> String {
        self.path.iter().map(Element::to_string).collect()
    }
}

/// The message of the Status: one line for one conflict, else a list by owner.
impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(conflicts) = self;
        if let [only] = &conflicts[..] {
            return write!(
                f,
                "Apply failed with 1 conflict: {}: {}",
                only.message(),
                only.field()
            );
        }
        write!(f, "Apply failed with {} conflicts: ", conflicts.len())?;
        let mut by_owner: Vec<(String, String)> = conflicts
            .iter()
            .map(|conflict| (Owner(&conflict.manager).to_string(), conflict.field()))
            .collect();
        by_owner.sort_by(|(left, _), (right, _)| left.cmp(right));
        for (index, of_one) in by_owner
            .chunk_by(|(left, _), (right, _)| left == right)
            .enumerate()
        {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}conflicts with {}:", of_one[0].0)?;
            of_one
                .iter()
                .try_for_each(|(_, field)| write!(f, "\n- {field}"))?;
        }
        Ok(())
    }
}

impl std::error::Error for Conflicts {}

struct Owner<'a>(&'a Manager);

impl fmt::Display for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Manager {
            name,
            operation,
            api_version,
            subresource,
        } = self.0;
        Quoted(name).fmt(f)?;
        if !subresource.is_empty() {
            write!(f, " with subresource {}", Quoted(subresource))?;
        }
        match operation {
            Operation::Update => write!(f, " using {api_version}"),
            Operation::Apply => Ok(()),
        }
    }
}
