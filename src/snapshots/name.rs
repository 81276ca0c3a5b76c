//! Namespace and name of a snapshot, in the one name that a daemon keeps.

use crate::{
    meta::{is_dns1123_label, is_dns1123_subdomain},
    store::Key,
};

/// Longest name that a daemon takes.
const MAX_DAEMON_NAME: usize = 63;
/// What a name begins with that this server wrote: others may have names with a slash as well, such as those of images.
const OURS: &str = "k8s/";

/// Namespace and name are longer than a daemon's name may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be no more than {room} characters in this namespace, as a node's daemon keeps both in one name of {MAX_DAEMON_NAME}"
)]
pub struct NameTooLong {
    /// What is left for the name.
    pub room: usize,
}

/// How long a name in the namespace may be.
pub fn name_room(namespace: &str) -> usize {
    MAX_DAEMON_NAME.saturating_sub(OURS.len() + namespace.len() + 1)
}

/// The name that the daemon is given.
///
/// # Errors
/// [`NameTooLong`].
pub fn daemon_name(key: &Key) -> Result<String, NameTooLong> {
    let room = name_room(&key.namespace);
    match key.name.len() <= room {
        true => Ok(format!("{OURS}{}/{}", key.namespace, key.name)),
        false => Err(NameTooLong { room }),
    }
}

/// The key that a daemon's name means, if it means one.
pub(super) fn key_of(name: &str) -> Option<Key> {
    let (namespace, name) = name.strip_prefix(OURS)?.split_once('/')?;
    (is_dns1123_label(namespace) && is_dns1123_subdomain(name)).then(|| Key::new(namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let key = Key::new("team", "before-upgrade.1");
        assert_eq!(key_of(&daemon_name(&key).unwrap()), Some(key));
    }

    #[test]
    fn what_nobody_here_wrote_means_no_key() {
        let foreign = ["", "s1", "a/b", "library/python", "k8s", "k8s/a"];
        let broken = ["k8s/a/", "k8s//a", "k8s/a/b/c", "k8s/A/b", "k8s/a/B"];
        for name in foreign.into_iter().chain(broken) {
            assert_eq!(key_of(name), None, "{name:?}");
        }
    }

    #[test]
    fn both_together_fit_the_daemons_name() {
        let fits = |namespace: usize, name: usize| {
            daemon_name(&Key::new("n".repeat(namespace), "a".repeat(name))).is_ok()
        };
        assert!(fits(29, 29) && fits(1, 57) && !fits(29, 30) && !fits(63, 1));
        assert_eq!(name_room(&"n".repeat(63)), 0);
    }
}
