//! At which version, and how exactly.

use super::invalid;
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

/// `resourceVersionMatch`, checked against the other options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    Unset,
    Exact,
    NotOlderThan,
}

impl Match {
    /// # Errors
    /// 422 for another word, or one without a version to match.
    pub(super) fn parse(query: &Query, version: &Version) -> Result<Self, Status> {
        let matching = match query.get("resourceVersionMatch") {
            None | Some("") => return Ok(Self::Unset),
            Some("Exact") => Self::Exact,
            Some("NotOlderThan") => Self::NotOlderThan,
            Some(other) => {
                let other: String = other.chars().take(64).collect();
                return Err(invalid(
                    "resourceVersionMatch",
                    &format!(
                        "Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
                    ),
                ));
            }
        };
        if *version == Version::Unset && query.get("sendInitialEvents").is_none_or(str::is_empty) {
            return Err(invalid(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        Ok(matching)
    }
}
