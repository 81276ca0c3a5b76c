//! Paths in a guest, as clients write them: relative to the directory that commands run in.

use percent_encoding::percent_decode_str;

use crate::apiserver::Status;

/// Where commands run, and what paths are relative to.
pub(super) const DIRECTORY: &str = "/";
/// Longest path, as of Linux.
const MAX_PATH: usize = 4_096;

/// A path in a guest, from its root, without empty parts and dots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GuestPath(String);

impl GuestPath {
    /// The path in the rest of a URL's. Clients write it as one part, with its slashes escaped.
    ///
    /// # Errors
    /// 400 for what is no UTF-8, and as of [`Self::read`].
    pub(super) fn decode(text: &str) -> Result<Self, Status> {
        let decoded = percent_decode_str(text).decode_utf8();
        let decoded = decoded.map_err(|_| Status::bad_request("the path is not valid UTF-8"))?;
        Self::read(&decoded)
    }

    /// A path below the directory; a slash before it is passed over, as the SDKs do with some paths and not with others.
    ///
    /// # Errors
    /// 400 for one that leads upwards, holds a NUL or is too long.
    pub(super) fn read(text: &str) -> Result<Self, Status> {
        if text.contains('\0') {
            return Err(Status::bad_request("a path holds no NUL"));
        }
        let parts = text.split('/').filter(|part| !matches!(*part, "" | "."));
        let mut path = DIRECTORY.trim_end_matches('/').to_owned();
        for part in parts {
            if part == ".." {
                return Err(Status::bad_request("a path must not lead upwards with .."));
            }
            path.push('/');
            path.push_str(part);
        }
        if path.is_empty() {
            path.push('/');
        }
        if path.len() > MAX_PATH {
            let text = format!("a path has no more than {MAX_PATH} bytes");
            return Err(Status::bad_request(text));
        }
        Ok(Self(path))
    }

    /// The same, for what can only be a file.
    ///
    /// # Errors
    /// 400 for the directory itself.
    pub(super) fn of_file(self) -> Result<Self, Status> {
        match self.0 == DIRECTORY {
            true => Err(Status::bad_request("the path names no file")),
            false => Ok(self),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory that it is in, if that is another one than is there anyway.
    pub(super) fn parent(&self) -> Option<&str> {
        let (parent, _) = self.0.rsplit_once('/')?;
        (!parent.is_empty() && parent != DIRECTORY).then_some(parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let path = GuestPath::decode(text);
        let path = path.as_ref().map(GuestPath::as_str);
        let path = path.map_err(|status| status.message().to_owned());
        assert_eq!(path, expected.map_err(str::to_owned), "{text:?}");
    }

    #[test]
    fn a_path_is_below_the_directory() {
        check("a.txt", Ok("/a.txt"));
        check("work%2Fa%20b%C3%BC.txt", Ok("/work/a bü.txt"));
        check("/tmp//./a/", Ok("/tmp/a"));
        check("", Ok("/"));
        check("%2E", Ok("/"));
        check("...", Ok("/..."));
        check("%2e%2e%2Fa", Err("a path must not lead upwards with .."));
        check("a/../b", Err("a path must not lead upwards with .."));
        check("a%00b", Err("a path holds no NUL"));
        check("%ff", Err("the path is not valid UTF-8"));
        check(
            &"a/".repeat(2_049),
            Err("a path has no more than 4096 bytes"),
        );
    }

    #[test]
    fn a_file_has_a_name_and_perhaps_a_parent() {
        assert!(GuestPath::read("/").unwrap().of_file().is_err());
        let path = GuestPath::read("a/b/c").unwrap().of_file().unwrap();
        assert_eq!(path.parent(), Some("/a/b"));
        assert_eq!(GuestPath::read("a").unwrap().parent(), None);
    }
}
