//! The query string, and the options of lists, watches and writes in it.

use std::{str::FromStr, time::Duration};

use percent_encoding::percent_decode_str;

use super::{
    Status,
    error::StatusCause,
    page::{ContinueToken, Start},
};
use crate::meta::{FieldSelector, LabelSelector, ResourceVersion};

/// Most pairs read from a query string.
const MAX_PAIRS: usize = 1_000;
/// Longest name of a field manager.
const MAX_FIELD_MANAGER: usize = 128;

/// A decoded query string. Where a key stands several times its first value counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes a query string. Unknown keys are kept and ignored.
    ///
    /// # Errors
    /// 400 for too many pairs, or for bytes that are not UTF-8.
    pub(super) fn parse(text: &str) -> Result<Self, Status> {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let decode = |text: &str| {
            let spaced = text.replace('+', " ");
            let decoded = percent_decode_str(&spaced).decode_utf8().map(String::from);
            decoded.map_err(|_| Status::bad_request("the query is not valid UTF-8"))
        };
        let mut query = Vec::new();
        for pair in pairs {
            if query.len() == MAX_PAIRS {
                return Err(Status::bad_request("the query has too many parameters"));
            }
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            query.push((decode(key)?, decode(value)?));
        }
        Ok(Self(query))
    }

    /// The first value of `key`.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| value.as_str())
    }

    /// All values of `key`.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let matching = self.0.iter().filter(move |(known, _)| known == key);
        matching.map(|(_, value)| value.as_str())
    }

    /// A boolean: true when the key is there with any value but `0` and `false`.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.get(key)
            .is_some_and(|value| !matches!(value, "0" | "false"))
    }

    fn number<T: FromStr>(&self, key: &str) -> Result<Option<T>, Status> {
        match self.get(key) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                let shown: String = text.chars().take(64).collect();
                Status::bad_request(format!(
                    "invalid value {shown:?} for {key}: not a number in range"
                ))
            }),
        }
    }

    /// `timeout`: a Go duration such as `30s`, or seconds.
    pub(super) fn timeout(&self) -> Result<Option<Duration>, Status> {
        match self.get("timeout") {
            None | Some("") => Ok(None),
            Some(text) => duration(text).map(Some).ok_or_else(|| {
                Status::bad_request("invalid timeout specified in the request URL: not a duration")
            }),
        }
    }
}

/// A Go duration: decimal numbers with units, added up.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, 0.0_f64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let length = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let unit = match &rest[..length] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        total += number * unit;
        rest = &rest[length..];
    }
    Duration::try_from_secs_f64(total).ok()
}

/// Which objects a list, a watch or a deletecollection is about.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    pub(super) labels: LabelSelector,
    pub(super) fields: FieldSelector,
}

impl Selection {
    /// Reads `labelSelector` and `fieldSelector`; the fields must be of those that `selectable` names.
    pub(super) fn parse(query: &Query, selectable: &[&str]) -> Result<Self, Status> {
        let labels = query.get("labelSelector").unwrap_or_default().parse();
        let labels = labels.map_err(|error| {
            Status::bad_request(format!("unable to parse labelSelector: {error}"))
        })?;
        let fields: FieldSelector = query
            .get("fieldSelector")
            .unwrap_or_default()
            .parse()
            .map_err(|error| {
                Status::bad_request(format!("unable to parse fieldSelector: {error}"))
            })?;
        let known = |path: &str| {
            matches!(path, "metadata.name" | "metadata.namespace") || selectable.contains(&path)
        };
        match fields
            .requirements()
            .iter()
            .find(|field| !known(&field.path))
        {
            None => Ok(Self { labels, fields }),
            Some(field) => {
                let path: String = field.path.chars().take(128).collect();
                Err(Status::bad_request(format!(
                    "field label not supported: {path}"
                )))
            }
        }
    }

    pub(super) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}

/// Options of a list.
#[derive(Clone, Debug)]
pub(super) struct ListOptions {
    pub(super) selection: Selection,
    pub(super) limit: Option<usize>,
    pub(super) start: Start,
}

/// `resourceVersionMatch`, checked against the other options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    Unset,
    Exact,
    NotOlderThan,
}

