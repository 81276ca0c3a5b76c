//! Options of a list.

use super::{Selection, Version, version::Match};
use crate::apiserver::{
    Status, StatusCause,
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
        // What is not positive is no limit, as for kube-apiserver.
        let limit = query.number::<i64>("limit")?;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.filter(|limit| *limit > 0);
        // Not kept: a list ends when it is told. Read all the same, so that what is no number is refused.
        query.number::<i64>("timeoutSeconds")?;
        let version = Version::parse(query)?;
        let matching = Match::parse(query);
        let token = query.get("continue").filter(|token| !token.is_empty());
        check(query, version, matching, token.is_some())?;
        let start = match token {
            Some(token) => continued(token, version)?,
            None => start_of(version, matching, limit.is_some()),
        };
        Ok(Self {
            selection,
            limit,
            start,
        })
    }
}

/// Refuses options that do not go together.
fn check(
    query: &Query,
    version: Version,
    matching: Match<'_>,
    continues: bool,
) -> Result<(), Status> {
    let mut causes = Vec::new();
    let mut fault = |field: &str, message: &str| causes.push(StatusCause::of_field(field, message));
    if query.has("sendInitialEvents") {
        fault(
            "sendInitialEvents",
            "Forbidden: sendInitialEvents is forbidden for list",
        );
    }
    let mut mismatch = |message: &str| fault("resourceVersionMatch", message);
    if matching != Match::Unset && version == Version::Unset {
        mismatch("Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided");
    }
    if matching != Match::Unset && continues {
        mismatch("Forbidden: resourceVersionMatch is forbidden when continue is provided");
    }
    if matches!(matching, Match::Unknown(_)) {
        mismatch(&matching.unsupported(r#""Exact", "NotOlderThan", """#));
    }
    if (matching, version) == (Match::Exact, Version::Any) {
        mismatch(r#"Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0""#);
    }
    Status::invalid_options("ListOptions", causes)
}

fn continued(token: &str, version: Version) -> Result<Start, Status> {
    let token = ContinueToken::parse(token)?;
    match version {
        Version::Unset | Version::Any => Ok(Start::Continue(token)),
        Version::At(_) => Err(Status::bad_request(
            "specifying resource version is not allowed when using continue",
        )),
    }
}

/// Where a list begins whose options go together.
fn start_of(version: Version, matching: Match<'_>, limited: bool) -> Start {
    match (version, matching) {
        (Version::Unset | Version::Any, _) => Start::Latest,
        (Version::At(version), Match::Exact) => Start::Exact(version),
        (Version::At(version), Match::Unset) if limited => Start::Exact(version),
        (Version::At(version), _) => Start::NotOlderThan(version),
    }
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
        list("limit=-1", "latest");
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
