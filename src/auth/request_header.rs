//! Identity headers, as kube-apiserver's front proxy sets them.

use std::{borrow::Cow, collections::BTreeMap};

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{UserInfo, certificate::CaBundle};

/// Headers that carry an identity in every cluster, whatever its configuration says.
const STANDARD_HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-remote-user"),
    HeaderName::from_static("x-remote-uid"),
    HeaderName::from_static("x-remote-group"),
];
const STANDARD_EXTRA_PREFIX: &str = "x-remote-extra-";

/// Which certificates may vouch for identity headers, and which headers those are.
#[derive(Debug)]
pub(super) struct RequestHeader {
    pub(super) ca: CaBundle,
    /// Empty: every name.
    allowed_names: Vec<String>,
    user_headers: Vec<HeaderName>,
    uid_headers: Vec<HeaderName>,
    group_headers: Vec<HeaderName>,
    /// In lower case.
    extra_prefixes: Vec<String>,
}

/// An identity header that is not UTF-8. Guessing would let two users run into one.
#[derive(Debug, thiserror::Error)]
#[error("an identity header is not UTF-8")]
pub(super) struct NotText;

impl RequestHeader {
    /// The front proxy's part of the authentication ConfigMap.
    ///
    /// # Errors
    /// The key whose value cannot be read. Without a readable list of allowed names every certificate of the CA could speak for
    /// everybody, so that its absence is an error too; kube-apiserver always writes one.
    pub(super) fn parse(
        ca: CaBundle,
        data: &BTreeMap<String, String>,
    ) -> Result<Self, &'static str> {
        const ALLOWED_NAMES: &str = "requestheader-allowed-names";
        if data.get(ALLOWED_NAMES).is_none_or(String::is_empty) {
            return Err(ALLOWED_NAMES);
        }
        let prefixes = strings(data, "requestheader-extra-headers-prefix")?;
        Ok(Self {
            ca,
            allowed_names: strings(data, ALLOWED_NAMES)?,
            user_headers: header_names(data, "requestheader-username-headers")?,
            uid_headers: header_names(data, "requestheader-uid-headers")?,
            group_headers: header_names(data, "requestheader-group-headers")?,
            extra_prefixes: prefixes
                .into_iter()
                .map(|prefix| prefix.to_ascii_lowercase())
                .collect(),
        })
    }

    /// Whether a certificate of the CA with this common name may vouch.
    pub(super) fn allows(&self, common_name: &str) -> bool {
        self.allowed_names.is_empty() || self.allowed_names.iter().any(|name| name == common_name)
    }

    /// The identity in `headers`; `None` when they name no user.
    pub(super) fn user(&self, headers: &HeaderMap) -> Result<Option<UserInfo>, NotText> {
        let Some(name) = first(headers, &self.user_headers)? else {
            return Ok(None);
        };
        Ok(Some(UserInfo {
            name,
            uid: first(headers, &self.uid_headers)?,
            groups: self
                .group_headers
                .iter()
                .flat_map(|name| headers.get_all(name))
                .filter(|value| !value.is_empty())
                .map(text)
                .collect::<Result<_, _>>()?,
            extra: self.extra(headers)?,
        }))
    }

    fn extra(&self, headers: &HeaderMap) -> Result<BTreeMap<String, Vec<String>>, NotText> {
        let mut extra = BTreeMap::<_, Vec<_>>::new();
        // A HeaderMap's names are in lower case.
        for (name, value) in headers {
            for prefix in &self.extra_prefixes {
                if let Some(key) = name.as_str().strip_prefix(prefix.as_str()) {
                    extra
                        .entry(extra_key(key).into_owned())
                        .or_default()
                        .push(text(value)?);
                }
            }
        }
        Ok(extra)
    }

    /// Takes every configured identity header out.
    pub(super) fn strip(&self, headers: &mut HeaderMap) {
        let names = [&self.user_headers, &self.uid_headers, &self.group_headers];
        for name in names.into_iter().flatten() {
            headers.remove(name);
        }
        for prefix in &self.extra_prefixes {
            remove_prefixed(headers, prefix);
        }
    }
}

/// Takes the bearer's credential and the standard identity headers out.
pub(super) fn strip_standard(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
    for name in &STANDARD_HEADERS {
        headers.remove(name);
    }
    remove_prefixed(headers, STANDARD_EXTRA_PREFIX);
}

/// Takes every header whose lower-case name begins with `prefix` out.
pub(super) fn remove_prefixed(headers: &mut HeaderMap, prefix: &str) {
    let names: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(prefix))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}

/// The extra's key behind a header's prefix: percent-decoded, or as it is when that is no text.
pub(super) fn extra_key(encoded: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(encoded)
        .decode_utf8()
        .unwrap_or(Cow::Borrowed(encoded))
}

/// A header's value as text.
pub(super) fn text(value: &HeaderValue) -> Result<String, NotText> {
    String::from_utf8(value.as_bytes().to_vec()).map_err(|_| NotText)
}

