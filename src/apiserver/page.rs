//! Where a list starts, and the token by which it goes on.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use super::Status;
use crate::{meta::ResourceVersion, store::Key};

/// Longest token read. Ours hold a version and a key of at most 63 + 253 characters.
const MAX_TOKEN: usize = 1_024;

/// Where a list starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// At the newest version.
    Latest,
    /// At the newest version, once it is at least this.
    NotOlderThan(ResourceVersion),
    /// At this version and no other.
    Exact(ResourceVersion),
    /// Where an earlier page ended.
    Continue(ContinueToken),
}

/// The end of a page. It holds no pin: when the log has moved past its version, the list goes on at the newest one if the
/// client accepts that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContinueToken {
    /// The list that it goes on with, and no other.
    list: String,
    /// Version of the first page; 0: whatever is newest.
    #[serde(rename = "rv")]
    version: u64,
    /// Namespace and name of the last object shown.
    #[serde(rename = "ns")]
    namespace: String,
    #[serde(rename = "name")]
    name: String,
    /// How many objects follow, if it was told: the next page need not count them.
    #[serde(rename = "left", default, skip_serializing_if = "Option::is_none")]
    remaining: Option<usize>,
}

impl ContinueToken {
    pub(super) fn new(list: String, version: Option<ResourceVersion>, last: &Key) -> Self {
        Self {
            list,
            version: version.map_or(0, ResourceVersion::as_u64),
            namespace: last.namespace.to_string(),
            name: last.name.to_string(),
            remaining: None,
        }
    }

    /// The same place, with so many objects behind it at its version.
    #[must_use]
    pub(super) fn with_remaining(self, remaining: Option<usize>) -> Self {
        Self { remaining, ..self }
    }

    /// Reads a token.
    ///
    /// # Errors
    /// 400 for what this server did not make.
    pub(super) fn parse(text: &str) -> Result<Self, Status> {
        let malformed = || Status::bad_request("invalid continue token: continue key is not valid");
        if text.len() > MAX_TOKEN {
            return Err(malformed());
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| malformed())?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|_| malformed())?;
        let valid = token.version == 0 || ResourceVersion::from_u64(token.version).is_some();
        valid.then_some(token).ok_or_else(malformed)
    }

    /// The version to read at; `None`: the newest.
    pub(super) fn version(&self) -> Option<ResourceVersion> {
        ResourceVersion::from_u64(self.version)
    }

    /// How many objects follow, if the page before told. Whoever forges it is told what they forged.
    pub(super) fn remaining(&self) -> Option<usize> {
        self.remaining.filter(|_| self.version != 0)
    }

    /// The object to go on behind.
    ///
    /// # Errors
    /// 400 when it is another list's: a token leads nowhere but through the list it came from.
    pub(super) fn key(&self, list: &str) -> Result<Key, Status> {
        match self.list == list {
            true => Ok(Key::new(self.namespace.as_str(), self.name.as_str())),
            false => Err(Status::bad_request(
                "invalid continue token: continue key is not valid for this list",
            )),
        }
    }
}

impl std::fmt::Display for ContinueToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let json = serde_json::to_vec(self).expect("numbers and strings are JSON");
        f.write_str(&URL_SAFE_NO_PAD.encode(json))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_goes_on_only_where_it_came_from() {
        let version = ResourceVersion::from_u64(42);
        let token = ContinueToken::new("things/ns".to_owned(), version, &Key::new("ns", "a"));
        let again = ContinueToken::parse(&token.to_string()).unwrap();
        assert_eq!(again, token);
        assert_eq!(again.key("things/ns").unwrap(), Key::new("ns", "a"));
        for other in ["things/other", "things/", "others/ns"] {
            assert!(again.key(other).is_err());
        }
        let inconsistent = ContinueToken::new("things/ns".to_owned(), None, &Key::new("ns", "a"));
        assert_eq!(inconsistent.version(), None);
        // Made before tokens told how many follow.
        assert_eq!(again.remaining(), None);
        let parsed = |token: ContinueToken| ContinueToken::parse(&token.to_string()).unwrap();
        let told = parsed(again.with_remaining(Some(7)));
        assert_eq!(told.remaining(), Some(7));
        let of_no_version = parsed(inconsistent.with_remaining(Some(7)));
        assert_eq!(of_no_version.remaining(), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".*", bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = ContinueToken::parse(&text);
            let _ = ContinueToken::parse(&URL_SAFE_NO_PAD.encode(bytes));
        }
    }
}
