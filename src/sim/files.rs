//! The files of a simulated guest: a tree in memory, which its copies share until one of them is changed.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

/// Bounds on the files of one sandbox; a real one is bounded by its disk.
pub(super) const MAX_BYTES: usize = 64 << 20;
const MAX_NODES: usize = 4_096;
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// A guest's tree, by path. Without one there are the directories that every guest has.
#[derive(Clone, Debug, Default)]
pub(super) struct Files(Option<Arc<BTreeMap<String, Node>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    /// With the second of its last change.
    File(Bytes, i64),
}

/// Why something was not done, in the words of `silkd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) kind: &'static str,
    pub(super) message: String,
}

impl Trouble {
    pub(super) fn new(kind: &'static str, path: &str, message: &str) -> Self {
        let message = format!("{path}: {message}");
        Self { kind, message }
    }

    fn missing(path: &str) -> Self {
        Self::new("not_found", path, "No such file or directory")
    }
}

impl Node {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Directory => "dir",
            Self::File(..) => "file",
        }
    }

    pub(super) fn size(&self) -> usize {
        match self {
            Self::Directory => 0,
            Self::File(bytes, _) => bytes.len(),
        }
    }

    pub(super) fn mode(&self) -> u32 {
        match self {
            Self::Directory => DIRECTORY_MODE,
            Self::File(..) => FILE_MODE,
        }
    }

    pub(super) fn modified(&self) -> i64 {
        match self {
            Self::Directory => 0,
            Self::File(_, modified) => *modified,
        }
    }
}

impl Files {
    pub(super) fn is_untouched(&self) -> bool {
        self.0.is_none()
    }

    /// What a path names.
    pub(super) fn stat(&self, path: &str) -> Result<Node, Trouble> {
        let clean = clean(path);
        if clean == "/" {
            return Ok(Node::Directory);
        }
        let node = match &self.0 {
            Some(tree) => tree.get(&clean).cloned(),
            None => untouched().get(&clean).cloned(),
        };
        node.ok_or_else(|| Trouble::missing(path))
    }

    pub(super) fn read(&self, path: &str) -> Result<Bytes, Trouble> {
        match self.stat(path)? {
            Node::File(bytes, _) => Ok(bytes),
            Node::Directory => Err(Trouble::new("bad_request", path, "Is a directory")),
        }
    }

    /// Names in a directory, in order.
    pub(super) fn list(&self, path: &str) -> Result<Vec<(String, Node)>, Trouble> {
        if self.stat(path)? != Node::Directory {
            return Err(Trouble::new("bad_request", path, "Not a directory"));
        }
        let prefix = match clean(path).as_str() {
            "/" => "/".to_owned(),
            directory => format!("{directory}/"),
        };
        let untouched = untouched();
        let tree = self.0.as_deref().unwrap_or(&untouched);
        let below = tree.iter().filter_map(|(path, node)| {
            let name = path.strip_prefix(&prefix)?;
            (!name.contains('/')).then(|| (name.to_owned(), node.clone()))
        });
        Ok(below.collect())
    }

    /// Puts a file in the place of what has its name.
    pub(super) fn write(&mut self, path: &str, bytes: Bytes, now: i64) -> Result<(), Trouble> {
        let clean = clean(path);
        if self.stat(path) == Ok(Node::Directory) {
            return Err(Trouble::new("bad_request", path, "Is a directory"));
        }
        self.check_parent(path, &clean)?;
        let others = self.0.iter().flat_map(|tree| tree.iter());
        let others = others.filter(|(other, _)| **other != clean);
        let used: usize = others.map(|(_, node)| node.size()).sum();
        if used + bytes.len() > MAX_BYTES {
            return Err(Trouble::new("internal", path, "No space left on device"));
        }
        self.put(path, clean, Node::File(bytes, now))
    }

    pub(super) fn make_directory(&mut self, path: &str, parents: bool) -> Result<(), Trouble> {
        let clean = clean(path);
        match self.stat(path) {
            Ok(Node::Directory) if parents => return Ok(()),
            Ok(_) => return Err(Trouble::new("bad_request", path, "File exists")),
            Err(_) => {}
        }
        if parents && let Some((above, _)) = clean.rsplit_once('/').filter(|(a, _)| !a.is_empty()) {
            self.make_directory(above, true)?;
        }
        self.check_parent(path, &clean)?;
        self.put(path, clean, Node::Directory)
    }

    fn check_parent(&self, path: &str, clean: &str) -> Result<(), Trouble> {
        let (parent, _) = clean.rsplit_once('/').unwrap_or_default();
        match self.stat(parent) {
            Ok(Node::Directory) => Ok(()),
            Ok(Node::File(..)) => Err(Trouble::new("bad_request", path, "Not a directory")),
            Err(_) => Err(Trouble::missing(path)),
        }
    }

    fn put(&mut self, path: &str, clean: String, node: Node) -> Result<(), Trouble> {
        let tree = self.0.get_or_insert_with(|| Arc::new(untouched()));
        if tree.len() >= MAX_NODES && !tree.contains_key(&clean) {
            return Err(Trouble::new("internal", path, "No space left on device"));
        }
        Arc::make_mut(tree).insert(clean, node);
        Ok(())
    }
}

/// What every guest has beside its root.
fn untouched() -> BTreeMap<String, Node> {
    BTreeMap::from([("/tmp".to_owned(), Node::Directory)])
}

/// The path from the root, without empty parts and dots.
fn clean(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_grows_and_its_copy_does_not() {
        let mut files = Files::default();
        assert_eq!(
            files.list("/").unwrap(),
            [("tmp".to_owned(), Node::Directory)]
        );
        let missing = files.write("/a/b", "x".into(), 1).unwrap_err();
        assert_eq!(missing.kind, "not_found");
        files.make_directory("/a/c", true).unwrap();
        files.write("a/./b", "x".into(), 1).unwrap();
        let copy = files.clone();
        files.write("/a/b", "longer".into(), 2).unwrap();
        assert_eq!(copy.read("/a/b").unwrap(), "x");
        assert_eq!(files.read("/tmp/../a/b").unwrap(), "longer");
        let names: Vec<_> = files.list("/a").unwrap();
        let names: Vec<_> = names
            .iter()
            .map(|(name, node)| (name.as_str(), node.kind()))
            .collect();
        assert_eq!(names, [("b", "file"), ("c", "dir")]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut files = Files::default();
        files.write("/a", "x".into(), 1).unwrap();
        let kind = |done: Result<(), Trouble>| done.unwrap_err().kind;
        assert_eq!(kind(files.write("/tmp", "x".into(), 1)), "bad_request");
        assert_eq!(kind(files.write("/a/b", "x".into(), 1)), "bad_request");
        assert_eq!(kind(files.make_directory("/a", true)), "bad_request");
        assert_eq!(kind(files.make_directory("/x/y", false)), "not_found");
        assert_eq!(files.read("/tmp").unwrap_err().kind, "bad_request");
        let much = Bytes::from(vec![0; MAX_BYTES]);
        assert_eq!(kind(files.write("/b", much.clone(), 1)), "internal");
        files.write("/a", much, 1).unwrap();
    }
}
