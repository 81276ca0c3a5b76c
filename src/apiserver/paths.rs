//! Paths that are no resource's: health, metrics, version.

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::{Body, ProductInfo, body::response};
use crate::telemetry::{METRICS_CONTENT_TYPE, Metrics, Probe, Readiness};

const TEXT: &str = "text/plain; charset=utf-8";

/// Whether everybody may ask, whoever they are, so that probes need no credential.
pub(super) fn is_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/livez" | "/readyz")
}

/// The answer to a health path or to one of its checks; `None` when the path is none, or the check is not known.
pub(super) fn health(readiness: &Readiness, path: &str, query: &str) -> Option<Response<Body>> {
    let (probe, check) = match path.trim_start_matches('/').split_once('/') {
        Some((probe, check)) => (probe, Some(check)),
        None => (path.trim_start_matches('/'), None),
    };
    let probe = match probe {
        "healthz" => Probe::Healthz,
        "livez" => Probe::Livez,
        "readyz" => Probe::Readyz,
        _ => return None,
    };
    let answer = match check {
        Some(check) => readiness.answer_one(probe, check)?,
        None => readiness.answer(probe, query),
    };
    let code = if answer.healthy {
        StatusCode::OK
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    Some(text(code, answer.text))
}

pub(super) fn metrics(metrics: &Metrics) -> Response<Body> {
    response(
        StatusCode::OK,
        METRICS_CONTENT_TYPE,
        Body::whole(metrics.encode()),
    )
}

pub(super) fn version(product: &ProductInfo) -> Response<Body> {
    let (major, minor) = product.kubernetes;
    let version = json!({
        "major": major.to_string(),
        "minor": minor.to_string(),
        "gitVersion": format!("v{major}.{minor}.0+{}-{}", product.name, product.version),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    });
    response(
        StatusCode::OK,
        "application/json",
        Body::whole(version.to_string()),
    )
}

pub(super) fn not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
}

fn text(code: StatusCode, text: String) -> Response<Body> {
    let mut answer = response(code, TEXT, Body::whole(text));
    answer.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    answer
}
