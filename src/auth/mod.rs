//! Who calls, and what they may.
//!
//! Both questions are Kubernetes' to answer. Who: kube-apiserver's front-proxy certificate vouches for the identity headers
//! beside it, a client certificate for its own subject, a TokenReview for a bearer token. What: a SubjectAccessReview, for
//! every request, also for those that kube-apiserver has authorized before it passed them on.
//!
//! Everything fails closed: an unreadable trust anchor trusts nobody, a failed review allows nothing, a wrong credential is
//! never anonymous. Answers are kept for ten seconds, as kube-apiserver's own delegates do, under the SHA-256 of the whole
//! question. That was preferred to the question itself, compared on every hit: the key has a fixed size, so that 8 192 answers
//! for users with a thousand groups need no more memory than for others, no token is kept, and the digest of a service
//! account's question takes 0.5 µs.

mod answers;
mod attributes;
mod authenticator;
mod authorizer;
mod certificate;
mod config_map;
mod error;
mod impersonation;
mod judgement;
mod metrics;
mod request_header;
mod review;
mod token;
mod user;

pub use attributes::{Attributes, ResourceAttributes};
pub use authenticator::{Authenticator, Unauthorized};
pub use authorizer::{Authorizer, Decision};
pub use config_map::{ClientTrust, WhenUnreadable};
pub use error::{Error, Result};
pub use impersonation::{Impersonated, ImpersonationError, impersonate};
pub use metrics::AuthMetrics;
pub use token::TokenReviewer;
pub use user::{Identity, Origin, UserInfo};
