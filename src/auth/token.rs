//! Bearer tokens: where they stand in a request, and whose they are.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header};
use k8s_openapi::api::authentication::v1::{self, TokenReview, TokenReviewSpec};
use kube::Client;
use sha2::{Digest, Sha256};

use super::{
    AuthMetrics, Error, Result, UserInfo,
    answers::{Answer, Answers, Key},
    review::review,
};

/// How long an answer counts, a rejection too.
const KEEP: std::time::Duration = std::time::Duration::from_secs(10);

/// Tokens that are remembered.
const MAX_TOKENS: usize = 8_192;

const REVIEW: &str = "TokenReview";

/// How a browser, which cannot set `Authorization` on a WebSocket, carries a token.
const SUBPROTOCOL_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Finds out whose a token is, by asking kube-apiserver. Keeps the token's digest and never the token.
#[derive(Clone)]
pub struct TokenReviewer {
    client: Client,
    audiences: Vec<String>,
    answers: Arc<Answers<Option<Arc<UserInfo>>>>,
    metrics: AuthMetrics,
}

/// A token that is shown in a way in which it is none. Whoever shows one wants to be somebody, so that it must not pass for
/// no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("the header Authorization has no token behind Bearer, or one that is no text")]
    Bearer,
    #[error("the bearer subprotocol cannot be used")]
    Subprotocol,
}

impl TokenReviewer {
    /// Asks through `client`, which repeats nothing by itself. With `audiences`, a token must be for
    /// one of them; without, for kube-apiserver itself.
    pub fn new(client: Client, audiences: Vec<String>, metrics: AuthMetrics) -> Self {
        Self {
            client,
            audiences,
            answers: Answers::new(MAX_TOKENS),
            metrics,
        }
    }

    /// The user whose `token` this is; `None` when it is nobody's. Takes at most 10 s; an answer counts for 10 s.
    ///
    /// # Errors
    /// When kube-apiserver cannot be asked: the token is neither good nor bad.
    pub async fn review(&self, token: &str) -> Result<Option<Arc<UserInfo>>> {
        let key = Key(Sha256::digest(token).into());
        if let Some(known) = self.answers.get(&key) {
            self.metrics.answers_from_cache.inc();
            return Ok(known);
        }
        self.answers
            .ask(key, || self.clone().ask(token.to_owned()))
            .await
    }

    async fn ask(self, token: String) -> Result<Answer<Option<Arc<UserInfo>>>> {
        let question = TokenReview {
            spec: TokenReviewSpec {
                audiences: (!self.audiences.is_empty()).then(|| self.audiences.clone()),
                token,
            },
            ..TokenReview::default()
        };
        let answer = review(self.client, question, REVIEW, self.metrics).await?;
        let status = answer
            .status
            .ok_or(Error::ReviewWithoutStatus { review: REVIEW })?;
        let value = user(status, &self.audiences).map(Arc::new);
        Ok(Answer { value, keep: KEEP })
    }
}

impl std::fmt::Debug for TokenReviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenReviewer")
            .field("audiences", &self.audiences)
            .finish_non_exhaustive()
    }
}

/// The user of a review's status, if it says that the token is good for one of `audiences`.
fn user(status: v1::TokenReviewStatus, audiences: &[String]) -> Option<UserInfo> {
    let for_us = audiences.is_empty()
        || status
            .audiences
            .is_some_and(|granted| granted.iter().any(|audience| audiences.contains(audience)));
    if !for_us || status.authenticated != Some(true) {
        return None;
    }
    let v1::UserInfo {
        extra,
        groups,
        uid,
        username,
    } = status.user?;
    let mut user = UserInfo {
        name: username.filter(|name| !name.is_empty())?,
        uid: uid.filter(|uid| !uid.is_empty()),
        groups: groups.unwrap_or_default(),
        extra: extra.unwrap_or_default(),
    };
    user.mark_authenticated();
    Some(user)
}

/// The token in `Authorization: Bearer`. Other schemes are no credential here.
///
/// # Errors
/// [`Unusable::Bearer`] also for an empty token, which kube-apiserver takes for none at all.
pub(super) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Unusable> {
    let value = headers.get(header::AUTHORIZATION);
    let value = value.map_or(&[][..], HeaderValue::as_bytes).trim_ascii();
    let mut words = value.split(u8::is_ascii_whitespace);
    if !words
        .next()
        .unwrap_or_default()
        .eq_ignore_ascii_case(b"bearer")
    {
        return Ok(None);
    }
    let token = std::str::from_utf8(words.next().unwrap_or_default());
    let token = token.ok().filter(|token| !token.is_empty());
    token.map(Some).ok_or(Unusable::Bearer)
}

