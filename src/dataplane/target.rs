//! What a request is about, told by its head: the sandbox by headers, what is done by the path.

use std::time::Duration;

use http::{HeaderMap, Method, request::Parts};

use super::path::GuestPath;
use crate::{api::SandboxKey, apiserver::Status, fleet::is_sandbox_name, meta::is_dns1123_label};

/// Below which path the routes are; the SDKs' `api_url` ends with it.
pub(super) const PATH: &str = "/sandbox-router";
/// The port of the runtime whose routes these are.
const PORT: &str = "8888";
const NAMESPACE: &str = "default";
/// Longest that a call may take, as of the SDKs' router. A client may ask for less.
const LONGEST: Duration = Duration::from_secs(180);

/// What is done in a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Execute,
    Upload,
    Download,
    List,
    Exists,
}

impl Action {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Execute => "execute",
            Self::Upload => "upload",
            Self::Download => "download",
            Self::List => "list",
            Self::Exists => "exists",
        }
    }

    /// Whether a file goes one way or the other.
    pub(super) fn is_transfer(self) -> bool {
        matches!(self, Self::Upload | Self::Download)
    }
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Whether anybody is there.
    Health,
    Execute,
    Upload,
    Download(GuestPath),
    List(GuestPath),
    Exists(GuestPath),
}

/// Which sandbox, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) key: SandboxKey,
    pub(super) within: Duration,
}

impl Route {
    /// # Errors
    /// 404 for a path that leads nowhere, 405 for a method that it does not know, 400 for what is no path in a guest.
    pub(super) fn read(head: &Parts) -> Result<Self, Status> {
        let path = head.uri.path().strip_prefix(PATH).unwrap_or_default();
        let (first, rest) = match path.trim_start_matches('/').split_once('/') {
            Some((first, rest)) => (first, Some(rest)),
            None => (path.trim_start_matches('/'), None),
        };
        let place = || GuestPath::decode(rest.unwrap_or_default());
        let (method, route) = match (first, rest) {
            ("healthz", None) => (Method::GET, Self::Health),
            ("execute", None) => (Method::POST, Self::Execute),
            ("upload", None) => (Method::POST, Self::Upload),
            ("download", Some(_)) => (Method::GET, Self::Download(place()?.of_file()?)),
            ("list", _) => (Method::GET, Self::List(place()?)),
            ("exists", _) => (Method::GET, Self::Exists(place()?)),
            _ => return Err(Status::resource_not_found()),
        };
        match head.method == method {
            true => Ok(route),
            false => Err(Status::method_unknown(head.method.as_str())),
        }
    }

    /// What it does in a sandbox, if anything.
    pub(super) fn action(&self) -> Option<Action> {
        Some(match self {
            Self::Health => return None,
            Self::Execute => Action::Execute,
            Self::Upload => Action::Upload,
            Self::Download(_) => Action::Download,
            Self::List(_) => Action::List,
            Self::Exists(_) => Action::Exists,
        })
    }
}

