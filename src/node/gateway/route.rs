//! The gateway's two routes.

use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;

use super::{
    Gateway,
    answer::{Granted, Refusal, created, gone},
    request::{ClaimBody, namespace},
};
use crate::{
    api::ClaimId,
    auth::{Authorizer, Identity, Unauthorized},
    node::server::Body,
};

/// Bytes of a body: three names and a selector are some hundred.
const MAX_BODY: usize = 16 << 10;
/// How long a body may take to come.
const BODY_WITHIN: Duration = Duration::from_secs(5);

/// What is asked of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::node) enum Route {
    Claims,
    Claim(ClaimId),
}

impl Route {
    /// The route of a path, if it is the gateway's.
    pub(in crate::node) fn of(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("/v1/claims")?;
        match rest.strip_prefix('/') {
            Some(claim) => {
                let claim = percent_encoding::percent_decode_str(claim).decode_utf8_lossy();
                Some(Self::Claim(claim.as_ref().into()))
            }
            None => rest.is_empty().then_some(Self::Claims),
        }
    }
}

impl Gateway {
    /// Answers a request of a caller who is known, or is not.
    pub(in crate::node) async fn answer(
        &self,
        route: Route,
        caller: Result<&Identity, Unauthorized>,
        authorizer: &Authorizer,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let caller = match caller {
            // Who shows nothing is nobody here, whatever probes may do.
            Ok(caller) if caller.user.is_anonymous() => Err(Refusal::Unauthorized),
            Ok(caller) => Ok(caller),
            Err(Unauthorized::Refused) => Err(Refusal::Unauthorized),
            Err(Unauthorized::Unasked) => Err(Refusal::Unasked),
        };
        match route {
            Route::Claims => {
                let claimed = self.take(caller, authorizer, request).await;
                let outcome = claimed.as_ref().map_or_else(Refusal::outcome, |_| "ok");
                self.0.metrics.claimed(outcome);
                claimed.map_or_else(Refusal::into_response, |granted| created(&granted))
            }
            Route::Claim(claim) => {
                let released = self.put_back(&claim, caller, authorizer, request).await;
                let outcome = released.as_ref().map_or_else(Refusal::outcome, |()| "ok");
                self.0.metrics.released(outcome);
                released.map_or_else(Refusal::into_response, |()| gone())
            }
        }
    }

    async fn take(
        &self,
        caller: Result<&Identity, Refusal>,
        authorizer: &Authorizer,
        request: Request<Incoming>,
    ) -> Result<Granted, Refusal> {
        let caller = caller?;
        if request.method() != Method::POST {
            return Err(Refusal::Method);
        }
        let body = ClaimBody::decode(&read(request).await?)?;
        let access = &self.0.access;
        let check = access.check(authorizer, caller, &access.create_verb, &body.namespace);
        check.await?;
        let pool = self.0.pools.key_of(&body.namespace, &body.warm_pool);
        let order = body.clone().order(pool.await?)?;
        self.claim(order).await
    }

    async fn put_back(
        &self,
        claim: &ClaimId,
        caller: Result<&Identity, Refusal>,
        authorizer: &Authorizer,
        request: Request<Incoming>,
    ) -> Result<(), Refusal> {
        let caller = caller?;
        if request.method() != Method::DELETE {
            return Err(Refusal::Method);
        }
        let namespace = namespace(request.uri().query(), &caller.user)?;
        let access = &self.0.access;
        let check = access.check(authorizer, caller, &access.delete_verb, &namespace);
        check.await?;
        self.release(&namespace, claim).await
    }
}

/// What an agent without a gateway answers.
pub(in crate::node) fn no_gateway() -> Response<Body> {
    Refusal::NoGateway.into_response()
}

async fn read(request: Request<Incoming>) -> Result<bytes::Bytes, Refusal> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    match timeout(BODY_WITHIN, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(Refusal::TooLarge { limit: MAX_BODY })
        }
        Ok(Err(_)) => Err(Refusal::BadRequest {
            text: "the body cannot be read".to_owned(),
        }),
        Err(_) => Err(Refusal::Slow),
    }
}
