//! At which version, and how exactly.

use crate::{
    apiserver::{Status, query::Query},
    meta::ResourceVersion,
};

/// `resourceVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apiserver) enum Version {
    /// Absent or empty: the newest.
    Unset,
    /// `0`: any.
    Any,
    /// A version.
    At(ResourceVersion),
}

impl Version {
    pub(in crate::apiserver) fn parse(query: &Query) -> Result<Self, Status> {
        match query.get("resourceVersion") {
            None | Some("") => Ok(Self::Unset),
            Some("0") => Ok(Self::Any),
            Some(text) => match text.parse() {
                Ok(version) => Ok(Self::At(version)),
                Err(error) => Err(Status::bad_request(format!("{error}"))),
            },
        }
    }

    pub(super) fn at(self) -> Option<ResourceVersion> {
        match self {
            Self::At(version) => Some(version),
            Self::Unset | Self::Any => None,
        }
    }
}

/// `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match<'a> {
    Unset,
    Exact,
    NotOlderThan,
    /// Another word.
    Unknown(&'a str),
}

impl<'a> Match<'a> {
    pub(super) fn parse(query: &'a Query) -> Self {
        match query.get("resourceVersionMatch").unwrap_or_default() {
            "" => Self::Unset,
            "Exact" => Self::Exact,
            "NotOlderThan" => Self::NotOlderThan,
            other => Self::Unknown(other),
        }
    }

    /// That it is none of the words that are taken here.
    pub(super) fn unsupported(self, supported: &str) -> String {
        let word = match self {
            Self::Unset => "",
            Self::Exact => "Exact",
            Self::NotOlderThan => "NotOlderThan",
            Self::Unknown(word) => &word[..word.floor_char_boundary(64)],
        };
        format!("Unsupported value: {word:?}: supported values: {supported}")
    }
}
