//! Who a request comes from: the front proxy's headers, else the client's certificate, else its token, else nobody.

use std::{collections::HashMap, error::Error as StdError, sync::Arc};

use http::HeaderMap;
use rustls::pki_types::UnixTime;
use sha2::{Digest, Sha256};

use crate::serving::Connection;

use super::{
    AuthMetrics, ClientTrust, Identity, Origin, Result, TokenReviewer, UserInfo,
    config_map::Trust,
    judgement::{Judgement, Standing},
    request_header::strip_standard,
    token::{bearer, take_subprotocol},
};

/// A credential was shown and is not good, or none was shown where one is needed. Answered with 401 and no more: the reason is
/// for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorized {
    /// The credential is not good.
    #[error("Unauthorized")]
    Refused,
    /// kube-apiserver could not be asked about a token: nobody knows whether it is good. A built-in API answers this with 401 too.
    #[error("Unauthorized")]
    Unasked,
}

/// Finds out who a request comes from.
#[derive(Debug)]
pub struct Authenticator {
    source: Source,
    anonymous: Option<Arc<UserInfo>>,
    metrics: AuthMetrics,
}

/// Who knows the users.
#[derive(Debug)]
enum Source {
    /// kube-apiserver.
    Delegated {
        trust: Arc<ClientTrust>,
        tokens: TokenReviewer,
    },
    /// This list, by the SHA-256 of their tokens: comparing digests tells nothing about how much of a guess was right.
    Static(HashMap<[u8; 32], Arc<UserInfo>>),
}

/// What is known so far about a request that shows several credentials: one good one is enough, and a bad one only counts when
/// there is no good one.
#[derive(Default)]
struct Shown {
    refused: bool,
    /// Whether one of those that were refused may be good.
    unasked: bool,
}

impl Authenticator {
    /// Asks kube-apiserver: certificates by what it publishes, tokens by review. With `anonymous`, who shows no credential is
    /// `system:anonymous`.
    pub fn delegated(
        trust: Arc<ClientTrust>,
        tokens: TokenReviewer,
        anonymous: bool,
        metrics: AuthMetrics,
    ) -> Self {
        Self::new(Source::Delegated { trust, tokens }, anonymous, metrics)
    }

    /// Knows exactly these tokens and users. For a server without a cluster.
    pub fn fixed(users: impl IntoIterator<Item = (String, UserInfo)>, anonymous: bool) -> Self {
        let by_digest = users.into_iter().map(|(token, mut user)| {
            user.mark_authenticated();
            (Sha256::digest(token).into(), Arc::new(user))
        });
        Self::new(
            Source::Static(by_digest.collect()),
            anonymous,
            AuthMetrics::default(),
        )
    }

    fn new(source: Source, anonymous: bool, metrics: AuthMetrics) -> Self {
        Self {
            source,
            anonymous: anonymous.then(|| Arc::new(UserInfo::anonymous())),
            metrics,
        }
    }

    /// Who the request with these `headers` on `connection` comes from.
    ///
    /// Afterwards, whatever the outcome, no credential and no identity header is left in `headers`, so that nothing behind this
    /// call can log, believe or pass on one.
    ///
    /// # Errors
    /// [`Unauthorized::Refused`] when a credential was shown and none is good, or none was shown and anonymous requests are off;
    /// [`Unauthorized::Unasked`] when kube-apiserver could not be asked about a token.
    pub async fn authenticate(
        &self,
        headers: &mut HeaderMap,
        connection: &Connection,
    ) -> Result<Identity, Unauthorized> {
        let mut shown = Shown::default();
        let trust = match &self.source {
            Source::Delegated { trust, .. } => trust.current(),
            Source::Static(_) => Arc::default(),
        };
        let identity = match shown.certificate(headers, connection, &trust) {
            Some(identity) => {
                // A token beside the certificate is not looked at, and must not stay either.
                let _ = take_subprotocol(headers);
                Some(identity)
            }
            None => shown.tokens(headers, &self.source).await,
        };
        if identity.is_some() {
            connection.identified();
        }
        strip_standard(headers);
        if let Some(request_header) = &trust.request_header {
            request_header.strip(headers);
        }
        let anonymous = || self.anonymous.clone().filter(|_| !shown.refused);
        identity.or_else(|| anonymous().map(direct)).ok_or_else(|| {
            self.metrics.unauthorized.inc();
            match shown.unasked {
                true => Unauthorized::Unasked,
                false => Unauthorized::Refused,
            }
        })
    }
}

impl Shown {
    fn certificate(
        &mut self,
        headers: &HeaderMap,
        connection: &Connection,
        trust: &Trust,
    ) -> Option<Identity> {
        let judgement = Judgement::on(connection, trust, UnixTime::now());
        match (&judgement.proxy, &trust.request_header) {
            (Standing::Trusted(()), Some(request_header)) => match request_header.user(headers) {
                Ok(Some(mut user)) => {
                    user.mark_authenticated();
                    return Some(Identity {
                        user: Arc::new(user),
                        origin: Origin::Proxied,
                    });
                }
                Ok(None) => {}
                Err(reason) => self.refuse(&reason),
            },
            (Standing::Refused(reason), _) => self.refuse(reason),
            _ => {}
        }
        match &judgement.client {
            Standing::Trusted(user) => return Some(direct(user.clone())),
            Standing::Refused(reason) => self.refuse(reason),
            Standing::Absent => {}
        }
        None
    }

    async fn tokens(&mut self, headers: &mut HeaderMap, source: &Source) -> Option<Identity> {
        let subprotocol = take_subprotocol(headers);
        let shown = [
            bearer(headers),
            subprotocol
                .as_ref()
                .map(Option::as_deref)
                .map_err(|bad| *bad),
        ];
        for token in shown {
            let token = match token {
                Ok(Some(token)) => token,
                Ok(None) => continue,
                Err(reason) => {
                    self.refuse(&reason);
                    continue;
                }
            };
            match source.user_of(token).await {
                Ok(Some(user)) => return Some(direct(user)),
                Ok(None) => self.refused = true,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn StdError, "token not reviewed");
                    (self.refused, self.unasked) = (true, true);
                }
            }
        }
        None
    }

    fn refuse(&mut self, reason: &(dyn StdError + 'static)) {
        tracing::debug!(reason, "credential refused");
        self.refused = true;
    }
}

impl Source {
    async fn user_of(&self, token: &str) -> Result<Option<Arc<UserInfo>>> {
        match self {
            Self::Delegated { tokens, .. } => tokens.review(token).await,
            Self::Static(users) => {
                let digest: [u8; 32] = Sha256::digest(token).into();
                Ok(users.get(&digest).cloned())
            }
        }
    }
}

fn direct(user: Arc<UserInfo>) -> Identity {
    Identity {
        user,
        origin: Origin::Direct,
    }
}