impl Target {
    /// # Errors
    /// 400 for headers that name no sandbox, another port than that of these routes, or no time. `X-Sandbox-Pod-IP` is not looked
    /// at: who calls does not choose where a call goes.
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, Status> {
        let name = text(headers, "x-sandbox-id")?
            .ok_or_else(|| Status::bad_request("the header X-Sandbox-ID is missing"))?;
        if !is_sandbox_name(name) {
            return Err(Status::bad_request("X-Sandbox-ID is no name of a sandbox"));
        }
        let namespace = text(headers, "x-sandbox-namespace")?.unwrap_or(NAMESPACE);
        if !is_dns1123_label(namespace) {
            let text = "X-Sandbox-Namespace is no name of a namespace";
            return Err(Status::bad_request(text));
        }
        if text(headers, "x-sandbox-port")?.is_some_and(|port| port != PORT) {
            let text = format!("only port {PORT} of a sandbox is served, that of its runtime");
            return Err(Status::bad_request(text));
        }
        let asked = text(headers, "x-sandbox-timeout")?
            .map(seconds)
            .transpose()?;
        Ok(Self {
            key: SandboxKey::new(namespace, name),
            within: asked.map_or(LONGEST, |asked| asked.min(LONGEST)),
        })
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Status> {
    let value = headers.get(name).map(|value| value.to_str());
    let value = value.transpose();
    value.map_err(|_| Status::bad_request(format!("the header {name} is no text")))
}

fn seconds(text: &str) -> Result<Duration, Status> {
    let seconds = text.parse::<f64>().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| Status::bad_request("X-Sandbox-Timeout is no time in seconds"))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[track_caller]
    fn check(method: &str, path: &str, expected: Result<Route, u16>) {
        let request = Request::builder().method(method).uri(path).body(());
        let (head, ()) = request.unwrap().into_parts();
        let route = Route::read(&head).map_err(|status| status.code().as_u16());
        assert_eq!(route, expected, "{method} {path}");
    }

    #[track_caller]
    fn check_target(headers: &[(&'static str, &str)], expected: Result<(&str, u64), &str>) {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        let target = Target::read(&headers);
        let target = target.map(|target| (target.key.to_string(), target.within.as_millis()));
        let target = target.map_err(|status| status.message().to_owned());
        let expected = expected.map(|(key, millis)| (key.to_owned(), u128::from(millis)));
        assert_eq!(target, expected.map_err(str::to_owned), "{headers:?}");
    }

    #[test]
    fn paths_lead_to_actions() {
        let path = |text: &str| GuestPath::read(text).unwrap();
        check("GET", "/sandbox-router/healthz", Ok(Route::Health));
        check("POST", "/sandbox-router/execute", Ok(Route::Execute));
        check("POST", "/sandbox-router/upload?x=y", Ok(Route::Upload));
        let download = Ok(Route::Download(path("a/b")));
        check("GET", "/sandbox-router/download/a%2Fb", download.clone());
        check("GET", "/sandbox-router/download/a/b", download);
        for root in ["list", "list/", "list/%2E", "list/%2F"] {
            let list = Ok(Route::List(path("/")));
            check("GET", &format!("/sandbox-router/{root}"), list);
        }
        check(
            "GET",
            "/sandbox-router/exists/a",
            Ok(Route::Exists(path("a"))),
        );
        check("GET", "/sandbox-router/exists/..%2Fa", Err(400));
        check("GET", "/sandbox-router/download/", Err(400));
        check("GET", "/sandbox-router/download", Err(404));
        check("GET", "/sandbox-router/", Err(404));
        check("POST", "/sandbox-router/execute/", Err(404));
        check("GET", "/sandbox-router/execute", Err(405));
        check("DELETE", "/sandbox-router/download/a", Err(405));
    }

    #[test]
    fn headers_name_a_sandbox_and_an_end() {
        let id = ("x-sandbox-id", "box");
        check_target(&[id], Ok(("default/box", 180_000)));
        check_target(
            &[
                id,
                ("x-sandbox-namespace", "team"),
                ("x-sandbox-port", "8888"),
                ("x-sandbox-timeout", "1.5"),
                ("x-sandbox-pod-ip", "169.254.169.254"),
            ],
            Ok(("team/box", 1_500)),
        );
        check_target(
            &[id, ("x-sandbox-timeout", "3600")],
            Ok(("default/box", 180_000)),
        );
        check_target(&[], Err("the header X-Sandbox-ID is missing"));
        check_target(
            &[("x-sandbox-id", "../a")],
            Err("X-Sandbox-ID is no name of a sandbox"),
        );
        check_target(
            &[id, ("x-sandbox-namespace", "A")],
            Err("X-Sandbox-Namespace is no name of a namespace"),
        );
        check_target(
            &[id, ("x-sandbox-port", "80")],
            Err("only port 8888 of a sandbox is served, that of its runtime"),
        );
        for time in ["0", "-1", "nan", "inf", "1e400", "soon", ""] {
            let error = Err("X-Sandbox-Timeout is no time in seconds");
            check_target(&[id, ("x-sandbox-timeout", time)], error);
        }
    }
}
