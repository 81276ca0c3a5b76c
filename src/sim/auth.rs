//! Who calls a node, by the daemon's classes of credentials: root, tenant, sandbox.

use http::{HeaderMap, header};

use super::{
    Options, Refusal,
    claim::{Number, Owner},
    daemon::Daemon,
};

/// Who calls a route for root and tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Holds the node's `api_token`.
    Root,
    Tenant(Owner),
    /// The node asks nobody for a token. Such a caller has no power over a sandbox by its id.
    Anyone,
}

impl Caller {
    /// Whose a new claim is, and whose rows are seen.
    pub(super) fn owner(self) -> Owner {
        match self {
            Self::Root | Self::Anyone => Owner::ROOT,
            Self::Tenant(owner) => owner,
        }
    }
}

/// The token of `Authorization: Bearer`, matched literally and not empty.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    value
        .strip_prefix("Bearer ")
        .filter(|token| !token.is_empty())
}

fn is_root(options: &Options, token: &str) -> bool {
    options
        .api_token
        .as_ref()
        .is_some_and(|root| root.expose() == token)
}

/// Class N: root or a tenant.
pub(super) fn root_or_tenant(options: &Options, headers: &HeaderMap) -> Result<Caller, Refusal> {
    if options.api_token.is_none() && options.tenants.is_empty() {
        return Ok(Caller::Anyone);
    }
    let token = bearer(headers).unwrap_or_default();
    if is_root(options, token) {
        return Ok(Caller::Root);
    }
    let tenant = options
        .tenants
        .iter()
        .position(|tenant| tenant.token.expose() == token);
    tenant
        .map(|index| Caller::Tenant(Owner::tenant(index)))
        .ok_or_else(|| Refusal::unauthorized("invalid api token"))
}

/// Class R: root only.
pub(super) fn root(options: &Options, headers: &HeaderMap) -> Result<Caller, Refusal> {
    match root_or_tenant(options, headers)? {
        Caller::Tenant(_) => Err(Refusal::forbidden("operator token required")),
        caller => Ok(caller),
    }
}

/// The token for class S, where its absence is told before anything else.
pub(super) fn sandbox_token(headers: &HeaderMap) -> Result<&str, Refusal> {
    bearer(headers).ok_or_else(|| Refusal::unauthorized("missing bearer token"))
}

/// Class S: the sandbox's own token. A wrong one looks like an unknown id.
pub(super) fn sandbox(
    daemon: &Daemon<'_>,
    headers: &HeaderMap,
    id: &str,
) -> Result<Number, Refusal> {
    daemon.find_with_token(id, sandbox_token(headers)?)
}

/// Class SR: the sandbox's own token, or root by id.
pub(super) fn sandbox_or_root(
    daemon: &Daemon<'_>,
    headers: &HeaderMap,
    id: &str,
) -> Result<Number, Refusal> {
    let token = sandbox_token(headers)?;
    if is_root(&daemon.world.options, token) {
        daemon.find(id)
    } else {
        daemon.find_with_token(id, token)
    }
}

/// Class NB: after class N, the sandbox's token in the body; root may leave it empty and act by id.
pub(super) fn body_token(
    daemon: &Daemon<'_>,
    caller: Caller,
    token: &str,
    id: &str,
) -> Result<Number, Refusal> {
    if caller == Caller::Root && token.is_empty() {
        daemon.find(id)
    } else {
        daemon.find_with_token(id, token)
    }
}
