//! Which request is which endpoint: the daemon's mux, with the routes that each generation has.

use std::borrow::Cow;

use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use super::{
    Generation::{self, A, B, C, Early},
    reply::Reply,
};

/// What a request is for. The class of its credentials stands beside it in [`super::endpoints`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Claim,
    Release,
    Hibernate,
    Wake,
    Renew,
    Fork,
    Promote,
    Checkpoint,
    Preview,
    List,
    Get,
    Stats,
    Owner,
    Info,
    Peers,
    Volumes,
    Healthz,
    Metrics,
    PutPools,
    Drain,
    Undrain,
    Reload,
    CheckpointClaim,
    Checkpoints,
    DeleteCheckpoint,
    DeleteTemplate,
    PutLabels,
    GetEnv,
    PutEnv,
    PatchEnv,
    DeleteEnv,
    InstanceMetadata,
    Exec,
    Agent,
    Port,
}

/// First and last generation, method, path with `{}` for one segment.
type Route = (Generation, Generation, &'static str, &'static str, Endpoint);

const ROUTES: [Route; 35] = [
    (Early, C, "POST", "/v1/claim", Endpoint::Claim),
    (Early, C, "GET", "/v1/sandboxes", Endpoint::List),
    (Early, C, "GET", "/v1/sandboxes/{}", Endpoint::Get),
    (
        Early,
        C,
        "POST",
        "/v1/sandboxes/{}/release",
        Endpoint::Release,
    ),
    (
        Early,
        C,
        "POST",
        "/v1/sandboxes/{}/hibernate",
        Endpoint::Hibernate,
    ),
    (Early, C, "POST", "/v1/sandboxes/{}/wake", Endpoint::Wake),
    (A, C, "POST", "/v1/sandboxes/{}/renew", Endpoint::Renew),
    (Early, C, "POST", "/v1/sandboxes/{}/fork", Endpoint::Fork),
    (
        Early,
        C,
        "POST",
        "/v1/sandboxes/{}/promote",
        Endpoint::Promote,
    ),
    (
        Early,
        C,
        "POST",
        "/v1/sandboxes/{}/checkpoint",
        Endpoint::Checkpoint,
    ),
    (
        Early,
        C,
        "POST",
        "/v1/sandboxes/{}/preview",
        Endpoint::Preview,
    ),
    (Early, C, "GET", "/v1/sandboxes/{}/stats", Endpoint::Stats),
    (Early, C, "GET", "/v1/sandboxes/{}/owner", Endpoint::Owner),
    (A, C, "POST", "/v1/sandboxes/{}/exec", Endpoint::Exec),
    (Early, C, "GET", "/v1/sandboxes/{}/agent", Endpoint::Agent),
    (A, C, "GET", "/v1/sandboxes/{}/ports/{}", Endpoint::Port),
    (B, C, "GET", "/v1/sandboxes/{}/env", Endpoint::GetEnv),
    (B, C, "PUT", "/v1/sandboxes/{}/env", Endpoint::PutEnv),
    (B, B, "DELETE", "/v1/sandboxes/{}/env", Endpoint::DeleteEnv),
    (C, C, "PATCH", "/v1/sandboxes/{}/env", Endpoint::PatchEnv),
    (
        B,
        C,
        "PUT",
        "/v1/sandboxes/{}/instance-metadata",
        Endpoint::InstanceMetadata,
    ),
    (Early, C, "GET", "/v1/info", Endpoint::Info),
    (Early, C, "GET", "/v1/peers", Endpoint::Peers),
    (A, C, "GET", "/v1/volumes", Endpoint::Volumes),
    (Early, C, "GET", "/healthz", Endpoint::Healthz),
    (Early, C, "GET", "/metrics", Endpoint::Metrics),
    (Early, C, "PUT", "/v1/pools", Endpoint::PutPools),
    (Early, C, "POST", "/v1/drain", Endpoint::Drain),
    (Early, C, "DELETE", "/v1/drain", Endpoint::Undrain),
    (C, C, "POST", "/v1/config/reload", Endpoint::Reload),
    (
        Early,
        C,
        "POST",
        "/v1/checkpoints/{}/claim",
        Endpoint::CheckpointClaim,
    ),
    (Early, C, "GET", "/v1/checkpoints", Endpoint::Checkpoints),
    (
        Early,
        C,
        "DELETE",
        "/v1/checkpoints/{}",
        Endpoint::DeleteCheckpoint,
    ),
    (
        Early,
        C,
        "DELETE",
        "/v1/templates",
        Endpoint::DeleteTemplate,
    ),
    (B, C, "PUT", "/v1/templates/labels", Endpoint::PutLabels),
];