/// Takes the token out of a WebSocket's subprotocols, so that it is neither answered nor passed on.
pub(super) fn take_subprotocol(headers: &mut HeaderMap) -> Result<Option<String>, Unusable> {
    // What is no text is replaced and not left out: a token beside it would stay, and pass for none.
    let offered: Vec<String> = headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .into_iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        .collect();
    let offered = offered
        .iter()
        .flat_map(|value| value.split(','))
        .map(str::trim);
    let (tokens, others): (Vec<_>, Vec<_>) =
        offered.partition(|protocol| protocol.starts_with(SUBPROTOCOL_PREFIX));
    let Some(token) = tokens.first() else {
        return Ok(None);
    };
    // The token itself is no protocol that the two ends could speak: another one has to stand beside it.
    let token = (tokens.len() == 1 && !others.is_empty())
        .then(|| token.strip_prefix(SUBPROTOCOL_PREFIX))
        .flatten()
        .and_then(|encoded| URL_SAFE_NO_PAD.decode(encoded).ok())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .filter(|token| !token.is_empty())
        .ok_or(Unusable::Subprotocol);
    let others = others.join(", ");
    match HeaderValue::try_from(others) {
        Ok(others) if !others.is_empty() => {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, others);
        }
        _ => {
            headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
        }
    }
    token.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_headers(name: header::HeaderName, values: &[&str]) -> HeaderMap {
        values
            .iter()
            .map(|value| (name.clone(), value.parse().unwrap()))
            .collect()
    }

    #[track_caller]
    fn bearer_is(value: impl AsRef<[u8]>, expected: Result<Option<&str>, Unusable>) {
        let value = HeaderValue::from_bytes(value.as_ref()).unwrap();
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.clone())]);
        assert_eq!(bearer(&headers), expected, "{value:?}");
    }

    #[test]
    fn only_the_bearer_scheme_is_a_credential() {
        for one in ["Bearer abc", "bEARER abc", " Bearer abc ", "Bearer abc def"] {
            bearer_is(one, Ok(Some("abc")));
        }
        bearer_is("Bearer \u{fc}", Ok(Some("\u{fc}")));
        for none in ["", "Basic YWJj", "abc", "bearerabc", "\u{fc}"] {
            bearer_is(none, Ok(None));
        }
        bearer_is(b"Basic \xff", Ok(None));
        assert_eq!(bearer(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn a_bearer_whose_token_is_none_is_not_nobody() {
        for unusable in ["Bearer", "Bearer  abc", "bearer\t"] {
            bearer_is(unusable, Err(Unusable::Bearer));
        }
        for unusable in [&b"Bearer \xff"[..], b"bearer abc\x80", b"Bearer \xc3"] {
            bearer_is(unusable, Err(Unusable::Bearer));
        }
    }

    #[track_caller]
    fn subprotocol(offered: &[&str], token: Result<Option<&str>, Unusable>, left: &[&str]) {
        let mut headers = mk_headers(header::SEC_WEBSOCKET_PROTOCOL, offered);
        assert_eq!(
            take_subprotocol(&mut headers),
            token.map(|token| token.map(str::to_owned))
        );
        assert_eq!(
            headers,
            mk_headers(header::SEC_WEBSOCKET_PROTOCOL, left),
            "{offered:?}"
        );
    }

    #[test]
    fn a_token_among_subprotocols_is_taken_out() {
        // "abc" is YWJj.
        let token = "base64url.bearer.authorization.k8s.io.YWJj";
        subprotocol(&[], Ok(None), &[]);
        subprotocol(&["v5.channel.k8s.io"], Ok(None), &["v5.channel.k8s.io"]);
        subprotocol(
            &[token, "v5.channel.k8s.io"],
            Ok(Some("abc")),
            &["v5.channel.k8s.io"],
        );
        subprotocol(&[&format!("v4, {token},v5")], Ok(Some("abc")), &["v4, v5"]);
        subprotocol(&[token], Err(Unusable::Subprotocol), &[]);
        subprotocol(&[token, token, "v5"], Err(Unusable::Subprotocol), &["v5"]);
        subprotocol(
            &["base64url.bearer.authorization.k8s.io.", "v5"],
            Err(Unusable::Subprotocol),
            &["v5"],
        );
        subprotocol(
            &["base64url.bearer.authorization.k8s.io.?", "v5"],
            Err(Unusable::Subprotocol),
            &["v5"],
        );
        // Beside something that is no ASCII it is a token as well.
        subprotocol(&[&format!("{token}, \u{fc}")], Ok(Some("abc")), &["\u{fc}"]);
        subprotocol(
            &["base64url.bearer.authorization.k8s.io.\u{fc}", "v5"],
            Err(Unusable::Subprotocol),
            &["v5"],
        );
    }

    #[test]
    fn a_token_for_somebody_else_is_nobodys() {
        let status = |authenticated, granted: Option<&str>| v1::TokenReviewStatus {
            authenticated: Some(authenticated),
            audiences: granted.map(|audience| vec![audience.to_owned()]),
            user: Some(v1::UserInfo {
                username: Some("ann".to_owned()),
                ..v1::UserInfo::default()
            }),
            error: None,
        };
        let agent = ["sandbox-agent".to_owned()];
        assert_eq!(
            user(status(true, None), &[]).unwrap().groups,
            ["system:authenticated"]
        );
        assert!(user(status(true, Some("sandbox-agent")), &agent).is_some());
        assert_eq!(user(status(true, Some("api")), &agent), None);
        // An authenticator that knows of no audiences has not checked ours.
        assert_eq!(user(status(true, None), &agent), None);
        assert_eq!(user(status(false, None), &[]), None);
    }
}