impl ListOptions {
    /// Reads and checks the options of a list.
    ///
    /// # Errors
    /// 400 for what cannot be read, 422 for what does not go together.
    pub(super) fn parse(query: &Query, selectable: &[&str]) -> Result<Self, Status> {
        let selection = Selection::parse(query, selectable)?;
        let limit = match query.number::<i64>("limit")? {
            None | Some(0) => None,
            Some(limit) => Some(usize::try_from(limit).map_err(|_| {
                invalid_options("limit", "Invalid value: must be greater than or equal to 0")
            })?),
        };
        if query
            .get("sendInitialEvents")
            .is_some_and(|value| !value.is_empty())
        {
            return Err(invalid_options(
                "sendInitialEvents",
                "Forbidden: sendInitialEvents is forbidden for list",
            ));
        }
        let version = Version::parse(query)?;
        let matching = match_of(query, &version)?;
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
        return Err(invalid_options(
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
            return Err(invalid_options(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
        (Version::Unset, Match::Exact | Match::NotOlderThan) => {
            return Err(invalid_options(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
    })
}

/// `resourceVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Absent or empty: the newest.
    Unset,
    /// `0`: any.
    Any,
    /// A version.
    At(ResourceVersion),
}

impl Version {
    pub(super) fn parse(query: &Query) -> Result<Self, Status> {
        match query.get("resourceVersion") {
            None | Some("") => Ok(Self::Unset),
            Some("0") => Ok(Self::Any),
            Some(text) => match text.parse() {
                Ok(version) => Ok(Self::At(version)),
                Err(error) => Err(Status::bad_request(format!("{error}"))),
            },
        }
    }
}

fn match_of(query: &Query, version: &Version) -> Result<Match, Status> {
    let matching = match query.get("resourceVersionMatch") {
        None | Some("") => return Ok(Match::Unset),
        Some("Exact") => Match::Exact,
        Some("NotOlderThan") => Match::NotOlderThan,
        Some(other) => {
            let other: String = other.chars().take(64).collect();
            return Err(invalid_options(
                "resourceVersionMatch",
                &format!(
                    "Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
                ),
            ));
        }
    };
    if *version == Version::Unset && query.get("sendInitialEvents").is_none_or(str::is_empty) {
        return Err(invalid_options(
            "resourceVersionMatch",
            "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        ));
    }
    Ok(matching)
}

/// Options of a watch.
#[derive(Clone, Debug)]
pub(super) struct WatchOptions {
    pub(super) selection: Selection,
    pub(super) from: WatchFrom,
    pub(super) bookmarks: bool,
    pub(super) timeout: Option<Duration>,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchFrom {
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
    pub(super) fn parse(query: &Query, selectable: &[&str]) -> Result<Self, Status> {
        let selection = Selection::parse(query, selectable)?;
        let version = Version::parse(query)?;
        let matching = match_of(query, &version)?;
        let initial = match query.get("sendInitialEvents") {
            None | Some("") => None,
            Some(_) => Some(query.flag("sendInitialEvents")),
        };
        if initial.is_some() != (matching != Match::Unset) || matching == Match::Exact {
            let field = if initial.is_some() {
                "resourceVersionMatch"
            } else {
                "sendInitialEvents"
            };
            return Err(invalid_options(
                field,
                "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
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

impl Version {
    fn at(self) -> Option<ResourceVersion> {
        match self {
            Self::At(version) => Some(version),
            Self::Unset | Self::Any => None,
        }
    }
}

/// What becomes of fields that the schema does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Options of a write.
#[derive(Clone, Debug)]
pub(super) struct WriteOptions {
    pub(super) dry_run: bool,
    pub(super) field_validation: FieldValidation,
}

impl WriteOptions {
    /// Reads the options of a write and checks `fieldManager`, which the request's context keeps; `kind` is the options' kind, for the error text.
    ///
    /// # Errors
    /// 422 for values that are none.
    pub(super) fn parse(query: &Query, kind: &str) -> Result<Self, Status> {
        let invalid = |field: &str, message: String| {
            let cause = StatusCause {
                reason: "FieldValueNotSupported".to_owned(),
                message,
                field: field.to_owned(),
            };
            Status::invalid("meta.k8s.io", kind, "", vec![cause])
        };
        let dry_run = dry_run(query.all("dryRun")).map_err(|message| invalid("dryRun", message))?;
        let field_validation = match query.get("fieldValidation") {
            None | Some("" | "Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let other: String = other.chars().take(64).collect();
                let message = format!(
                    "Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
                );
                return Err(invalid("fieldValidation", message));
            }
        };
        let field_manager = query.get("fieldManager").filter(|name| !name.is_empty());
        if field_manager.is_some_and(|name| {
            name.chars().count() > MAX_FIELD_MANAGER || name.chars().any(char::is_control)
        }) {
            return Err(invalid(
                "fieldManager",
                format!("Invalid value: must be at most {MAX_FIELD_MANAGER} printable characters"),
            ));
        }
        Ok(Self {
            dry_run,
            field_validation,
        })
    }
}

/// Whether `dryRun` values ask for a dry run; the message for values that are none.
pub(super) fn dry_run<'a>(values: impl Iterator<Item = &'a str>) -> Result<bool, String> {
    let mut asked = false;
    for value in values.filter(|value| !value.is_empty()) {
        if value != "All" {
            let value: String = value.chars().take(64).collect();
            return Err(format!(
                "Unsupported value: {value:?}: supported values: \"All\""
            ));
        }
        asked = true;
    }
    Ok(asked)
}

fn invalid_options(field: &str, message: &str) -> Status {
    let reason = match message.split_once(':') {
        Some(("Forbidden", _)) => "FieldValueForbidden",
        Some(("Unsupported value", _)) => "FieldValueNotSupported",
        _ => "FieldValueInvalid",
    };
    let cause = StatusCause {
        reason: reason.to_owned(),
        message: message.to_owned(),
        field: field.to_owned(),
    };
    Status::invalid("meta.k8s.io", "ListOptions", "", vec![cause])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(text).unwrap()
    }

    #[track_caller]
    fn list(text: &str, expected: &str) {
        let found = match ListOptions::parse(&query(text), &["status.nodeName"]) {
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

    #[track_caller]
    fn watch(text: &str, expected: &str) {
        let found = match WatchOptions::parse(&query(text), &[]) {
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

    #[test]
    fn write_options_take_only_their_values() {
        let parse = |text: &str| {
            WriteOptions::parse(&query(text), "CreateOptions").map_err(|s| s.code().as_u16())
        };
        assert!(parse("dryRun=All").unwrap().dry_run);
        assert!(!parse("dryRun=").unwrap().dry_run);
        assert_eq!(parse("dryRun=Some").unwrap_err(), 422);
        assert_eq!(parse("dryRun=All&dryRun=x").unwrap_err(), 422);
        assert_eq!(parse("fieldValidation=Loud").unwrap_err(), 422);
        assert_eq!(
            parse(&format!("fieldManager={}", "x".repeat(129))).unwrap_err(),
            422
        );
        assert_eq!(parse("fieldManager=a%0Ab").unwrap_err(), 422);
        assert_eq!(
            parse("fieldValidation=Strict").unwrap().field_validation,
            FieldValidation::Strict
        );
    }

    #[test]
    fn timeouts_are_go_durations() {
        let timeout = |text: &str| {
            query(&format!("timeout={text}"))
                .timeout()
                .map_err(|s| s.code().as_u16())
        };
        assert_eq!(timeout("1m30s"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(timeout("250ms"), Ok(Some(Duration::from_millis(250))));
        assert_eq!(timeout(""), Ok(None));
        for bad in ["abc", "30", "-1s", "1x", "s"] {
            assert_eq!(timeout(bad), Err(400), "{bad}");
        }
    }

    #[test]
    fn queries_decode_and_are_bounded() {
        let query = query("a=b%20c+d&watch&e=");
        assert_eq!(query.get("a"), Some("b c d"));
        assert!(query.flag("watch") && query.flag("e") && !query.flag("none"));
        assert!(Query::parse("a=%ff").is_err());
        assert!(Query::parse(&"a=1&".repeat(MAX_PAIRS + 1)).is_err());
    }
}