/// The endpoint and the segments that stand for `{}`, or the mux's own plain-text refusal.
pub(super) fn route<'p>(
    generation: Generation,
    method: &Method,
    path: &'p str,
) -> Result<(Endpoint, Vec<Cow<'p, str>>), Reply> {
    // As Go's mux, a GET route also takes HEAD.
    let method = if method == Method::HEAD {
        "GET"
    } else {
        method.as_str()
    };
    let mut path_exists = false;
    for &(first, last, its_method, pattern, endpoint) in &ROUTES {
        if !(first..=last).contains(&generation) {
            continue;
        }
        let Some(segments) = fit(pattern, path) else {
            continue;
        };
        if its_method == method {
            return Ok((endpoint, segments));
        }
        path_exists = true;
    }
    Err(if path_exists {
        Reply::plain(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n")
    } else {
        Reply::plain(StatusCode::NOT_FOUND, "404 page not found\n")
    })
}

fn fit<'p>(pattern: &str, path: &'p str) -> Option<Vec<Cow<'p, str>>> {
    let (mut wanted, mut found) = (pattern.split('/'), path.split('/'));
    let mut segments = Vec::new();
    loop {
        match (wanted.next(), found.next()) {
            (None, None) => return Some(segments),
            (Some("{}"), Some(segment)) if !segment.is_empty() => {
                segments.push(percent_decode_str(segment).decode_utf8_lossy());
            }
            (Some(one), Some(other)) if one == other => {}
            _ => return None,
        }
    }
}

/// Names and values of a query, decoded as a form is.
pub(super) fn query(text: &str) -> Vec<(String, String)> {
    let decode = |part: &str| {
        percent_decode_str(&part.replace('+', " "))
            .decode_utf8_lossy()
            .into_owned()
    };
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(generation: Generation, method: Method, path: &str, expected: Result<Endpoint, u16>) {
        let found = route(generation, &method, path);
        let found = found
            .map(|(endpoint, _)| endpoint)
            .map_err(|reply| reply.status.as_u16());
        assert_eq!(found, expected, "{method} {path}");
    }

    #[test]
    fn a_generation_hides_what_came_later() {
        check(Early, Method::POST, "/v1/sandboxes/sb_1/renew", Err(404));
        check(
            A,
            Method::POST,
            "/v1/sandboxes/sb_1/renew",
            Ok(Endpoint::Renew),
        );
        check(A, Method::GET, "/v1/sandboxes/sb_1/env", Err(404));
        check(
            B,
            Method::DELETE,
            "/v1/sandboxes/sb_1/env",
            Ok(Endpoint::DeleteEnv),
        );
        check(C, Method::DELETE, "/v1/sandboxes/sb_1/env", Err(405));
        check(B, Method::PATCH, "/v1/sandboxes/sb_1/env", Err(405));
    }

    #[test]
    fn paths_fit_whole_and_segments_are_decoded() {
        check(B, Method::GET, "/v1/sandboxes/", Err(404));
        check(B, Method::GET, "/v1/claim", Err(405));
        check(B, Method::HEAD, "/healthz", Ok(Endpoint::Healthz));
        let (_, segments) = route(B, &Method::GET, "/v1/sandboxes/a%2Fb/ports/80").unwrap();
        assert_eq!(segments, ["a/b", "80"]);
    }

    #[test]
    fn a_query_is_a_form() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            query("claim_ref=a%2Fb+c&x&metadata=k%3Dv"),
            [
                pair("claim_ref", "a/b c"),
                pair("x", ""),
                pair("metadata", "k=v")
            ]
        );
    }
}
