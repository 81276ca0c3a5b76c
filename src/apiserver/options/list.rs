//! Options of a list.

use super::{Selection, Version, invalid, version::Match};
use crate::apiserver::{
    Status,
    page::{ContinueToken, Start},
    query::Query,
};

/// Options of a list.
#[derive(Clone, Debug)]
pub(in crate::apiserver) struct ListOptions {
    pub(in crate::apiserver) selection: Selection,
    pub(in crate::apiserver) limit: Option<usize>,
    pub(in crate::apiserver) start: Start,
}

impl ListOptions {
    /// Reads and checks the options of a list.
    ///
    /// # Errors
    /// 400 for what cannot be read, 422 for what does not go together.
    pub(in crate::apiserver) fn parse(query: &Query, selectable: &[&str]) -> Result<Self, Status> {
        let selection = Selection::parse(query, selectable)?;
        let limit = match query.number::<i64>("limit")? {
            None | Some(0) => None,
            Some(limit) => Some(usize::try_from(limit).map_err(|_| {
                invalid("limit", "Invalid value: must be greater than or equal to 0")
            })?),
        };
        if query
            .get("sendInitialEvents")
            .is_some_and(|value| !value.is_empty())
        {
            return Err(invalid(
                "sendInitialEvents",
                "Forbidden: sendInitialEvents is forbidden for list",
            ));
        }
        let version = Version::parse(query)?;
        let matching = Match::parse(query, &version)?;
        let start = match query.get("continue").filter(|token| !token.is_empty()) {
            Some(token) => continued(token, &version, matching)?,
            None => start_of(version, matching, limit.is_some())?,
        };
        Ok(Self {
            selection,
            limit,
            start,
        })
    }
}

fn continued(token: &str, version: &Version, matching: Match) -> Result<Start, Status> {
    if matching != Match::Unset {
        return Err(invalid(
            "resourceVersionMatch",
            "Forbidden: resourceVersionMatch is forbidden when continue is provided",
        ));
    }
    if matches!(version, Version::At(_)) {
        return Err(Status::bad_request(
            "specifying resource version is not allowed when using continue",
        ));
    }
    ContinueToken::parse(token).map(Start::Continue)
}

fn start_of(version: Version, matching: Match, limited: bool) -> Result<Start, Status> {
    Ok(match (version, matching) {
        (Version::Unset | Version::Any, Match::Unset) => Start::Latest,
        (Version::Any, Match::NotOlderThan) => Start::Latest,
        (Version::At(version), Match::Exact) => Start::Exact(version),
        (Version::At(version), Match::Unset) if limited => Start::Exact(version),
        (Version::At(version), Match::Unset | Match::NotOlderThan) => Start::NotOlderThan(version),
        (Version::Any, Match::Exact) => {
            return Err(invalid(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
        (Version::Unset, Match::Exact | Match::NotOlderThan) => {
            return Err(invalid(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn list(text: &str, expected: &str) {
        let found = match ListOptions::parse(&Query::parse(text).unwrap(), &["status.nodeName"]) {
            Ok(options) => match options.start {
                Start::Latest => "latest".to_owned(),
                Start::Exact(version) => format!("exactly {version}"),
                Start::NotOlderThan(version) => format!("at least {version}"),
                Start::Continue(_) => "continue".to_owned(),
            },
            Err(status) => status.code().as_u16().to_string(),
        };
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn the_version_and_its_match_choose_what_a_list_shows() {
        list("", "latest");
        list("resourceVersion=0", "latest");
        list("resourceVersion=7", "at least 7");
        list("resourceVersion=7&limit=5", "exactly 7");
        list(
            "resourceVersion=7&limit=5&resourceVersionMatch=NotOlderThan",
            "at least 7",
        );
        list("resourceVersion=7&resourceVersionMatch=Exact", "exactly 7");
        list(
            "resourceVersion=0&resourceVersionMatch=NotOlderThan",
            "latest",
        );
    }

    #[test]
    fn lists_that_contradict_themselves_are_invalid() {
        list("resourceVersionMatch=Exact", "422");
        list("resourceVersion=0&resourceVersionMatch=Exact", "422");
        list("resourceVersion=7&resourceVersionMatch=Newest", "422");
        list("sendInitialEvents=true", "422");
        list("limit=-1", "422");
        list("resourceVersion=x", "400");
        list("resourceVersion=07", "400");
        list("limit=many", "400");
        list("continue=x", "400");
        list("labelSelector=a=b=c", "400");
        list("fieldSelector=spec.nope=1", "400");
        list(
            "fieldSelector=status.nodeName=n1,metadata.name!=a",
            "latest",
        );
    }
}