/// The first value that is not empty.
fn first(headers: &HeaderMap, names: &[HeaderName]) -> Result<Option<String>, NotText> {
    names
        .iter()
        .filter_map(|name| headers.get(name))
        .find(|value| !value.is_empty())
        .map(text)
        .transpose()
}

/// A JSON list of strings; absent, empty and `null` are the empty list.
fn strings(
    data: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<Vec<String>, &'static str> {
    match data.get(key).map(String::as_str) {
        None | Some("") => Ok(Vec::new()),
        Some(json) => serde_json::from_str::<Option<Vec<String>>>(json)
            .map(Option::unwrap_or_default)
            .map_err(|_| key),
    }
}

fn header_names(
    data: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<Vec<HeaderName>, &'static str> {
    let names = strings(data, key)?;
    names
        .iter()
        .map(|name| name.parse().map_err(|_| key))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_data(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let defaults = [
            ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            (
                "requestheader-group-headers",
                r#"["X-Remote-Group","X-More-Groups"]"#,
            ),
            (
                "requestheader-extra-headers-prefix",
                r#"["X-Remote-Extra-"]"#,
            ),
        ];
        let pairs = defaults.iter().chain(pairs);
        pairs
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    fn mk_request_header(pairs: &[(&str, &str)]) -> Result<RequestHeader, &'static str> {
        RequestHeader::parse(CaBundle::default(), &mk_data(pairs))
    }

    fn mk_headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |&(name, value): &(&str, &str)| {
            (
                name.parse::<HeaderName>().unwrap(),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            )
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn an_identity_is_read_from_its_headers() {
        let headers = mk_headers(&[
            ("X-Remote-User", ""),
            ("X-Remote-Uid", "1"),
            ("X-Remote-Group", "a"),
            ("X-More-Groups", "c"),
            ("X-Remote-Group", ""),
            ("X-Remote-Group", "b,ü"),
            ("X-Remote-Extra-Example.org%2fRole", "admin"),
            ("x-remote-extra-example.org%2Frole", "dev"),
            ("X-Remote-Extra-Bad%ff", "x"),
            ("X-Other", "y"),
        ]);
        let request_header = mk_request_header(&[]).unwrap();
        assert_eq!(request_header.user(&headers).unwrap(), None);

        let mut headers = headers;
        headers.insert("x-remote-user", HeaderValue::from_static("ann"));
        let user = request_header.user(&headers).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.uid), ("ann", None));
        assert_eq!(user.groups, ["a", "b,ü", "c"]);
        assert_eq!(user.extra["example.org/role"], ["admin", "dev"]);
        assert_eq!(user.extra["bad%ff"], ["x"]);

        let with_uid = mk_request_header(&[("requestheader-uid-headers", r#"["X-Remote-Uid"]"#)]);
        let user = with_uid.unwrap().user(&headers).unwrap().unwrap();
        assert_eq!(user.uid.as_deref(), Some("1"));
    }

    #[test]
    fn a_header_that_is_no_text_identifies_nobody() {
        let mut headers = mk_headers(&[("X-Remote-User", "ann")]);
        headers.append("x-remote-group", HeaderValue::from_bytes(b"a\xff").unwrap());
        assert!(mk_request_header(&[]).unwrap().user(&headers).is_err());
    }

    #[test]
    fn every_identity_header_is_taken_out() {
        let mut headers = mk_headers(&[
            ("Authorization", "Bearer x"),
            ("X-Remote-User", "ann"),
            ("X-Remote-Uid", "1"),
            ("X-Remote-Group", "a"),
            ("X-Remote-Group", "b"),
            ("X-More-Groups", "c"),
            ("X-Remote-Extra-A", "x"),
            ("X-Remote-Extra-B", "y"),
            ("Accept", "*/*"),
        ]);
        strip_standard(&mut headers);
        mk_request_header(&[]).unwrap().strip(&mut headers);
        assert_eq!(headers, mk_headers(&[("Accept", "*/*")]));
    }

    #[track_caller]
    fn refused(key: &'static str, value: &str) {
        assert_eq!(
            mk_request_header(&[(key, value)]).err(),
            Some(key),
            "{value}"
        );
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_anything() {
        refused("requestheader-allowed-names", "");
        refused("requestheader-allowed-names", "front-proxy-client");
        refused("requestheader-allowed-names", r#"{"a":1}"#);
        refused("requestheader-username-headers", r#"["X Remote User"]"#);
        refused("requestheader-group-headers", "[1]");
        refused("requestheader-extra-headers-prefix", "[");
    }

    #[test]
    fn only_allowed_names_may_vouch_and_an_empty_list_allows_all() {
        assert!(mk_request_header(&[]).unwrap().allows("front-proxy-client"));
        assert!(!mk_request_header(&[]).unwrap().allows("Front-proxy-client"));
        assert!(!mk_request_header(&[]).unwrap().allows(""));
        for empty in ["[]", "null"] {
            let request_header = mk_request_header(&[("requestheader-allowed-names", empty)]);
            assert!(request_header.unwrap().allows("anybody"), "{empty}");
        }
    }
}
