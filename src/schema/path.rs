//! Where in an object something is, written as Kubernetes writes it: `spec.containers[0].name`.

use std::fmt;

/// A place in an object, kept as links on the stack, so that an object without faults costs no allocation.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    /// The object itself.
    Root,
    /// A field of an object.
    Field(&'a Path<'a>, &'a str),
    /// An item of a list.
    Item(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    /// The field `name` of the object here.
    pub(super) fn field(&'a self, name: &'a str) -> Self {
        Self::Field(self, name)
    }

    /// The item `index` of the list here.
    pub(super) fn item(&'a self, index: usize) -> Self {
        Self::Item(self, index)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Path::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Path;

    #[test]
    fn paths_read_as_kubernetes_writes_them() {
        let spec = Path::Root.field("spec");
        let list = spec.field("containers");
        let item = list.item(3);
        assert_eq!(item.field("name").to_string(), "spec.containers[3].name");
        assert_eq!(Path::Root.to_string(), "");
    }
}
