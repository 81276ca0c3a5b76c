//! Options of a watch.

use std::time::Duration;

use super::{Selection, Version, version::Match};
use crate::{
    apiserver::{Status, StatusCause, query::Query},
    meta::ResourceVersion,
};

/// Options of a watch.
#[derive(Clone, Debug)]
pub(in crate::apiserver) struct WatchOptions {
    pub(in crate::apiserver) selection: Selection,
    pub(in crate::apiserver) from: WatchFrom,
    pub(in crate::apiserver) bookmarks: bool,
    pub(in crate::apiserver) timeout: Option<Duration>,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apiserver) enum WatchFrom {
    /// With what is there now, at least as new as the version; then the changes. `marked`: a bookmark ends the first part.
    Initial {
        at_least: Option<ResourceVersion>,
        marked: bool,
    },
    /// With the change after the version.
    After(ResourceVersion),
    /// With the next change.
    Now,
}

impl WatchOptions {
    /// Reads and checks the options of a watch.
    ///
    /// # Errors
    /// 400 for what cannot be read, 422 for what does not go together.
    pub(in crate::apiserver) fn parse(query: &Query, selectable: &[&str]) -> Result<Self, Status> {
        let selection = Selection::parse(query, selectable)?;
        let version = Version::parse(query)?;
        let initial = query
            .has("sendInitialEvents")
            .then(|| query.flag("sendInitialEvents"));
        check(
            Match::parse(query),
            initial.is_some(),
            query.has("continue"),
        )?;
        let from = match (initial, version) {
            (Some(true), version) => WatchFrom::Initial {
                at_least: version.at(),
                marked: true,
            },
            (None, Version::Unset | Version::Any) => WatchFrom::Initial {
                at_least: None,
                marked: false,
            },
            (Some(false), Version::Unset | Version::Any) => WatchFrom::Now,
            (_, Version::At(version)) => WatchFrom::After(version),
        };
        let timeout = query
            .number::<u64>("timeoutSeconds")?
            .filter(|seconds| *seconds > 0);
        Ok(Self {
            selection,
            from,
            bookmarks: query.flag("allowWatchBookmarks"),
            timeout: timeout.map(Duration::from_secs),
        })
    }
}

/// Refuses options that do not go together. `initial`: whether it is said if there are initial events.
fn check(matching: Match<'_>, initial: bool, continues: bool) -> Result<(), Status> {
    let mut causes = Vec::new();
    let mut fault =
        |message: &str| causes.push(StatusCause::of_field("resourceVersionMatch", message));
    if initial && matching != Match::NotOlderThan {
        fault("Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    }
    if !initial && matching != Match::Unset {
        fault(
            "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        );
    }
    if !matches!(matching, Match::Unset | Match::NotOlderThan) {
        fault(&matching.unsupported(r#""NotOlderThan""#));
    }
    if continues {
        fault("Forbidden: resourceVersionMatch is forbidden when continue is provided");
    }
    Status::invalid_options("ListOptions", causes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn watch(text: &str, expected: &str) {
        let found = match WatchOptions::parse(&Query::parse(text).unwrap(), &[]) {
            Ok(options) => match options.from {
                WatchFrom::Initial { at_least, marked } => {
                    let marked = if marked { " marked" } else { "" };
                    at_least.map_or_else(
                        || format!("initial{marked}"),
                        |v| format!("initial {v}{marked}"),
                    )
                }
                WatchFrom::After(version) => format!("after {version}"),
                WatchFrom::Now => "now".to_owned(),
            },
            Err(status) => status.code().as_u16().to_string(),
        };
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn a_watch_begins_with_what_is_there_unless_it_names_a_version() {
        watch("", "initial");
        watch("resourceVersion=0", "initial");
        watch("resourceVersion=7", "after 7");
        watch(
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            "initial marked",
        );
        watch(
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=7",
            "initial 7 marked",
        );
        watch(
            "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=7",
            "after 7",
        );
        watch(
            "sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
            "now",
        );
        watch("sendInitialEvents=true", "422");
        watch("resourceVersion=7&resourceVersionMatch=NotOlderThan", "422");
        watch(
            "sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=7",
            "422",
        );
        watch("timeoutSeconds=soon", "400");
    }
}
