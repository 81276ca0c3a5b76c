//! The query string.

use std::{str::FromStr, time::Duration};

use percent_encoding::percent_decode_str;

use super::Status;

/// Most pairs read from a query string.
const MAX_PAIRS: usize = 1_000;

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

    /// Whether `key` has a value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !value.is_empty())
    }

    /// All values of `key`.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let matching = self.0.iter().filter(move |(known, _)| known == key);
        matching.map(|(_, value)| value.as_str())
    }

    /// A boolean: true when the key is there with any value but `0` and `false`, in any case.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.get(key)
            .is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// A number; none when the key is absent or empty.
    ///
    /// # Errors
    /// 400 for what is no number in range.
    pub(super) fn number<T: FromStr>(&self, key: &str) -> Result<Option<T>, Status> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(text).unwrap()
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
        let python = Query::parse("watch=False").unwrap();
        assert!(!python.flag("watch"));
        assert!(Query::parse("a=%ff").is_err());
        assert!(Query::parse(&"a=1&".repeat(MAX_PAIRS + 1)).is_err());
    }
}
